// sum_v softmax(logits)_v * (grad . table_v): three running scalars per row (max, sum, weighted sum).
//
// Two forms. Where several rows share a gradient, the table's tile is projected once per gradient and rows pick theirs.
// Where (nearly) each row has its own, the projections of a panel's rows are a tile of their own beside the logits.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <torch/library.h>

#include <cmath>

#include "tiles.h"

namespace scone {
namespace {

constexpr int64_t kGroupRows = 4032;
constexpr int64_t kSplits = 64;

// How rows share gradients: `gradient[row]` counts the distinct segments in the order of the (sorted) rows.
struct Sharing {
  at::Tensor order;      // rows sorted by segment, undefined if they are sorted already
  at::Tensor grad;       // the gradients in use, (U, D)
  std::vector<int64_t> gradient;
};

Sharing share(const at::Tensor& grad, const at::Tensor& segment) {
  Sharing out;
  at::Tensor sorted = segment.contiguous();
  const int64_t rows = sorted.size(0);
  const int64_t* ids = sorted.data_ptr<int64_t>();
  check_segments(ids, rows, grad.size(0));
  if (!std::is_sorted(ids, ids + rows)) {
    std::tie(sorted, out.order) = at::sort(sorted, /*stable=*/true, 0, /*descending=*/false);
    ids = sorted.data_ptr<int64_t>();
  }
  std::vector<int64_t> used;
  for (int64_t row = 0; row < rows; ++row) {
    if (used.empty() || used.back() != ids[row]) used.push_back(ids[row]);
    out.gradient.push_back(int64_t(used.size()) - 1);
  }
  out.grad = grad.index_select(0, at::tensor(used, at::kLong));
  return out;
}

// weighted = weighted * rescale + dot, for the lanes of a panel.
void add_dot(int64_t lanes, const float* rescale, const float* dot, float* weighted) {
  for (int64_t i = 0; i < lanes; ++i) weighted[i] = weighted[i] * rescale[i] + dot[i];
}

// Projections of a tile on shared gradients; a row's column is picked panel by panel.
class SharedProjection {
 public:
  SharedProjection(const at::Tensor& table, const Sharing& sharing, const std::vector<Panel>& panels)
      : table_(table),
        gradient_(sharing.gradient),
        panels_(panels),
        grad_panels_(make_panels(sharing.grad.size(0))),
        packed_(sharing.grad, grad_panels_) {}

  int64_t scratch() const { return kTile * grad_panels_.back().end(); }

  // Projects the tokens on the gradients of the panels [begin, end).
  void open(int64_t first, int64_t tokens, int64_t begin, int64_t end, float* projected) const {
    const at::Tensor rows = as_float_rows(table_.narrow(0, first, tokens));
    const Panel& tail = panels_[end - 1];
    const int64_t lowest = gradient_[panels_[begin].first], highest = gradient_[tail.first + tail.rows - 1];
    for (int64_t p = home(lowest); p <= home(highest); ++p) {
      const Panel& panel = grad_panels_[p];
      panel.build->matmul(panel.vecs, tokens, packed_.columns(), row_major(rows), packed_.panel(p),
                          projected + kTile * panel.first, nullptr);
    }
  }

  // One pass per distinct gradient of the panel; rows are sorted, so there are few.
  void dot(int64_t index, int64_t, int64_t tokens, const float* probability, const float* projected, float* out) const {
    const Panel& panel = panels_[index];
    float all[kMaxPanel];
    for (int64_t i = 0; i < panel.rows;) {
      const int64_t g = gradient_[panel.first + i];
      const Panel& column = grad_panels_[home(g)];
      panel.build->dot_scalar(panel.vecs, tokens, probability, projected + kTile * column.first + (g - column.first),
                              column.width(), all);
      for (; i < panel.rows && gradient_[panel.first + i] == g; ++i) out[i] = all[i];
    }
    std::fill(out + panel.rows, out + panel.width(), 0.0f);
  }

 private:
  // The panel that holds a gradient.
  int64_t home(int64_t gradient) const {
    const auto after = [](int64_t id, const Panel& panel) { return id < panel.first; };
    return std::upper_bound(grad_panels_.begin(), grad_panels_.end(), gradient, after) - grad_panels_.begin() - 1;
  }

  at::Tensor table_;
  const std::vector<int64_t>& gradient_;
  const std::vector<Panel>& panels_;
  std::vector<Panel> grad_panels_;
  PackedRows packed_;
};

// Projections of a tile on each row's own gradient.
class OwnProjection {
 public:
  OwnProjection(const at::Tensor& table, const at::Tensor& grad, const std::vector<Panel>& panels)
      : table_(table), panels_(panels), packed_(grad, panels) {}

  int64_t scratch() const { return kTile * kMaxPanel; }

  void open(int64_t, int64_t, int64_t, int64_t, float*) const {}

