// What tests of Hopper's products share: operands filled element by element, sums shown.
#pragma once

#include "tests/device_test.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

/// A test that a GPU of another kind skips.
class HopperTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && device().info().compute_capability / 10 != 9)
      GTEST_SKIP() << device().info().name << " is no Hopper GPU";
  }
};

/// Fills a tile from a row-major matrix by ordinary stores, columns past it with zeros.
template <class T, int R, int C>
__device__ __forceinline__ void fill(const SwizzledTile<T, R, C>& tile, Hbm<const T> source,
                                     int columns = C) {
  constexpr int kChunk = tile.kChunk, kAll = tile.kColumns * tile.kPanels;
  for (int i = threadIdx.x; i < R * kAll; i += kWarpgroup) {
    const int r = i / kAll, c = i % kAll;
    T x = T(0.0f);
    if (c < columns) x = source[r * columns + c];
    tile.data[tile.chunk(r, c / kChunk) + c % kChunk] = x;
  }
}

/// The warp's 16 rows of a row-major matrix, register by register as the PTX manual has them.
template <class T, int K>
__device__ __forceinline__ void fill(Operand<T, 16, K>& a, Hbm<const T> A) {
  constexpr int kIn = 4 / int{sizeof(T)};  // elements of a register
  for (int k = 0; k < K / (8 * kIn); ++k)
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * warp_id() + lane_id() / 4 + i % 2 * 8;
      const int at = row * K + 8 * kIn * k + lane_id() % 4 * kIn + i / 2 * 4 * kIn;
      if constexpr (kIn == 2)
        a.r[0][k][i] = pack<T>(float(A[at]), float(A[at + 1]));
      else
        a.r[0][k][i] = pack<T>(float(A[at]), float(A[at + 1]), float(A[at + 2]), float(A[at + 3]));
    }
}

template <int N>
__device__ __forceinline__ void show(Accumulator<16, N>& acc, Hbm<float> sums) {
  for_each(acc, [&](int i, int j, float c) { sums[(16 * warp_id() + i) * N + j] = c; });
}

}  // namespace
}  // namespace ladder::MACHINE
