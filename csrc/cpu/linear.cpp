// x W^T + b for few rows of x, as a step of a language model has them. A library's GEMM packs its operands first, which
// here costs several times the product; below, the weight is read once, at the speed of memory, and nothing is packed
// that is larger than x. Every output is summed by one thread in a fixed order.
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include <atomic>

#include "linear.h"
#include "tiles.h"

namespace scone {
namespace {

void by_tiles(const at::Tensor& x, const at::Tensor& weight, const float* bias, at::Tensor& y) {
  const int64_t depth = x.size(1), width = weight.size(0), stride = weight.stride(0);
  const RowsInPanels rows(x);
  const int64_t tile = tile_rows(depth);
  const int64_t tiles = (width + tile - 1) / tile, threads = std::min<int64_t>(at::get_num_threads(), tiles);
  std::atomic<int64_t> taken{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    Floats room;
    for (int64_t first; (first = tile * taken.fetch_add(1)) < width;) {
      const int64_t tokens = std::min(tile, width - first), later = first + threads * tile;
      const float* w = weight.data_ptr<float>() + first * stride;
      const float* next = later < width && stride == depth ? weight.data_ptr<float>() + later * stride : nullptr;
      multiply_rows(rows, tokens, w, stride, next, bias ? bias + first : nullptr, room, y.data_ptr<float>() + first, width);
    }
  });
}

}  // namespace

void multiply(const Panel& panel, int64_t tokens, int64_t depth, const float* w, int64_t stride, const float* next,
              const float* x, float* product, bool add) {
  static const std::vector<float> ones(kMaxTile, 1.0f);
  const int64_t deep = slice_bytes() / 4 / panel.width();
  for (int64_t k = 0; k < std::max<int64_t>(1, depth); k += deep) {
    Matrix slice = Matrix::row_major(w + k, stride);
    slice.next = next ? next + tokens * k : nullptr;
    panel.build->matmul(panel.vecs, tokens, std::min(deep, depth - k), slice, x + k * panel.width(), product,
                        add || k ? ones.data() : nullptr);
  }
}

void write_panel(const Panel& panel, int64_t tokens, const float* product, const float* bias, float* turned, float* y,
                 int64_t width) {
  const int64_t lanes = panel.build->lanes;
  const float* token[kMaxPanel];
  for (int64_t t = 0; t < tokens; t += lanes) {
    const int64_t count = std::min(lanes, tokens - t);
    for (int64_t i = 0; i < count; ++i) token[i] = product + (t + i) * panel.width();
    panel.build->transpose(1, count, panel.rows, token, turned + t * kMaxPanel);  // [row][lane]
  }
  for (int64_t row = 0; row < panel.rows; ++row)
    for (int64_t t = 0; t < tokens; t += lanes) {
      const float* from = turned + t * kMaxPanel + row * lanes;
      for (int64_t i = 0; i < std::min(lanes, tokens - t); ++i)
        y[row * width + t + i] = from[i] + (bias ? bias[t + i] : 0.0f);
    }
}

void multiply_rows(const RowsInPanels& rows, int64_t tokens, const float* w, int64_t stride, const float* next,
                   const float* bias, Floats& room, float* y, int64_t y_stride) {
  const int64_t depth = rows.x.size(1), left = rows.x.size(0) - rows.held;
  if (rows.held) room.resize((2 * tokens + kMaxPanel) * kMaxPanel);
  float *product = room.data(), *turned = product + tokens * kMaxPanel;
  for (size_t p = 0; p < rows.panels.size(); ++p) {
    const Panel& panel = rows.panels[p];
    multiply(panel, tokens, depth, w, stride, p == 0 ? next : nullptr, rows.packed.panel(p), product);
    write_panel(panel, tokens, product, bias, turned, y + panel.first * y_stride, y_stride);
  }
  if (left)
    for_few_rows().few_rows(left, tokens, depth, w, stride, rows.x.data_ptr<float>() + rows.held * rows.x.stride(0),
                            rows.x.stride(0), bias, y + rows.held * y_stride, y_stride);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (!leave_to_library(x.size(0), made_by_amd() ? 200 : 128)) {
    const at::Tensor left = as_float_rows(x), right = as_float_rows(weight);
    const at::Tensor shift = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
    at::Tensor y = at::empty({x.size(0), weight.size(0)}, at::kFloat);
    by_tiles(left, right, bias ? shift.data_ptr<float>() : nullptr, y);
    return y;
  }
  const auto whole = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
  return at::linear(whole(x), whole(weight), bias ? std::optional<at::Tensor>(whole(*bias)) : std::nullopt);
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("linear", linear); }

}  // namespace scone
