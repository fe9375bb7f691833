// Tiles of logits, in the layout of kernels.h, for the ops that sweep over the vocabulary.
//
// The work is cut into tasks, each a group of panels times a range of vocabulary tiles. The cut depends on the shapes
// only, and partial results are combined in task order, so that results have the same bits for any number of threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "cores.h"
#include "kernels.h"
#include "team.h"

namespace scone {

// Tokens per tile: 512 rows of a weight (1.5 MB at 768 wide) stay in the last-level cache while all panels pass, and a
// panel's tile (48 KB, with AVX-512 96 KB) in the second. Tuned on EPYC Milan against 128, 256 and 1024. A multiple of
// 4 for the noise.
constexpr int64_t kTile = 512;

// `tensor` as float32 with unit stride along its last dimension; a copy only where it is not that already.
inline bool is_float_rows(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && (tensor.size(-1) <= 1 || tensor.stride(-1) == 1);
}
inline at::Tensor as_float_rows(const at::Tensor& tensor) {
  return is_float_rows(tensor) ? tensor : tensor.to(at::kFloat).contiguous();
}

inline const float* floats(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "norms and biases must be contiguous");
  return tensor.data_ptr<float>();
}

// How its values are stored: it is of one of the three types.
inline Stored stored_in(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  TORCH_CHECK_TYPE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
                   "values must be float32, bfloat16 or float16, got ", type);
  return type == at::kFloat ? Stored::kFloat : type == at::kHalf ? Stored::kHalf : Stored::kBrain;
}

// Threads of an op that has work for `most`: as many as torch is told to use, and no more than there are cores for.
inline int threads_for(int64_t most) {
  if (at::in_parallel_region()) return 1;
  return int(std::max<int64_t>(1, std::min<int64_t>({at::get_num_threads(), usable_cores(), most})));
}

inline Matrix row_major(const at::Tensor& tensor) {
  return Matrix::row_major(tensor.data_ptr<float>(), tensor.stride(0));
}

inline void check_segments(const int64_t* ids, int64_t rows, int64_t sequences) {
  if (rows == 0) return;
  const auto [low, high] = std::minmax_element(ids, ids + rows);
  TORCH_CHECK_VALUE(*low >= 0 && *high < sequences, "segment must lie in [0, ", sequences, "), got values from ", *low,
                    " to ", *high);
}

struct Panel {
  int64_t first, rows;  // rows of the batch, in the order of the sweep
  int vecs;
  const Kernels* build;
  int64_t width() const { return build->lanes * vecs; }
  int64_t end() const { return first + width(); }
};

// Two choices differ by who made the CPU. Zen 4 computes 512 bits in two halves and runs two vectors of 256 in the same time, so
// that lanes without a row are better spared; an Intel Xeon has full units and gains nothing. And torch's library, which is
// Intel's own, is better on a Xeon than on an EPYC.
inline bool made_by_amd() {
#if defined(__x86_64__)
  static const bool amd = __builtin_cpu_is("amd");
  return amd;
#else
  return false;
#endif
}

// Full panels of three vectors, and what is left in panels of two and one. A lone vector would leave the multipliers
// idle part of the time, so that 3 + 1 becomes 2 + 2. On AMD, where half of the last vector would be empty, the narrower
// build takes the last rows: 24 rows are three vectors of 8 lanes, and 40 rows two of 16 and one of 8.
inline std::vector<Panel> make_panels(int64_t rows, const Kernels& table = kernels()) {
  std::vector<Panel> panels;
  const auto vecs_for = [](int64_t count, const Kernels& by) { return (count + by.lanes - 1) / by.lanes; };
  for (int64_t first = 0; first < rows; first = panels.back().end()) {
    const int64_t rest = rows - first, vecs = vecs_for(rest, table);
    const Kernels* narrow = made_by_amd() ? table.narrower : nullptr;
    const bool half_empty = narrow && vecs_for(rest, *narrow) < 2 * vecs;
    if (half_empty && vecs <= 2) {
      panels.push_back({first, rest, int(vecs_for(rest, *narrow)), narrow});
    } else {
      const int take = vecs == 4 || (half_empty && vecs == 3) ? 2 : int(std::min(vecs, kMaxVecs));
      panels.push_back({first, std::min(rest, take * table.lanes), take, &table});
    }
  }
  return panels;
}

