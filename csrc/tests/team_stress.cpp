// Threads that go through phases together (team.h), many more of them than cores and some of them late.
//
//   team_stress THREADS PHASES PIECES ROUNDS
//
// Every piece adds up what all pieces of the phase before have left, so that one that begins too soon, is done twice or not at
// all changes the last sum. Prints a name and a number by turns; exits with 1 where something is wrong.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include "../cpu/cores.h"
#include "../cpu/team.h"

namespace {

using Sums = std::vector<uint32_t>;

uint32_t added_up(const Sums& before, int64_t piece) {
  return std::accumulate(before.begin(), before.end(), uint32_t(piece) + 1) * 2654435761u;
}

void nap(int64_t microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

// What `threads` find, of which some are late now and then.
std::vector<Sums> run(int threads, int64_t phases, int64_t pieces, int64_t round) {
  std::vector<Sums> found(phases, Sums(pieces));
  scone::Team team(phases, threads);
  team.run([&](int64_t thread) {
    const Sums none;
    for (int64_t phase = 0; phase < phases; ++phase) {
      if ((phase * 31 + thread * 17 + round) % 97 == 0) nap(200);
      const Sums& before = phase ? found[phase - 1] : none;
      uint32_t prepared = 0;
      team.share(
          phase, pieces, [&](int64_t piece) { found[phase][piece] = prepared + added_up(before, piece); },
          [&] { prepared = added_up(before, 0); });
    }
  });
  return found;
}

// Pieces that a thread gets that comes when the others could have long been done.
int64_t pieces_of_a_late_one(int threads) {
  constexpr int64_t kPhases = 100;
  scone::Team team(kPhases, threads);
  std::atomic<int64_t> own{0};
  team.run([&](int64_t thread) {
    if (thread == 0) nap(500000);
    for (int64_t phase = 0; phase < kPhases; ++phase) team.share(phase, 4, [&](int64_t) { own += thread == 0; });
  });
  return own;
}

// Whether what a piece throws comes out, and no piece of a later phase was begun.
bool tells_of_a_problem(int threads) {
  scone::Team team(3, threads);
  std::atomic<int> later{0};
  try {
    team.run([&](int64_t) {
      team.share(0, 50, [](int64_t piece) {
        if (piece == 20) throw std::runtime_error("piece 20");
      });
      team.share(1, 50, [&](int64_t) { ++later; });
      team.share(2, 50, [&](int64_t) { ++later; });
    });
  } catch (const std::runtime_error& problem) {
    return problem.what() == std::string("piece 20") && later == 0;
  }
  return false;
}

}  // namespace

int main(int, char** given) {
  const int threads = std::atoi(given[1]);
  const int64_t phases = std::atoll(given[2]), pieces = std::atoll(given[3]), rounds = std::atoll(given[4]);
  const std::vector<Sums> alone = run(1, phases, pieces, 1);
  int64_t wrong = 0;
  for (int64_t round = 0; round < rounds; ++round) wrong += run(threads, phases, pieces, round) != alone;
  const int64_t late = threads > 1 ? pieces_of_a_late_one(threads) : 0;
  const bool told = tells_of_a_problem(threads);
  std::printf("wrong %lld late %lld told %d cores %d\n", (long long)wrong, (long long)late, int(told), scone::usable_cores());
  return wrong || late || !told;
}
