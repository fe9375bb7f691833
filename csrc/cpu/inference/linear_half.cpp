// x W^T + b where the weight is kept in 16 bits, in the panels of row_weight.h: half of the bytes to read, and the products of
// float32.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../row_weight.h"
#include "../team.h"

namespace scone {
namespace {

at::Tensor linear_half(const at::Tensor& x, const at::Tensor& panels, const std::optional<at::Tensor>& bias, int64_t width) {
  const at::Tensor left = as_float_rows(x);
  const at::Tensor shift = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
  const RowWeight weight(panels, width, bias ? std::optional<at::Tensor>(shift) : std::nullopt);
  TORCH_CHECK_VALUE(x.size(1) == weight.columns, "x must have ", weight.columns, " columns, got ", x.size(1));
  const int64_t rows = x.size(0);
  at::Tensor y = at::empty({rows, width}, at::kFloat);
  Team team(1, threads_for(rows ? weight.tiles : 1));
  team.run([&](int64_t) {
    Input input(left);
    Room room(rows);
    team.share(0, rows ? weight.tiles : 0, [&](int64_t tile) {
      const int64_t later = tile + team.size;
      multiply_tile(weight, tile, input, room, later < weight.tiles ? weight.at(later) : Bytes{});
      const int64_t first = tile * kColumns, count = weight.count(tile);
      for (int64_t row = 0; row < rows; ++row) {
        const float* from = room.product.data() + row * kColumns;
        float* to = y.data_ptr<float>() + row * width + first;
        for (int64_t i = 0; i < count; ++i) to[i] = from[i] + (weight.bias ? weight.bias[first + i] : 0.0f);
      }
    });
  });
  return y;
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("linear_half", linear_half); }

}  // namespace
}  // namespace scone
