// Runs the kernels of hogwild.cuh without a GPU: the threads of a thread block are threads of the host, and
// __syncthreads() is a barrier. Prints "same" if state, snapshot and staleness are what hogwild.h promises, computed in plain arithmetic.
// Built by g++; <cuda_runtime_api.h> may be an empty file.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <thread>
#include <vector>

#include "hogwild.h"

namespace {

struct Index {
  unsigned x;
};
struct Meeting {
  explicit Meeting(int threads) : barrier(threads) {}
  std::barrier<> barrier;
  std::atomic<bool> all{true};
};
thread_local Index threadIdx, blockIdx;
thread_local Meeting* meeting;
Index blockDim, gridDim;

void __syncthreads() { meeting->barrier.arrive_and_wait(); }
bool __syncthreads_and(bool mine) {
  if (!mine) meeting->all = false;
  __syncthreads();
  const bool all = meeting->all;
  __syncthreads();
  meeting->all = true;
  __syncthreads();
  return all;
}

}  // namespace

#define __global__ [[maybe_unused]] static
#include "hogwild.cuh"

using namespace scone::hogwild;

namespace {

template <class Kernel>
void launch(unsigned blocks, unsigned threads, const Kernel& kernel) {
  gridDim.x = blocks, blockDim.x = threads;
  for (unsigned block = 0; block < blocks; ++block) {  // one after the other, so that every run is the same
    Meeting here(static_cast<int>(threads));
    std::vector<std::thread> running;
    for (unsigned thread = 0; thread < threads; ++thread)
      running.emplace_back([&, thread] {
        blockIdx.x = block, threadIdx.x = thread, meeting = &here;
        kernel();
      });
    for (auto& thread : running) thread.join();
  }
}

constexpr std::int64_t kRows = 3, kPositions = 7, kStride = 8, kSize = 3;
using Values = std::vector<std::int64_t>;

struct Result {
  std::vector<Word> words = std::vector<Word>(kRows * kStride);
  Values tokens = Values(kRows * kPositions), versions = tokens, staleness;
  bool operator==(const Result&) const = default;
};

// Some versions are about to wrap.
Result begin() {
  Result out;
  for (std::size_t i = 0; i < out.words.size(); ++i)
    out.words[i] = pack(100 + i, 0xFFFFFFFEu + static_cast<std::uint32_t>(i % 4));
  return out;
}

// Blocks 1, 2, 5 and 7 must be left out: a row and a start outside the state, and tokens of more than 32 bits.
constexpr std::int64_t kCount = 8;
const Values rows{0, 3, 1, 2, 0, 1, 2, 2}, starts{1, 0, 5, 4, 2, 0, 0, 4};
const Values tokens{1,  2,  3,  4,  5,           6,  7,  8,  9,          10, 11, 12,
                    13, 14, 15, 16, kTokenLimit, 18, 19, kTokenLimit - 1, 21, -1, 23, 24};
bool left_out(std::int64_t block) { return block == 1 || block == 2 || block == 5 || block == 7; }

Values snapshot() {
  Values seen(kRows * kPositions);
  for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = 0xFFFFFFFC + i % 3;
  return seen;
}

// What a write and a read mean, in plain arithmetic. With two thread blocks the blocks of even number come first.
Result meaning(const Values& seen) {
  Result out = begin();
  out.staleness.resize(kCount * kPositions);
  for (std::int64_t block : {0, 2, 4, 6, 1, 3, 5, 7})
    for (std::int64_t p = 0; p < kPositions; ++p) {
      std::int64_t& behind = out.staleness[block * kPositions + p];
      behind = -1;
      if (left_out(block)) continue;
      Word& word = out.words[rows[block] * kStride + p];
      const std::int64_t version = word >> 32, offset = p - starts[block];
      behind = (version - seen[rows[block] * kPositions + p]) & 0xFFFFFFFF;
      if (0 <= offset && offset < kSize) word = (Word(version + 1) << 32) | Word(tokens[block * kSize + offset]);
    }
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t p = 0; p < kPositions; ++p) {
      out.tokens[row * kPositions + p] = out.words[row * kStride + p] & 0xFFFFFFFF;
      out.versions[row * kPositions + p] = out.words[row * kStride + p] >> 32;
    }
  return out;
}

}  // namespace

int main() {
  const Values seen = snapshot();
  const Blocks blocks{rows.data(), starts.data(), tokens.data(), seen.data(), kCount, kSize};
  const Result expected = meaning(seen);
  for (unsigned threads : {1u, 2u, 5u, 32u}) {
    Result got = begin();
    got.staleness.resize(kCount * kPositions);
    const State state{got.words.data(), kStride, kRows, kPositions};
    launch(2, threads, [&] { write_kernel(state, blocks, got.staleness.data()); });
    launch(2, threads, [&] { read_kernel(state, got.tokens.data(), got.versions.data()); });
    if (got != expected) return std::printf("different with %u threads\n", threads), 1;
  }
  return std::puts("same"), 0;
}