  void dot(int64_t index, int64_t first, int64_t tokens, const float* probability, float* projected, float* out) const {
    const at::Tensor rows = as_float_rows(table_.narrow(0, first, tokens));
    const Panel& panel = panels_[index];
    panel.build->matmul(panel.vecs, tokens, packed_.columns(), row_major(rows), packed_.panel(index), projected,
                        nullptr);
    panel.build->dot_lanes(panel.vecs, tokens, probability, projected, out);
  }

 private:
  at::Tensor table_;
  const std::vector<Panel>& panels_;
  PackedRows packed_;
};

template <class Tiles, class Projection>
at::Tensor sweep(const Tiles& tiles, const Projection& projection) {
  const int64_t rows = tiles.rows, panels = tiles.panels.size();
  const Plan plan(panels, tiles.vocabulary, kGroupRows, kSplits);
  const SoftmaxState state(plan.splits, tiles.panels);
  const at::Tensor weighted = at::zeros({plan.splits, state.lanes}, at::kFloat);

  plan.run(panels, tiles.vocabulary, [&](const Task& task) {
    const at::Tensor scratch = at::empty({kTile * kMaxPanel + projection.scratch()}, at::kFloat);
    float* probability = scratch.data_ptr<float>();
    float* projected = probability + kTile * kMaxPanel;
    for (int64_t first = task.token_begin; first < task.token_end; first += kTile) {
      const int64_t tokens = std::min(kTile, task.token_end - first);
      const typename Tiles::Tile tile(tiles, first, tokens, task.panel_begin, task.panel_end);
      projection.open(first, tokens, task.panel_begin, task.panel_end, projected);
      for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
        const Panel& panel = tiles.panels[p];
        float rescale[kMaxPanel], dot[kMaxPanel];
        tile.fill(p, probability);
        panel.build->softmax(panel.vecs, tokens, probability, nullptr, state.max_at(task.split, panel.first),
                             state.sum_at(task.split, panel.first), rescale);
        projection.dot(p, first, tokens, probability, projected, dot);
        add_dot(panel.width(), rescale, dot, weighted.data_ptr<float>() + task.split * state.lanes + panel.first);
      }
    }
  });

  at::Tensor out = at::empty({rows}, at::kFloat);
  for (int64_t row = 0; row < rows; ++row) {
    float top = -INFINITY, total = 0.0f, dot = 0.0f;
    for (int64_t s = 0; s < plan.splits; ++s) top = std::max(top, *state.max_at(s, row));
    for (int64_t s = 0; s < plan.splits; ++s) {
      const float factor = std::exp(*state.max_at(s, row) - top);
      total += factor * *state.sum_at(s, row);
      dot += factor * weighted.data_ptr<float>()[s * state.lanes + row];
    }
    out.data_ptr<float>()[row] = dot / total;
  }
  return out;
}

// `make_tiles(order)` builds the tiles for the rows in that order, or as they come if it is undefined.
template <class MakeTiles>
at::Tensor run(int64_t rows, const at::Tensor& table, const at::Tensor& grad, const std::optional<at::Tensor>& segment,
               const MakeTiles& make_tiles) {
  if (rows == 0) return at::empty({0}, at::kFloat);
  const auto own = [&](const at::Tensor& gradients) {
    const auto tiles = make_tiles(at::Tensor());
    return sweep(tiles, OwnProjection(table, gradients, tiles.panels));
  };
  if (!segment) return own(grad);
  const Sharing sharing = share(grad, *segment);
  // A shared gradient costs D multiplications per token for the projection and 24 or 48 for its pass over a panel; an
  // own one costs D. With two rows per gradient sharing wins at any D above that.
  if (2 * sharing.grad.size(0) > rows) return own(grad.index_select(0, *segment));
  const auto tiles = make_tiles(sharing.order);
  const at::Tensor out = sweep(tiles, SharedProjection(table, sharing, tiles.panels));
  return sharing.order.defined() ? at::empty_like(out).index_copy_(0, sharing.order, out) : out;
}

at::Tensor expected_dot(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& table,
                        const at::Tensor& grad, const std::optional<at::Tensor>& segment,
                        const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& keep,
                        double temperature) {
  return run(hidden.size(0), table, grad, segment, [&](const at::Tensor& order) {
    return HeadTiles(order.defined() ? hidden.index_select(0, order) : hidden, weight, Temper(bias, keep, temperature));
  });
}

at::Tensor expected_dot_from_logits(const at::Tensor& logits, const at::Tensor& table, const at::Tensor& grad,
                                    const std::optional<at::Tensor>& segment, const std::optional<at::Tensor>& keep,
                                    double temperature) {
  return run(logits.size(0), table, grad, segment, [&](const at::Tensor& order) {
    return ReadyTiles(logits, order, Temper(std::nullopt, keep, temperature));
  });
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) {
  m.impl("expected_dot", expected_dot);
  m.impl("expected_dot_from_logits", expected_dot_from_logits);
}

}  // namespace
}  // namespace scone
