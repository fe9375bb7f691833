// Threads that stay together from the first layer of a model to the last, and how each knows what to fetch meanwhile.
#pragma once

#include <ATen/Parallel.h>

#include <atomic>
#include <vector>

namespace scone {

// Threads that go through the same phases: in each they take pieces as they come, and at its end wait for each other.
class Team {
 public:
  explicit Team(int64_t phases) : size(at::in_parallel_region() ? 1 : at::get_num_threads()), taken_(phases) {}

  // Every thread calls body, and in it share() for one phase after the other.
  template <class Body>
  void run(const Body& body) const {
#pragma omp parallel num_threads(size)
    body();
  }

  // Calls f(piece) for all pieces of the phase, each on one thread.
  template <class F>
  void share(int64_t phase, int64_t pieces, const F& f) {
    for (int64_t piece; (piece = taken_[phase].fetch_add(1, std::memory_order_relaxed)) < pieces;) f(piece);
#pragma omp barrier
  }

  const int size;

 private:
  std::vector<std::atomic<int64_t>> taken_;
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
