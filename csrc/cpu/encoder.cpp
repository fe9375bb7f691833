// The layers of a BERT-like encoder on texts of any lengths, in one call. There is no padding, and the last layer is computed
// only at the rows that are asked for.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "linear.h"

namespace scone {
namespace {

constexpr int64_t kGrain = 1 << 14;  // multiplications for which a thread is worth waking

// (M, D): each query's mean of its text's values. Text t has the keys [start[t], start[t + 1]) and the queries
// [asked[t], asked[t + 1]).
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const std::vector<int64_t>& start, const std::vector<int64_t>& asked, int64_t heads) {
  const int64_t width = key.size(1), depth = width / heads, texts = int64_t(start.size()) - 1;
  at::Tensor out = at::empty_like(query);
  const int64_t work = texts ? 2 * query.size(0) * key.size(0) / texts * depth / texts : 0;  // of a text's head, on average
  at::parallel_for(0, texts * heads, 1 + kGrain / std::max<int64_t>(1, work), [&](int64_t begin, int64_t end) {
    std::vector<float> room;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t text = i / heads, column = i % heads * depth, keys = start[text + 1] - start[text];
      const int64_t from = start[text] * width + column, to = asked[text] * width + column;
      room.resize((depth + 4) * (keys + kMaxPanel));
      kernels().attend_text(asked[text + 1] - asked[text], keys, depth, 1.0f / std::sqrt(float(depth)),
                            query.data_ptr<float>() + to, width, key.data_ptr<float>() + from,
                            value.data_ptr<float>() + from, width, room.data(), out.data_ptr<float>() + to, width);
    }
  });
  return out;
}

at::Tensor encoder(const at::Tensor& x, const at::Tensor& starts, const at::Tensor& rows,
                   const std::vector<at::Tensor>& weights, int64_t heads, double eps) {
  constexpr size_t kParts = 16;
  const int64_t *first = starts.data_ptr<int64_t>(), *row = rows.data_ptr<int64_t>();
  const std::vector<int64_t> start(first, first + starts.size(0));
  TORCH_CHECK_VALUE(start[0] == 0 && start.back() == x.size(0) && std::is_sorted(start.begin(), start.end()),
                    "starts must go from 0 to ", x.size(0), ", the rows of x, and not fall");
  TORCH_CHECK_VALUE(std::is_sorted(row, row + rows.size(0)), "rows must not fall");
  std::vector<int64_t> asked;  // where each text's rows begin among those that are asked for
  for (const int64_t at : start) asked.push_back(std::lower_bound(row, row + rows.size(0), at) - row);
  TORCH_CHECK_VALUE(asked.front() == 0 && asked.back() == rows.size(0), "rows must lie in [0, ", x.size(0), ")");
  at::Tensor state = x.contiguous();
  for (size_t layer = 0; layer < weights.size(); layer += kParts) {
    const auto apply = [&](const at::Tensor& to, size_t i) { return linear(to, weights[layer + i], weights[layer + i + 1]); };
    const auto norm = [&](const at::Tensor& sum, size_t i) {
      return at::layer_norm(sum, {sum.size(1)}, weights[layer + i], weights[layer + i + 1], eps);
    };
    const bool last = layer + kParts == weights.size();
    const at::Tensor key = apply(state, 2), value = apply(state, 4);
    if (last) state = state.index_select(0, rows);
    const at::Tensor context = attend(apply(state, 0), key, value, start, last ? asked : start, heads);
    const at::Tensor middle = norm(apply(context, 6).add_(state), 8);
    state = norm(apply(at::gelu(apply(middle, 10)), 12).add_(middle), 14);
  }
  return state;
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("encoder", encoder); }

}  // namespace
}  // namespace scone
