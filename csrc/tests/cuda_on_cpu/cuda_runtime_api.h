// Stands in for CUDA's runtime, so that g++ makes CPU code of kernels and of the host code around them: compile with
// `-D__CUDACC__ -include cuda_runtime_api.h` and this folder first, and replace `kernel<<<grid, block, shared, stream>>>(` by
// `cuda_on_cpu::launch("kernel", kernel, grid, block, shared, stream, `. The threads of a block are fibers, blocks are
// spread over threads of the host, and every barrier and every atomic is a place where another fiber may go on (fibers.h).
//
// It shows what a kernel computes under many interleavings. It knows nothing of warps, of a GPU's order of memory (the
// host's is stronger), of its alignment rules, or of time; shared memory and grids of more than one dimension are refused.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>

#define __global__ [[maybe_unused]] static
#define __host__
#define __device__

namespace cuda_on_cpu {

struct Index {
  unsigned x;
};

// Runs `body` once for every thread of every block and returns when all have ended. Throws std::runtime_error if the
// threads of a block do not meet at the same barrier.
void run(const char* name, unsigned grid, unsigned block, const std::function<void()>& body);

// Waits at a barrier for the other threads of the block; true if `mine` was for all of them.
bool meet(bool mine, const std::source_location& where);

template <class Kernel, class... Arguments>
void launch(const char* name, Kernel* kernel, unsigned grid, unsigned block, std::size_t shared, void*,
            Arguments... arguments) {
  if (shared != 0) throw std::runtime_error("dynamic shared memory has no stand-in");
  run(name, grid, block, [=] { kernel(arguments...); });
}

}  // namespace cuda_on_cpu

extern thread_local cuda_on_cpu::Index threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
  cuda_on_cpu::meet(true, where);
}
inline bool __syncthreads_and(bool mine, const std::source_location& where = std::source_location::current()) {
  return cuda_on_cpu::meet(mine, where);
}

// The host's memory is the device's: what is allocated here is watched by the address sanitizer like all else.
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "out of memory"; }
inline cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return (*pointer = std::malloc(bytes)) != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* pointer) { return std::free(pointer), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
