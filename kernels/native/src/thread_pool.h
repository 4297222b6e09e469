// The extension's own threads: the caller and a few workers share the items of one loop.
//
// A decode step runs about two hundred short loops, some microseconds apart, so workers
// spin a little before they sleep. Items are claimed one at a time and the caller claims
// too, so that a worker which is slow to wake, or preempted before it claims, delays
// nobody. OpenMP is left alone: PyTorch brings its own.
#pragma once

#include <immintrin.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace repartee {

class ThreadPool {
 public:
  using Body = void (*)(void* context, int64_t item);

  explicit ThreadPool(int num_threads) {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work(); });
  }

  ~ThreadPool() {
    {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
      stopping_.store(true);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(context, item) once for each item below num_items; returns when all are done.
  void run(int64_t num_items, Body body, void* context) {
    if (num_items > kMaxItems || num_items < 2 || workers_.empty() || !busy_.try_lock()) {
      for (int64_t item = 0; item < num_items; ++item) body(context, item);
      return;
    }
    body_ = body;
    context_ = context;
    num_items_ = num_items;
    done_.store(0, std::memory_order_relaxed);
    const uint64_t generation = (state_.load(std::memory_order_relaxed) >> 32) + 1;
    state_.store(generation << 32 | static_cast<uint64_t>(num_items));
    if (num_sleeping_.load() > 0) {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
      wake_.notify_all();
    }
    claim_items();
    for (int spins = 0; done_.load(std::memory_order_acquire) != num_items; ++spins) {
      if (spins < kSpins) {
        _mm_pause();
      } else {
        // A worker holds an item but was preempted: let it run.
        std::this_thread::yield();
      }
    }
    busy_.unlock();
  }

 private:
  static constexpr int64_t kMaxItems = int64_t{1} << 31;
  // Some tens of microseconds.
  static constexpr int kSpins = 2000;

  // The low half of state_ counts unclaimed items; the high half names the loop, so that
  // a late worker cannot claim from a loop other than the one it looked at.
  void claim_items() {
    uint64_t state = state_.load(std::memory_order_acquire);
    while ((state & 0xffffffffu) != 0) {
      if (!state_.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        continue;
      }
      // The loop cannot end while a claimed item is undone: its fields are stable here.
      const int64_t remaining = static_cast<int64_t>(state & 0xffffffffu);
      body_(context_, num_items_ - remaining);
      done_.fetch_add(1, std::memory_order_acq_rel);
      state = state_.load(std::memory_order_acquire);
    }
  }

  bool has_items() const { return (state_.load() & 0xffffffffu) != 0; }

  void work() {
    while (!stopping_.load(std::memory_order_relaxed)) {
      claim_items();
      bool found = false;
      for (int spins = 0; spins < kSpins && !found; ++spins) {
        _mm_pause();
        found = has_items();
      }
      if (found) continue;
      std::unique_lock<std::mutex> lock(sleep_mutex_);
      num_sleeping_.fetch_add(1);
      wake_.wait(lock, [this] { return stopping_.load() || has_items(); });
      num_sleeping_.fetch_sub(1);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex busy_;
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> num_sleeping_{0};
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  Body body_ = nullptr;
  void* context_ = nullptr;
  int64_t num_items_ = 0;
};

// The process's pool. A child of fork has none of its parent's threads, so it forgets the
// pool (deliberately leaked: joining is impossible there) and starts one anew.
inline ThreadPool*& pool_slot() {
  static ThreadPool* pool = nullptr;
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { pool_slot() = new ThreadPool(1); });
  (void)registered;
  return pool;
}

inline void set_num_threads(int num_threads) {
  ThreadPool*& pool = pool_slot();
  if (pool != nullptr && pool->num_threads() == num_threads) return;
  delete pool;
  pool = new ThreadPool(num_threads);
}

inline int num_threads() {
  ThreadPool* pool = pool_slot();
  return pool == nullptr ? 1 : pool->num_threads();
}

// Runs body(item) for each item below num_items.
template <class F>
void parallel_for(int64_t num_items, F&& body) {
  ThreadPool* pool = pool_slot();
  if (pool == nullptr) {
    for (int64_t item = 0; item < num_items; ++item) body(item);
    return;
  }
  pool->run(
      num_items, [](void* context, int64_t item) { (*static_cast<F*>(context))(item); }, &body);
}

// A buffer of the calling thread that only grows, 64-byte aligned.
template <class T>
class Scratch {
 public:
  T* get(int64_t count) {
    if (count > capacity_) {
      std::free(data_);
      const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
      data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (data_ == nullptr) std::abort();
      capacity_ = count;
    }
    return data_;
  }
  ~Scratch() { std::free(data_); }

 private:
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace repartee
