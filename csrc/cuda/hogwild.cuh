// Device kernels of the shared token state, on raw pointers.
#pragma once

#include "hogwild.h"

#include <cuda_runtime_api.h>

namespace scone::hogwild {

// One thread block per row.
__global__ void read_kernel(State state, std::int64_t* tokens, std::int64_t* versions) {
  for (std::int64_t row = blockIdx.x; row < state.rows; row += gridDim.x) {
    const std::int64_t offset = row * state.positions;
    read_row(state, row, tokens + offset, versions + offset, threadIdx.x, blockDim.x);
  }
}

// One thread block per block of tokens. The host cannot check values without waiting for the device: a block that does
// not lie within the state, or has a token outside 32 bits, is left out whole and its staleness is -1.
__global__ void write_kernel(State state, Blocks blocks, std::int64_t* staleness) {
  for (std::int64_t block = blockIdx.x; block < blocks.count; block += gridDim.x) {
    std::int64_t* own = staleness + block * state.positions;
    bool fits = blocks.inside(state, block);
    for (std::int64_t offset = threadIdx.x; offset < blocks.size; offset += blockDim.x) {
      fits = fits && blocks.token_fits(block, offset);
    }
    if (!__syncthreads_and(fits)) {
      for (std::int64_t p = threadIdx.x; p < state.positions; p += blockDim.x) own[p] = -1;
      continue;
    }
    publish_block(state, blocks, block, own, threadIdx.x, blockDim.x);
    __syncthreads();  // every token is published before any thread looks back
    look_back(state, blocks, block, own, threadIdx.x, blockDim.x);
  }
}

}  // namespace scone::hogwild
