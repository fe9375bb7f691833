// What the ops share that go through all layers of a model in one call: threads that stay together from the first layer to the
// last, and values that stay in the panels of kernels.h between the products.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "linear.h"
#include "tiles.h"

namespace scone {

// Threads that go through the same phases: in each they take pieces as they come, and at its end wait for each other.
class Team {
 public:
  explicit Team(int64_t phases) : size(at::in_parallel_region() ? 1 : at::get_num_threads()), taken_(phases) {}

  // Every thread calls body, and in it share() for one phase after the other.
  template <class Body>
  void run(const Body& body) const {
#pragma omp parallel num_threads(size)
    body();
  }

  // Calls f(piece) for all pieces of the phase, each on one thread.
  template <class F>
  void share(int64_t phase, int64_t pieces, const F& f) {
    for (int64_t piece; (piece = taken_[phase].fetch_add(1, std::memory_order_relaxed)) < pieces;) f(piece);
#pragma omp barrier
  }

  const int size;

 private:
  std::vector<std::atomic<int64_t>> taken_;
};

// `count` values of every text: panel after panel, each [count][lanes * vecs]; then the texts that no panel holds, one after
// the other.
struct Features {
  Features(const std::vector<Panel>& panels, int64_t rows, int64_t count)
      : count(count),
        held(panels.empty() ? 0 : panels.back().end()),
        panels(panels),
        storage(at::zeros({std::max(held, rows) * count}, at::kFloat)) {}

  float* at(const Panel& panel, int64_t feature = 0) const {
    return storage.data_ptr<float>() + panel.first * count + feature * panel.width();
  }
  // Where those of a text begin, and how far they lie apart.
  std::pair<float*, int64_t> of(int64_t row) const {
    if (row >= held) return {storage.data_ptr<float>() + row * count, 1};
    const auto panel = std::find_if(panels.begin(), panels.end(), [&](const Panel& each) { return row < each.end(); });
    return {at(*panel) + row - panel->first, panel->width()};
  }

  const int64_t count, held;  // held: rows of all panels
  const std::vector<Panel>& panels;
  at::Tensor storage;
};

inline const float* floats(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "norms and biases must be contiguous");
  return tensor.data_ptr<float>();
}

// A weight (features out, features in) and the tiles that it is cut into.
struct Weight {
  Weight(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias = std::nullopt)
      : kept(weight->contiguous()),
        bias(bias ? floats(*bias) : nullptr),
        rows(kept.size(0)),
        columns(kept.size(1)),
        tile(tile_rows(columns)),
        tiles((rows + tile - 1) / tile) {}

  const float* at(int64_t index) const { return kept.data_ptr<float>() + index * tile * columns; }

  at::Tensor kept;
  const float* bias;
  int64_t rows, columns, tile, tiles;
  int64_t together = 1;            // weights whose tiles of the same number are taken at once
  std::vector<const float*> next;  // for each tile, what its thread will probably ask for after it
};

struct Tile {
  Weight* weight;
  int64_t index;
};

// Tells every tile which one its thread will probably take next, over the ends of phases and layers: one for each thread on,
// because the threads take one each. Tiles of a weight that goes `together` with others are taken at once with theirs.
inline void look_ahead(const std::vector<Tile>& order, int64_t threads) {
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t later = i + order[i].weight->together * threads;
    order[i].weight->next.push_back(later < order.size() ? order[later].weight->at(order[later].index) : nullptr);
  }
}

// Panels of x times a tile of the weight. For each panel the product goes to to(panel), added to what is there if `add`, and
// is finished there: finish(panel, count of features, where it is).
template <class To, class Finish>
void multiply_tile(const Weight& weight, int64_t tile, const Panel* begin, const Panel* end, const Features& x, bool add,
                   const To& to, const Finish& finish) {
  const int64_t count = std::min(weight.tile, weight.rows - tile * weight.tile);
  const float* next = weight.next[tile];
  for (const Panel* panel = begin; panel < end; ++panel) {
    float* out = to(*panel);
    multiply(*panel, count, weight.columns, weight.at(tile), weight.columns, next, x.at(*panel), out, add);
    finish(*panel, count, out);
    next = nullptr;  // it is on its way
  }
}

}  // namespace scone
