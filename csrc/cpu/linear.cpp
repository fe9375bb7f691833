// x W^T + b for few rows of x, as a step of a language model has them. A library's GEMM packs its operands first, which
// here costs several times the product; below, the weight is read once, at the speed of memory, and nothing is packed
// that is larger than x. Every output is summed by one thread in a fixed order.
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include "linear.h"
#include "tiles.h"

namespace scone {
namespace {

constexpr int64_t kUnit = 24;  // rows of the weight that stay together: a multiple of what each kernel takes at once

void linear_few(const at::Tensor& x, const at::Tensor& weight, const float* bias, at::Tensor& y) {
  const Kernels& build = made_by_amd() && kernels().narrower ? *kernels().narrower : kernels();
  const int64_t width = weight.size(0), stride = weight.stride(0);
  at::parallel_for(0, (width + kUnit - 1) / kUnit, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kUnit;
    build.few_rows(x.size(0), std::min(width, end * kUnit) - first, x.size(1), weight.data_ptr<float>() + first * stride,
                   stride, x.data_ptr<float>(), x.stride(0), bias ? bias + first : nullptr, y.data_ptr<float>() + first,
                   width);
  });
}

// ---- more rows ----------------------------------------------------------------------------------------------------
// They go along the lanes, in the panels of kernels.h: x is transposed once, and a value of the weight meets all lanes.

constexpr int64_t kDepth = 192;            // of a slice of a panel: at most 36 KB, which stay in the first-level cache
constexpr int64_t kTileBytes = 128 << 10;  // of the weight, in the second

// product[token][lane] = the panel times `tokens` rows of the weight, slice by slice. `next`, unless it is null, is what
// of the weight will be asked for after them.
void multiply(const Panel& panel, int64_t tokens, int64_t depth, const float* w, int64_t stride, const float* next,
              const float* x, const float* ones, float* product) {
  for (int64_t k = 0; k < std::max<int64_t>(1, depth); k += kDepth) {
    Matrix slice = Matrix::row_major(w + k, stride);
    slice.next = next ? next + k : nullptr;
    panel.build->matmul(panel.vecs, tokens, std::min(kDepth, depth - k), slice, x + k * panel.width(), product,
                        k ? ones : nullptr);
  }
}

// y[row][token] = product[token][row] + bias[token]. A row is written in one go: rows of y that lie a multiple of a page
// apart, as those of a vocabulary do, fall on the same lines of the first-level cache.
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

void linear_panels(const at::Tensor& x, const at::Tensor& weight, const float* bias, at::Tensor& y) {
  const int64_t depth = x.size(1), width = weight.size(0), stride = weight.stride(0);
  const std::vector<Panel> panels = make_panels(x.size(0));
  const PackedRows packed(x, panels);
  const int64_t tile = std::max<int64_t>(1, kTileBytes / 4 / std::max<int64_t>(1, depth) / kUnit) * kUnit;
  at::parallel_for(0, (width + kUnit - 1) / kUnit, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> product(tile * kMaxPanel), turned((tile + kMaxPanel) * kMaxPanel);
    const std::vector<float> ones(tile, 1.0f);
    const int64_t last = std::min(width, end * kUnit);
    for (int64_t first = begin * kUnit; first < last; first += tile) {
      const int64_t tokens = std::min(tile, last - first);
      const float* w = weight.data_ptr<float>() + first * stride;
      for (size_t p = 0; p < panels.size(); ++p) {
        const bool fetch = p == 0 && first + 2 * tile <= last;
        multiply(panels[p], tokens, depth, w, stride, fetch ? w + tile * stride : nullptr, packed.panel(p), ones.data(),
                 product.data());
        write_panel(panels[p], tokens, product.data(), bias ? bias + first : nullptr, turned.data(),
                    y.data_ptr<float>() + panels[p].first * width + first, width);
      }
    }
  });
}

// Rows up to which each way is the fastest (EPYC Milan and Zen 4, Xeon; weights of 384 to 1,536 columns).
constexpr int64_t kFew = 12;
int64_t most_panel_rows() { return made_by_amd() ? 200 : 64; }

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (&kernels() != &baseline::table && x.size(0) <= most_panel_rows()) {
    const at::Tensor left = as_float_rows(x), right = as_float_rows(weight);
    const at::Tensor shift = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
    at::Tensor y = at::empty({x.size(0), weight.size(0)}, at::kFloat);
    (x.size(0) <= kFew ? linear_few : linear_panels)(left, right, bias ? shift.data_ptr<float>() : nullptr, y);
    return y;
  }
  const auto whole = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
  return at::linear(whole(x), whole(weight), bias ? std::optional<at::Tensor>(whole(*bias)) : std::nullopt);
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("linear", linear); }

}  // namespace scone
