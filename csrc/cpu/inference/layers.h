// What `encoder` keeps between its products: values in the panels of kernels.h, and weights cut into tiles.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "../products.h"
#include "../team.h"

namespace scone {

// `count` values of every row: panel after panel, each [count][lanes * vecs]. Not initialised: a lane without a row may hold
// anything, because lanes never meet.
struct Features {
  Features(const std::vector<Panel>& panels, int64_t count)
      : count(count),
        panels(panels),
        storage(at::empty({panels.empty() ? 0 : panels.back().end() * count}, at::kFloat)) {}

  float* at(const Panel& panel, int64_t feature = 0) const {
    return storage.data_ptr<float>() + panel.first * count + feature * panel.width();
  }
  // Where those of a row begin, and how far they lie apart.
  std::pair<float*, int64_t> of(int64_t row) const {
    const auto panel = std::find_if(panels.begin(), panels.end(), [&](const Panel& each) { return row < each.end(); });
    return {at(*panel) + row - panel->first, panel->width()};
  }

  const int64_t count;
  const std::vector<Panel>& panels;
  at::Tensor storage;
};

// A weight (features out, features in), of any type that is stored, and the tiles that it is cut into.
struct Weight {
  Weight(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias = std::nullopt)
      : kept(weight->contiguous()),
        bias(bias ? floats(*bias) : nullptr),
        rows(kept.size(0)),
        columns(kept.size(1)),
        tile(tile_rows(columns)),
        tiles((rows + tile - 1) / tile),
        stored(stored_in(kept)) {}

  // Where a tile begins; null where those in 16 bits are, which are widened before they are multiplied.
  const float* at(int64_t index) const {
    return stored == Stored::kFloat ? kept.data_ptr<float>() + index * tile * columns : nullptr;
  }
  const float* widened(int64_t index, int64_t count, Floats& room) const {
    if (stored == Stored::kFloat) return at(index);
    room.resize(tile * columns);
    const auto* halves = static_cast<const uint16_t*>(kept.data_ptr()) + index * tile * columns;
    kernels().widen(stored, count * columns, halves, room.data());
    return room.data();
  }

  at::Tensor kept;
  const float* bias;
  int64_t rows, columns, tile, tiles;
  Stored stored;
  int64_t together = 1;            // weights whose tiles of the same number are taken at once
  std::vector<const float*> next;  // for each tile, what its thread will probably ask for after it
};

// Panels of x times a tile of the weight. For each panel the product goes to to(panel), added to what is there if `add`, and
// is finished there: finish(panel, count of features, where it is). room: of the thread, for a tile in float32
template <class To, class Finish>
void multiply_tile(const Weight& weight, int64_t tile, const Panel* begin, const Panel* end, const Features& x, Floats& room,
                   bool add, const To& to, const Finish& finish) {
  const int64_t count = std::min(weight.tile, weight.rows - tile * weight.tile);
  const float *from = weight.widened(tile, count, room), *next = weight.next[tile];
  for (const Panel* panel = begin; panel < end; ++panel) {
    float* out = to(*panel);
    multiply(*panel, count, weight.columns, from, weight.columns, next, x.at(*panel), out, add);
    finish(*panel, count, out);
    next = nullptr;  // it is on its way
  }
}

}  // namespace scone
