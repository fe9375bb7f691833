// Products with a tile of a weight. A library's GEMM packs its operands first, which for a few rows costs several times the
// product; here the weight is read once, at the speed of memory, and nothing is packed that is larger than x. Every output is
// summed by one thread in a fixed order.
#include "products.h"

namespace scone {

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

}  // namespace scone
