// x W^T + b for few rows of x, as a step of a language model has them. A library's GEMM packs its operands first, which
// here costs several times the product; below, the weight is read once, at the speed of memory, and nothing is packed
// that is larger than x. Every output is summed by one thread in a fixed order.
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include "tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace scone {
namespace {

constexpr int kRows = 4, kColumns = 3;  // of the weight, of x: twelve sums in registers, seven loads for each step

// The sum of eight lanes.
inline __attribute__((always_inline)) float total(__m256 lanes) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// y[c][r] = bias[r] + w[r] . x[c] for r < R, c < C; meanwhile `ahead_rows` rows of the weight from `ahead` are fetched.
template <int R, int C>
inline __attribute__((always_inline)) void block(int64_t depth, const float* w, int64_t w_stride, const float* x,
                                                 int64_t x_stride, const float* bias, float* y, int64_t y_stride,
                                                 const float* ahead, int64_t ahead_rows) {
  __m256 sum[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = _mm256_setzero_ps();
  int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    __m256 right[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) right[c] = _mm256_loadu_ps(x + c * x_stride + k);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 left = _mm256_loadu_ps(w + r * w_stride + k);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] = _mm256_fmadd_ps(left, right[c], sum[r][c]);
    }
    for (int64_t r = 0; r < ahead_rows; ++r) __builtin_prefetch(ahead + r * w_stride + k);
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      float value = total(sum[r][c]);
      for (int64_t rest = k; rest < depth; ++rest) value += w[r * w_stride + rest] * x[c * x_stride + rest];
      y[c * y_stride + r] = value + (bias ? bias[r] : 0.0f);
    }
}

// R rows of the weight against all rows of x. The passes over x share the fetching of the R rows that come next.
template <int R>
void few_rows(int64_t rows, int64_t depth, const float* w, int64_t w_stride, const float* x, int64_t x_stride,
              const float* bias, float* y, int64_t y_stride, bool more) {
  const int64_t passes = (rows + kColumns - 1) / kColumns;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t first = pass * kColumns, begin = more ? R * pass / passes : 0, end = more ? R * (pass + 1) / passes : 0;
    const float *ahead = w + (R + begin) * w_stride, *from = x + first * x_stride;
    float* to = y + first * y_stride;
    switch (std::min<int64_t>(kColumns, rows - first)) {
      case 1: block<R, 1>(depth, w, w_stride, from, x_stride, bias, to, y_stride, ahead, end - begin); break;
      case 2: block<R, 2>(depth, w, w_stride, from, x_stride, bias, to, y_stride, ahead, end - begin); break;
      default: block<R, 3>(depth, w, w_stride, from, x_stride, bias, to, y_stride, ahead, end - begin);
    }
  }
}

void linear_few(const at::Tensor& x, const at::Tensor& weight, const float* bias, at::Tensor& y) {
  const int64_t rows = x.size(0), depth = x.size(1), width = weight.size(0);
  const float *xs = x.data_ptr<float>(), *ws = weight.data_ptr<float>();
  float* ys = y.data_ptr<float>();
  at::parallel_for(0, (width + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t n = i * kRows;
      const auto at = [&](int64_t row) { return ws + row * weight.stride(0); };
      if (n + kRows <= width) {
        few_rows<kRows>(rows, depth, at(n), weight.stride(0), xs, x.stride(0), bias ? bias + n : nullptr, ys + n, width,
                        i + 1 < end && n + 2 * kRows <= width);
      } else {
        for (; n < width; ++n)
          few_rows<1>(rows, depth, at(n), weight.stride(0), xs, x.stride(0), bias ? bias + n : nullptr, ys + n, width, false);
      }
    }
  });
}

}  // namespace
}  // namespace scone

#pragma GCC pop_options
#endif

namespace scone {
namespace {

constexpr int64_t kTileBytes = 128 << 10;  // of the weight: stays in the second-level cache while the panels pass

// With more rows they go along the lanes, in the panels of the other ops.
void linear_panels(const at::Tensor& x, const at::Tensor& weight, const float* bias, at::Tensor& y) {
  const int64_t depth = x.size(1), width = weight.size(0);
  const std::vector<Panel> panels = make_panels(x.size(0));
  const PackedRows packed(x, panels);
  const int64_t tile = std::max<int64_t>(8, kTileBytes / 4 / std::max<int64_t>(1, depth) / 8 * 8);
  at::parallel_for(0, (width + tile - 1) / tile, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> product(tile * kPanel), turned(kPanel * kLanes);
    const float* token[kLanes];
    for (int64_t first = begin * tile; first < std::min(width, end * tile); first += tile) {
      const int64_t tokens = std::min(tile, width - first);
      const Matrix w = Matrix::row_major(weight.data_ptr<float>() + first * weight.stride(0), weight.stride(0));
      for (size_t p = 0; p < panels.size(); ++p) {
        const Panel& panel = panels[p];
        kernels().matmul(panel.vecs, tokens, depth, w, packed.panel(p), product.data(), nullptr);
        for (int64_t t = 0; t < tokens; t += kLanes) {  // [token][row] to rows of y, eight tokens at a time
          const int64_t count = std::min(kLanes, tokens - t);
          for (int64_t i = 0; i < count; ++i) token[i] = product.data() + (t + i) * panel.width();
          kernels().transpose(1, count, panel.rows, token, turned.data());
          for (int64_t row = 0; row < panel.rows; ++row) {
            float* to = y.data_ptr<float>() + (panel.first + row) * width + first + t;
            for (int64_t i = 0; i < count; ++i) to[i] = turned[row * kLanes + i] + (bias ? bias[first + t + i] : 0.0f);
          }
        }
      }
    }
  });
}

// Rows up to which each way is the fastest (measured on EPYC Milan, weights of 384 to 1,536 columns).
constexpr int64_t kFew = 20, kPanels = 80;

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (x.size(0) > kPanels) return at::linear(x, weight, bias);
  const at::Tensor left = as_float_rows(x), right = as_float_rows(weight);
  const at::Tensor shift = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, at::kFloat);
  const float* b = bias ? shift.data_ptr<float>() : nullptr;
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2 && x.size(0) <= kFew) {
    linear_few(left, right, b, y);
    return y;
  }
#endif
  linear_panels(left, right, b, y);
  return y;
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("linear", linear); }

}  // namespace
}  // namespace scone
