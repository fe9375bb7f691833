// One new token of each text through all layers of a Llama-like decoder, in one call. A layer is some thirty operations, and
// for a few texts a framework spends as long on starting them as on the products. The cache is read where it lies; it is the
// caller who appends what comes back.
#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "linear.h"

namespace scone {
namespace {

constexpr int64_t kGrain = 1 << 14;  // values for which a thread is worth waking

// out = x / its root mean square * gain, row by row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gain, float eps) {
  const int64_t width = x.size(1);
  at::Tensor out = at::empty_like(x);
  at::parallel_for(0, x.size(0), 1 + kGrain / std::max<int64_t>(1, width), [&](int64_t begin, int64_t end) {
    const float* weight = gain.data_ptr<float>();
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x.data_ptr<float>() + row * width;
      float* to = out.data_ptr<float>() + row * width;
      const float scale = 1.0f / std::sqrt(kernels().dot_difference(width, from, from, nullptr) / float(width) + eps);
      for (int64_t i = 0; i < width; ++i) to[i] = weight[i] * (from[i] * scale);
    }
  });
  return out;
}

// Turns each head (pairs of its first and second half) by the angles of the row's position, and scales it.
void rotate(at::Tensor& x, int64_t depth, const at::Tensor& cos, const at::Tensor& sin, float scale) {
  const int64_t half = depth / 2, heads = x.size(1) / depth;
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float *c = cos.data_ptr<float>() + row * depth, *s = sin.data_ptr<float>() + row * depth;
    for (int64_t head = 0; head < heads; ++head) {
      float* at = x.data_ptr<float>() + row * x.size(1) + head * depth;
      for (int64_t i = 0; i < half; ++i) {
        const float first = at[i], second = at[i + half];
        at[i] = (first * c[i] - second * s[i]) * scale;
        at[i + half] = (second * c[i + half] + first * s[i + half]) * scale;
      }
    }
  }
}

// (B, heads * depth): each query's mean of the values, those of the cache (B, groups, T, depth) and its own.
at::Tensor attend(const at::Tensor& query, const at::Tensor& own_key, const at::Tensor& own_value, const at::Tensor& key,
                  const at::Tensor& value, const std::optional<at::Tensor>& seen) {
  const int64_t groups = key.size(1), keys = key.size(2), depth = key.size(3);
  const int64_t queries = query.size(1) / depth / groups;
  at::Tensor out = at::empty_like(query);
  const int64_t work = std::max<int64_t>(1, queries * (keys + 1) * depth);
  at::parallel_for(0, query.size(0) * groups, 1 + kGrain / work, [&](int64_t begin, int64_t end) {
    std::vector<float> score(queries * (keys + kMaxPanel));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / groups, group = i % groups;
      kernels().attend_new(queries, depth, keys, query.data_ptr<float>() + i * queries * depth,
                           key.data_ptr<float>() + row * key.stride(0) + group * key.stride(1), key.stride(2),
                           value.data_ptr<float>() + row * value.stride(0) + group * value.stride(1), value.stride(2),
                           seen ? seen->data_ptr<bool>() + row * keys : nullptr, own_key.data_ptr<float>() + i * depth,
                           own_value.data_ptr<float>() + i * depth, score.data(), out.data_ptr<float>() + i * queries * depth);
    }
  });
  return out;
}

void gate(at::Tensor& x, const at::Tensor& other) {
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels().gate(end - begin, x.data_ptr<float>() + begin, other.data_ptr<float>() + begin);
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> decoder_step(
    const at::Tensor& x, const c10::List<std::optional<at::Tensor>>& weights, const std::vector<at::Tensor>& keys,
    const std::vector<at::Tensor>& values, const at::Tensor& cos, const at::Tensor& sin,
    const std::optional<at::Tensor>& seen, int64_t heads, double eps) {
  constexpr size_t kParts = 12;
  const int64_t layers = int64_t(keys.size()), rows = x.size(0);
  const int64_t groups = keys[0].size(1), depth = keys[0].size(3);
  for (const auto& cached : {keys, values})
    for (const at::Tensor& tensor : cached)
      TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat && tensor.stride(-1) == 1,
                        "keys and values must be float32 with heads in one piece");
  at::Tensor state = x.clone(at::MemoryFormat::Contiguous);
  at::Tensor new_keys = at::empty({layers, rows, groups * depth}, at::kFloat), new_values = at::empty_like(new_keys);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto part = [&](size_t i) -> std::optional<at::Tensor> { return weights[layer * kParts + i]; };
    const at::Tensor first = rms_norm(state, *part(0), float(eps));
    at::Tensor query = linear(first, *part(1), part(2)), key = linear(first, *part(3), part(4));
    const at::Tensor value = linear(first, *part(5), part(6));
    rotate(query, depth, cos, sin, 1.0f / std::sqrt(float(depth)));
    rotate(key, depth, cos, sin, 1.0f);
    new_keys[layer].copy_(key), new_values[layer].copy_(value);
    const at::Tensor context = attend(query, key, value, keys[layer], values[layer], seen);
    state.add_(linear(context, *part(7), std::nullopt));
    const at::Tensor second = rms_norm(state, *part(8), float(eps));
    at::Tensor inner = linear(second, *part(9), std::nullopt);
    gate(inner, linear(second, *part(10), std::nullopt));
    state.add_(linear(inner, *part(11), std::nullopt));
  }
  const auto by_head = [&](const at::Tensor& tensor) { return tensor.view({layers, rows, groups, depth}); };
  return {state, by_head(new_keys), by_head(new_values)};
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("decoder_step", decoder_step); }

}  // namespace
}  // namespace scone
