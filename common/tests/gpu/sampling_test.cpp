// When a measurement ends, with a clock and runs that are made up.
#include "machine/gpu/sampling.h"

#include <gtest/gtest.h>

#include <functional>

namespace ladder::gpu {
namespace {

/// Runs of which number i (from 0) takes ms(i), in batches of four; the clock is their sum.
struct Runs {
  std::function<double(int)> ms;
  double clock = 0;
  int count = 0;

  std::vector<double> batch() {
    std::vector<double> times;
    for (int i = 0; i < 4; ++i) clock += times.emplace_back(ms(count++));
    return times;
  }
  std::vector<double> sampled(double budget_ms) {
    return sample(
        budget_ms, [this] { return batch(); }, [this] { return clock; });
  }
};

TEST(Sampling, MedianOfAnyOrder) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(Sampling, SteadyRunsWarmUpAndAreMeasuredForAsLongAsAsked) {
  Runs runs{[](int) { return 1; }};
  EXPECT_EQ(runs.sampled(100).size(), 100u);
  EXPECT_EQ(runs.count, 200);
}

TEST(Sampling, WarmUpGoesOnWhileRunsGetFaster) {
  Runs runs{[](int i) { return i < 150 ? 1 - 0.005 * i : 0.25; }};  // 1 falls to 0.25
  for (const double ms : runs.sampled(50)) EXPECT_EQ(ms, 0.25);
}

TEST(Sampling, WarmUpEndsThoughRunsGetFasterForEver) {
  Runs runs{[](int i) { return 1 / (1 + 0.01 * i); }};  // over 1% a batch, for the first 138 ms
  const auto samples = runs.sampled(50);
  EXPECT_NEAR(samples.front(), 0.37, 0.01);  // after 100 ms: e⁻¹
}

TEST(Sampling, GoesOnWhileTheMedianMoves) {
  // Warm after 20 runs; then 30 that get slower, and steady ones.
  Runs runs{[](int i) { return 1 + 0.01 * std::clamp(i - 20, 0, 30); }};
  EXPECT_GT(runs.sampled(20).size(), 40u);
  EXPECT_GT(runs.count, 20 + 40);
}

TEST(Sampling, EndsThoughTheMedianMovesForEver) {
  Runs runs{[](int i) { return 1 + 0.01 * i; }};
  runs.sampled(20);
  EXPECT_GT(runs.clock, 20 + 3 * 20);
  EXPECT_LT(runs.clock, 20 + 3 * 20 + 2 * 4 * 2);  // and the batches under way
}

TEST(Sampling, ARunThatIsLongerThanAllOfTheTimeIsMeasuredOnce) {
  Runs runs{[](int) { return 500; }};
  EXPECT_EQ(runs.sampled(1).size(), 4u);  // a batch
}

}  // namespace
}  // namespace ladder::gpu
