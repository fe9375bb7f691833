// Hunts for torn and lost writes: readers and writers hammer one state with words that check themselves.
// usage: hogwild_stress WRITERS READERS WRITES READS [lossy|torn]   (writes and reads are words, in total)
//
// Every token carries a checksum of its position. Every version that a writer publishes is entered in a ledger together
// with its token, and must be new there. Readers check each checksum and that versions never go back; some of what they
// read they keep, and its token and version must be together in the ledger in the end, where versions count the writes.
// "lossy" writes without compare-and-swap and "torn" writes the halves one by one, to show that the hunt finds both.
// Built by g++ (std::atomic_ref), with and without sanitizers, and by nvcc (cuda::atomic_ref, run on the host).
#include "hogwild.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

using namespace scone::hogwild;

namespace {

constexpr std::int64_t kRows = 2, kPositions = 12, kStride = 16, kBlock = 4;
constexpr std::int64_t kWords = kRows * kPositions;

std::atomic<std::int64_t> failures{0};

void fail(const char* what, std::int64_t word) {
  if (failures.fetch_add(1) < 10) std::fprintf(stderr, "%s at word %lld\n", what, static_cast<long long>(word));
}

std::uint32_t checksum(std::uint32_t payload, std::int64_t word) {
  std::uint32_t x = (payload + 1) * 0x9E3779B1u + static_cast<std::uint32_t>(word) * 0x85EBCA77u;
  return (x ^ (x >> 15)) & 0xFFFF;
}
// Never 0, which marks an empty place in the ledger.
std::uint32_t make_token(std::uint32_t number, std::int64_t word) {
  const std::uint32_t payload = 1 + number % 0xFFFF;
  return payload | (checksum(payload, word) << 16);
}
bool is_whole(std::int64_t token, std::int64_t word) {
  return checksum(static_cast<std::uint32_t>(token) & 0xFFFF, word) == static_cast<std::uint32_t>(token) >> 16;
}

// The token that each version of each word was published with; 0 where there is none yet.
class Ledger {
 public:
  explicit Ledger(std::int64_t versions) : versions_(versions), entries_(versions * kWords) {}
  void enter(std::int64_t word, std::int64_t version, std::int64_t token) {
    if (version < 0 || version >= versions_) return fail("a version that was never written", word);
    auto& entry = entries_[word * versions_ + version];
    if (entry.exchange(static_cast<std::uint32_t>(token)) != 0) fail("a version written twice", word);
  }
  bool holds(std::int64_t word, std::int64_t version, std::int64_t token) const {
    return version < versions_ && entries_[word * versions_ + version].load() == token;
  }

 private:
  std::int64_t versions_;
  std::vector<std::atomic<std::uint32_t>> entries_;
};

struct Sighting {
  std::int64_t word, version, token;
};

enum class Way { whole, lossy, torn };

// What publish() must not be: a store that forgets other writers, or one half after the other.
std::uint32_t publish_badly(Word& word, std::uint32_t token, Way way) {
  const Word old = load(word), next = pack(token, version_of(old) + 1);
  if (way == Way::torn) AtomicWord(word).store(pack(token_of(old), version_of(next)), relaxed);
  std::this_thread::yield();  // so that another thread comes in between even on one core
  AtomicWord(word).store(next, relaxed);
  return version_of(old);
}

// Writes blocks, by turns at one place and along the rows, as a kernel does: publish the block, then look back.
std::int64_t write_blocks(const State state, Ledger& ledger, int id, std::int64_t blocks, Way way) {
  std::vector<std::int64_t> seen_tokens(kWords), seen(kWords), staleness(kPositions), tokens(kBlock);
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t row = (i / 2) % kRows, start = (i % 2) ? (i / 7) % (kPositions - kBlock + 1) : kBlock;
    read_row(state, row, seen_tokens.data() + row * kPositions, seen.data() + row * kPositions);
    for (std::int64_t j = 0; j < kBlock; ++j) {
      tokens[j] = make_token(static_cast<std::uint32_t>(i * 31 + id), row * kPositions + start + j);
    }
    const Blocks block{&row, &start, tokens.data(), seen.data(), 1, kBlock};
    if (!block.inside(state, 0)) fail("a block outside the state", row);
    if (way == Way::whole) {
      publish_block(state, block, 0, staleness.data());
    } else {
      for (std::int64_t p = start, j = 0; j < kBlock; ++p, ++j) {
        const auto token = static_cast<std::uint32_t>(tokens[j]);
        staleness[p] = ahead(publish_badly(state.row(row)[p], token, way), seen[row * kPositions + p]);
      }
    }
    look_back(state, block, 0, staleness.data());
    for (std::int64_t j = 0; j < kBlock; ++j) {
      const std::int64_t word = row * kPositions + start + j;
      ledger.enter(word, seen[word] + staleness[start + j] + 1, tokens[j]);
    }
  }
  return blocks * kBlock;
}

