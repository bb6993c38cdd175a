// Runs loops in parallel on the host's cores: the simulator's blocks and the reference's rows.
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

/// Returns the number of cores that this process may use. The environment variable LADDER_CORES, if
/// set, gives the number (at least 1; with 1, kernels stay on the main thread, which helps in a
/// debugger). Otherwise it is what the operating system allows; taskset can lower it.
inline int host_cores() {
  if (const char* const cores = std::getenv("LADDER_CORES")) return std::max(1, std::atoi(cores));
#ifdef __linux__
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof(mine), &mine) == 0) return CPU_COUNT(&mine);
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// The launch policy for std::async: if the host refuses another thread, get() does the work.
inline constexpr auto kThread = std::launch::async | std::launch::deferred;

/// Calls work(i) concurrently for each i in [0, n): work(0) on the calling thread, and each other
/// call on a thread of its own. Rethrows an exception from any of them.
template <class Work>
void on_threads(int64_t n, const Work& work) {
  std::vector<std::future<void>> others;  // each waits for its thread when it is destroyed
  for (int64_t i = 1; i < n; ++i) others.push_back(std::async(kThread, work, i));
  work(0);
  for (auto& other : others) other.get();
}

/// Calls body(i) once for each i in [0, n), in any order and on any thread; rethrows an exception.
/// A thread takes `block` values of i at a time: more than 1 if their results share a cache line.
template <class Body>
void parallel_for(int64_t n, Body body, int64_t block = 1) {
  std::atomic<int64_t> next{0};
  on_threads(std::min<int64_t>(host_cores(), (n + block - 1) / block), [&](int64_t) {
    try {
      for (int64_t begin; (begin = next.fetch_add(block)) < n;)
        for (int64_t i = begin; i < std::min(n, begin + block); ++i) body(i);
    } catch (...) {
      next = n;  // the other threads stop
      throw;
    }
  });
}

}  // namespace ladder
