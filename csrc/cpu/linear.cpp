// x W^T + b for few rows of x, as a step of a language model has them. A library's GEMM packs its operands first, which
// here costs several times the product; below, the weight is read once, at the speed of memory, and nothing is packed
// that is larger than x. Every output is summed by one thread in a fixed order.
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include <type_traits>
#include <utility>

#include "tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace scone {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kAheadBytes = 9 << 10;  // how far ahead weights are fetched (Zen 4: 9 to 36 KB are alike)

// The sum of eight lanes.
inline __attribute__((always_inline)) float total(__m256 lanes) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// y[c][r] = bias[r] + w[r] . x[c] for r < R, c < C. Meanwhile `ahead_rows` rows of the weight from `ahead` are fetched into
// the second-level cache: the first has too few places for lines on their way (13 GB/s a core, against 22).
template <int R, int C>
inline __attribute__((always_inline)) void block(int64_t depth, const float* w, int64_t w_stride, const float* x,
                                                 int64_t x_stride, const float* bias, float* y, int64_t y_stride,
                                                 const float* ahead, int64_t ahead_rows) {
  __m256 sum[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 6
    for (int c = 0; c < C; ++c) sum[r][c] = _mm256_setzero_ps();
  const auto step = [&](int64_t k) __attribute__((always_inline)) {
    __m256 left[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) left[r] = _mm256_loadu_ps(w + r * w_stride + k);
#pragma GCC unroll 6
    for (int c = 0; c < C; ++c) {
      const __m256 right = _mm256_loadu_ps(x + c * x_stride + k);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][c] = _mm256_fmadd_ps(left[r], right, sum[r][c]);
    }
  };
  int64_t k = 0;
  for (; k + 2 * kLanes <= depth; k += 2 * kLanes) {  // a line of each row
    for (int64_t r = 0; r < ahead_rows; ++r) __builtin_prefetch(ahead + r * w_stride + k, 0, 2);
    step(k);
    step(k + kLanes);
  }
  if (k + kLanes <= depth) {
    step(k);
    k += kLanes;
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      float value = total(sum[r][c]);
      for (int64_t rest = k; rest < depth; ++rest) value += w[r * w_stride + rest] * x[c * x_stride + rest];
      y[c * y_stride + r] = value + (bias ? bias[r] : 0.0f);
    }
}

// R rows of the weight against all rows of x, at most C at a time. The passes share the fetching of R later rows.
template <int R, int C>
void few_rows(int64_t rows, int64_t depth, const float* w, int64_t w_stride, const float* x, int64_t x_stride,
              const float* bias, float* y, int64_t y_stride) {
  const int64_t passes = (rows + C - 1) / C, row_bytes = 4 * std::max<int64_t>(1, w_stride),
                later = std::max<int64_t>(R, kAheadBytes / row_bytes + 1);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const auto share = [&](int64_t of) { return std::pair(of * pass / passes, of * (pass + 1) / passes); };
    const auto [first, last] = share(rows);
    const auto [begin, end] = share(R);
    const float *from = x + first * x_stride, *ahead = w + (later + begin) * w_stride;
    const int64_t fetched = end - begin;
    float* to = y + first * y_stride;
    const auto run = [&](auto columns) {
      block<R, columns()>(depth, w, w_stride, from, x_stride, bias, to, y_stride, ahead, fetched);
    };
    switch (last - first) {
      case 1: run(std::integral_constant<int, 1>()); break;
      case 2: run(std::integral_constant<int, 2>()); break;
      case 3: run(std::integral_constant<int, 3>()); break;
      case 4: run(std::integral_constant<int, 4>()); break;
      case 5: if constexpr (C >= 5) run(std::integral_constant<int, 5>()); break;
      default: if constexpr (C >= 6) run(std::integral_constant<int, 6>());
    }
  }
}

template <int R, int C>
void linear_few_by(const at::Tensor& x, const at::Tensor& weight, const float* bias, at::Tensor& y) {
  const int64_t rows = x.size(0), depth = x.size(1), width = weight.size(0), stride = weight.stride(0);
  const float *xs = x.data_ptr<float>(), *ws = weight.data_ptr<float>();
  float* ys = y.data_ptr<float>();
  at::parallel_for(0, (width + R - 1) / R, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * R; n < std::min(width, end * R); n += R) {
      const auto run = [&](auto height, int64_t at) {
        few_rows<height(), C>(rows, depth, ws + at * stride, stride, xs, x.stride(0), bias ? bias + at : nullptr, ys + at,
                              width);
      };
      if (n + R <= width) run(std::integral_constant<int, R>(), n);
      else
        for (int64_t at = n; at < width; ++at) run(std::integral_constant<int, 1>(), at);
    }
  });
}

// Twelve sums in registers either way. Rows of x that outgrow the first-level cache are better read for fewer rows of the
// weight at a time (measured on Zen 4 for 1 to 20 rows of 576 and of 1,536).
void linear_few(const at::Tensor& x, const at::Tensor& weight, const float* bias, at::Tensor& y) {
  (x.size(1) <= 1024 ? linear_few_by<3, 4> : linear_few_by<2, 6>)(x, weight, bias, y);
}

}  // namespace
}  // namespace scone

#pragma GCC pop_options

namespace scone {
namespace {

// ---- more rows ----------------------------------------------------------------------------------------------------
// They go along the lanes, in the panels of kernels.h: x is transposed once, and a value of the weight meets all lanes.

constexpr int64_t kDepth = 192;            // of a slice of a panel: at most 36 KB, which stay in the first-level cache
constexpr int64_t kTileBytes = 128 << 10;  // of the weight, in the second
constexpr int64_t kUnit = 24;              // rows of the weight that stay together: a multiple of 4, 6 and 8

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

}  // namespace
}  // namespace scone
#endif

namespace scone {
namespace {

// Rows up to which each way is the fastest (EPYC Milan and Zen 4, Xeon; weights of 384 to 1,536 columns).
constexpr int64_t kFew = 12, kPanels = 200;

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2 && x.size(0) <= kPanels) {
    const at::Tensor left = as_float_rows(x), right = as_float_rows(weight);
    const at::Tensor shift = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
    at::Tensor y = at::empty({x.size(0), weight.size(0)}, at::kFloat);
    (x.size(0) <= kFew ? linear_few : linear_panels)(left, right, bias ? shift.data_ptr<float>() : nullptr, y);
    return y;
  }
#endif
  const auto whole = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
  return at::linear(whole(x), whole(weight), bias ? std::optional<at::Tensor>(whole(*bias)) : std::nullopt);
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("linear", linear); }

}  // namespace
}  // namespace scone
