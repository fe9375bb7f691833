// One new token of each text through all layers of a Llama-like decoder, in one call. A layer is some thirty operations, and
// for a few texts a framework spends as long on starting them as on the products. The cache is read where it lies; it is the
// caller who appends what comes back.
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>

#include "layers.h"

namespace scone {
namespace {

using Weights = c10::List<std::optional<at::Tensor>>;

struct Layer {
  static constexpr size_t kParts = 12;
  Layer(const Weights& parts, size_t at)
      : first_norm(floats(*parts.get(at))),
        second_norm(floats(*parts.get(at + 8))),
        query(parts.get(at + 1), parts.get(at + 2)),
        key(parts.get(at + 3), parts.get(at + 4)),
        value(parts.get(at + 5), parts.get(at + 6)),
        mix(parts.get(at + 7)),
        gate(parts.get(at + 9)),
        up(parts.get(at + 10)),
        down(parts.get(at + 11)) {
    gate.together = up.together = 2;
  }

  const float *first_norm, *second_norm;
  Weight query, key, value, mix, gate, up, down;
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
std::vector<Tile> tiles_of(std::vector<Layer>& layers) {
  std::vector<Tile> order;
  for (Layer& layer : layers) {
    for (Weight* weight : {&layer.query, &layer.key, &layer.value, &layer.mix})
      for (int64_t tile = 0; tile < weight->tiles; ++tile) order.push_back({weight, tile});
    for (int64_t tile = 0; tile < layer.gate.tiles; ++tile)
      for (Weight* weight : {&layer.gate, &layer.up}) order.push_back({weight, tile});
    for (int64_t tile = 0; tile < layer.down.tiles; ++tile) order.push_back({&layer.down, tile});
  }
  return order;
}

struct Step {
  const std::vector<Panel>& panels;
  const int64_t rows, heads, groups, length, depth;
  const float eps;
  const float *cos, *sin;
  const bool* seen;
  Team team;
  Features state, projected, context, inner;

  // What a thread has for itself. Each norms the whole state: that is quicker than to wait for one who does.
  struct Own {
    explicit Own(const Step& step)
        : normed(step.panels, step.rows, step.state.count),
          product(kMaxTile * kMaxPanel),
          queries(step.heads / step.groups * step.depth),
          out(step.heads / step.groups * step.depth),
          score(step.heads / step.groups * (step.length + kMaxPanel)) {}
    Features normed;
    std::vector<float> product, queries, out, score;
  };

  void norm(const float* gain, const Own& own) const {
    for (const Panel& panel : panels)
      panel.build->rms_norm(panel.vecs, state.count, gain, eps, state.at(panel), own.normed.at(panel));
    for (int64_t row = state.held; row < rows; ++row) {
      const float* from = state.of(row).first;
      float* to = own.normed.of(row).first;
      const float square = for_few_rows().dot_difference(state.count, from, from, nullptr) / float(state.count);
      for (int64_t i = 0; i < state.count; ++i) to[i] = gain[i] * (from[i] * (1.0f / std::sqrt(square + eps)));
    }
  }

  enum class Then { kStore, kAdd, kGate };

  // A tile of the weight times x: stored from feature `first` on, or added to what is there, or what is there gates it.
  void multiply(const Weight& weight, int64_t tile, const Features& x, const Features& to, int64_t first, Then then,
                Own& own) const {
    const int64_t begin = tile * weight.tile, count = std::min(weight.tile, weight.rows - begin);
    const float* bias = weight.bias ? weight.bias + begin : nullptr;
    multiply_tile(
        weight, tile, panels.data(), panels.data() + panels.size(), x, then == Then::kAdd,
        [&](const Panel& panel) { return then == Then::kGate ? own.product.data() : to.at(panel, first + begin); },
        [&](const Panel& panel, int64_t count, float* out) {
          if (bias) panel.build->temper(panel.vecs, count, bias, nullptr, 1.0f, out);
          if (then == Then::kGate) panel.build->gate(count * panel.width(), to.at(panel, first + begin), out);
        });
    if (rows <= x.held) return;
    for_few_rows().few_rows(rows - x.held, count, weight.columns, weight.at(tile), weight.columns, x.of(x.held).first, x.count,
                            bias, own.product.data(), count);
    for (int64_t row = x.held; row < rows; ++row) {
      float *out = to.of(row).first + first + begin, *from = own.product.data() + (row - x.held) * count;
      if (then == Then::kStore) std::copy_n(from, count, out);
      if (then == Then::kGate) for_few_rows().gate(count, out, from);
      for (int64_t i = 0; then == Then::kAdd && i < count; ++i) out[i] += from[i];
    }
  }