std::int64_t read_words(const State state, std::int64_t sweeps, std::vector<Sighting>& sightings) {
  std::vector<std::int64_t> tokens(kWords), versions(kWords), before(kWords);
  for (std::int64_t i = 0; i < sweeps; ++i) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      read_row(state, row, tokens.data() + row * kPositions, versions.data() + row * kPositions);
    }
    for (std::int64_t word = 0; word < kWords; ++word) {
      if (!is_whole(tokens[word], word)) fail("a torn token", word);
      if (versions[word] < before[word]) fail("a version that went back", word);
    }
    before = versions;
    const std::int64_t kept = i % kWords;
    if (i % 3 == 0) sightings.push_back({kept, versions[kept], tokens[kept]});
  }
  return sweeps * kWords;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return std::fprintf(stderr, "usage: %s WRITERS READERS WRITES READS [lossy|torn]\n", argv[0]), 2;
  const std::string wish = argc > 5 ? argv[5] : "whole";
  const Way way = wish == "lossy" ? Way::lossy : wish == "torn" ? Way::torn : Way::whole;
  const int writers = std::atoi(argv[1]), readers = std::atoi(argv[2]);
  const std::int64_t blocks = std::atoll(argv[3]) / writers / kBlock + 1;
  const std::int64_t sweeps = std::atoll(argv[4]) / readers / kWords + 1;

  std::vector<Word> words(kRows * kStride);
  const State state{words.data(), kStride, kRows, kPositions};
  Ledger ledger(writers * (blocks / kRows + 2) + 1);  // each row has its share of the blocks
  for (std::int64_t word = 0; word < kWords; ++word) {
    const std::uint32_t token = make_token(0, word);
    state.row(word / kPositions)[word % kPositions] = pack(token, 0);
    ledger.enter(word, 0, token);
  }

  std::atomic<std::int64_t> written{0}, read{0};
  std::vector<std::vector<Sighting>> sightings(readers);
  std::vector<std::thread> threads;
  for (int id = 0; id < writers; ++id) {
    threads.emplace_back([&, id] { written += write_blocks(state, ledger, id, blocks, way); });
  }
  for (int id = 0; id < readers; ++id) {
    threads.emplace_back([&, id] { read += read_words(state, sweeps, sightings[id]); });
  }
  for (auto& thread : threads) thread.join();

  std::int64_t versions = 0, checked = 0;
  for (std::int64_t word = 0; word < kWords; ++word) {
    const Word last = load(state.row(word / kPositions)[word % kPositions]);
    versions += version_of(last);
    if (!ledger.holds(word, version_of(last), token_of(last))) fail("a last write that nobody made", word);
  }
  if (versions != written) fail("a lost write", -1);
  for (const auto& kept : sightings) {
    for (const Sighting& sighting : kept) {
      ++checked;
      if (!ledger.holds(sighting.word, sighting.version, sighting.token)) {
        fail("a token with another's version", sighting.word);
      }
    }
  }
  std::printf("writes %lld reads %lld pairs_checked %lld inconsistent %lld\n", static_cast<long long>(written.load()),
              static_cast<long long>(read.load()), static_cast<long long>(checked),
              static_cast<long long>(failures.load()));
  return failures == 0 ? 0 : 1;
}
