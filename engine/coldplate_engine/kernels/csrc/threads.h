// A pool of threads for parallel regions that last a whole engine step, and the barrier inside them.
#pragma once

#include <atomic>
#include <cstdint>

namespace coldplate {

// What every thread of a region runs; `thread` is 0 … threads-1, the caller being 0.
using Region = void (*)(void* context, int thread, int threads);

// Runs `region` on the pool's threads and returns when all are done. One caller at a time (others wait for it).
void run_region(Region region, void* context);

// Threads from the next region on, the caller included; at least 1. Surplus threads end.
void set_threads(int threads);
int get_threads();

// Waits a bounded time by spinning, then gives the core away: spinning longer would take it from the server.
class Waiter {
 public:
  void wait();  // one turn of a wait loop
 private:
  int turns_ = 0;
};

// All `threads` of a region meet. Zero-initialised is ready to use; one object may be used any number of times.
class Barrier {
 public:
  void wait(int threads) {
    if (threads == 1) return;
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(threads)) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    Waiter waiter;
    while (round_.load(std::memory_order_acquire) == round) waiter.wait();
  }

 private:
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace coldplate
