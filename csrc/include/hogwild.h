// A token state that many writers share without locks: one 64-bit word per position, the token in its low half and the
// number of writes so far (the version) in its high half. A word is read and replaced whole, so no reader ever sees the
// token of one write with the version of another.
//
// Written once for host and device: g++ makes std::atomic_ref of it, nvcc makes cuda::atomic_ref at device scope.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda/atomic>
#define SCONE_HOST_DEVICE __host__ __device__
#else
#include <atomic>
#define SCONE_HOST_DEVICE
#endif

namespace scone::hogwild {

using Word = std::uint64_t;
inline constexpr std::int64_t kTokenLimit = std::int64_t{1} << 32;

// The shared words: (rows, positions), rows `row_stride` words apart.
struct State {
  Word* words;
  std::int64_t row_stride;
  std::int64_t rows;
  std::int64_t positions;

  SCONE_HOST_DEVICE Word* row(std::int64_t index) const { return words + index * row_stride; }
};

// `count` blocks of `size` new tokens, and the versions (rows, positions) of the snapshot that they were drawn from.
struct Blocks {
  const std::int64_t* rows;      // (count,)
  const std::int64_t* starts;    // (count,)
  const std::int64_t* tokens;    // (count, size)
  const std::int64_t* versions;  // (rows, positions)
  std::int64_t count;
  std::int64_t size;

  SCONE_HOST_DEVICE bool inside(const State& state, std::int64_t block) const {
    return rows[block] >= 0 && rows[block] < state.rows && starts[block] >= 0 &&
           starts[block] <= state.positions - size;
  }
  SCONE_HOST_DEVICE bool token_fits(std::int64_t block, std::int64_t offset) const {
    const std::int64_t token = tokens[block * size + offset];
    return token >= 0 && token < kTokenLimit;
  }
};

SCONE_HOST_DEVICE constexpr Word pack(std::uint32_t token, std::uint32_t version) {
  return (static_cast<Word>(version) << 32) | token;
}
SCONE_HOST_DEVICE constexpr std::uint32_t token_of(Word word) { return static_cast<std::uint32_t>(word); }
SCONE_HOST_DEVICE constexpr std::uint32_t version_of(Word word) { return static_cast<std::uint32_t>(word >> 32); }

// The two compilers make different code of what follows, so each has its own namespace.
#ifdef __CUDACC__
inline namespace cuda_atomics {
using AtomicWord = cuda::atomic_ref<Word, cuda::thread_scope_device>;
inline constexpr auto relaxed = cuda::std::memory_order_relaxed;
#else
inline namespace std_atomics {
using AtomicWord = std::atomic_ref<Word>;
inline constexpr auto relaxed = std::memory_order_relaxed;
#endif

SCONE_HOST_DEVICE inline Word load(Word& word) { return AtomicWord(word).load(relaxed); }

// Replaces the token and adds one to the version in one step, and returns the version that it replaced. An exchange
// would let two racing writers publish the same version; the loop never does, so versions count writes exactly.
SCONE_HOST_DEVICE inline std::uint32_t publish(Word& word, std::uint32_t token) {
  AtomicWord atomic(word);
  Word old = atomic.load(relaxed);
  while (!atomic.compare_exchange_weak(old, pack(token, version_of(old) + 1), relaxed, relaxed)) {
  }
  return version_of(old);
}

// How many versions `current` is ahead of `seen`; versions wrap at 2^32.
SCONE_HOST_DEVICE inline std::int64_t ahead(std::uint32_t current, std::int64_t seen) {
  return static_cast<std::uint32_t>(current - static_cast<std::uint32_t>(seen));
}

// The functions below do every `step`-th item from `first` on: a CPU thread does all (0, 1), and the threads of a CUDA
// block share them (threadIdx.x, blockDim.x).

// One row of a snapshot: (positions,) each.
SCONE_HOST_DEVICE inline void read_row(const State& state, std::int64_t row, std::int64_t* tokens,
                                       std::int64_t* versions, std::int64_t first = 0, std::int64_t step = 1) {
  Word* words = state.row(row);
  for (std::int64_t p = first, end = state.positions; p < end; p += step) {
    const Word word = load(words[p]);
    tokens[p] = token_of(word);
    versions[p] = version_of(word);
  }
}

// Writes a block, and into staleness (positions,) how many versions its positions had advanced past the snapshot.
SCONE_HOST_DEVICE inline void publish_block(const State& state, const Blocks& blocks, std::int64_t block,
                                            std::int64_t* staleness, std::int64_t first = 0, std::int64_t step = 1) {
  const std::int64_t row = blocks.rows[block], start = blocks.starts[block];
  Word* words = state.row(row) + start;
  const std::int64_t* seen = blocks.versions + row * state.positions + start;
  const std::int64_t* tokens = blocks.tokens + block * blocks.size;
  for (std::int64_t j = first, end = blocks.size; j < end; j += step) {
    staleness[start + j] = ahead(publish(words[j], static_cast<std::uint32_t>(tokens[j])), seen[j]);
  }
}

// After a block is written: the same for the other positions of its row. A write that races with this look may be
// counted or not.
SCONE_HOST_DEVICE inline void look_back(const State& state, const Blocks& blocks, std::int64_t block,
                                        std::int64_t* staleness, std::int64_t first = 0, std::int64_t step = 1) {
  const std::int64_t row = blocks.rows[block], start = blocks.starts[block];
  Word* words = state.row(row);
  const std::int64_t* seen = blocks.versions + row * state.positions;
  for (std::int64_t p = first; p < start; p += step) {
    staleness[p] = ahead(version_of(load(words[p])), seen[p]);
  }
  for (std::int64_t p = start + blocks.size + first, end = state.positions; p < end; p += step) {
    staleness[p] = ahead(version_of(load(words[p])), seen[p]);
  }
}

}  // inline namespace
}  // namespace scone::hogwild
