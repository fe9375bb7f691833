// The shared token state on CUDA tensors: each call runs on the caller's current stream and waits for nothing, so that
// workers on different streams share one state. Plain C++: the kernels are in hogwild.cu.
#include "hogwild_launch.h"
#include "hogwild_tensors.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

namespace scone::hogwild {
namespace {

// Memory that another stream allocated must outlive the kernels launched on this one.
void keep_alive(const at::Tensor& tensor, const c10::cuda::CUDAStream& stream) {
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream);
}

std::tuple<at::Tensor, at::Tensor> read_cuda(const at::Tensor& words) {
  const State state = state_of(words);
  const c10::cuda::CUDAGuard guard(words.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  at::Tensor tokens = at::empty({state.rows, state.positions}, words.options());
  at::Tensor versions = at::empty({state.rows, state.positions}, words.options());
  keep_alive(words, stream);
  launch_read(state, tokens.data_ptr<std::int64_t>(), versions.data_ptr<std::int64_t>(), stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {std::move(tokens), std::move(versions)};
}

at::Tensor write_cuda(const at::Tensor& words, const at::Tensor& rows, const at::Tensor& starts,
                      const at::Tensor& tokens, const at::Tensor& versions) {
  const State state = state_of(words);
  check_write(words, rows, starts, tokens, versions);
  const c10::cuda::CUDAGuard guard(words.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const at::Tensor inputs[] = {rows.contiguous(), starts.contiguous(), tokens.contiguous(), versions.contiguous()};
  for (const at::Tensor& input : inputs) keep_alive(input, stream);
  keep_alive(words, stream);
  const Blocks blocks{inputs[0].const_data_ptr<std::int64_t>(), inputs[1].const_data_ptr<std::int64_t>(),
                      inputs[2].const_data_ptr<std::int64_t>(), inputs[3].const_data_ptr<std::int64_t>(),
                      tokens.size(0), tokens.size(1)};
  at::Tensor staleness = at::empty({blocks.count, state.positions}, words.options());
  launch_write(state, blocks, staleness.data_ptr<std::int64_t>(), stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return staleness;
}

}  // namespace
}  // namespace scone::hogwild

TORCH_LIBRARY_IMPL(scone_kernels, CUDA, m) {
  m.impl("hogwild_read", &scone::hogwild::read_cuda);
  m.impl("hogwild_write", &scone::hogwild::write_cuda);
}