// Rows (N, K) transposed into panels, each [K][lanes * vecs] in float32.
class PackedRows {
 public:
  PackedRows(const at::Tensor& tensor, const std::vector<Panel>& panels) : columns_(tensor.size(1)) {
    const at::Tensor source = as_float_rows(tensor);
    for (const Panel& panel : panels) offset_.push_back(panel.first * columns_);
    storage_ = at::empty({panels.empty() ? 0 : panels.back().end() * columns_}, at::kFloat);
    // a thread is not worth waking for a few thousand values
    const int64_t grain = 1 + (1 << 16) / (kMaxPanel * std::max<int64_t>(1, columns_));
    at::parallel_for(0, int64_t(panels.size()), grain, [&](int64_t begin, int64_t end) {
      const float* row[kMaxPanel];
      for (int64_t p = begin; p < end; ++p) {
        const Panel& panel = panels[p];
        for (int64_t i = 0; i < panel.rows; ++i)
          row[i] = source.data_ptr<float>() + (panel.first + i) * source.stride(0);
        panel.build->transpose(panel.vecs, panel.rows, columns_, row, storage_.data_ptr<float>() + offset_[p]);
      }
    });
  }
  const float* panel(int64_t index) const { return storage_.data_ptr<float>() + offset_[index]; }
  int64_t columns() const { return columns_; }

 private:
  int64_t columns_;
  std::vector<int64_t> offset_;
  at::Tensor storage_;
};

// Which tokens count and how their logits are scaled.
class Temper {
 public:
  Temper(const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& keep, double temperature)
      : scale_(float(1.0 / temperature)) {
    if (bias) bias_ = bias->to(at::kFloat).contiguous();
    if (keep) keep_ = keep->contiguous();
  }
  void apply(const Panel& panel, int64_t first, int64_t tokens, float* tile) const {
    if (!bias_.defined() && !keep_.defined() && scale_ == 1.0f) return;
    panel.build->temper(panel.vecs, tokens, bias_at(first), keep_at(first), scale_, tile);
  }
  const float* bias_at(int64_t token) const { return bias_.defined() ? bias_.data_ptr<float>() + token : nullptr; }
  const uint8_t* keep_at(int64_t token) const {
    return keep_.defined() ? reinterpret_cast<const uint8_t*>(keep_.data_ptr<bool>()) + token : nullptr;
  }
  float scale() const { return scale_; }

 private:
  float scale_;
  at::Tensor bias_, keep_;
};

// Logits that are computed from a head: hidden (N, H), weight (V, H).
class HeadTiles {
 public:
  HeadTiles(const at::Tensor& hidden, const at::Tensor& weight, Temper temper)
      : panels(make_panels(hidden.size(0))),
        rows(hidden.size(0)),
        vocabulary(weight.size(0)),
        weight_(weight),
        hidden_(hidden, panels),
        temper_(std::move(temper)) {}

  // The tokens [first, first + tokens): converted once, then filled panel by panel.
  class Tile {
   public:
    Tile(const HeadTiles& tiles, int64_t first, int64_t tokens, int64_t, int64_t)
        : tiles_(tiles), first_(first), tokens_(tokens), weight_(as_float_rows(tiles.weight_.narrow(0, first, tokens))) {}
    void fill(int64_t index, float* out) const {
      const Panel& panel = tiles_.panels[index];
      panel.build->matmul(panel.vecs, tokens_, tiles_.hidden_.columns(), row_major(weight_),
                          tiles_.hidden_.panel(index), out, nullptr);
      tiles_.temper_.apply(panel, first_, tokens_, out);
    }

   private:
    const HeadTiles& tiles_;
    int64_t first_, tokens_;
    at::Tensor weight_;
  };

  const std::vector<Panel> panels;
  const int64_t rows, vocabulary;

 private:
  at::Tensor weight_;
  PackedRows hidden_;
  Temper temper_;
};

