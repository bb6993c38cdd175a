// Work shared out among the host's cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <thread>
#include <vector>
#ifdef __linux__
#include <sched.h>
#endif

namespace ladder {

/// The cores that this process may run on, which can be fewer than the machine has (taskset, and
/// LADDER_CORES where a reader's kernel is to keep to the first thread).
inline int host_cores() {
  if (const char* const cores = std::getenv("LADDER_CORES")) return std::max(1, std::atoi(cores));
#ifdef __linux__
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof(mine), &mine) == 0) return CPU_COUNT(&mine);
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// How to start a thread: where the host has no more of them, get() does the work instead.
inline constexpr auto kThread = std::launch::async | std::launch::deferred;

/// Calls work(i) for each i in [0, n) at once: 0 on this thread, the others on one of their own if
/// there is one. Rethrows an exception.
template <class Work>
void on_threads(int64_t n, const Work& work) {
  std::vector<std::future<void>> others;  // each waits for its thread when it is destroyed
  for (int64_t i = 1; i < n; ++i) others.push_back(std::async(kThread, work, i));
  work(0);
  for (auto& other : others) other.get();
}

/// Calls body(i) once for each i in [0, n), in any order and on any thread. Rethrows an exception.
/// A core takes `block` neighbours at a time: more than one where results of neighbours share a
/// cache line, which cores would take from each other.
template <class Body>
void parallel_for(int64_t n, Body body, int64_t block = 1) {
  std::atomic<int64_t> next{0};
  on_threads(std::min<int64_t>(host_cores(), (n + block - 1) / block), [&](int64_t) {
    try {
      for (int64_t begin; (begin = next.fetch_add(block)) < n;)
        for (int64_t i = begin; i < std::min(n, begin + block); ++i) body(i);
    } catch (...) {
      next = n;
      throw;
    }
  });
}

}  // namespace ladder
