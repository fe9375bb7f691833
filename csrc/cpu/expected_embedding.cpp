// softmax(logits) @ table: the probabilities of a tile multiply the table's rows while both are in cache.
#include <torch/library.h>

#include <cmath>
#include <cstring>

#include "tiles.h"

namespace scone {
namespace {

// Ranges of the vocabulary with sums of their own: few, because each costs a (N, D) buffer, and at most 24 MB together.
constexpr int64_t kSplits = 16;
constexpr int64_t kPartials = 6 << 20;  // in floats
// Tokens per pass over the sums: the probabilities of a panel (24 KB) stay in the first-level cache.
constexpr int64_t kPass = 256;
static_assert(kTile % kPass == 0);
// From this many panels on the table's tile is interleaved; below, that costs more than it gives. Measured on EPYC Milan:
// 4 % faster at 84 panels, 5 to 20 % slower at 5.
constexpr int64_t kLeastInterleaved = 8;
// Panels that share one interleaved tile of the table: as many as leave every thread four tasks, within these bounds.
// Rows are independent, so that this choice, unlike the splits, changes no result.
constexpr int64_t kLeastGroup = 21, kMostGroup = 84;

int64_t panels_per_group(int64_t panels, int64_t splits) {
  return std::clamp(panels * splits / (4 * at::get_num_threads()), kLeastGroup, kMostGroup);
}

// The transpose of the table's tile, interleaved to [D / 4][tokens][4] with zeros behind column D. Four tokens at a time,
// so that whole cache lines are written.
Matrix interleave(const at::Tensor& table, int64_t padded, float* out) {
  const int64_t tokens = table.size(0), width = table.size(1), whole = width / 4 * 4;
  for (int64_t first = 0; first < tokens; first += 4) {
    const int64_t end = std::min(tokens, first + 4);
    const float* from = table.data_ptr<float>() + first * table.stride(0);
    for (int64_t d = 0; d < whole; d += 4)
      for (int64_t t = first; t < end; ++t)
        std::memcpy(out + d * tokens + 4 * t, from + (t - first) * table.stride(0) + d, 4 * sizeof(float));
    for (int64_t d = whole; d < padded; ++d)
      for (int64_t t = first; t < end; ++t)
        out[d / 4 * 4 * tokens + 4 * t + d % 4] = d < width ? from[(t - first) * table.stride(0) + d] : 0.0f;
  }
  return Matrix::interleaved(out, tokens);
}

template <class Tiles>
at::Tensor run(const Tiles& tiles, const at::Tensor& table) {
  const int64_t rows = tiles.rows, width = table.size(1), padded = (width + kLanes - 1) / kLanes * kLanes;
  at::Tensor out = at::empty({rows, width}, at::kFloat);
  if (rows == 0 || width == 0) return out;

  const int64_t panels = tiles.panels.size();
  const bool interleaved = panels >= kLeastInterleaved || width != padded;
  const int64_t splits = Plan::splits_of(tiles.vocabulary, std::min(kSplits, kPartials / (rows * padded)));
  const Plan plan(panels, tiles.vocabulary, panels_per_group(panels, splits), splits);
  const SoftmaxState state(splits, rows);
  const at::Tensor partial = at::empty({splits, state.lanes, padded}, at::kFloat);  // panels of [D][8 * vecs]
  const auto sums_at = [&](int64_t split, int64_t row) {
    return partial.data_ptr<float>() + (split * state.lanes + row) * padded;
  };

  plan.run(panels, tiles.vocabulary, [&](const Task& task) {
    const at::Tensor scratch = at::empty({kPass * (kPanel + (interleaved ? padded : 0))}, at::kFloat);
    float* probability = scratch.data_ptr<float>();
    float* copy = probability + kPass * kPanel;
    for (int64_t first = task.token_begin; first < task.token_end; first += kPass) {
      const int64_t tokens = std::min(kPass, task.token_end - first);
      const typename Tiles::Tile tile(tiles, first, tokens, task.panel_begin, task.panel_end);
      const at::Tensor part = as_float_rows(table.narrow(0, first, tokens));
      const Matrix columns = interleaved ? interleave(part, padded, copy)
                                         : Matrix::transposed(part.data_ptr<float>(), part.stride(0));
      for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
        const Panel& panel = tiles.panels[p];
        float rescale[kPanel];
        tile.fill(p, probability);
        kernels().softmax(panel.vecs, tokens, probability, state.max_at(task.split, panel.first),
                          state.sum_at(task.split, panel.first), rescale);
        kernels().matmul(panel.vecs, padded, tokens, columns, probability, sums_at(task.split, panel.first),
                         first == task.token_begin ? nullptr : rescale);
      }
    }
  });

  at::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Panel& panel = tiles.panels[p];
      for (int64_t i = 0; i < panel.rows; ++i) {
        const int64_t row = panel.first + i;
        float top = -INFINITY, total = 0.0f;
        for (int64_t s = 0; s < splits; ++s) top = std::max(top, *state.max_at(s, row));
        float* to = out.data_ptr<float>() + row * width;
        std::fill_n(to, width, 0.0f);
        for (int64_t s = 0; s < splits; ++s) {
          const float factor = std::exp(*state.max_at(s, row) - top);
          const float* from = sums_at(s, panel.first) + i;
          total += factor * *state.sum_at(s, row);
          for (int64_t d = 0; d < width; ++d) to[d] += factor * from[d * panel.width()];
        }
        for (int64_t d = 0; d < width; ++d) to[d] /= total;
      }
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
