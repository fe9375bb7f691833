// The vector kernels of the CPU ops, on raw pointers. Compiled three times from kernels.inc: for AVX-512, for AVX2 with
// FMA, and for whatever the compiler's baseline is; `kernels()` is the build in use.
//
// One layout serves them all. Rows of the batch lie along vector lanes: a *panel* holds up to three vectors of rows, 48
// rows for AVX-512 and 24 for the others, and everything that is indexed by (token, row) is stored as
// [token][lanes * vecs]. A softmax over the vocabulary then needs no horizontal operation, and its running state is a
// few vectors.
#pragma once

#include <cstdint>
#include <vector>

namespace scone {

constexpr int64_t kMaxVecs = 3;
constexpr int64_t kMaxPanel = 16 * kMaxVecs;  // rows of a full panel in the widest build

// A matrix as the matmul reads it: element (i, k) is data[i / 4 * quad + i % 4 * row + k * step].
struct Matrix {
  const float* data;
  int64_t quad, row, step;
  const float* next = nullptr;  // as many values that will be asked for next: fetched meanwhile into the second-level cache

  static Matrix row_major(const float* data, int64_t stride) { return {data, 4 * stride, stride, 1}; }
  // Four rows interleaved, [rows / 4][depth][4]; rows are a multiple of 4.
  static Matrix interleaved(const float* data, int64_t depth) { return {data, 4 * depth, 1, 4}; }
};

// How values are stored: float32, float16 or bfloat16.
enum class Stored { kFloat, kHalf, kBrain };

// Rows of a weight that lie side by side in a panel of it, [depth][kColumns]: columns of the product.
constexpr int64_t kColumns = 48;

struct Kernels {
  const char* name;
  int64_t lanes;            // of a vector
  const Kernels* narrower;  // the build for few rows, or null

  // c[i][lane] = sum_k a(i, k) * b[k][lane], i < rows, lane < lanes * vecs; c[i][lane] * older[i] is added unless older
  // is null.
  void (*matmul)(int vecs, int64_t rows, int64_t depth, Matrix a, const float* b, float* c, const float* older);

  // out[column][lanes * vecs] = the transpose of `rows` rows of `columns` floats; lanes without a row are zero.
  void (*transpose)(int vecs, int64_t rows, int64_t columns, const float* const* row, float* out);

  // tile = (tile + bias[token]) * scale, or -inf where keep[token] is 0. bias and keep may be null.
  void (*temper)(int vecs, int64_t tokens, const float* bias, const uint8_t* keep, float scale, float* tile);

  // One step of the online softmax: exp(tile - max), where max (in and out) grows to cover the tile; sum is rescaled and
  // grows by the tile's; rescale is the factor that older sums need. The exponentials take the tile's place, or go to
  // `quads`, unless it is null, as a matrix of rows by tokens with four rows interleaved.
  void (*softmax)(int vecs, int64_t tokens, float* tile, float* quads, float* max, float* sum, float* rescale);

  // out[lane] = sum over tokens of tile[token][lane] * other[token][lane].
  void (*dot_lanes)(int vecs, int64_t tokens, const float* tile, const float* other, float* out);

  // out[lane] = sum over tokens of tile[token][lane] * other[token * other_step].
  void (*dot_scalar)(int vecs, int64_t tokens, const float* tile, const float* other, int64_t other_step, float* out);

  // Gumbel-max over a tile that starts at token `first` (a multiple of 4): per lane the best perturbed score so far, its
  // token and its unperturbed score. seed and counter: [lo words | hi words], lanes * vecs each. A token whose
  // perturbed score is below the lane's `floor` may be passed over.
  void (*sample)(int vecs, int64_t tokens, int64_t first, const float* tile, const uint32_t* seed,
                 const uint32_t* counter, const float* floor, float* best, int32_t* best_token, float* best_score);

  // A step of a search through one row's logits: out = (in + bias) * scale, or -inf where keep is 0; bias and keep may be
  // null. max and sum (in and out) are those of the online softmax. found: which are above `floor`, in their order; the
  // result is how many. Of out and found whole vectors are written.
  int64_t (*scan)(int64_t count, const float* in, const float* bias, const uint8_t* keep, float scale, float floor,
                  float* out, float* max, float* sum, int32_t* found);

  // sum_d a[d] * (b[d] - c[d]), or sum_d a[d] * b[d] if c is null.
  float (*dot_difference)(int64_t width, const float* a, const float* b, const float* c);

  // y[row][token] = w[token] . x[row] + bias[token] for few rows; bias may be null.
  void (*few_rows)(int64_t rows, int64_t tokens, int64_t depth, const float* w, int64_t w_stride, const float* x,
                   int64_t x_stride, const float* bias, float* y, int64_t y_stride);

  // y[row][column] = sum_k x[row][k] * panel[k][column] for kColumns columns, on top of what is there if `add`. Each sum goes
  // from the first k to the last, whatever the rows. Meanwhile `bytes` bytes from `next` on are fetched into the second-level
  // cache.
  void (*rows_by_panel)(Stored stored, int64_t rows, int64_t depth, const float* x, int64_t x_stride, const void* panel,
                        float* y, int64_t y_stride, bool add, const char* next, int64_t bytes);

  // Values in float32.
  void (*widen)(Stored stored, int64_t count, const void* from, float* out);

  // out[query] = the mean of values under softmax(query . key), over `keys` keys and one of the token's own; each is `depth`
  // numbers, stored as one says and the token's own in float32, the next one key_step or value_step on. seen, unless null: which keys count. score: room for
  // queries * (keys + 1) floats, the keys rounded up to whole vectors.
  void (*attend_new)(Stored stored, int64_t queries, int64_t depth, int64_t keys, const float* query, const void* key,
                     int64_t key_step, const void* value, int64_t value_step, const bool* seen, const float* own_key,
                     const float* own_value, float* score, float* out);

  // out[query] = the mean of values under softmax(scale * query . key); keys and values lie key_step apart. room:
  // (depth + 8) * keys floats, the keys rounded up to whole vectors.
  void (*attend_text)(int64_t queries, int64_t keys, int64_t depth, float scale, const float* query, int64_t query_step,
                      const float* key, const float* value, int64_t key_step, float* room, float* out,
                      int64_t out_step);

  // out = x / its root mean square * gain, `width` values each.
  void (*rms_norm)(int64_t width, const float* gain, float eps, const float* x, float* out);

  // x[.][lane] less its mean, by its standard deviation, times gain[i], plus bias[i].
  void (*layer_norm)(int vecs, int64_t depth, const float* gain, const float* bias, float eps, float* x);

  // tile = gelu(tile + bias[token]).
  void (*gelu)(int vecs, int64_t tokens, const float* bias, float* tile);

  // x = x / (1 + exp(-x)) * other.
  void (*gate)(int64_t size, float* x, const float* other);
};

// The builds that this CPU runs, the fastest first, and the one in use: the first, unless a test takes another. Not to
// be changed while an op runs.
const std::vector<const Kernels*>& builds();
const Kernels& kernels();
void use_build(const Kernels& table);

namespace avx512 {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
namespace baseline {
extern const Kernels table;
}

}  // namespace scone
