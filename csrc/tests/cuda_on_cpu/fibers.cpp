// The stand-in's machinery: a multiprocessor is a thread of the host that goes round among the fibers of a few blocks.
#include "fibers.h"

#include "cuda_runtime_api.h"

#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else  // the address sanitizer wants to know which stack is in use
inline void __sanitizer_start_switch_fiber(void**, const void*, std::size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*) {}
#endif

thread_local cuda_on_cpu::Index threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {
namespace {

constexpr std::size_t kStack = 128 << 10;

struct Launch {
  const std::function<void()>& body;
  unsigned grid, block;
  std::atomic<unsigned> next{0};
  std::atomic<bool> failed{false};
  std::string reason{};  // of the multiprocessor that set `failed`

  void fail(const std::string& why) {
    if (!failed.exchange(true)) reason = why;
  }
};

struct Block;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  void* shadow = nullptr;
  Block* block;
  unsigned thread;
  bool ended = true;
  const std::source_location* barrier = nullptr;  // where it waits
};

// Some fibers, the block of the launch that they are at present, and the barrier that they are about to leave.
struct Block {
  unsigned index = 0;
  std::vector<Fiber> fibers;
  bool all = true, result = true;
};

class Multiprocessor {
 public:
  Multiprocessor(Launch& launch, const Schedule& schedule, unsigned number)
      : launch_(launch), order_(schedule.order), random_(schedule.seed * 977 + number), blocks_(schedule.resident) {
    for (Block& block : blocks_) {
      block.fibers = std::vector<Fiber>(launch.block);
      for (unsigned thread = 0; thread < launch.block; ++thread) {
        block.fibers[thread].block = &block, block.fibers[thread].thread = thread;
        turns_.push_back(&block.fibers[thread]);
      }
    }
    if (order_ == Order::down) std::reverse(turns_.begin(), turns_.end());
  }

  void run() {
    here = this, blockDim.x = launch_.block, gridDim.x = launch_.grid;
    while (fill() && !launch_.failed) {
      if (order_ == Order::shuffled) std::shuffle(turns_.begin(), turns_.end(), random_);
      for (Fiber* fiber : turns_)
        if (!fiber->ended && fiber->barrier == nullptr) resume(*fiber);
      for (Block& block : blocks_) release(block);
    }
    here = nullptr;
  }

  // From within a fiber: lets the others go on.
  void yield() {
    Fiber& fiber = *current_;
    __sanitizer_start_switch_fiber(fiber.ended ? nullptr : &fiber.shadow, home_stack_, home_size_);
    swapcontext(&fiber.context, &home_);
    __sanitizer_finish_switch_fiber(fiber.shadow, nullptr, nullptr);
  }

  bool wait(bool mine, const std::source_location& where) {
    Fiber& fiber = *current_;
    fiber.block->all = fiber.block->all && mine;
    fiber.barrier = &where;
    yield();
    return fiber.block->result;
  }

  static thread_local Multiprocessor* here;

 private:
  // Gives the launch's next blocks to those that have ended; false if there is none under way.
  bool fill() {
    bool busy = false;
    for (Block& block : blocks_) {
      if (ended(block) && launch_.next < launch_.grid) {
        block.index = launch_.next++;
        if (block.index < launch_.grid)
          for (Fiber& fiber : block.fibers) begin(fiber);
      }
      busy = busy || !ended(block);
    }
    return busy;
  }

  static bool ended(const Block& block) {
    return std::all_of(block.fibers.begin(), block.fibers.end(), [](const Fiber& fiber) { return fiber.ended; });
  }

  void begin(Fiber& fiber) {
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStack};
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Multiprocessor::entry, 0);
    fiber.ended = false, fiber.shadow = nullptr;
  }

  static void entry() {
    Multiprocessor& self = *here;
    __sanitizer_finish_switch_fiber(nullptr, &self.home_stack_, &self.home_size_);
    self.launch_.body();
    self.current_->ended = true;
    self.yield();
  }

  void resume(Fiber& fiber) {
    current_ = &fiber, threadIdx.x = fiber.thread, blockIdx.x = fiber.block->index;
    void* shadow = nullptr;
    __sanitizer_start_switch_fiber(&shadow, fiber.stack.get(), kStack);
    swapcontext(&home_, &fiber.context);
    __sanitizer_finish_switch_fiber(shadow, nullptr, nullptr);
  }

  // Opens a block's barrier once all of its threads are there, and complains if some never will be.
  void release(Block& block) {
    const Fiber* first = nullptr;
    bool same = true;
    for (const Fiber& fiber : block.fibers) {
      if (!fiber.ended && fiber.barrier == nullptr) return;
      if (first == nullptr) first = &fiber;
      same = same && (fiber.barrier == nullptr) == (first->barrier == nullptr) &&
             (fiber.barrier == nullptr || fiber.barrier->line() == first->barrier->line());
    }
    if (!same) return launch_.fail("the threads of block " + std::to_string(block.index) + " part at a barrier");
    block.result = block.all, block.all = true;
    for (Fiber& fiber : block.fibers) fiber.barrier = nullptr;
  }

  Launch& launch_;
  const Order order_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  std::vector<Fiber*> turns_;
  Fiber* current_ = nullptr;
  ucontext_t home_;
  const void* home_stack_ = nullptr;
  std::size_t home_size_ = 0;
};

thread_local Multiprocessor* Multiprocessor::here = nullptr;

std::map<std::string, int> counted;
std::mutex counting;

}  // namespace

Schedule& schedule() {
  static Schedule now;
  return now;
}

const std::map<std::string, int>& launches() { return counted; }

bool meet(bool mine, const std::source_location& where) { return Multiprocessor::here->wait(mine, where); }

void pause() {
  if (Multiprocessor::here != nullptr) Multiprocessor::here->yield();
}

void run(const char* name, unsigned grid, unsigned block, const std::function<void()>& body) {
  if (grid == 0 || block == 0 || block > 1024)
    throw std::runtime_error("invalid launch of " + std::string(name) + ": " + std::to_string(grid) + " blocks of " +
                             std::to_string(block) + " threads");
  {
    const std::lock_guard lock(counting);
    ++counted[name];
  }
  const Schedule how = schedule();
  Launch launch{body, grid, block};
  std::vector<std::thread> running;
  for (unsigned number = 0; number < how.multiprocessors; ++number)
    running.emplace_back([&, number] { Multiprocessor(launch, how, number).run(); });
  for (std::thread& thread : running) thread.join();
  if (launch.failed) throw std::runtime_error(std::string(name) + ": " + launch.reason);
}

}  // namespace cuda_on_cpu
