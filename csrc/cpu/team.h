// Threads that stay together from the first layer of a model to the last, and how each knows what to fetch meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

namespace scone {

// Threads that go through the same phases: in each they take pieces as they come. A phase is over when its pieces are done, not
// when every thread is there: one that the scheduler has put aside holds nobody up unless it holds a piece, and what it finds
// when it comes back is that nothing is left of the phases it has missed. Who waits spins for some microseconds and then
// sleeps, so that the one it waits for can have its core.
class Team {
 public:
  Team(int64_t phases, int threads) : size(threads), phases_(phases) {}

  // Every thread calls body(its number), and in it share() for one phase after the other. What one of them throws is thrown.
  template <class Body>
  void run(const Body& body) {
#pragma omp parallel num_threads(size)
    {
      guard([&] { body(came_.fetch_add(1, std::memory_order_relaxed)); });
      finish(gone_, size);
      wait_for(gone_, size);
    }
    if (problem_) std::rethrow_exception(problem_);
  }

  // Calls f(piece) for all pieces of the phase, each on one thread; a thread that has one calls prepare() first. A thread may
  // read what other phases write only while it holds a piece: without one it may be long behind them.
  template <class F, class Prepare>
  void share(int64_t phase, int64_t pieces, const F& f, const Prepare& prepare) {
    auto& [taken, done] = phases_[phase];
    bool prepared = false;
    for (int64_t piece; (piece = taken.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      guard([&] {
        if (!prepared) prepare();
        prepared = true;
        f(piece);
      });
      finish(done, pieces);
    }
    wait_for(done, pieces);
  }
  template <class F>
  void share(int64_t phase, int64_t pieces, const F& f) {
    share(phase, pieces, f, [] {});
  }

  const int size;

 private:
  using Count = std::atomic<int32_t>;  // of a size that the system can wait for
  struct Phase {
    std::atomic<int64_t> taken{0};
    Count done{0};
  };

  // After a problem pieces are still taken, so that nobody waits for them in vain, but nothing is done for them.
  template <class F>
  void guard(const F& f) {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      f();
    } catch (...) {
      if (!failed_.exchange(true)) problem_ = std::current_exception();
    }
  }

  static void finish(Count& done, int64_t all) {
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == all) done.notify_all();
  }

  static void wait_for(const Count& done, int64_t all) {
    constexpr int kSpins = 1000;
    for (int spins = 0; spins < kSpins && done.load(std::memory_order_acquire) < all; ++spins) relax();
    for (int32_t now; (now = done.load(std::memory_order_acquire)) < all;) done.wait(now, std::memory_order_acquire);
  }

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  std::vector<Phase> phases_;
  Count came_{0}, gone_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr problem_;
};

// A weight in pieces, as the threads take them.
template <class Weight>
struct Tile {
  Weight* weight;
  int64_t index;
};

// Tells every tile which one its thread will probably take next, over the ends of phases and layers: one for each thread on,
// because the threads take one each. Tiles of a weight that goes `together` with others are taken at once with theirs.
template <class Weight>
void look_ahead(const std::vector<Tile<Weight>>& order, int64_t threads) {
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t later = i + order[i].weight->together * threads;
    auto& next = order[i].weight->next;
    if (later < order.size()) next.push_back(order[later].weight->at(order[later].index));
    else next.emplace_back();
  }
}

}  // namespace scone
