#include "threads.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace coldplate {
namespace {

constexpr int kSpinTurns = 2000;    // of a few tens of cycles: at most about 50 µs
constexpr int kYieldTurns = 20000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Region number `round` is offered to all workers; each takes it once and reports when done.
class Pool {
 public:
  void run(Region region, void* context) {
    std::lock_guard<std::mutex> one_caller(callers_);
    if (threads_ != running_ + 1) resize();
    if (threads_ == 1) return region(context, 0, 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      region_ = region, context_ = context;
      busy_.store(running_, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
    }
    if (asleep_.load(std::memory_order_acquire) > 0) wake_.notify_all();
    region(context, 0, threads_);
    Waiter waiter;
    while (busy_.load(std::memory_order_acquire) > 0) waiter.wait();
  }

  void set(int threads) {
    std::lock_guard<std::mutex> one_caller(callers_);
    threads_ = threads < 1 ? 1 : threads;
  }

  int get() {
    std::lock_guard<std::mutex> one_caller(callers_);
    return threads_;
  }

 private:
  // Workers are ended and started anew: the count changes a few times an hour, a region runs a thousand times a second.
  void resize() {
    if (running_ > 0) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        region_ = nullptr;
        busy_.store(running_, std::memory_order_relaxed);
        round_.fetch_add(1, std::memory_order_release);
      }
      wake_.notify_all();
      Waiter waiter;
      while (busy_.load(std::memory_order_acquire) > 0) waiter.wait();
    }
    running_ = threads_ - 1;
    const uint64_t round = round_.load(std::memory_order_relaxed);
    for (int thread = 1; thread < threads_; thread++) {
      std::thread([this, thread, threads = threads_, round] { work(thread, threads, round); }).detach();
    }
  }

  void work(int thread, int threads, uint64_t seen) {
    for (;;) {
      Region region;
      void* context;
      int turn = 0;
      while (round_.load(std::memory_order_acquire) == seen && turn++ < kSpinTurns) pause();
      if (round_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_.fetch_add(1, std::memory_order_acq_rel);
        wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
        asleep_.fetch_sub(1, std::memory_order_acq_rel);
      }
      seen++;
      region = region_, context = context_;
      if (region) region(context, thread, threads);
      busy_.fetch_sub(1, std::memory_order_acq_rel);
      if (!region) return;
    }
  }

  std::mutex callers_, mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> busy_{0}, asleep_{0};
  Region region_ = nullptr;
  void* context_ = nullptr;
  int threads_ = 1, running_ = 0;
};

// Never destroyed: workers wait on it until the process ends. A forked child has none of the workers: it gets its own.
Pool* pool_now = nullptr;
std::once_flag made;

Pool& pool() {
  std::call_once(made, [] {
    pool_now = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool_now = new Pool; });
  });
  return *pool_now;
}

}  // namespace

void Waiter::wait() {
  if (++turns_ < kSpinTurns) {
    pause();
  } else if (turns_ < kYieldTurns) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void run_region(Region region, void* context) { pool().run(region, context); }
void set_threads(int threads) { pool().set(threads); }
int get_threads() { return pool().get(); }

}  // namespace coldplate
