// How the stand-in for a GPU goes through the threads of a launch.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cuda_on_cpu {

// In which order the fibers of a multiprocessor take turns. `shuffled` draws a new order for every round.
enum class Order { up, down, shuffled };

struct Schedule {
  unsigned multiprocessors = 1;  // threads of the host
  unsigned resident = 1;         // blocks of a launch that each of them has under way at a time
  Order order = Order::up;
  std::uint64_t seed = 0;
};

// What the launches from now on follow. One multiprocessor with one block goes through blocks one after the other.
Schedule& schedule();

// How often each kernel was launched so far.
const std::map<std::string, int>& launches();

}  // namespace cuda_on_cpu