// Logits that are ready: (N, V). `order`, if defined, is the sweep's order of the rows, (N,) int64.
class ReadyTiles {
 public:
  ReadyTiles(const at::Tensor& logits, const at::Tensor& order, Temper temper)
      : panels(make_panels(logits.size(0))),
        rows(logits.size(0)),
        vocabulary(logits.size(1)),
        logits_(logits),
        order_(order),
        temper_(std::move(temper)) {}

  class Tile {
   public:
    // Where logits have to be converted, only the rows of panels [begin, end) are.
    Tile(const ReadyTiles& tiles, int64_t first, int64_t tokens, int64_t begin, int64_t end)
        : tiles_(tiles), first_(first), tokens_(tokens) {
      const int64_t row0 = tiles.panels[begin].first;
      const int64_t rows = tiles.panels[end - 1].first + tiles.panels[end - 1].rows - row0;
      const at::Tensor columns = tiles.logits_.narrow(1, first, tokens);
      if (is_float_rows(columns)) {
        logits_ = columns;
        order_ = tiles.order_.defined() ? tiles.order_.data_ptr<int64_t>() : nullptr;
      } else {
        const at::Tensor part = tiles.order_.defined() ? columns.index_select(0, tiles.order_.narrow(0, row0, rows))
                                                       : columns.narrow(0, row0, rows);
        logits_ = as_float_rows(part);
        row0_ = row0;
      }
    }
    void fill(int64_t index, float* out) const {
      const Panel& panel = tiles_.panels[index];
      const float* row[kMaxPanel];
      for (int64_t i = 0; i < panel.rows; ++i) {
        const int64_t at = panel.first + i - row0_;
        row[i] = logits_.data_ptr<float>() + (order_ ? order_[at] : at) * logits_.stride(0);
      }
      panel.build->transpose(panel.vecs, panel.rows, tokens_, row, out);
      tiles_.temper_.apply(panel, first_, tokens_, out);
    }

   private:
    const ReadyTiles& tiles_;
    int64_t first_, tokens_, row0_ = 0;
    const int64_t* order_ = nullptr;
    at::Tensor logits_;
  };

  const std::vector<Panel> panels;
  const int64_t rows, vocabulary;

 private:
  at::Tensor logits_, order_;
  Temper temper_;
};

// One task: panels [panel_begin, panel_end) and tokens [token_begin, token_end), which is range number `split`.
struct Task {
  int64_t panel_begin, panel_end, token_begin, token_end, split;
};

struct Plan {
  int64_t group, groups, splits, tiles;

  Plan(int64_t panels, int64_t vocabulary, int64_t rows_per_group, int64_t most_splits)
      : group(std::max<int64_t>(1, rows_per_group / (kMaxVecs * kernels().lanes))),
        groups((panels + group - 1) / group),
        splits(splits_of(vocabulary, most_splits)),
        tiles((vocabulary + kTile - 1) / kTile) {}

  static int64_t splits_of(int64_t vocabulary, int64_t most) {
    return std::clamp<int64_t>(most, 1, (vocabulary + kTile - 1) / kTile);
  }

  // Threads take tasks as they come: which thread runs a task changes nothing in its result.
  template <class Body>
  void run(int64_t panels, int64_t vocabulary, const Body& body) const {
    Team team(1, threads_for(groups * splits));
    team.run([&](int64_t) {
      team.share(0, groups * splits, [&](int64_t task) {
        const int64_t g = task / splits, s = task % splits;
        body(Task{g * group, std::min(panels, (g + 1) * group), s * tiles / splits * kTile,
                  std::min(vocabulary, (s + 1) * tiles / splits * kTile), s});
      });
    });
  }
};

// Running state of the softmax of every row in every split, [splits][lanes]; lanes are rows, padded to whole panels.
struct SoftmaxState {
  SoftmaxState(int64_t splits, const std::vector<Panel>& panels)
      : lanes(panels.back().end()),
        max(at::full({splits, lanes}, -INFINITY, at::kFloat)),
        sum(at::zeros({splits, lanes}, at::kFloat)) {}
  float* max_at(int64_t split, int64_t row) const { return max.data_ptr<float>() + split * lanes + row; }
  float* sum_at(int64_t split, int64_t row) const { return sum.data_ptr<float>() + split * lanes + row; }

  int64_t lanes;
  at::Tensor max, sum;
};

}  // namespace scone
