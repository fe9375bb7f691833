// Runs the kernels of hogwild.cuh without a GPU: the threads of a thread block are threads of the host, and
// __syncthreads() is a barrier. Prints "same" if state, snapshot and staleness are those of the CPU's loops.
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

constexpr std::int64_t kRows = 3, kPositions = 7, kStride = 8, kSize = 3, kCount = 6;
using Values = std::vector<std::int64_t>;

struct Result {
  std::vector<Word> words = std::vector<Word>(kRows * kStride);
  Values tokens = Values(kRows * kPositions), versions = tokens, staleness = Values(kCount * kPositions);
  bool operator==(const Result&) const = default;
};

Result begin() {
  Result out;
  for (std::size_t i = 0; i < out.words.size(); ++i) out.words[i] = pack(100 + i, 5 + i % 4);
  return out;
}

}  // namespace

int main() {
  // Blocks 1, 2 and 5 must be left out: a row and a start outside the state, and a token of more than 32 bits.
  const Values rows{0, 3, 1, 2, 0, 1}, starts{1, 0, 5, 4, 2, 0};
  Values tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, kTokenLimit, 17, 18};
  Values seen(kRows * kPositions);
  for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = i % 5;
  const Blocks blocks{rows.data(), starts.data(), tokens.data(), seen.data(), kCount, kSize};

  Result expected = begin();
  const State state{expected.words.data(), kStride, kRows, kPositions};
  // With two thread blocks the blocks of even number come first.
  for (std::int64_t block : {0, 2, 4, 1, 3, 5}) {
    std::int64_t* own = expected.staleness.data() + block * kPositions;
    if (block == 1 || block == 2 || block == 5) {
      std::fill_n(own, kPositions, -1);
    } else {
      publish_block(state, blocks, block, own);
      look_back(state, blocks, block, own);
    }
  }
  for (std::int64_t row = 0; row < kRows; ++row)
    read_row(state, row, expected.tokens.data() + row * kPositions, expected.versions.data() + row * kPositions);

  for (unsigned threads : {1u, 2u, 5u, 32u}) {
    Result got = begin();
    const State shared{got.words.data(), kStride, kRows, kPositions};
    launch(2, threads, [&] { write_kernel(shared, blocks, got.staleness.data()); });
    launch(2, threads, [&] { read_kernel(shared, got.tokens.data(), got.versions.data()); });
    if (got != expected) return std::printf("different with %u threads\n", threads), 1;
  }
  return std::puts("same"), 0;
}
