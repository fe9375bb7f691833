// One new token of each text through all layers of a Llama-like decoder, in one call. A layer is some thirty operations, and
// for a few texts a framework spends as long on starting them as on the products. The cache is read where it lies; it is the
// caller who appends what comes back.
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>

#include "../row_weight.h"
#include "../team.h"

namespace scone {
namespace {

using Weights = c10::List<std::optional<at::Tensor>>;

// Of the model: the width of a text's state, its heads, and the groups of them that share keys and values.
struct Sizes {
  int64_t width, heads, groups, depth;
};

struct Layer {
  static constexpr size_t kParts = 12;
  Layer(const Weights& parts, size_t at, const Sizes& sizes)
      : first_norm(floats(*parts.get(at))),
        second_norm(floats(*parts.get(at + 8))),
        query(*parts.get(at + 1), sizes.heads * sizes.depth, parts.get(at + 2)),
        key(*parts.get(at + 3), sizes.groups * sizes.depth, parts.get(at + 4)),
        value(*parts.get(at + 5), sizes.groups * sizes.depth, parts.get(at + 6)),
        mix(*parts.get(at + 7), sizes.width),
        gate(*parts.get(at + 9), parts.get(at + 11)->size(1)),
        up(*parts.get(at + 10), parts.get(at + 11)->size(1)),
        down(*parts.get(at + 11), sizes.width) {
    gate.together = up.together = 2;
  }

  const float *first_norm, *second_norm;
  RowWeight query, key, value, mix, gate, up, down;
};

// Turns a head (pairs of its first and second half) by the angles of its position.
void rotate(int64_t depth, const float* cos, const float* sin, float* head) {
  for (int64_t i = 0, half = depth / 2; i < half; ++i) {
    const float first = head[i], second = head[i + half];
    head[i] = first * cos[i] - second * sin[i];
    head[i + half] = second * cos[i + half] + first * sin[i + half];
  }
}

// The tiles of all weights as they are asked for.
std::vector<Tile<RowWeight>> tiles_of(std::vector<Layer>& layers) {
  std::vector<Tile<RowWeight>> order;
  for (Layer& layer : layers) {
    for (RowWeight* weight : {&layer.query, &layer.key, &layer.value, &layer.mix})
      for (int64_t tile = 0; tile < weight->tiles; ++tile) order.push_back({weight, tile});
    for (int64_t tile = 0; tile < layer.gate.tiles; ++tile)
      for (RowWeight* weight : {&layer.gate, &layer.up}) order.push_back({weight, tile});
    for (int64_t tile = 0; tile < layer.down.tiles; ++tile) order.push_back({&layer.down, tile});
  }
  return order;
}

// `count` values of every text, one text after the other.
struct Values {
  Values(int64_t rows, int64_t count) : count(count), all(at::empty({rows, count}, at::kFloat)) {}
  float* of(int64_t row) const { return all.data_ptr<float>() + row * count; }

  const int64_t count;
  const at::Tensor all;
};

struct Step {
  Step(int64_t rows, const Sizes& sizes, int64_t length, int64_t inner, int64_t layers, float eps)
      : rows(rows),
        sizes(sizes),
        length(length),
        eps(eps),
        team(kPhases * layers, threads_for(INT_MAX)),
        state(rows, sizes.width),
        projected(rows, (sizes.heads + 2 * sizes.groups) * sizes.depth),
        context(rows, sizes.heads * sizes.depth),
        inner(rows, inner) {}

  // What a thread has for itself. Each norms the whole state: that is quicker than to wait for one who does.
  struct Own {
    explicit Own(const Step& step)
        : normed(step.rows, step.sizes.width),
          room(step.rows),
          queries(step.sizes.heads / step.sizes.groups * step.sizes.depth),
          score(step.sizes.heads / step.sizes.groups * (step.length + kMaxPanel)) {}
    Values normed;
    Room room;
    Floats queries, score;
  };

  void norm(const float* gain, const Own& own) const {
    for (int64_t row = 0; row < rows; ++row) kernels().rms_norm(sizes.width, gain, eps, state.of(row), own.normed.of(row));
  }

  enum class Then { kStore, kAdd, kGate };

  // A tile of the weight times x: stored from feature `first` on, or added to what is there, or what is there gates it.
  void multiply(const RowWeight& weight, int64_t tile, Input& x, const Values& to, int64_t first, Then then, Own& own) const {
    multiply_tile(weight, tile, x, own.room, weight.next[tile]);
    const int64_t begin = tile * kColumns, count = weight.count(tile);
    for (int64_t row = 0; row < rows; ++row) {
      float *out = to.of(row) + first + begin, *from = own.room.product.data() + row * kColumns;
      for (int64_t i = 0; weight.bias && i < count; ++i) from[i] += weight.bias[begin + i];
      if (then == Then::kStore) std::copy_n(from, count, out);
      if (then == Then::kGate) kernels().gate(count, out, from);
      for (int64_t i = 0; then == Then::kAdd && i < count; ++i) out[i] += from[i];
    }
  }