  // The queries of a group of heads look at the cache and at the new token itself.
  void attend(int64_t row, int64_t group, const at::Tensor& keys, const at::Tensor& values, float* new_key, float* new_value,
              Own& own) const {
    const int64_t queries = heads / groups;
    const auto [from, step] = projected.of(row);
    const auto take = [&, from = from, step = step](int64_t head, float* to) {
      for (int64_t i = 0; i < depth; ++i) to[i] = from[(head * depth + i) * step];
    };
    for (int64_t q = 0; q < queries; ++q) {
      float* query = own.queries.data() + q * depth;
      take(group * queries + q, query);
      rotate(depth, cos + row * depth, sin + row * depth, query);
      for (int64_t i = 0; i < depth; ++i) query[i] *= 1.0f / std::sqrt(float(depth));
    }
    take(heads + group, new_key);
    rotate(depth, cos + row * depth, sin + row * depth, new_key);
    take(heads + groups + group, new_value);
    kernels().attend_new(queries, depth, length, own.queries.data(),
                         keys.data_ptr<float>() + row * keys.stride(0) + group * keys.stride(1), keys.stride(2),
                         values.data_ptr<float>() + row * values.stride(0) + group * values.stride(1), values.stride(2),
                         seen ? seen + row * length : nullptr, new_key, new_value, own.score.data(), own.out.data());
    const auto [to, width] = context.of(row);
    for (int64_t i = 0; i < queries * depth; ++i) to[(group * queries * depth + i) * width] = own.out[i];
  }

  static constexpr int64_t kPhases = 5;

  void run(const Layer& layer, int64_t phase, const at::Tensor& keys, const at::Tensor& values, float* new_keys,
           float* new_values, Own& own) {
    norm(layer.first_norm, own);
    const Weight* const three[] = {&layer.query, &layer.key, &layer.value};
    team.share(phase, layer.query.tiles + layer.key.tiles + layer.value.tiles, [&](int64_t tile) {
      int64_t first = 0, which = 0;
      for (; tile >= three[which]->tiles; ++which) tile -= three[which]->tiles, first += three[which]->rows;
      multiply(*three[which], tile, own.normed, projected, first, Then::kStore, own);
    });
    team.share(phase + 1, rows * groups, [&](int64_t i) {
      attend(i / groups, i % groups, keys, values, new_keys + i * depth, new_values + i * depth, own);
    });
    team.share(phase + 2, layer.mix.tiles,
               [&](int64_t tile) { multiply(layer.mix, tile, context, state, 0, Then::kAdd, own); });
    norm(layer.second_norm, own);
    team.share(phase + 3, layer.gate.tiles, [&](int64_t tile) {
      multiply(layer.gate, tile, own.normed, inner, 0, Then::kStore, own);
      multiply(layer.up, tile, own.normed, inner, 0, Then::kGate, own);
    });
    team.share(phase + 4, layer.down.tiles,
               [&](int64_t tile) { multiply(layer.down, tile, inner, state, 0, Then::kAdd, own); });
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> decoder_step(
    const at::Tensor& x, const Weights& weights, const std::vector<at::Tensor>& keys,
    const std::vector<at::Tensor>& values, const at::Tensor& cos, const at::Tensor& sin,
    const std::optional<at::Tensor>& seen, int64_t heads, double eps) {
  for (const auto& cached : {keys, values})
    for (const at::Tensor& tensor : cached)
      TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat && tensor.stride(-1) == 1,
                        "keys and values must be float32 with heads in one piece");
  const int64_t rows = x.size(0), width = x.size(1);
  const int64_t groups = keys[0].size(1), length = keys[0].size(2), depth = keys[0].size(3);
  at::Tensor out = at::empty({rows, width}, at::kFloat);
  at::Tensor new_keys = at::empty({int64_t(keys.size()), rows, groups, depth}, at::kFloat);
  at::Tensor new_values = at::empty_like(new_keys);
  if (rows == 0) return {out, new_keys, new_values};
  std::vector<Layer> layers;
  int64_t inner = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    layers.emplace_back(weights, i * Layer::kParts);
    inner = std::max(inner, layers[i].gate.rows);
  }
  const std::vector<Panel> panels = make_panels(rows - rows_left_over(rows));
  const auto features = [&](int64_t count) { return Features(panels, rows, count); };
  Step step{panels, rows, heads, groups, length, depth, float(eps), cos.data_ptr<float>(), sin.data_ptr<float>(),
            seen ? seen->data_ptr<bool>() : nullptr, Team(Step::kPhases * int64_t(layers.size())), features(width),
            features((heads + 2 * groups) * depth), features(heads * depth), features(inner)};
  look_ahead(tiles_of(layers), step.team.size);
  for (int64_t row = 0; row < rows; ++row) {
    const auto [to, apart] = step.state.of(row);
    for (int64_t i = 0; i < width; ++i) to[i * apart] = x.data_ptr<float>()[row * x.stride(0) + i * x.stride(1)];
  }
  step.team.run([&] {
    Step::Own own(step);
    for (size_t i = 0; i < layers.size(); ++i)
      step.run(layers[i], Step::kPhases * int64_t(i), keys[i], values[i], new_keys[i].data_ptr<float>(),
               new_values[i].data_ptr<float>(), own);
  });
  for (int64_t row = 0; row < rows; ++row) {
    const auto [from, apart] = step.state.of(row);
    for (int64_t i = 0; i < width; ++i) out.data_ptr<float>()[row * width + i] = from[i * apart];
  }
  return {out, new_keys, new_values};
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("decoder_step", decoder_step); }

}  // namespace
}  // namespace scone
