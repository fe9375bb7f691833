// x W^T + b in float32 for a tile of a weight: the products of whole passes, in the layout of kernels.h.
#pragma once

#include "tiles.h"
#include "floats.h"

namespace scone {

// The library's products are faster than panels where there is no vector build.
inline bool leave_to_library() { return &kernels() == &baseline::table; }

// Up to so many rows `few_rows` of this build is faster than panels (EPYC Milan and Zen 4, Xeon; 384 to 1,536 columns).
constexpr int64_t kFew = 12;
inline const Kernels& for_few_rows() { return made_by_amd() && kernels().narrower ? *kernels().narrower : kernels(); }

// How many of the last rows are left to `few_rows`: all where there are few, and on an Intel CPU, which has no use for narrower
// vectors, those that would begin a new panel and fill half a vector of it (Xeon, 56 rows: a tenth less time).
inline int64_t rows_left_over(int64_t rows) {
  if (rows <= kFew) return rows;
  const int64_t over = rows % (kMaxVecs * kernels().lanes);
  return made_by_amd() || over > kernels().lanes / 2 ? 0 : over;
}

constexpr int64_t kUnit = 24;              // rows of a weight that stay together: a multiple of what each kernel takes at once
constexpr int64_t kTileBytes = 128 << 10;  // of a weight, which stay in the second-level cache
constexpr int64_t kMaxTile = 20 * kUnit;

// Of a panel, which stay in the first-level cache; on an Intel CPU in the second, from which a panel streams as fast as it is
// needed (Xeon: 3 % less time for an encoder than with slices).
inline int64_t slice_bytes() { return made_by_amd() ? 18 << 10 : 512 << 10; }

// Rows of a weight that a thread takes at a time.
inline int64_t tile_rows(int64_t depth) {
  return std::clamp(kTileBytes / 4 / std::max<int64_t>(1, depth) / kUnit * kUnit, kUnit, kMaxTile);
}

// product[token][lane] = the panel x[k][lane] times `tokens` rows of a weight, slice by slice; with `add` it comes on top of
// what is there. At most kMaxTile tokens. `next`, unless it is null, is where as many values begin that will be asked for
// after them.
void multiply(const Panel& panel, int64_t tokens, int64_t depth, const float* w, int64_t stride, const float* next,
              const float* x, float* product, bool add = false);

// y[row][token] = product[token][row] + bias[token]. A row is written in one go: rows of y that lie a multiple of a page
// apart, as those of a vocabulary do, fall on the same lines of the first-level cache. turned: room for kMaxPanel times
// (tokens + kMaxPanel).
void write_panel(const Panel& panel, int64_t tokens, const float* product, const float* bias, float* turned, float* y,
                 int64_t width);

// Rows of x as multiply_rows takes them: most in panels, in which a value of the weight meets all lanes; few, and those that
// would leave a vector half empty, as they lie.
struct RowsInPanels {
  explicit RowsInPanels(const at::Tensor& x)
      : x(x), held(x.size(0) - rows_left_over(x.size(0))), panels(make_panels(held)), packed(x.narrow(0, 0, held), panels) {}

  const at::Tensor x;
  const int64_t held;
  const std::vector<Panel> panels;
  const PackedRows packed;
};

// y[row][token] = x[row] . w[token] + bias[token] for `tokens` rows of a weight, at most kMaxTile; `next` as in multiply.
void multiply_rows(const RowsInPanels& rows, int64_t tokens, const float* w, int64_t stride, const float* next,
                   const float* bias, Floats& room, float* y, int64_t y_stride);

}  // namespace scone
