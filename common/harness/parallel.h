// A loop over [0, n) shared out among the host's cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <vector>

#include "host_cores.h"

namespace ladder {

/// Calls body(i) once for each i, in any order and on any thread. Rethrows an exception.
template <class Body>
void parallel_for(int64_t n, Body body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    try {
      for (int64_t i; (i = next++) < n;) body(i);
    } catch (...) {
      next = n;
      throw;
    }
  };
  std::vector<std::future<void>> helpers;  // each waits for its thread when it is destroyed
  for (int64_t t = 1; t < std::min<int64_t>(host_cores(), n); ++t)
    helpers.push_back(std::async(std::launch::async, work));
  work();
  for (auto& helper : helpers) helper.get();
}

/// The same, each core taking `block` neighbours at a time: for a body whose results for
/// neighbours share a cache line, which cores would take from each other.
template <class Body>
void parallel_for_blocks(int64_t n, int64_t block, Body body) {
  parallel_for((n + block - 1) / block, [&](int64_t b) {
    for (int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i) body(i);
  });
}

}  // namespace ladder
