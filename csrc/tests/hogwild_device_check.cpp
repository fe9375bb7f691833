// Runs the CUDA kernels of the shared token state on the CPU (hogwild_device.h) and compares them with hogwild.h as the
// CPU's own implementation calls it, and with what races may and may not do. Prints "same", or what differs.
#include "hogwild.h"
#include "hogwild_device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

using namespace scone::hogwild;

namespace {

using Values = std::vector<std::int64_t>;

std::string now;  // what is being checked

void require(bool good, const std::string& what) {
  if (good) return;
  std::printf("different, %s: %s\n", now.c_str(), what.c_str());
  std::exit(1);
}
void require(const char* why) { require(why == nullptr, why == nullptr ? "" : why); }

struct Case {
  std::int64_t state_rows, positions, stride, size;
  std::vector<Word> words;
  Values rows, starts, tokens, seen;
  std::set<std::int64_t> bad;  // blocks that must be left out

  Case(std::int64_t state_rows, std::int64_t positions, std::int64_t size)
      : state_rows(state_rows), positions(positions), stride((positions + 7) / 8 * 8), size(size) {
    for (std::int64_t i = 0; i < state_rows * stride; ++i)  // some versions are about to wrap
      words.push_back(pack(1000 + i, 0xFFFFFFFEu + static_cast<std::uint32_t>(i % 4)));
    for (std::int64_t row = 0; row < state_rows; ++row)
      for (std::int64_t p = 0; p < positions; ++p) seen.push_back(version_of(words[row * stride + p]));
  }
  void add(std::int64_t row, std::int64_t start) {
    rows.push_back(row), starts.push_back(start);
    for (std::int64_t j = 0; j < size; ++j) tokens.push_back((rows.size() << 8) + j);
  }
  std::int64_t count() const { return rows.size(); }
  State state(std::vector<Word>& at) const { return {at.data(), stride, state_rows, positions}; }
  Blocks blocks() const { return {rows.data(), starts.data(), tokens.data(), seen.data(), count(), size}; }
  bool covers(std::int64_t block, std::int64_t p) const { return starts[block] <= p && p < starts[block] + size; }
};

struct Result {
  std::vector<Word> words;
  Values staleness, tokens, versions;
  bool operator==(const Result&) const = default;
};

Result begin(const Case& given) {
  const std::size_t shown = given.state_rows * given.positions;
  return {given.words, Values(given.count() * given.positions, 77), Values(shown, 77), Values(shown, 77)};
}

Result on_device(const Case& given, unsigned grid, unsigned threads) {
  Result out = begin(given);
  require(hogwild_write_on_cpu(out.words.data(), given.stride, given.state_rows, given.positions, given.rows.data(),
                               given.starts.data(), given.tokens.data(), given.seen.data(), given.count(), given.size,
                               out.staleness.data(), grid, threads));
  require(hogwild_read_on_cpu(out.words.data(), given.stride, given.state_rows, given.positions, out.tokens.data(),
                              out.versions.data(), grid, threads));
  return out;
}

// As csrc/cpu/hogwild.cpp goes through the blocks, but that a bad one is left out. `step` thread blocks stride over them.
Result on_host(const Case& given, std::int64_t step) {
  Result out = begin(given);
  const State state = given.state(out.words);
  const Blocks blocks = given.blocks();
  for (std::int64_t first = 0; first < step; ++first)
    for (std::int64_t block = first; block < given.count(); block += step) {
      std::int64_t* own = out.staleness.data() + block * given.positions;
      if (given.bad.count(block)) {  // known here, and not asked of what is checked
        std::fill(own, own + given.positions, -1);
        continue;
      }
      publish_block(state, blocks, block, own);
      look_back(state, blocks, block, own);
    }
  for (std::int64_t row = 0; row < given.state_rows; ++row)
    read_row(state, row, out.tokens.data() + row * given.positions, out.versions.data() + row * given.positions);
  return out;
}

// Blocks that must be left out: rows and starts outside the state, and tokens of more than 32 bits.
void spoil(Case& given) {
  for (std::int64_t block = 3; block + 4 < given.count(); block += 11) {
    given.rows[block] = block % 2 ? given.state_rows : -1;
    given.starts[block + 1] = given.positions - given.size + 1;
    given.starts[block + 2] = -1;
    given.tokens[(block + 3) * given.size] = -1;  // the first thread alone sees it, and below the last one
    given.tokens[(block + 4) * given.size + given.size - 1] = std::int64_t{1} << 32;
    for (std::int64_t i = 0; i < 5; ++i) given.bad.insert(block + i);
  }
}

// Threads of the host, blocks that each has under way, order.
struct Turns {
  unsigned multiprocessors, resident;
  int order;
};
constexpr Turns kOneAfterTheOther[] = {{1, 1, 0}, {1, 1, 1}, {1, 1, 2}};
constexpr Turns kAtOnce[] = {{1, 3, 0}, {2, 4, 1}, {2, 4, 2}, {1, 16, 2}};

void take(const Turns& turns, const char* what) {
  static std::uint64_t seed = 0;
  hogwild_schedule_on_cpu(turns.multiprocessors, turns.resident, turns.order, ++seed);
  now = std::string(what) + " on " + std::to_string(turns.multiprocessors) + " x " + std::to_string(turns.resident) +
        " blocks in order " + std::to_string(turns.order);
}

void in_turn() {
  Case given(3, 7, 3);
  for (int i = 0; i < 60; ++i) given.add(i % 3, i % 5);
  spoil(given);
  for (const Turns& turns : kOneAfterTheOther)
    for (unsigned grid : {1u, 2u, 60u})
      for (unsigned threads : {1u, 2u, 5u, 32u}) {
        take(turns, "one block after the other");
        require(on_device(given, grid, threads) == on_host(given, grid), "not the CPU's bits");
      }
}

void apart(std::int64_t many) {
  Case given(many, 35, 4);
  for (int i = 0; i < many; ++i) given.add(i, i * 7 % 32);
  spoil(given);
  for (const Turns& turns : kAtOnce) {
    take(turns, "a row for each block");
    require(on_device(given, 0, 0) == on_host(given, given.count()), "not the CPU's bits");
  }
}

// Every write counts once, and the word keeps the token of the last one, whoever came in between.
void hot(std::int64_t many) {
  Case given(2, 35, 4);
  for (int i = 0; i < many; ++i) given.add(i % 8 == 0, i % 3);  // most of them in row 0, at its beginning
  for (const Turns& turns : kAtOnce) {
    take(turns, "all blocks on a row");
    const Result out = on_device(given, 0, 0);
    for (std::int64_t row = 0; row < 2; ++row)
      for (std::int64_t p = 0; p < given.stride; ++p) {
        const Word before = given.words[row * given.stride + p];
        std::vector<std::pair<std::int64_t, Word>> writes;  // (versions since the snapshot, the word that it made)
        for (std::int64_t block = 0; block < given.count(); ++block)
          if (given.rows[block] == row && given.covers(block, p)) {
            const std::int64_t behind = out.staleness[block * given.positions + p];
            writes.emplace_back(behind, pack(given.tokens[block * given.size + p - given.starts[block]],
                                             version_of(before) + static_cast<std::uint32_t>(behind) + 1));
          }
        std::sort(writes.begin(), writes.end());
        for (std::size_t i = 0; i < writes.size(); ++i)
          require(writes[i].first == static_cast<std::int64_t>(i), "a write was lost or counted twice");
        require(out.words[row * given.stride + p] == (writes.empty() ? before : writes.back().second),
                "a word is not what its last write made of it");
      }
  }
}

// Two blocks write different positions of a row. Each looks back only after all of its tokens are published, so that if one
// misses something of the other, that one sees all of the first.
void pairs(std::int64_t many) {
  Case given(many, 35, 8);
  for (int i = 0; i < many; ++i) given.add(i, 3), given.add(i, 20);
  for (const Turns& turns : kAtOnce) {
    take(turns, "two blocks on a row");
    const Result out = on_device(given, 0, 0);
    for (std::int64_t block = 0; block < given.count(); block += 2) {
      bool missed[2] = {false, false};
      for (int which = 0; which < 2; ++which)
        for (std::int64_t j = 0; j < given.size; ++j) {
          const std::int64_t other = given.starts[block + 1 - which] + j;
          missed[which] = missed[which] || out.staleness[(block + which) * given.positions + other] == 0;
        }
      require(!(missed[0] && missed[1]), "neither block saw all of the other");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t many = argc > 1 ? std::atoll(argv[1]) : 1000;
  in_turn();
  apart(many);
  hot(many);
  pairs(std::min<std::int64_t>(many, 200));
  std::printf("same: %d reads, %d writes\n", hogwild_launches_on_cpu("read_kernel"),
              hogwild_launches_on_cpu("write_kernel"));
  return 0;
}
