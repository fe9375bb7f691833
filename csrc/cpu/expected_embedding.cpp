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
// Tokens per pass over the sums: 24 columns of the table's tile (24 KB) stay in the first-level cache. The 48 columns
// of AVX-512 do not, but the second keeps up, because twice the rows share each load (measured on Zen 4 against 128).
constexpr int64_t kPass = 256;
static_assert(kTile % kPass == 0);
// Rows that share one packed tile of the table, and whose probabilities (1 KB each) are kept until its columns are
// done: as many as leave every thread four tasks, within these bounds. Rows are independent, so that this choice, unlike
// the splits, changes no result. Tuned on EPYC Milan against 336 and 1008.
constexpr int64_t kLeastRows = 168, kMostRows = 672;

int64_t rows_per_group(int64_t rows, int64_t splits) {
  return std::clamp(rows * splits / (4 * at::get_num_threads()), kLeastRows, kMostRows);
}

// The table's tile as panels of columns, each [tokens][lanes * vecs], with zeros behind column D. A few tokens at a
// time, so that rows are read as they lie in memory and whole cache lines are written.
void pack(const at::Tensor& table, const std::vector<Panel>& columns, float* out) {
  constexpr int64_t kTogether = 8;
  const int64_t tokens = table.size(0), stride = table.stride(0);
  const float* rows = table.data_ptr<float>();
  for (int64_t first = 0; first < tokens; first += kTogether)
    for (const Panel& panel : columns)
      for (int64_t t = first; t < std::min(tokens, first + kTogether); ++t) {
        const float* from = rows + t * stride + panel.first;
        float* to = out + panel.first * tokens + t * panel.width();
        if (t + kTogether < tokens)  // rows are too short for the CPU to see the next ones coming
          for (int64_t d = 0; d < panel.rows; d += 16) __builtin_prefetch(from + kTogether * stride + d);
        if (panel.rows == kMaxPanel) {  // of a size that the compiler knows
          std::memcpy(to, from, kMaxPanel * sizeof(float));
        } else if (panel.rows == kMaxPanel / 2) {
          std::memcpy(to, from, kMaxPanel / 2 * sizeof(float));
        } else {
          std::copy_n(from, panel.rows, to);
          std::fill(to + panel.rows, to + panel.width(), 0.0f);
        }
      }
}

template <class Tiles>
at::Tensor run(const Tiles& tiles, const at::Tensor& table) {
  const int64_t rows = tiles.rows, width = table.size(1);
  at::Tensor out = at::empty({rows, width}, at::kFloat);
  if (rows == 0 || width == 0) return out;

  const std::vector<Panel> columns = make_panels(width);
  const int64_t panels = tiles.panels.size(), padded = columns.back().end();
  const int64_t splits = Plan::splits_of(tiles.vocabulary, std::min(kSplits, kPartials / (rows * padded)));
  const Plan plan(panels, tiles.vocabulary, rows_per_group(rows, splits), splits);
  const SoftmaxState state(splits, tiles.panels);
  // Panels of columns, [row][lanes * vecs].
  const at::Tensor partial = at::empty({splits, padded, state.lanes}, at::kFloat);
  const auto sums_at = [&](int64_t split, const Panel& column, int64_t row) {
    return partial.data_ptr<float>() + (split * padded + column.first) * state.lanes + row * column.width();
  };

  plan.run(panels, tiles.vocabulary, [&](const Task& task) {
    const Panel& last_panel = tiles.panels[task.panel_end - 1];
    const int64_t first_row = tiles.panels[task.panel_begin].first;
    const int64_t lanes = last_panel.end() - first_row;
    const int64_t rows_in_quads = (last_panel.first + last_panel.rows - first_row + 3) / 4 * 4;
    const at::Tensor scratch = at::empty({kPass * (kMaxPanel + lanes + padded) + lanes}, at::kFloat);
    float* logits = scratch.data_ptr<float>();
    float* probability = logits + kPass * kMaxPanel;  // [lanes / 4][tokens][4]
    float* packed = probability + kPass * lanes;
    float* rescale = packed + kPass * padded;
    for (int64_t first = task.token_begin; first < task.token_end; first += kPass) {
      const int64_t tokens = std::min(kPass, task.token_end - first);
      const typename Tiles::Tile tile(tiles, first, tokens, task.panel_begin, task.panel_end);
      for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
        const Panel& panel = tiles.panels[p];
        const int64_t at = panel.first - first_row;
        tile.fill(p, logits);
        panel.build->softmax(panel.vecs, tokens, logits, probability + at * tokens,
                             state.max_at(task.split, panel.first), state.sum_at(task.split, panel.first),
                             rescale + at);
      }
      pack(as_float_rows(table.narrow(0, first, tokens)), columns, packed);
      for (const Panel& column : columns)
        column.build->matmul(column.vecs, rows_in_quads, tokens, Matrix::interleaved(probability, tokens),
                             packed + column.first * tokens, sums_at(task.split, column, first_row),
                             first == task.token_begin ? nullptr : rescale);
    }
  });

  // A panel's rows together, because their sums lie together.
  at::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Panel& panel = tiles.panels[p];
      float* to = out.data_ptr<float>() + panel.first * width;
      float top[kMaxPanel], total[kMaxPanel]{}, factor[kMaxPanel];
      std::fill_n(top, kMaxPanel, -INFINITY);
      std::fill_n(to, panel.rows * width, 0.0f);
      for (int64_t s = 0; s < splits; ++s)
        for (int64_t i = 0; i < panel.rows; ++i) top[i] = std::max(top[i], *state.max_at(s, panel.first + i));
      for (int64_t s = 0; s < splits; ++s) {
        for (int64_t i = 0; i < panel.rows; ++i) {
          factor[i] = std::exp(*state.max_at(s, panel.first + i) - top[i]);
          total[i] += factor[i] * *state.sum_at(s, panel.first + i);
        }
        for (const Panel& column : columns) {
          const float* from = sums_at(s, column, panel.first);
          for (int64_t i = 0; i < panel.rows; ++i, from += column.width())
            for (int64_t d = 0; d < column.rows; ++d) to[i * width + column.first + d] += factor[i] * from[d];
        }
      }
      for (int64_t i = 0; i < panel.rows; ++i)
        for (int64_t d = 0; d < width; ++d) to[i * width + d] /= total[i];
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
