// x W^T + b in float32: the op of linear.cpp, for other ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace scone {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

}  // namespace scone
