// Scratch of a thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace scone {

// Floats that begin a line of the cache, so that no vector of them lies across two: such a load takes twice as long. They come
// from torch and are not initialised, so that `torch.utils.deterministic.fill_uninitialized_memory` fills them with NaN and a
// read of what nobody wrote shows.
class Floats {
 public:
  explicit Floats(int64_t count = 0) { resize(count); }

  // Room for `count`; what was there is lost where it grows.
  void resize(int64_t count) {
    if (count > size_) all_ = at::empty({count}, at::kFloat), size_ = count;
  }
  float* data() const { return size_ ? all_.data_ptr<float>() : nullptr; }

 private:
  int64_t size_ = 0;
  at::Tensor all_;
};

}  // namespace scone
