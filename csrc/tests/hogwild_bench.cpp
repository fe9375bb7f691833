// Updates per second of the shared state without Python: one update reads a row and writes one block of it.
// usage: hogwild_bench THREADS SECONDS POSITIONS BLOCK contended|apart
// Prints one line per method: name, updates per second.
#include "hogwild.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace scone::hogwild;

namespace {

struct Setup {
  int threads;
  double seconds;
  std::int64_t positions;
  std::int64_t block;
  bool contended;  // all threads on one row, else a row for each
};

// What one thread owns: the snapshot it reads into and the block it writes.
struct Worker {
  std::int64_t row, start;
  std::vector<std::int64_t> block, tokens, versions, staleness;
};

using Update = std::function<void(Worker&)>;

double updates_per_second(const Setup& setup, std::int64_t row_stride, const Update& update) {
  std::atomic<bool> go{false}, stop{false};
  std::atomic<std::int64_t> updates{0};
  std::vector<std::thread> threads;
  for (int id = 0; id < setup.threads; ++id) {
    threads.emplace_back([&, id] {
      const auto size = static_cast<std::size_t>(row_stride * setup.threads);
      Worker worker{setup.contended ? 0 : id, (id * setup.block) % (setup.positions - setup.block + 1),
                    std::vector<std::int64_t>(setup.block, id), std::vector<std::int64_t>(size),
                    std::vector<std::int64_t>(size), std::vector<std::int64_t>(size)};
      while (!go.load()) std::this_thread::yield();
      std::int64_t mine = 0;
      for (; !stop.load(std::memory_order_relaxed); ++mine) update(worker);
      updates += mine;
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  go = true;
  std::this_thread::sleep_for(std::chrono::duration<double>(setup.seconds));
  stop = true;
  for (auto& thread : threads) thread.join();
  return updates / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return std::fprintf(stderr, "usage: %s THREADS SECONDS POSITIONS BLOCK contended|apart\n", argv[0]), 2;
  const Setup setup{std::atoi(argv[1]), std::atof(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]),
                    std::string(argv[5]) == "contended"};
  const std::int64_t stride = (setup.positions + 7) / 8 * 8;  // a row never shares a cache line with the next
  std::vector<Word> words(stride * setup.threads + 8);
  const State state{words.data(), stride, setup.threads, setup.positions};
  auto blocks_of = [=](const Worker& worker) {
    return Blocks{&worker.row, &worker.start, worker.block.data(), worker.versions.data(), 1, setup.block};
  };
  std::printf("lock-free %.0f\n", updates_per_second(setup, stride, [=](Worker& worker) {
    const std::int64_t offset = worker.row * setup.positions;
    read_row(state, worker.row, worker.tokens.data() + offset, worker.versions.data() + offset);
    const Blocks blocks = blocks_of(worker);
    publish_block(state, blocks, 0, worker.staleness.data());
    look_back(state, blocks, 0, worker.staleness.data());
  }));
  // No compare-and-swap: racing writers can publish the same version, so staleness and replay would be wrong.
  std::printf("plain-store %.0f\n", updates_per_second(setup, stride, [=](Worker& worker) {
    const std::int64_t offset = worker.row * setup.positions;
    read_row(state, worker.row, worker.tokens.data() + offset, worker.versions.data() + offset);
    Word* row = state.row(worker.row) + worker.start;
    for (std::int64_t j = 0; j < setup.block; ++j) {
      const auto token = static_cast<std::uint32_t>(worker.block[j]);
      AtomicWord(row[j]).store(pack(token, version_of(load(row[j])) + 1), relaxed);
    }
    look_back(state, blocks_of(worker), 0, worker.staleness.data());
  }));
  std::mutex mutex;
  std::printf("same-mutex %.0f\n", updates_per_second(setup, stride, [=, &mutex](Worker& worker) {
    const std::int64_t offset = worker.row * setup.positions;
    {
      const std::lock_guard lock(mutex);
      read_row(state, worker.row, worker.tokens.data() + offset, worker.versions.data() + offset);
    }
    const Blocks blocks = blocks_of(worker);
    const std::lock_guard lock(mutex);
    publish_block(state, blocks, 0, worker.staleness.data());
    look_back(state, blocks, 0, worker.staleness.data());
  }));
  std::vector<std::int64_t> plain(stride * setup.threads);
  std::printf("std::mutex %.0f\n", updates_per_second(setup, stride, [&](Worker& worker) {
    auto* row = plain.data() + worker.row * stride;
    {
      const std::lock_guard lock(mutex);
      std::memcpy(worker.tokens.data(), row, setup.positions * sizeof(std::int64_t));
    }
    const std::lock_guard lock(mutex);
    std::memcpy(row + worker.start, worker.block.data(), setup.block * sizeof(std::int64_t));
  }));
}
