// When a measurement ends, with a clock and runs that are made up.
#include "machine/gpu/sampling.h"

#include <gtest/gtest.h>

#include <functional>

namespace ladder::gpu {
namespace {

TEST(Sampling, MedianOfAnyOrder) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

// Runs of which number i (from 0) takes ms(i), in batches of four; the clock is their sum.
TEST(Sampling, EndsWhereItSays) {
  const struct {
    const char* name;
    double budget_ms;
    std::function<double(int)> ms;
    int runs;  // warm-up and samples
    size_t samples;
  } cases[] = {
      {"steady runs warm up and are measured for as long as asked", 100, [](int) { return 1; },
       100 + 100, 100},
      // 1 falls to 0.25, after 60 ms, in portions whose sums are exact however they are added up.
      {"warm-up goes on while runs get faster", 50,
       [](int i) { return i < 96 ? 1 - i / 128.0 : 0.25; }, 104 + 200, 200},
      // Over 1% a batch, for the first 138 ms; after 100 ms a run takes e⁻¹.
      {"warm-up ends though runs get faster for ever", 50, [](int i) { return 1 / (1 + 0.01 * i); },
       172 + 948, 948},
      // Warm after 20 runs; then 30 that get slower, and steady ones.
      {"goes on while the median moves", 20,
       [](int i) { return 1 + 0.01 * std::clamp(i - 20, 0, 30); }, 20 + 52, 52},
      {"goes on until three batches in a row leave the median", 20,
       [](int i) { return 1 + i / 8 / 32.0; }, 20 + 52, 52},
      {"ends though the median moves for ever, after 20 ms and 3 · 20 ms", 20,
       [](int i) { return 1 + 0.01 * i; }, 20 + 44, 44},
      {"a run that is longer than all of the time is measured once", 1, [](int) { return 500; },
       4 + 4, 4},
  };
  for (const auto& c : cases) {
    double clock = 0;
    int runs = 0;
    const auto batch = [&] {
      std::vector<double> times;
      for (int i = 0; i < 4; ++i) clock += times.emplace_back(c.ms(runs++));
      return times;
    };
    EXPECT_EQ(sample(c.budget_ms, batch, [&] { return clock; }).size(), c.samples) << c.name;
    EXPECT_EQ(runs, c.runs) << c.name;
  }
}

}  // namespace
}  // namespace ladder::gpu
