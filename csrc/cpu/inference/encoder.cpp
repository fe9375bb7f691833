// The layers of a BERT-like encoder on texts of any lengths, in one call. There is no padding, and the last layer is computed
// only at the rows that are asked for.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include <cmath>

#include "layers.h"

namespace scone {
namespace {

constexpr size_t kParts = 16;  // tensors of a layer

// Text t has the keys [keys[t], keys[t + 1]) and the queries [queries[t], queries[t + 1]): all of its rows, or those that are
// asked for.
struct Texts {
  const std::vector<int64_t>&keys, &queries;
  int64_t heads, width;

  int64_t pieces() const { return (int64_t(keys.size()) - 1) * heads; }

  // out = each query's mean of its text's values, for one head of one text; all are (rows, width).
  void attend(int64_t piece, const float* query, const float* key, const float* value, float* out,
              Floats& room) const {
    const int64_t text = piece / heads, depth = width / heads, column = piece % heads * depth;
    const int64_t count = keys[text + 1] - keys[text], from = keys[text] * width + column, to = queries[text] * width + column;
    room.resize((depth + 8) * (count + kMaxPanel));
    kernels().attend_text(queries[text + 1] - queries[text], count, depth, 1.0f / std::sqrt(float(depth)), query + to, width,
                          key + from, value + from, width, room.data(), out + to, width);
  }
};

// ---- in panels ----------------------------------------------------------------------------------------------------

struct Layer {
  Layer(const std::vector<at::Tensor>& parts, size_t at)
      : query(parts[at], parts[at + 1]),
        key(parts[at + 2], parts[at + 3]),
        value(parts[at + 4], parts[at + 5]),
        mix(parts[at + 6], parts[at + 7]),
        up(parts[at + 10], parts[at + 11]),
        down(parts[at + 12], parts[at + 13]),
        first_norm{floats(parts[at + 8]), floats(parts[at + 9])},
        second_norm{floats(parts[at + 14]), floats(parts[at + 15])} {}

  Weight query, key, value, mix, up, down;
  std::pair<const float*, const float*> first_norm, second_norm;  // gain, bias
};

// Rows of texts, and what is known of them between the products. Attention reads and writes them row by row.
struct Rows {
  Rows(int64_t count, int64_t width, int64_t inner)
      : panels(make_panels(count)),
        state(panels, width),
        context(panels, width),
        inner(panels, inner),
        query(at::empty({count, width}, at::kFloat)),
        mean(at::empty({count, width}, at::kFloat)) {}

  static constexpr int64_t kGroup = 8;  // panels that pass over a weight together, from the second-level cache
  int64_t pieces(const Weight& weight) const { return (int64_t(panels.size()) + kGroup - 1) / kGroup * weight.tiles; }

  // A group of panels times a tile of the weight; see multiply_tile.
  template <class To, class Finish>
  void multiply(const Weight& weight, int64_t piece, const Features& x, Floats& room, bool add, const To& to,
                const Finish& finish) const {
    const Panel *first = panels.data() + piece / weight.tiles * kGroup, *end = panels.data() + panels.size();
    multiply_tile(weight, piece % weight.tiles, first, std::min(first + kGroup, end), x, room, add, to, finish);
  }

