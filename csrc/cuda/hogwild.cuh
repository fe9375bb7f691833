// Device kernels of the shared token state, on raw pointers.
#pragma once

#include "hogwild.h"

#include <cuda_runtime_api.h>

namespace scone::hogwild {

// One thread per word.
__global__ void read_kernel(State state, std::int64_t* tokens, std::int64_t* versions) {
  const std::int64_t count = state.rows * state.positions;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    read_word(state, i / state.positions, i % state.positions, tokens, versions);
  }
}

// One thread block per block of tokens. The host cannot check values without waiting for the device: a block that does
// not lie within the state, or has a token outside 32 bits, is left out whole and its staleness is -1.
__global__ void write_kernel(State state, Blocks blocks, std::int64_t* staleness) {
  for (std::int64_t block = blockIdx.x; block < blocks.count; block += gridDim.x) {
    bool fits = blocks.inside(state, block);
    for (std::int64_t offset = threadIdx.x; offset < blocks.size; offset += blockDim.x) {
      fits = fits && blocks.token_fits(block, offset);
    }
    if (!__syncthreads_and(fits)) {
      for (std::int64_t position = threadIdx.x; position < state.positions; position += blockDim.x) {
        staleness[block * state.positions + position] = -1;
      }
      continue;
    }
    for (std::int64_t offset = threadIdx.x; offset < blocks.size; offset += blockDim.x) {
      write_word(state, blocks, block, offset, staleness);
    }
    __syncthreads();  // every token is published before any thread looks back
    for (std::int64_t position = threadIdx.x; position < state.positions; position += blockDim.x) {
      look_back(state, blocks, block, position, staleness);
    }
  }
}

}  // namespace scone::hogwild
