// hogwild.cuh and the launchers of hogwild.cu as a library for the CPU. "hogwild_on_cpu.inc" is hogwild.cu with its
// launches rewritten as csrc/tests/cuda_on_cpu/cuda_runtime_api.h asks for.
#include "hogwild_device.h"

#include "fibers.h"
#include "hogwild_on_cpu.inc"

#include <string>

using namespace scone::hogwild;

namespace {

template <class Call>
const char* reason(const Call& call) {
  static thread_local std::string why;
  try {
    call();
    return nullptr;
  } catch (const std::exception& error) {
    why = error.what();
    return why.c_str();
  }
}

}  // namespace

const char* hogwild_read_on_cpu(uint64_t* words, int64_t row_stride, int64_t rows, int64_t positions, int64_t* tokens,
                                int64_t* versions, unsigned grid, unsigned threads) {
  const State state{words, row_stride, rows, positions};
  return reason([&] {
    if (grid == 0) return launch_read(state, tokens, versions, nullptr);
    cuda_on_cpu::launch("read_kernel", read_kernel, grid, threads, 0, nullptr, state, tokens, versions);
  });
}

const char* hogwild_write_on_cpu(uint64_t* words, int64_t row_stride, int64_t rows, int64_t positions,
                                 const int64_t* block_rows, const int64_t* block_starts, const int64_t* block_tokens,
                                 const int64_t* versions, int64_t count, int64_t size, int64_t* staleness, unsigned grid,
                                 unsigned threads) {
  const State state{words, row_stride, rows, positions};
  const Blocks blocks{block_rows, block_starts, block_tokens, versions, count, size};
  return reason([&] {
    if (grid == 0) return launch_write(state, blocks, staleness, nullptr);
    cuda_on_cpu::launch("write_kernel", write_kernel, grid, threads, 0, nullptr, state, blocks, staleness);
  });
}

void hogwild_schedule_on_cpu(unsigned multiprocessors, unsigned resident, int order, uint64_t seed) {
  cuda_on_cpu::schedule() = {multiprocessors, resident, static_cast<cuda_on_cpu::Order>(order), seed};
}

int hogwild_launches_on_cpu(const char* kernel) {
  const auto& counted = cuda_on_cpu::launches();
  const auto found = counted.find(kernel);
  return found == counted.end() ? 0 : found->second;
}
