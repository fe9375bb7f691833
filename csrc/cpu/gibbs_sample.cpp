// Gumbel-max over tiles of logits, with the noise made in place, and the log-probability of the token that wins.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "tiles.h"

namespace scone {
namespace {

constexpr int64_t kGroupRows = 4032;
constexpr int64_t kSplits = 64;

// (N,) int64 as two arrays of 32-bit words per panel, [lo: lanes * vecs | hi: lanes * vecs], one panel after the other.
std::vector<uint32_t> split_words(const at::Tensor& values, const std::vector<Panel>& panels) {
  const at::Tensor source = values.contiguous();
  std::vector<uint32_t> words;
  for (const Panel& panel : panels)
    for (int shift : {0, 32})
      for (int64_t i = 0; i < panel.width(); ++i)
        words.push_back(i < panel.rows ? uint32_t(uint64_t(source.data_ptr<int64_t>()[panel.first + i]) >> shift) : 0);
  return words;
}

// The best perturbed score of every row over all splits so far. Tokens below it cannot be drawn, so that the splits spare
// themselves their noise; which of them see it, and how early, changes nothing in the draw. Threads read and write it
// without waiting: a value that is overwritten by a lower one was only a better hint.
class Floor {
 public:
  explicit Floor(int64_t rows) : values_(at::full({rows}, -INFINITY, at::kFloat)) {}
  void read(int64_t first, int64_t rows, float* out) const {
    for (int64_t i = 0; i < rows; ++i) out[i] = at(first + i).load(std::memory_order_relaxed);
  }
  void raise(int64_t first, int64_t rows, const float* best) const {
    for (int64_t i = 0; i < rows; ++i)
      if (best[i] > at(first + i).load(std::memory_order_relaxed)) at(first + i).store(best[i], std::memory_order_relaxed);
  }

 private:
  std::atomic_ref<float> at(int64_t row) const { return std::atomic_ref<float>(start_[row]); }
  at::Tensor values_;
  float* start_ = values_.data_ptr<float>();
};

template <class Tiles>
std::tuple<at::Tensor, at::Tensor> run(const Tiles& tiles, const at::Tensor& seed, const at::Tensor& counter) {
  const int64_t rows = tiles.rows, panels = tiles.panels.size();
  at::Tensor tokens_out = at::empty({rows}, at::kLong), logprob = at::empty({rows}, at::kFloat);
  if (rows == 0) return {tokens_out, logprob};

  const Plan plan(panels, tiles.vocabulary, kGroupRows, kSplits);
  const SoftmaxState state(plan.splits, tiles.panels);
  const at::Tensor best = at::full({plan.splits, state.lanes}, -INFINITY, at::kFloat);
  const at::Tensor best_score = at::empty_like(best);
  const at::Tensor best_token = at::full({plan.splits, state.lanes}, -1, at::kInt);
  const Floor floor(state.lanes);
  const std::vector<uint32_t> seeds = split_words(seed, tiles.panels), counters = split_words(counter, tiles.panels);

  plan.run(panels, tiles.vocabulary, [&](const Task& task) {
    const at::Tensor scratch = at::empty({kTile * kMaxPanel}, at::kFloat);
    float* scores = scratch.data_ptr<float>();
    for (int64_t first = task.token_begin; first < task.token_end; first += kTile) {
      const int64_t tokens = std::min(kTile, task.token_end - first);
      const typename Tiles::Tile tile(tiles, first, tokens, task.panel_begin, task.panel_end);
      for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
        const Panel& panel = tiles.panels[p];
        const int64_t at = task.split * state.lanes + panel.first;
        float lowest[kMaxPanel], rescale[kMaxPanel];
        tile.fill(p, scores);
        floor.read(panel.first, panel.width(), lowest);
        panel.build->sample(panel.vecs, tokens, first, scores, &seeds[2 * panel.first], &counters[2 * panel.first],
                            lowest, best.data_ptr<float>() + at, best_token.data_ptr<int32_t>() + at,
                            best_score.data_ptr<float>() + at);
        floor.raise(panel.first, panel.width(), best.data_ptr<float>() + at);
        panel.build->softmax(panel.vecs, tokens, scores, nullptr, state.max_at(task.split, panel.first),
                             state.sum_at(task.split, panel.first), rescale);
      }
    }
  });

  for (int64_t row = 0; row < rows; ++row) {
    int64_t winner = row;
    float top = -INFINITY, total = 0.0f;
    for (int64_t at = row; at < plan.splits * state.lanes; at += state.lanes) {
      // On a tie the earlier split, and so the lower token, wins.
      if (best.data_ptr<float>()[at] > best.data_ptr<float>()[winner]) winner = at;
      top = std::max(top, state.max.data_ptr<float>()[at]);
    }
    for (int64_t s = 0; s < plan.splits; ++s) total += std::exp(*state.max_at(s, row) - top) * *state.sum_at(s, row);
    const bool good = total > 0.0f && std::isfinite(total);
    tokens_out.data_ptr<int64_t>()[row] = good ? best_token.data_ptr<int32_t>()[winner] : -1;
    logprob.data_ptr<float>()[row] = good ? best_score.data_ptr<float>()[winner] - (top + std::log(total))
                                          : std::numeric_limits<float>::quiet_NaN();
  }
  return {tokens_out, logprob};
}

std::tuple<at::Tensor, at::Tensor> gibbs_sample(const at::Tensor& hidden, const at::Tensor& weight,
                                                const std::optional<at::Tensor>& bias,
                                                const std::optional<at::Tensor>& keep, double temperature,
                                                const at::Tensor& seed, const at::Tensor& counter) {
  return run(HeadTiles(hidden, weight, Temper(bias, keep, temperature)), seed, counter);
}

std::tuple<at::Tensor, at::Tensor> gibbs_sample_from_logits(const at::Tensor& logits,
                                                            const std::optional<at::Tensor>& keep, double temperature,
                                                            const at::Tensor& seed, const at::Tensor& counter) {
  return run(ReadyTiles(logits, {}, Temper(std::nullopt, keep, temperature)), seed, counter);
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) {
  m.impl("gibbs_sample", gibbs_sample);
  m.impl("gibbs_sample_from_logits", gibbs_sample_from_logits);
}

}  // namespace
}  // namespace scone
