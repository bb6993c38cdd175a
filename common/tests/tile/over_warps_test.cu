// The functions for a block whose warps have split the keys, on both machines: what the warps put
// together is the sum, or the largest, of what each has, and on the sim what that counts.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/device_test.h"
#include "tile/over_warps.h"

namespace ladder::MACHINE {
namespace {

#ifdef LADDER_SIM
#define SUITE SimOverWarps
#else
#define SUITE GpuOverWarps
#endif

class SUITE : public DeviceTest {};

constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16;

/// What warp w has of row i and of element (i, j): other numbers everywhere, negative ones too.
constexpr float of_row(int w, int i) {
  return static_cast<float>((7 * w + 5 * i) % 23) - 9;
}
constexpr float of_element(int w, int i, int j) {
  return static_cast<float>((31 * w + 11 * i + 3 * j) % 37) / 4 - 4;
}
/// What row i weighs.
constexpr float weight_of(int i) {
  return 0.25f * static_cast<float>(i) - 1;
}

/// The largest and the sum of a row: by the thread that has it, and the largest for all warps.
__global__ void rows_over_warps(Hbm<float> out) {
  SharedMemory smem;
  const WarpRows<kRows, kWarps> warp_x{smem.take<float>("x", kWarps * kRows)};
  const int thread = threadIdx.x;
  write(warp_x, make_rows<kRows>([](int i) { return of_row(warp_id(), i); }));
  __syncthreads();
  if (thread < kRows) {
    out[thread] = max_over_warps(warp_x, thread);
    out[kRows + thread] = sum_over_warps(warp_x, thread);
  }
  const auto all = max_over_warps(warp_x);
  for_each_row(all, all, [&](int i, float x, float) { out[(2 + warp_id()) * kRows + i] = x; });
}

TEST_F(SUITE, RowsArePutTogether) {
  Array& out = make("out", (2 + kWarps) * kRows * 4);
  const auto counts = run(rows_over_warps, 1, kThreads, shared_bytes<float>(kWarps * kRows), out);
  const auto got = results<float>(out, kRows);
  for (int i = 0; i < kRows; ++i) {
    float largest = of_row(0, i), sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      largest = std::max(largest, of_row(w, i));
      sum += of_row(w, i);
    }
    EXPECT_EQ(got(0, i), largest) << i;
    EXPECT_EQ(got(1, i), sum) << i;
    for (int w = 0; w < kWarps; ++w) EXPECT_EQ(got(2 + w, i), largest) << i << ", warp " << w;
  }
  if (!counts) return;
  EXPECT_EQ(counts->other_flops, 2 * (kWarps - 1) * kRows);
}

/// target ← weight∘target + the warps' sums, where rows and columns exist.
template <int C>
__global__ void sums_over_warps(Hbm<float> target, int pitch, int rows, int columns) {
  SharedMemory smem;
  const WarpSums<kRows, C, kWarps> warp_sums{
      smem.take<float>("sums", warp_sums_floats(kRows, C, kWarps))};
  const auto weight = smem.take<float>("weight", kRows);
  if (threadIdx.x < kRows) weight[threadIdx.x] = weight_of(static_cast<int>(threadIdx.x));
  Spread<kRows, C, kThreads> x, sum;
  load(x, target, pitch, rows, columns);
  Accumulator<kRows, C> acc;
  for_each(acc, [&](int i, int j, float& element) { element = of_element(warp_id(), i, j); });
  write(warp_sums, acc);
  __syncthreads();
  sum_over_warps(sum, warp_sums, rows, columns);
  mul_rows(x, weight, rows, columns);
  add(x, sum, rows, columns);
  store(target, pitch, x, rows, columns);
}

TEST_F(SUITE, SumsArePutTogetherWhereTheyExist) {
  const auto check = [&]<int C>(Case<fp16, C>, int rows, int columns) {
    SCOPED_TRACE(testing::Message() << C << ": " << rows << " × " << columns);
    constexpr int kPitch = C + 4;
    const Matrix before = random_matrix<fp16>(kRows, kPitch);
    Array& target = upload("target", widen_all(before.elements));
    const auto counts =
        run(sums_over_warps<C>, 1, kThreads,
            shared_bytes<float>(warp_sums_floats(kRows, C, kWarps)) + shared_bytes<float>(kRows),
            target, kPitch, rows, columns);
    const auto got = results<float>(target, kPitch);
    const auto is_wrong = [&](int i, int j) {
      double want = before(i, j);
      const bool exists = i < rows && j < columns;
      if (exists) want *= weight_of(i);
      for (int w = 0; w < kWarps && exists; ++w) want += of_element(w, i, j);
      return !(std::abs(got(i, j) - want) <= 1e-5);
    };
    EXPECT_EQ(count_where(kRows, kPitch, is_wrong), 0);
    if (!counts) return;
    // For each element three additions of four warps' sums, a product and an addition.
    EXPECT_EQ(counts->other_flops, (kWarps - 1 + 2) * rows * columns);
    EXPECT_EQ(counts->hbm.requested_read, 4 * rows * columns);
    EXPECT_EQ(counts->hbm.requested_write, 4 * rows * columns);
  };
  check(Case<fp16, 32>{}, kRows, 32);
  check(Case<fp16, 64>{}, kRows, 40);
  check(Case<fp16, 128>{}, 5, 128);
  check(Case<fp16, 256>{}, 13, 200);
}

}  // namespace
}  // namespace ladder::MACHINE
