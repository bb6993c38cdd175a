// What the suite over all steps and the test of planted mistakes share.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "harness/run.h"

namespace ladder {

constexpr Schedule kSchedules[] = {{Schedule::Order::forward, 0},
                                   {Schedule::Order::reverse, 0},
                                   {Schedule::Order::random, 1},
                                   {Schedule::Order::random, 2}};

/// The bytes read and written by one run's kernels, by kernel and array: by the formula, and
/// counted.
using Bytes = std::map<std::string, std::map<std::string, std::pair<int64_t, int64_t>>>;
inline std::pair<Bytes, Bytes> formula_and_count(const Report& r) {
  Bytes formula, counted;
  for (const auto& k : r.kernels)
    for (const auto& [array, c] : k.counts->arrays)
      counted[k.name][array] = {c.requested_read, c.requested_write};
  for (const auto& k : *r.model)
    for (const auto& a : k.arrays)
      if (a.read || a.write) formula[k.kernel][a.array] = {a.read, a.write};
  return {formula, counted};
}

}  // namespace ladder
