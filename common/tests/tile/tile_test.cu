// Products of tiles on both machines: against float64, and on the sim what they count. (What
// functions of rows, columns and warps compute and count is seen in the steps made of them.)

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/device_test.h"
#include "tile/schedule.h"
#include "tile/tile.h"

namespace ladder::MACHINE {
namespace {

#define SUITE ON_MACHINE(Tile)

class SUITE : public DeviceTest {};

// ------------------------------------------------------------------------- products of whole tiles

constexpr int kWarps = 4;  // 2 down × 2 across, each making 16 × kWidth/2 of C
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 32;

enum Form { kABt, kAB, kAtB };

/// C = A·Bᵀ, A·B or Aᵀ·B through tiles of kRows × kWidth (of Aᵀ: kWidth × kRows) and
/// kWidth × kWidth, of which `rows` × `inner`, … are there. C leaves as the accumulators are, and
/// rounded to T through a tile.
template <class T, int kWidth, int kForm>
__global__ void product(Hbm<const T> A, Hbm<const T> B, Hbm<T> C, Hbm<float> sums, int rows,
                        int columns, int inner) {
  constexpr int kInner = kWidth < 32 ? kWidth : 32;
  constexpr bool kA_transposed = kForm == kAtB, kB_transposed = kForm == kABt;
  const int thread = threadIdx.x;
  const int warp_row = warp_id() % 2 * 16, warp_column = warp_id() / 2 * (kWidth / 2);
  SharedMemory smem;
  const Tile<T, kA_transposed ? kWidth : kRows, kA_transposed ? kRows : kWidth> tile_A{
      smem.take<T>("A", kRows * kWidth)};
  const Tile<T, kRows, kWidth> tile_C{smem.take<T>("C", kRows * kWidth)};
  const Tile<T, kWidth, kWidth> tile_B{smem.take<T>("B", kWidth * kWidth)};
  const int of_A = kA_transposed ? rows : inner, of_B = kB_transposed ? inner : columns;
  copy_async<kThreads>(tile_A, A, of_A, kA_transposed ? inner : rows, of_A, thread);
  copy_async<kThreads>(tile_B, B, of_B, kB_transposed ? columns : inner, of_B, thread);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();

  Accumulator<16, kWidth / 2> acc;
  for (int k = 0; k < kWidth; k += kInner) {
    Operand<T, 16, kInner> a;
    if constexpr (kA_transposed)
      load_transposed(a, tile_A, k, warp_row);
    else
      load(a, tile_A, warp_row, k);
    if constexpr (kB_transposed)
      mma_ABt(acc, a, tile_B, warp_column, k);
    else
      mma_AB(acc, a, tile_B, k, warp_column);
  }
  for_each(acc, [&](int i, int j, float c) {
    if (warp_row + i < rows && warp_column + j < columns)
      sums[(warp_row + i) * columns + warp_column + j] = c;
  });
  write(tile_C, acc, warp_row, warp_column);
  __syncthreads();
  copy_out<kThreads>(C, columns, tile_C, rows, columns, thread);
}

TEST_F(SUITE, ProductsOfTilesAreRightAndCounted) {
  const auto check = [&]<class T, int kWidth, int kForm>(Case<T, kWidth, kForm>, int rows,
                                                         int columns, int inner) {
    if (std::is_same_v<T, bf16> && !device().info().has_bf16()) return;
    SCOPED_TRACE(testing::Message()
                 << (std::is_same_v<T, fp16> ? "fp16" : "bf16") << ", width " << kWidth << ", form "
                 << kForm << ", " << rows << "×" << columns << "×" << inner);
    const Matrix a = kForm == kAtB ? random_matrix<T>(inner, rows) : random_matrix<T>(rows, inner);
    const Matrix b =
        kForm == kABt ? random_matrix<T>(columns, inner) : random_matrix<T>(inner, columns);
    Array& C = make("C", rows * columns * 2);
    Array& sums = make("sums", rows * columns * 4);
    const auto counts = run(product<T, kWidth, kForm>, 1, kThreads,
                            shared_bytes<T>(2 * kRows * kWidth) + shared_bytes<T>(kWidth * kWidth),
                            upload<T>("A", a), upload<T>("B", b), C, sums, rows, columns, inner);
    const auto in_fp32 = matrix<float>(sums, columns);
    EXPECT_EQ(count_wrong_sums(in_fp32, rows, columns, inner, 1e-3,
                               [&](int i, int j, int k) {
                                 return (kForm == kAtB ? a(k, i) : a(i, k)) *
                                        (kForm == kABt ? b(j, k) : b(k, j));
                               }),
              0);
    const std::vector<OnHost<T>> rounded(in_fp32.all.begin(), in_fp32.all.end());
    EXPECT_EQ(matrix<T>(C, columns).all, std::vector<float>(rounded.begin(), rounded.end()));
    if (!counts) return;

    // A warp reads its rows of A and its columns of B once; padding is multiplied like the rest.
    const int64_t tile_A = 2 * kRows * kWidth, tile_B = 2 * kWidth * kWidth;
    EXPECT_EQ(counts->matmul_flops, int64_t{2} * kRows * kWidth * kWidth);
    EXPECT_EQ(counts->sram_operands, 2 * tile_A + 2 * tile_B);
    EXPECT_EQ(counts->sram_read, counts->sram_operands + 2 * rows * columns);
    EXPECT_EQ(counts->sram_write, 2 * tile_A + tile_B);
    EXPECT_EQ(counts->bank_conflicts, 0);
    EXPECT_EQ(counts->arrays.at("A").requested_read, 2 * rows * inner);
    EXPECT_EQ(counts->arrays.at("B").requested_read, 2 * columns * inner);
    EXPECT_EQ(counts->arrays.at("C").requested_write, 2 * rows * columns);
  };
  const auto whole_and_ragged = [&]<class T, int kWidth>(Case<T, kWidth>) {
    check(Case<T, kWidth, kABt>{}, kRows, kWidth, kWidth);
    check(Case<T, kWidth, kAB>{}, kRows, kWidth, kWidth);
    check(Case<T, kWidth, kAtB>{}, kRows, kWidth, kWidth);
    check(Case<T, kWidth, kABt>{}, 29, kWidth - 8, kWidth - 24);
    check(Case<T, kWidth, kAB>{}, 1, 8, kWidth - 8);
    check(Case<T, kWidth, kAtB>{}, 24, kWidth - 8, kWidth - 3);
    check(Case<T, kWidth, kAtB>{}, 8, 8, 1);
  };
  check_each(whole_and_ragged, Case<fp16, 32>{}, Case<bf16, 64>{}, Case<fp16, 128>{},
             Case<bf16, 256>{});
}

#ifdef LADDER_SIM
TEST(SimWork, ComesGroupByGroupAndLongestFirst) {
  const auto check = [&](const WorkList& list, int group) {
    SCOPED_TRACE(testing::Message() << list.heads << " heads of " << list.tiles << " tiles");
    int index = 0;
    for (int first = 0; first < list.heads; first += group)
      for (int tile = 0; tile < list.tiles; ++tile)
        for (int head = first; head < std::min(first + group, list.heads); ++head) {
          const Work w = longest_first(index++, list);
          EXPECT_EQ(std::pair(w.head, w.tile), std::pair(head, tile));
        }
  };
  // Even: head by head. Uneven: in groups that fit, as equally large as may be, or in larger ones
  // that have work for all blocks at once.
  check({.heads = 3, .tiles = 4, .head_bytes = 1, .uneven = false}, 1);
  check({.heads = 7, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 30}, 3);
  check({.heads = 6, .tiles = 5, .head_bytes = 10, .uneven = true, .group_bytes = 29}, 2);
  check({.heads = 5, .tiles = 2, .head_bytes = 10, .uneven = true, .group_bytes = 9}, 1);
  check({.heads = 4, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 40}, 4);
  check({.heads = 4, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 1000}, 4);
  check({.heads = 1, .tiles = 1, .head_bytes = int64_t{1} << 40, .uneven = true}, 1);
  check({.heads = 7, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 50}, 4);
  check({.heads = 9, .tiles = 2, .head_bytes = 9, .uneven = true, .group_bytes = 9, .at_once = 7},
        3);
}
#endif

}  // namespace
}  // namespace ladder::MACHINE
