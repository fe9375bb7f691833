// The likeliest tokens of every row, the mean rows of tables over them, and a draw among them: logits are looked at a tile at a
// time, while they are in the first-level cache, and most tiles hold nothing that is above a row's last likely token so far.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "row_weight.h"
#include "team.h"
#include "token_noise.h"

namespace scone {
namespace {

constexpr int64_t kGroup = 192;  // rows that meet a weight together: they stay in the second-level cache
constexpr float kNone = -INFINITY, kNaN = std::numeric_limits<float>::quiet_NaN();

// Tokens are in order by score, and by number where scores are equal, whoever finds them first.
struct Likely {
  float score = kNone;
  int32_t token = std::numeric_limits<int32_t>::max();
  bool before(const Likely& other) const {
    return score > other.score || (score == other.score && token < other.token);
  }
};

// The likeliest tokens of every row so far, in order.
class Likeliest {
 public:
  Likeliest(int64_t rows, int64_t among) : among_(among), all_(rows * among) {}
  const Likely* of(int64_t row) const { return all_.data() + row * among_; }
  float last(int64_t row) const { return of(row)[among_ - 1].score; }
  void add(int64_t row, const Likely& found) {
    Likely *begin = all_.data() + row * among_, *at = begin + among_ - 1;
    if (!found.before(*at)) return;
    for (; at > begin && found.before(at[-1]); --at) *at = at[-1];
    *at = found;
  }

 private:
  int64_t among_;
  std::vector<Likely> all_;
};

// Logits of some rows from a head: (N, H) times a weight (V, H), or its panels.
class FromHead {
 public:
  static constexpr int64_t kBlock = 5 * kColumns, kMost = kColumns;  // tokens of a task, and of one look
  struct Room : scone::Room {
    explicit Room(const FromHead& head) : scone::Room(head.rows) {}
  };

  FromHead(const at::Tensor& hidden, const at::Tensor& weight, int64_t vocabulary)
      : rows(hidden.size(0)), vocabulary(vocabulary), hidden_(as_float_rows(hidden)), weight_(weight), input_(hidden_) {
    if (weight.dim() == 3 || (weight.scalar_type() == at::kFloat && weight.is_contiguous()))
      whole_.emplace(weight, vocabulary);
    if (weight.dim() == 2) input_.in_panels();
  }

  // Shows visit(row, first token, tokens, logits) the block, tile by tile; `later` is the block that is asked for after it.
  template <class Visit>
  void look(int64_t block, int64_t later, Room& room, const Visit& visit) {
    const int64_t first = block * kBlock, tokens = std::min(kBlock, vocabulary - first);
    std::optional<RowWeight> part;  // converted
    if (!whole_) part.emplace(as_float_rows(weight_.narrow(0, first, tokens)), tokens);
    const RowWeight& weight = whole_ ? *whole_ : *part;
    const int64_t begin = whole_ ? first / kColumns : 0, end = begin + (tokens + kColumns - 1) / kColumns;
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t next = tile + 1 < end ? tile + 1 : later * kBlock / kColumns;
      multiply_tile(weight, tile, input_, room, next < weight.tiles ? weight.at(next) : Bytes{});
      for (int64_t row = 0; row < rows; ++row)
        visit(row, first + (tile - begin) * kColumns, weight.count(tile), room.product.data() + row * kColumns);
    }
  }

  const int64_t rows, vocabulary;

 private:
  at::Tensor hidden_, weight_;
  Input input_;
  std::optional<RowWeight> whole_;
};

// Logits of some rows that are ready, (N, V).
class FromLogits {
 public:
  static constexpr int64_t kBlock = 2048, kMost = kBlock;
  struct Room {
    explicit Room(const FromLogits&) {}
  };

  explicit FromLogits(const at::Tensor& logits) : rows(logits.size(0)), vocabulary(logits.size(1)), logits_(logits) {}

  template <class Visit>
  void look(int64_t block, int64_t, Room&, const Visit& visit) {
    const int64_t first = block * kBlock, tokens = std::min(kBlock, vocabulary - first);
    const at::Tensor values = as_float_rows(logits_.narrow(1, first, tokens));
    for (int64_t row = 0; row < rows; ++row) visit(row, first, tokens, values.data_ptr<float>() + row * values.stride(0));
  }

