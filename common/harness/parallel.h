// A loop over [0, n) shared out among the host's cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <vector>

#include "host_cores.h"

namespace ladder {

/// Calls body(i) once for each i, in any order and on any thread. Rethrows an exception. A core
/// takes `block` neighbours at a time: more than one where results of neighbours share a cache
/// line, which cores would take from each other.
template <class Body>
void parallel_for(int64_t n, Body body, int64_t block = 1) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    try {
      for (int64_t begin; (begin = next.fetch_add(block)) < n;)
        for (int64_t i = begin; i < std::min(n, begin + block); ++i) body(i);
    } catch (...) {
      next = n;
      throw;
    }
  };
  std::vector<std::future<void>> helpers;  // each waits for its thread when it is destroyed
  for (int64_t t = 1; t < host_cores() && t * block < n; ++t)
    helpers.push_back(std::async(std::launch::async, work));
  work();
  for (auto& helper : helpers) helper.get();
}

}  // namespace ladder
