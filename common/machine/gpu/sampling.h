// Decides when a measurement begins and ends. It uses no GPU, so that it can be tested without one.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace ladder::gpu {

/// Returns the median of one or more values.
inline double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t n = x.size();
  return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/// Returns the times of repeated runs in ms. batch() performs several runs and returns their times
/// in ms; clock_ms() returns the current time in ms.
///
/// It warms up for budget_ms, or for up to 2 · budget_ms while batches still get more than 1%
/// faster: modules must load, and an idle GPU's clocks take tenths of a second to rise, and to fall
/// again at the power limit. It then samples for budget_ms, or for up to 3 · budget_ms, until each
/// of three consecutive batches has changed the median of all samples by at most 0.2%.
template <class Batch, class Clock>
std::vector<double> sample(double budget_ms, Batch batch, Clock clock_ms) {
  double start = clock_ms();
  const auto passed = [&] { return clock_ms() - start; };
  for (double last = median(batch()); passed() < 2 * budget_ms;) {
    const double now = median(batch());
    if (now > 0.99 * last && passed() >= budget_ms) break;
    last = now;
  }
  std::vector<double> samples;
  start = clock_ms();
  double before = 0;
  for (int stable = 0;
       samples.empty() || passed() < budget_ms || (stable < 3 && passed() < 3 * budget_ms);) {
    const auto more = batch();
    samples.insert(samples.end(), more.begin(), more.end());
    const double now = median(samples);
    stable = std::abs(now - before) <= 0.002 * now ? stable + 1 : 0;
    before = now;
  }
  return samples;
}

}  // namespace ladder::gpu