  // The queries of a group of heads look at the cache and at the new token itself.
  void attend(int64_t row, int64_t group, const at::Tensor& keys, const at::Tensor& values, float* new_key, float* new_value,
              Own& own) const {
    const auto [width, heads, groups, depth] = sizes;
    const int64_t queries = heads / groups;
    const float *angle_cos = cos + row * depth, *angle_sin = sin + row * depth;
    const auto take = [&, depth = depth](int64_t head, int64_t count, float* to) {
      std::copy_n(projected.of(row) + head * depth, count * depth, to);
    };
    take(group * queries, queries, own.queries.data());
    for (int64_t q = 0; q < queries; ++q) rotate(depth, angle_cos, angle_sin, own.queries.data() + q * depth);
    for (int64_t i = 0; i < queries * depth; ++i) own.queries.data()[i] *= 1.0f / std::sqrt(float(depth));
    take(heads + group, 1, new_key);
    rotate(depth, angle_cos, angle_sin, new_key);
    take(heads + groups + group, 1, new_value);
    const auto cached = [&](const at::Tensor& all) {
      const int64_t first = row * all.stride(0) + group * all.stride(1);
      return static_cast<const char*>(all.data_ptr()) + first * all.element_size();
    };
    kernels().attend_new(stored_in(keys), queries, depth, length, own.queries.data(), cached(keys), keys.stride(2),
                         cached(values), values.stride(2), seen ? seen + row * length : nullptr, new_key,
                         new_value, own.score.data(), context.of(row) + group * queries * depth);
  }

  static constexpr int64_t kPhases = 5;

  void run(const Layer& layer, int64_t phase, const at::Tensor& keys, const at::Tensor& values, float* new_keys,
           float* new_values, Own& own) {
    Input first_normed(own.normed.all);
    const RowWeight* const three[] = {&layer.query, &layer.key, &layer.value};
    const auto look = [&](int64_t tile) {
      int64_t first = 0, which = 0;
      for (; tile >= three[which]->tiles; ++which) tile -= three[which]->tiles, first += three[which]->rows;
      multiply(*three[which], tile, first_normed, projected, first, Then::kStore, own);
    };
    team.share(phase, layer.query.tiles + layer.key.tiles + layer.value.tiles, look, [&] { norm(layer.first_norm, own); });
    team.share(phase + 1, rows * sizes.groups, [&](int64_t i) {
      attend(i / sizes.groups, i % sizes.groups, keys, values, new_keys + i * sizes.depth, new_values + i * sizes.depth, own);
    });
    Input looked(context.all);
    team.share(phase + 2, layer.mix.tiles,
               [&](int64_t tile) { multiply(layer.mix, tile, looked, state, 0, Then::kAdd, own); });
    Input second_normed(own.normed.all);
    const auto feed = [&](int64_t tile) {
      multiply(layer.gate, tile, second_normed, inner, 0, Then::kStore, own);
      multiply(layer.up, tile, second_normed, inner, 0, Then::kGate, own);
    };
    team.share(phase + 3, layer.gate.tiles, feed, [&] { norm(layer.second_norm, own); });
    Input gated(inner.all);
    team.share(phase + 4, layer.down.tiles,
               [&](int64_t tile) { multiply(layer.down, tile, gated, state, 0, Then::kAdd, own); });
  }

  const int64_t rows;
  const Sizes sizes;
  const int64_t length;
  const float eps;
  const float *cos = nullptr, *sin = nullptr;
  const bool* seen = nullptr;
  Team team;
  Values state, projected, context, inner;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> decoder_step(
    const at::Tensor& x, const Weights& weights, const std::vector<at::Tensor>& keys,
    const std::vector<at::Tensor>& values, const at::Tensor& cos, const at::Tensor& sin,
    const std::optional<at::Tensor>& seen, int64_t heads, double eps) {
  for (const auto& cached : {keys, values})
    for (const at::Tensor& tensor : cached)
      TORCH_CHECK_VALUE(tensor.scalar_type() == keys[0].scalar_type() && tensor.stride(-1) == 1,
                        "keys and values must be of one type, with heads in one piece");
  const int64_t rows = x.size(0), length = keys[0].size(2);
  const Sizes sizes{x.size(1), heads, keys[0].size(1), keys[0].size(3)};
  at::Tensor out = at::empty({rows, sizes.width}, at::kFloat);
  at::Tensor new_keys = at::empty({int64_t(keys.size()), rows, sizes.groups, sizes.depth}, at::kFloat);
  at::Tensor new_values = at::empty_like(new_keys);
  if (rows == 0) return {out, new_keys, new_values};
  std::vector<Layer> layers;
  int64_t inner = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    layers.emplace_back(weights, i * Layer::kParts, sizes);
    inner = std::max(inner, layers[i].gate.rows);
  }
  Step step(rows, sizes, length, inner, int64_t(layers.size()), float(eps));
  step.cos = cos.data_ptr<float>(), step.sin = sin.data_ptr<float>();
  step.seen = seen ? seen->data_ptr<bool>() : nullptr;
  look_ahead(tiles_of(layers), step.team.size);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < sizes.width; ++i)
      step.state.of(row)[i] = x.data_ptr<float>()[row * x.stride(0) + i * x.stride(1)];
  step.team.run([&](int64_t) {
    Step::Own own(step);
    for (size_t i = 0; i < layers.size(); ++i)
      step.run(layers[i], Step::kPhases * int64_t(i), keys[i], values[i], new_keys[i].data_ptr<float>(),
               new_values[i].data_ptr<float>(), own);
  });
  std::copy_n(step.state.of(0), rows * sizes.width, out.data_ptr<float>());
  return {out, new_keys, new_values};
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("decoder_step", decoder_step); }

}  // namespace
}  // namespace scone