  const std::vector<Panel> panels;
  const Features state, context, inner;
  const at::Tensor query, mean;
};

// Rows (count, width) into panel p of what is kept of them.
void pack(const Features& to, size_t p, const float* rows) {
  const Panel& panel = to.panels[p];
  const float* row[kMaxPanel];
  for (int64_t i = 0; i < panel.rows; ++i) row[i] = rows + (panel.first + i) * to.count;
  panel.build->transpose(panel.vecs, panel.rows, to.count, row, to.at(panel));
}

at::Tensor in_panels(const at::Tensor& x, const std::vector<int64_t>& start, const std::vector<int64_t>& asked,
                     const at::Tensor& rows, const std::vector<at::Tensor>& weights, int64_t heads, float eps) {
  constexpr int64_t kPhases = 9;
  const int64_t width = x.size(1);
  int64_t inner = 0;
  std::vector<Layer> layers;
  for (size_t at = 0; at < weights.size(); at += kParts) layers.emplace_back(weights, at);
  for (const Layer& layer : layers) inner = std::max(inner, layer.up.rows);
  Team team(2 + kPhases * int64_t(layers.size()), threads_for(INT_MAX));
  std::vector<Tile<Weight>> order;
  for (Layer& layer : layers)
    for (Weight* weight : {&layer.query, &layer.key, &layer.value, &layer.mix, &layer.up, &layer.down})
      for (int64_t tile = 0; tile < weight->tiles; ++tile) order.push_back({weight, tile});
  look_ahead(order, team.size);

  const Rows all(x.size(0), width, inner), last(rows.size(0), width, inner);
  // The last layer's rows come one by one. No result depends on the lanes behind them, but what lies there by chance may be
  // subnormal, and arithmetic with such numbers is slow.
  const Panel& end = last.panels.back();
  for (int64_t k = 0; k < width; ++k) std::fill_n(last.state.at(end, k) + end.rows, end.width() - end.rows, 0.0f);
  const at::Tensor key = at::empty({x.size(0), width}, at::kFloat), value = at::empty_like(key);
  at::Tensor out = at::empty({rows.size(0), width}, at::kFloat);
  team.run([&](int64_t) {
    Floats product(kMaxTile * kMaxPanel), turned((kMaxTile + kMaxPanel) * kMaxPanel), room, wide;
    int64_t phase = 0;
    const auto share = [&](int64_t pieces, const auto& f) { team.share(phase++, pieces, f); };
    share(int64_t(all.panels.size()), [&](int64_t p) { pack(all.state, p, x.data_ptr<float>()); });
    for (const Layer& layer : layers) {
      const bool is_last = &layer == &layers.back();
      const Rows& now = is_last ? last : all;
      const Texts texts{start, is_last ? asked : start, heads, width};
      share(is_last ? rows.size(0) : 0, [&](int64_t i) {
        const auto [from, step] = all.state.of(rows.data_ptr<int64_t>()[i]);
        const auto [to, apart] = last.state.of(i);
        for (int64_t k = 0; k < width; ++k) to[k * apart] = from[k * step];
      });
      const struct {
        const Weight& weight;
        const Rows& rows;
        const at::Tensor& out;
      } looks[] = {{layer.query, now, now.query}, {layer.key, all, key}, {layer.value, all, value}};
      share(now.pieces(layer.query) + all.pieces(layer.key) + all.pieces(layer.value), [&](int64_t piece) {
        const auto* look = looks;
        for (; piece >= look->rows.pieces(look->weight); ++look) piece -= look->rows.pieces(look->weight);
        const int64_t first = piece % look->weight.tiles * look->weight.tile;
        look->rows.multiply(
            look->weight, piece, look->rows.state, wide, false, [&](const Panel&) { return product.data(); },
            [&](const Panel& panel, int64_t count, const float* tile) {
              write_panel(panel, count, tile, look->weight.bias + first, turned.data(),
                          look->out.template data_ptr<float>() + panel.first * width + first, width);
            });
      });
      share(texts.pieces(), [&](int64_t piece) {
        texts.attend(piece, now.query.data_ptr<float>(), key.data_ptr<float>(), value.data_ptr<float>(),
                     now.mean.data_ptr<float>(), room);
      });
      share(int64_t(now.panels.size()), [&](int64_t p) { pack(now.context, p, now.mean.data_ptr<float>()); });
      const auto add_and_norm = [&](const Weight& weight, const Features& from, const auto& norm) {
        share(now.pieces(weight), [&](int64_t piece) {
          const int64_t first = piece % weight.tiles * weight.tile;
          now.multiply(
              weight, piece, from, wide, true, [&](const Panel& panel) { return now.state.at(panel, first); },
              [&](const Panel& panel, int64_t count, float* tile) {
                panel.build->temper(panel.vecs, count, weight.bias + first, nullptr, 1.0f, tile);
              });
        });
        share(int64_t(now.panels.size()), [&](int64_t p) {
          const Panel& panel = now.panels[p];
          panel.build->layer_norm(panel.vecs, width, norm.first, norm.second, eps, now.state.at(panel));
        });
      };
      add_and_norm(layer.mix, now.context, layer.first_norm);
      share(now.pieces(layer.up), [&](int64_t piece) {
        const int64_t first = piece % layer.up.tiles * layer.up.tile;
        now.multiply(
            layer.up, piece, now.state, wide, false, [&](const Panel& panel) { return now.inner.at(panel, first); },
            [&](const Panel& panel, int64_t count, float* tile) {
              panel.build->gelu(panel.vecs, count, layer.up.bias + first, tile);
            });
      });
      add_and_norm(layer.down, now.inner, layer.second_norm);
    }
    share(rows.size(0), [&](int64_t i) {
      const auto [from, step] = last.state.of(i);
      for (int64_t k = 0; k < width; ++k) out.data_ptr<float>()[i * width + k] = from[k * step];
    });
  });
  return out;
}

// ---- with the library's products ------------------------------------------------------------------------------------

at::Tensor encoder(const at::Tensor& x, const at::Tensor& starts, const at::Tensor& rows,
                   const std::vector<at::Tensor>& weights, int64_t heads, double eps) {
  const int64_t *first = starts.data_ptr<int64_t>(), *row = rows.data_ptr<int64_t>();
  const std::vector<int64_t> start(first, first + starts.size(0));
  TORCH_CHECK_VALUE(start[0] == 0 && start.back() == x.size(0) && std::is_sorted(start.begin(), start.end()),
                    "starts must go from 0 to ", x.size(0), ", the rows of x, and not fall");
  TORCH_CHECK_VALUE(std::is_sorted(row, row + rows.size(0)), "rows must not fall");
  std::vector<int64_t> asked;  // where each text's rows begin among those that are asked for
  for (const int64_t at : start) asked.push_back(std::lower_bound(row, row + rows.size(0), at) - row);
  TORCH_CHECK_VALUE(asked.front() == 0 && asked.back() == rows.size(0), "rows must lie in [0, ", x.size(0), ")");
  if (rows.size(0) == 0 || weights.empty()) return x.index_select(0, rows);
  at::Tensor state = x.contiguous();
  if (!leave_to_library()) return in_panels(state, start, asked, rows, weights, heads, float(eps));
  for (size_t layer = 0; layer < weights.size(); layer += kParts) {
    const auto apply = [&](const at::Tensor& to, size_t i) {
      return at::linear(to, weights[layer + i].to(at::kFloat), weights[layer + i + 1]);
    };
    const auto norm = [&](const at::Tensor& sum, size_t i) {
      return at::layer_norm(sum, {sum.size(1)}, weights[layer + i], weights[layer + i + 1], eps);
    };
    const bool last = layer + kParts == weights.size();
    const at::Tensor key = apply(state, 2), value = apply(state, 4);
    if (last) state = state.index_select(0, rows);
    const at::Tensor query = apply(state, 0), context = at::empty_like(query);
    const Texts texts{start, last ? asked : start, heads, x.size(1)};
    at::parallel_for(0, texts.pieces(), 1, [&](int64_t begin, int64_t end) {
      Floats room;
      for (int64_t piece = begin; piece < end; ++piece)
        texts.attend(piece, query.data_ptr<float>(), key.data_ptr<float>(), value.data_ptr<float>(),
                     context.data_ptr<float>(), room);
    });
    const at::Tensor middle = norm(apply(context, 6).add_(state), 8);
    state = norm(apply(at::gelu(apply(middle, 10)), 12).add_(middle), 14);
  }
  return state;
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) { m.impl("encoder", encoder); }

}  // namespace
}  // namespace scone