  const int64_t rows, vocabulary;

 private:
  at::Tensor logits_;
};

// What the search through the logits of some rows has found.
class Search {
 public:
  // Threads take blocks as they come, each in ascending order. The likeliest tokens are the same whoever finds them; sums are
  // kept for each block, so that they are too.
  template <class Logits>
  Search(Logits& logits, const Temper& temper, int64_t among)
      : rows_(logits.rows),
        among_(among),
        blocks_((logits.vocabulary + Logits::kBlock - 1) / Logits::kBlock),
        max_(blocks_ * rows_, kNone),
        sum_(blocks_ * rows_, 0.0f) {
    Team team(1, threads_for(blocks_));
    found_.assign(team.size, Likeliest(rows_, among));
    team.run([&](int64_t thread) {
      Likeliest& likeliest = found_[thread];
      typename Logits::Room room(logits);
      Floats scores(Logits::kMost + kMaxPanel);
      std::vector<int32_t> above(Logits::kMost);
      team.share(0, blocks_, [&](int64_t block) {
        logits.look(block, block + team.size, room, [&](int64_t row, int64_t first, int64_t tokens, const float* in) {
          const int64_t at = block * rows_ + row;
          const int64_t count =
              kernels().scan(tokens, in, temper.bias_at(first), temper.keep_at(first), temper.scale(), likeliest.last(row),
                             scores.data(), &max_[at], &sum_[at], above.data());
          for (int64_t i = 0; i < count; ++i) likeliest.add(row, {scores.data()[above[i]], int32_t(first + above[i])});
        });
      });
    });
  }

  // A row's likeliest tokens over all threads.
  const Likely* of(int64_t row) {
    for (size_t i = 1; i < found_.size(); ++i)
      for (int64_t j = 0; j < among_; ++j) found_[0].add(row, found_[i].of(row)[j]);
    return found_[0].of(row);
  }

  // The sum of exp(score - top) over the vocabulary; not a positive number where the row has no softmax.
  float total(int64_t row, float top) const {
    float total = 0.0f;
    for (int64_t at = row; at < blocks_ * rows_; at += rows_) total += std::exp(max_[at] - top) * sum_[at];
    return total;
  }

 private:
  int64_t rows_, among_, blocks_;
  std::vector<Likeliest> found_;
  std::vector<float> max_, sum_;
};

// to += p * the row of a token. Rows lie anywhere: that of `next` is fetched meanwhile.
template <class T>
void add_row(const at::Tensor& table, int64_t token, int64_t next, float p, float* to) {
  const T* all = static_cast<const T*>(table.const_data_ptr());
  const T *from = all + token * table.stride(0), *later = all + next * table.stride(0);
  const int64_t width = table.size(1), step = table.stride(1);
  if (step == 1) {
    for (int64_t d = 0; d < width; d += 64 / sizeof(T)) __builtin_prefetch(later + d);
    for (int64_t d = 0; d < width; ++d) to[d] += p * float(from[d]);
  } else {
    for (int64_t d = 0; d < width; ++d) to[d] += p * float(from[d * step]);
  }
}

class Results {
 public:
  Results(int64_t rows, at::TensorList tables, int64_t among, double min_p, const std::optional<at::Tensor>& seed,
          const std::optional<at::Tensor>& counter)
      : tables_(tables),
        among_(among),
        cut_(float(std::log(min_p))),  // -inf for 0
        tokens_(at::empty({rows, among}, at::kLong)),
        log_p_(at::empty({rows, among}, at::kFloat)),
        log_mass_(at::empty({rows}, at::kFloat)) {
    if (seed && counter) {
      seed_ = seed->contiguous(), counter_ = counter->contiguous();
      drawn_ = at::empty({rows}, at::kLong);
    }
    for (const at::Tensor& table : tables) means_.push_back(at::empty({rows, table.size(1)}, at::kFloat));
  }

