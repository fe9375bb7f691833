// score + sum_t grad_t . (expected_t - anchor_t) per sequence, or the product of sum and mean.
#include <torch/library.h>

#include "tiles.h"

namespace scone {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements of grad below which a second thread costs more than it gives

const float* row_of(const at::Tensor& tensor, int64_t row) { return tensor.data_ptr<float>() + row * tensor.stride(0); }

at::Tensor taylor_estimate(const at::Tensor& score, const at::Tensor& grad, const at::Tensor& expected,
                           const at::Tensor& anchor, const at::Tensor& segment, c10::string_view form) {
  TORCH_CHECK_VALUE(form == "position" || form == "mean", "form must be position or mean, got ", form);
  const bool mean = form == "mean";
  const int64_t rows = grad.size(0), width = grad.size(1), sequences = score.size(0);
  const at::Tensor g = as_float_rows(grad), e = as_float_rows(expected), a = as_float_rows(anchor);
  const at::Tensor ids = segment.contiguous();
  at::Tensor out = score.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();

  const int64_t* id = ids.data_ptr<int64_t>();
  check_segments(id, rows, sequences);

  // Rows order[start[s]] .. order[start[s + 1] - 1] belong to sequence s, as they come.
  std::vector<int64_t> start(sequences + 2), order(rows);
  for (int64_t row = 0; row < rows; ++row) ++start[id[row] + 2];
  for (int64_t s = 2; s <= sequences; ++s) start[s] += start[s - 1];
  for (int64_t row = 0; row < rows; ++row) order[start[id[row] + 1]++] = row;

  const int64_t grain = sequences * kGrain / std::max<int64_t>(1, rows * width);
  at::parallel_for(0, sequences, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
    std::vector<float> grad_sum, step_sum;
    for (int64_t s = begin; s < end; ++s) {
      float change = 0.0f;
      const int64_t *first = order.data() + start[s], *last = order.data() + start[s + 1];
      if (mean) {
        grad_sum.assign(width, 0.0f), step_sum.assign(width, 0.0f);
        for (const int64_t* row = first; row < last; ++row)
          for (int64_t d = 0; d < width; ++d) {
            grad_sum[d] += row_of(g, *row)[d];
            step_sum[d] += row_of(e, *row)[d] - row_of(a, *row)[d];
          }
        const float count = std::max<int64_t>(1, last - first);
        change = kernels().dot_difference(width, grad_sum.data(), step_sum.data(), nullptr) / count;
      } else {
        for (const int64_t* row = first; row < last; ++row)
          change += kernels().dot_difference(width, row_of(g, *row), row_of(e, *row), row_of(a, *row));
      }
      out.data_ptr<float>()[s] += change;
    }
  });
  return out;
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("taylor_estimate", taylor_estimate); }

}  // namespace
}  // namespace scone
