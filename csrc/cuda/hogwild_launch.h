// Launchers of the kernels in hogwild.cuh. They need CUDA's runtime and nothing of torch.
#pragma once

#include "hogwild.h"

#include <cuda_runtime_api.h>

namespace scone::hogwild {

void launch_read(const State& state, std::int64_t* tokens, std::int64_t* versions, cudaStream_t stream);
void launch_write(const State& state, const Blocks& blocks, std::int64_t* staleness, cudaStream_t stream);

}  // namespace scone::hogwild