  void write(int64_t row, const Likely* found, float total) {
    int64_t* tokens = tokens_.data_ptr<int64_t>() + row * among_;
    float* log_p = log_p_.data_ptr<float>() + row * among_;
    const bool good = total > 0.0f && std::isfinite(total);
    const float top = found[0].score, lowest = top + cut_;
    int64_t inside = 0;
    float sum = 0.0f, p[kMostAmong];
    for (; good && inside < among_ && found[inside].score > kNone && found[inside].score >= lowest; ++inside)
      sum += p[inside] = std::exp(found[inside].score - top);
    for (int64_t i = 0; i < among_; ++i) {
      tokens[i] = i < inside ? found[i].token : -1;
      log_p[i] = !good ? kNaN : i < inside ? found[i].score - top - std::log(sum) : kNone;
    }
    log_mass_.data_ptr<float>()[row] = good ? std::log(sum) - std::log(total) : kNaN;
    if (drawn_.defined()) drawn_.data_ptr<int64_t>()[row] = draw(row, found, inside);
    for (size_t t = 0; t < means_.size(); ++t) {
      const int64_t width = means_[t].size(1);
      float* mean = means_[t].data_ptr<float>() + row * width;
      std::fill_n(mean, width, good ? 0.0f : kNaN);
      const auto type = tables_[t].scalar_type();
      const auto add = type == at::kHalf ? add_row<c10::Half> : type == at::kBFloat16 ? add_row<c10::BFloat16> : add_row<float>;
      for (int64_t i = 0; i < inside; ++i)
        add(tables_[t], found[i].token, found[std::min(i + 1, inside - 1)].token, p[i] / sum, mean);
    }
  }

  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> out{tokens_, log_p_, log_mass_};
    if (drawn_.defined()) out.push_back(drawn_);
    out.insert(out.end(), means_.begin(), means_.end());
    return out;
  }

  static constexpr int64_t kMostAmong = 64;

 private:
  int64_t draw(int64_t row, const Likely* found, int64_t inside) const {
    Likely best{kNone, -1};
    for (int64_t i = 0; i < inside; ++i) {
      const Likely other{found[i].score + token_noise(uint64_t(seed_.data_ptr<int64_t>()[row]),
                                                      uint64_t(counter_.data_ptr<int64_t>()[row]), uint32_t(found[i].token)),
                         found[i].token};
      if (i == 0 || other.before(best)) best = other;
    }
    return best.token;
  }

  at::TensorList tables_;
  int64_t among_;
  float cut_;
  at::Tensor tokens_, log_p_, log_mass_, seed_, counter_, drawn_;
  std::vector<at::Tensor> means_;
};

// logits_of(first, count) gives the logits of some rows.
template <class LogitsOf>
std::vector<at::Tensor> run(int64_t rows, const Temper& temper, int64_t among, Results results, const LogitsOf& logits_of) {
  TORCH_CHECK_VALUE(among >= 1 && among <= Results::kMostAmong, "among must be from 1 to ", Results::kMostAmong, ", got ", among);
  for (int64_t first = 0; first < rows; first += kGroup) {
    auto logits = logits_of(first, std::min(kGroup, rows - first));
    Search search(logits, temper, among);
    at::parallel_for(0, logits.rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Likely* found = search.of(row);
        results.write(first + row, found, search.total(row, found[0].score));
      }
    });
  }
  return results.all();
}

std::vector<at::Tensor> likely_rows(const at::Tensor& hidden, const at::Tensor& weight, at::TensorList tables,
                                    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& keep,
                                    double temperature, int64_t vocabulary, int64_t among, double min_p,
                                    const std::optional<at::Tensor>& seed, const std::optional<at::Tensor>& counter) {
  const int64_t rows = hidden.size(0);
  return run(rows, Temper(bias, keep, temperature), among, Results(rows, tables, among, min_p, seed, counter),
             [&](int64_t first, int64_t count) { return FromHead(hidden.narrow(0, first, count), weight, vocabulary); });
}

std::vector<at::Tensor> likely_rows_from_logits(const at::Tensor& logits, at::TensorList tables,
                                                const std::optional<at::Tensor>& keep, double temperature, int64_t among,
                                                double min_p, const std::optional<at::Tensor>& seed,
                                                const std::optional<at::Tensor>& counter) {
  const int64_t rows = logits.size(0);
  return run(rows, Temper(std::nullopt, keep, temperature), among, Results(rows, tables, among, min_p, seed, counter),
             [&](int64_t first, int64_t count) { return FromLogits(logits.narrow(0, first, count)); });
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) {
  m.impl("likely_rows", likely_rows);
  m.impl("likely_rows_from_logits", likely_rows_from_logits);
}

}  // namespace
}  // namespace scone
