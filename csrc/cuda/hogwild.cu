// Grid sizes and streams for the kernels in hogwild.cuh. The caller checks the launch.
#include "hogwild.cuh"
#include "hogwild_launch.h"

#include <algorithm>

namespace scone::hogwild {
namespace {

constexpr int kThreads = 128;             // a row of a lookahead has 25 to 128 positions
constexpr std::int64_t kMaxGrid = 65535;  // the kernels stride over what is left

}  // namespace

void launch_read(const State& state, std::int64_t* tokens, std::int64_t* versions, cudaStream_t stream) {
  if (state.rows == 0 || state.positions == 0) return;
  const auto grid = static_cast<unsigned>(std::min(state.rows, kMaxGrid));
  read_kernel<<<grid, kThreads, 0, stream>>>(state, tokens, versions);
}

void launch_write(const State& state, const Blocks& blocks, std::int64_t* staleness, cudaStream_t stream) {
  if (blocks.count == 0) return;
  const auto grid = static_cast<unsigned>(std::min(blocks.count, kMaxGrid));
  write_kernel<<<grid, kThreads, 0, stream>>>(state, blocks, staleness);
}

}  // namespace scone::hogwild
