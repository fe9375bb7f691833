// What both devices check before a tensor becomes a pointer.
#pragma once

#include "hogwild.h"

#include <ATen/core/Tensor.h>

#include <tuple>

namespace scone::hogwild {

inline State state_of(const at::Tensor& words) {
  TORCH_CHECK_TYPE(words.scalar_type() == at::kLong, "words must be int64, got ", words.scalar_type());
  TORCH_CHECK_VALUE(words.dim() == 2 && words.stride(1) == 1,
                    "words must be (rows, positions) with adjacent positions");
  return {reinterpret_cast<Word*>(words.data_ptr<std::int64_t>()), words.stride(0), words.size(0), words.size(1)};
}

inline void check_argument(const char* name, const at::Tensor& tensor, const at::Tensor& words, std::int64_t dim) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kLong, name, " must be int64, got ", tensor.scalar_type());
  TORCH_CHECK_VALUE(tensor.device() == words.device(), name, " must be on ", words.device(), " like the state, got ",
                    tensor.device());
  TORCH_CHECK_VALUE(tensor.dim() == dim, name, " must have ", dim, " dimension(s), got shape ", tensor.sizes());
}

inline void check_write(const at::Tensor& words, const at::Tensor& rows, const at::Tensor& starts,
                        const at::Tensor& tokens, const at::Tensor& versions) {
  check_argument("rows", rows, words, 1);
  check_argument("starts", starts, words, 1);
  check_argument("tokens", tokens, words, 2);
  check_argument("snapshot.versions", versions, words, 2);
  TORCH_CHECK_VALUE(starts.size(0) == rows.size(0), "starts must have shape (", rows.size(0), ",) like rows, got (",
                    starts.size(0), ",)");
  TORCH_CHECK_VALUE(tokens.size(0) == rows.size(0), "tokens must have shape (", rows.size(0), ", block), got ",
                    tokens.sizes());
  TORCH_CHECK_VALUE(versions.sizes() == words.sizes(), "snapshot.versions must have the shape of the state, ",
                    words.sizes(), ", got ", versions.sizes());
}

// csrc/cpu/hogwild.cpp
std::tuple<at::Tensor, at::Tensor> read_cpu(const at::Tensor& words);
at::Tensor write_cpu(const at::Tensor& words, const at::Tensor& rows, const at::Tensor& starts,
                     const at::Tensor& tokens, const at::Tensor& versions);

}  // namespace scone::hogwild
