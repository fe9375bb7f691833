// A weight as rows of x meet it, and x W^T tile by tile. What goes in and comes out lies row by row.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "products.h"

namespace scone {

struct Bytes {
  const char* begin = nullptr;
  int64_t count = 0;
};

// Columns of a panel that are widened at a time: 54 KB.
constexpr int64_t kDeepest = 288;

// `rows` features out, `columns` in: float32 as (rows, columns), or 16 bits in panels, (panels, columns, kColumns), the last
// of them filled up with zeros. A tile is kColumns rows.
struct RowWeight {
  RowWeight(const at::Tensor& weight, int64_t rows, const std::optional<at::Tensor>& bias = std::nullopt)
      : kept(weight.contiguous()),
        bias(bias ? floats(*bias) : nullptr),
        rows(rows),
        columns(kept.size(1)),
        tiles((rows + kColumns - 1) / kColumns),
        stored(stored_in(kept)) {
    if (stored == Stored::kFloat) {
      TORCH_CHECK_VALUE(kept.dim() == 2 && kept.size(0) == rows, "a weight in float32 must have ", rows, " rows");
    } else {
      TORCH_CHECK_VALUE(kept.dim() == 3 && kept.size(0) == tiles && kept.size(2) == kColumns, "a weight in 16 bits must be ",
                        tiles, " panels of ", kColumns, " columns");
    }
  }

  int64_t count(int64_t tile) const { return std::min(kColumns, rows - tile * kColumns); }
  Bytes at(int64_t tile) const {
    const int64_t size = stored == Stored::kFloat ? 4 : 2;
    return {static_cast<const char*>(kept.data_ptr()) + tile * kColumns * columns * size,
            (stored == Stored::kFloat ? count(tile) : kColumns) * columns * size};
  }

  at::Tensor kept;
  const float* bias;
  int64_t rows, columns, tiles;
  Stored stored;
  int64_t together = 1;     // weights whose tiles of the same number are taken at once
  std::vector<Bytes> next;  // for each tile, what its thread will probably ask for after it
};

// Rows that a thread multiplies with one weight or several, (rows, columns) in float32.
struct Input {
  explicit Input(const at::Tensor& values) : values(values) {}

  const RowsInPanels& in_panels() {
    if (!packed) packed.emplace(values);
    return *packed;
  }

  const at::Tensor& values;
  std::optional<RowsInPanels> packed;
};

// What a thread needs for its products.
struct Room {
  explicit Room(int64_t rows) : product(rows * kColumns) {}
  Floats product, panel;
};

// room.product[row][column] = x times a tile of the weight, kColumns apart. A panel in 16 bits is widened while it is read, or
// for many rows once before.
inline void multiply_tile(const RowWeight& weight, int64_t tile, Input& x, Room& room, Bytes next = {}) {
  const Kernels& build = kernels();
  const char* from = weight.at(tile).begin;
  const int64_t rows = x.values.size(0), depth = weight.columns, stride = x.values.stride(0);
  const float* left = x.values.data_ptr<float>();
  float* y = room.product.data();
  if (weight.stored == Stored::kFloat) {
    multiply_rows(x.in_panels(), weight.count(tile), reinterpret_cast<const float*>(from), depth,
                  reinterpret_cast<const float*>(next.begin), nullptr, room.panel, y, kColumns);
  } else if (rows <= 3 * build.lanes / 2) {
    build.rows_by_panel(weight.stored, rows, depth, left, stride, from, y, kColumns, false, next.begin, next.count);
  } else {
    room.panel.resize(kDeepest * kColumns);
    const int64_t pieces = std::max<int64_t>(1, (depth + kDeepest - 1) / kDeepest);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t k = piece * kDeepest, deep = std::min(kDeepest, depth - k);
      const int64_t begin = next.count * piece / pieces, end = next.count * (piece + 1) / pieces;
      build.widen(weight.stored, deep * kColumns, from + 2 * k * kColumns, room.panel.data());
      build.rows_by_panel(Stored::kFloat, rows, deep, left + k, stride, room.panel.data(), y, kColumns, piece > 0,
                          next.begin ? next.begin + begin : nullptr, end - begin);
    }
  }
}

}  // namespace scone
