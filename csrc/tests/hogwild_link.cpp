// Links against the CUDA launchers. With a GPU it also runs them: usage: hogwild_link. Prints what it did.
#include "hogwild_launch.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace scone::hogwild;

namespace {

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* on_device(const std::vector<T>& values) {
  T* pointer = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&pointer), values.size() * sizeof(T)));
  check(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("linked; no GPU to run on"), 0;
  constexpr std::int64_t rows = 2, positions = 6, size = 2;
  const State state{on_device(std::vector<Word>(rows * positions, pack(7, 0))), positions, rows, positions};
  auto* tokens = on_device(std::vector<std::int64_t>(rows * positions));
  auto* versions = on_device(std::vector<std::int64_t>(rows * positions));
  auto* staleness = on_device(std::vector<std::int64_t>(3 * positions));
  // The third block lies outside the state and must be left out.
  const Blocks blocks{on_device(std::vector<std::int64_t>{1, 1, 0}), on_device(std::vector<std::int64_t>{0, 4, 5}),
                      on_device(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}), versions, 3, size};
  launch_read(state, tokens, versions, nullptr);
  check(cudaGetLastError());
  launch_write(state, blocks, staleness, nullptr);
  check(cudaGetLastError());
  launch_read(state, tokens, versions, nullptr);
  std::vector<std::int64_t> got(rows * positions), skipped(positions);
  check(cudaMemcpy(got.data(), tokens, got.size() * sizeof(got[0]), cudaMemcpyDeviceToHost));
  check(cudaMemcpy(skipped.data(), staleness + 2 * positions, positions * sizeof(got[0]), cudaMemcpyDeviceToHost));
  const bool right = got == std::vector<std::int64_t>{7, 7, 7, 7, 7, 7, 1, 2, 7, 7, 3, 4} &&
                     skipped == std::vector<std::int64_t>(positions, -1);
  std::puts(right ? "linked; ran on the GPU" : "wrong result on the GPU");
  return right ? 0 : 1;
}
