// softmax(logits) @ table: the probabilities of a tile multiply the table's rows while both are in cache.
#include <torch/library.h>

#include <cmath>

#include "tiles.h"

namespace scone {
namespace {

// A group of 504 rows shares one packed tile of the table.
constexpr int64_t kGroup = 21;
// Ranges of the vocabulary with sums of their own: few, because each costs a (N, D) buffer, and at most 24 MB together.
constexpr int64_t kSplits = 16;
constexpr int64_t kPartials = 6 << 20;  // in floats

// Rows of a table (tokens, D) as panels of 24 columns, [D / 24][tokens][24]: rows apart by a power of two times three
// would otherwise fall into the same few cache sets. Rows are read once from end to end, as memory likes it.
void pack_table(const at::Tensor& table, float* out) {
  const int64_t tokens = table.size(0), width = table.size(1);
  const int64_t full = width / kPanel * kPanel, rest = width - full, padded = (rest + kLanes - 1) / kLanes * kLanes;
  for (int64_t t = 0; t < tokens; ++t) {
    const float* from = table.data_ptr<float>() + t * table.stride(0);
    for (int64_t d = 0; d < full; d += kPanel) std::copy_n(from + d, kPanel, out + d * tokens + t * kPanel);
    float* last = out + full * tokens + t * padded;
    std::fill(std::copy_n(from + full, rest, last), last + padded, 0.0f);
  }
}

void rescale_rows(const Panel& panel, const float* factor, float* sums, int64_t width) {
  for (int64_t i = 0; i < panel.rows; ++i)
    if (factor[i] != 1.0f)
      for (float *x = sums + i * width, *end = x + width; x < end; ++x) *x *= factor[i];
}

template <class Tiles>
at::Tensor run(const Tiles& tiles, const at::Tensor& table) {
  const int64_t rows = tiles.rows, width = table.size(1), padded = (width + kLanes - 1) / kLanes * kLanes;
  at::Tensor out = at::empty({rows, width}, at::kFloat);
  if (rows == 0 || width == 0) return out;

  const int64_t panels = tiles.panels.size();
  const Plan plan(panels, tiles.vocabulary, kGroup, std::min(kSplits, kPartials / (rows * padded)));
  const SoftmaxState state(plan.splits, rows);
  const at::Tensor partial = at::empty({plan.splits, rows, padded}, at::kFloat);

  plan.run(panels, tiles.vocabulary, [&](const Task& task) {
    const at::Tensor scratch = at::empty({kTile * (kPanel + padded)}, at::kFloat);
    float* probability = scratch.data_ptr<float>();
    float* packed = probability + kTile * kPanel;
    float* sums = partial.data_ptr<float>() + task.split * rows * padded;
    const Panel &head = tiles.panels[task.panel_begin], &tail = tiles.panels[task.panel_end - 1];
    std::fill(sums + head.first * padded, sums + (tail.first + tail.rows) * padded, 0.0f);

    for (int64_t first = task.token_begin; first < task.token_end; first += kTile) {
      const int64_t tokens = std::min(kTile, task.token_end - first);
      const typename Tiles::Tile tile(tiles, first, tokens, task.panel_begin, task.panel_end);
      pack_table(as_float_rows(table.narrow(0, first, tokens)), packed);
      for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
        const Panel& panel = tiles.panels[p];
        float rescale[kPanel];
        float* row_sums = sums + panel.first * padded;
        tile.fill(p, probability);
        kernels().softmax(panel.vecs, tokens, probability, state.max_at(task.split, panel.first),
                          state.sum_at(task.split, panel.first), rescale);
        rescale_rows(panel, rescale, row_sums, padded);
        for (int64_t d = 0; d < padded; d += kPanel) {
          const int64_t columns = std::min(kPanel, padded - d);
          kernels().matmul(int(columns / kLanes), panel.rows, tokens, probability, 1, panel.width(),
                           packed + d * tokens, columns, row_sums + d, padded, true);
        }
      }
    }
  });

  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float top = -INFINITY, total = 0.0f;
      for (int64_t s = 0; s < plan.splits; ++s) top = std::max(top, *state.max_at(s, row));
      float* to = out.data_ptr<float>() + row * width;
      std::fill(to, to + width, 0.0f);
      for (int64_t s = 0; s < plan.splits; ++s) {
        const float factor = std::exp(*state.max_at(s, row) - top);
        const float* from = partial.data_ptr<float>() + (s * rows + row) * padded;
        total += factor * *state.sum_at(s, row);
        for (int64_t d = 0; d < width; ++d) to[d] += factor * from[d];
      }
      for (int64_t d = 0; d < width; ++d) to[d] /= total;
    }
  });
  return out;
}

at::Tensor expected_embedding(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& table,
                              const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& keep,
                              double temperature) {
  return run(HeadTiles(hidden, weight, Temper(bias, keep, temperature)), table);
}

at::Tensor expected_embedding_from_logits(const at::Tensor& logits, const at::Tensor& table,
                                          const std::optional<at::Tensor>& keep, double temperature) {
  return run(ReadyTiles(logits, {}, Temper(std::nullopt, keep, temperature)), table);
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) {
  m.impl("expected_embedding", expected_embedding);
  m.impl("expected_embedding_from_logits", expected_embedding_from_logits);
}

}  // namespace
}  // namespace scone
