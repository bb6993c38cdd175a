// The functions of common/tile on both machines: products against float64, the registers of a
// fragment against the PTX manual, and on the sim what they count.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/device_test.h"
#include "tile/columns.h"
#include "tile/over_warps.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/tile.h"

namespace ladder::MACHINE {
namespace {

#ifdef LADDER_SIM
#define SUITE SimTile
#else
#define SUITE GpuTile
#endif

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

// ----------------------------------------------------------------------------------- the registers

/// C = A·B, 16 × 8 of 16 × 16 and 16 × 8, each fragment put together element by element as the PTX
/// manual draws it (“Matrix Fragments for mma.m16n8k16 with floating point type”). `swap` exchanges
/// two registers of a fragment: of a 1 (a0, a1), 2 (a1, a2), of b 3, of c 4 (c0, c1), 5 (c1, c2).
template <class T>
__global__ void product_of_fragments(Hbm<const T> A, Hbm<const T> B, Hbm<float> C, int swap) {
  const int group = lane_id() / 4, in_group = lane_id() % 4;
  unsigned a[4], b[2];
  float c[4] = {};
  for (int i = 0; i < 4; ++i) {
    const int at = (group + 8 * (i % 2)) * 16 + 2 * in_group + 8 * (i / 2);
    a[i] = pack<T>(float(A[at]), float(A[at + 1]));
  }
  for (int i = 0; i < 2; ++i) {
    const int at = (2 * in_group + 8 * i) * 8 + group;
    b[i] = pack<T>(float(B[at]), float(B[at + 8]));
  }
  if (swap == 1) std::swap(a[0], a[1]);
  if (swap == 2) std::swap(a[1], a[2]);
  if (swap == 3) std::swap(b[0], b[1]);
  mma_m16n8k16<T>(c, a, b[0], b[1]);
  if (swap == 4) std::swap(c[0], c[1]);
  if (swap == 5) std::swap(c[1], c[2]);
  for (int i = 0; i < 4; ++i) C[(group + 8 * (i / 2)) * 8 + 2 * in_group + i % 2] = c[i];
}

TEST_F(SUITE, FragmentsAreTheManualsAndNoOthers) {
  const auto check = [&]<class T>(Case<T>) {
    const Matrix a = random_matrix<T>(16, 16), b = random_matrix<T>(16, 8);
    Array& C = make("C", 16 * 8 * 4);
    for (int swap = 0; swap <= 5; ++swap) {
      run(product_of_fragments<T>, 1, 32, 0, upload<T>("A", a), upload<T>("B", b), C, swap);
      const int wrong = count_wrong_sums(matrix<float>(C, 8), 16, 8, 16, swap ? 0.1 : 1e-4,
                                         [&](int i, int j, int k) { return a(i, k) * b(k, j); });
      EXPECT_EQ(wrong > 0, swap > 0) << "exchange " << swap << " of two registers";
    }
  };
  check_each(check, Case<fp16>{}, Case<bf16>{});
}

// ---------------------------------------------------------------- functions of a warp's registers

constexpr float kScale = 1.7f;
/// What the functions are given: so much a row and a column.
constexpr float of_row(int i) {
  return 0.25f * i - 3;
}
constexpr float of_column(int j) {
  return 0.5f - 0.125f * (j % 16);
}
/// Rows 2 and 3 see no key, and nor does column 5 a query.
constexpr int kBlindRow = 2, kBlindColumn = 5, kFunctions = 18;

/// What each function makes of M × N sums x (rows: their value in each column): how many elements
/// of a lane are wrong.
template <int M, int N>
__global__ void functions(Hbm<const float> x, Hbm<int> wrong) {
  Accumulator<M, N> S;
  for_each(S, [&](int i, int j, float& s) { s = x[i * N + j]; });
  int number = 0;
  const auto check = [&](auto function, auto right) {
    auto made = S;
    function(made);
    int n = 0;
    for_each(made, [&](int i, int j, float is) {
      const float wanted = right(i, j, x[i * N + j]);
      n += is != wanted && !(fabsf(is - wanted) <= 1e-5f * (fabsf(wanted) + 1));
    });
    wrong[32 * number++ + lane_id()] = n;
  };
  const auto check_rows = [&](const Rows<M>& rows, auto right) {
    check([&](auto& s) { fill_rows(s, rows); }, [&](int i, int, float) { return right(i); });
  };
  const auto rows = make_rows<M>([](int i) { return of_row(i); }), two = fill_rows<M>(2);
  check([&](auto& s) { mul_rows(s, rows); }, [](int i, int, float s) { return s * of_row(i); });
  check([&](auto& s) { exp2_rows(s, kScale, rows); },
        [](int i, int, float s) { return std::exp2(kScale * s - of_row(i)); });
  check([&](auto& s) { mul(s, S); }, [](int, int, float s) { return s * s; });
  check([](auto& s) { fill_columns(s, make_columns<N>([](int j) { return of_column(j); })); },
        [](int, int j, float) { return of_column(j); });
  const auto shift = [](int j) { return j == kBlindColumn ? INFINITY : of_column(j); };
  check([&](auto& s) { exp2_columns(s, kScale, make_columns<N>(shift)); },
        [&](int, int j, float s) { return std::exp2(kScale * s - shift(j)); });
  const auto added = [](int i, int j) { return of_row(i) + of_column(j); };
  Accumulator<M, N / 2> half;
  for_each(half, [&](int i, int j, float& s) { s = added(i, j); });
  check([&](auto& s) { add_columns(s, N / 2, half); },
        [&](int i, int j, float s) { return j < N / 2 ? s : s + added(i, j - N / 2); });
  const auto largest = [&](int i) {
    float most = -INFINITY;
    for (int j = 0; j < N; ++j) most = fmaxf(most, x[i * N + j]);
    return most;
  };
  const auto most = row_max(S);
  check_rows(most, largest);
  check_rows(max_over_lanes(row_max_in_lane(S)), largest);
  check_rows(finite_or_zero(most), [&](int i) { return i / 2 * 2 == kBlindRow ? 0 : largest(i); });
  check_rows(fill_rows<M>(any_above(row_max_in_lane(S), 8) + 2 * any_above(most, 8.5f)),
             [](int) { return 1; });
  check_rows(row_sum(S), [&](int i) {
    float sum = 0;
    for (int j = 0; j < N; ++j) sum += x[i * N + j];
    return sum;
  });
  check_rows(max(rows, two), [](int i) { return fmaxf(of_row(i), 2); });
  check_rows(rows + two, [](int i) { return of_row(i) + 2; });
  check_rows(rows - two, [](int i) { return of_row(i) - 2; });
  check_rows(rows * two, [](int i) { return of_row(i) * 2; });
  check_rows(3.0f * rows, [](int i) { return of_row(i) * 3; });
  check_rows(exp2(rows), [](int i) { return std::exp2(of_row(i)); });
  check_rows(inverse_or_zero(rows), [](int i) { return of_row(i) > 0 ? 1 / of_row(i) : 0; });
}

TEST_F(SUITE, FunctionsOfRowsColumnsAndElements) {
  const auto check = [&]<int M, int N>(Case<float, M, N>) {
    Matrix x = random_matrix<fp16>(M, N);
    for (float& number : x.all) number *= 8;
    x(0, 7) = 8.5f;  // the only one above 8
    std::fill_n(&x(kBlindRow, 0), 2 * N, -INFINITY);
    Array& wrong = make("wrong", kFunctions * 32 * 4);
    const auto counts = run(functions<M, N>, 1, 32, 0, upload<float>("x", x), wrong);
    const auto of_lanes = values<int>(wrong);
    for (size_t i = 0; i < of_lanes.size(); ++i)
      EXPECT_EQ(of_lanes[i], 0) << "function " << i / 32 << " of " << M << "×" << N;
    if (!counts) return;
    // For each element one each by mul_rows, mul, row_sum and three searches for the
    // largest, two for each power, and one for each of the half that columns are added to; for a
    // row one by each any_above and by six more functions.
    EXPECT_EQ(counts->other_flops, (6 + 2 * 2) * M * N + M * N / 2 + 8 * M);
    EXPECT_EQ(counts->exps, 2 * M * N + M);
  };
  check_each(check, Case<float, 16, 32>{}, Case<float, 16, 96>{}, Case<float, 32, 64>{});
}

// ----------------------------------------------------------- of a block whose warps split the keys

constexpr int kM = 16;

/// What warp w has of element (i, j), and of row i as j = 0: other numbers everywhere.
constexpr float of_warp(int w, int i, int j) {
  return static_cast<float>((31 * w + 11 * i + 3 * j) % 37) / 4 - 4;
}

/// target ← of_row∘target + the warps' sums, where rows and columns exist. Of each row the largest
/// and the sum, by the thread that has it, and the largest for all warps.
template <int C>
__global__ void over_warps(Hbm<float> target, Hbm<float> of_rows, int rows, int columns) {
  SharedMemory smem;
  const WarpSums<kM, C, kWarps> warp_sums{
      smem.take<float>("sums", warp_sums_floats(kM, C, kWarps))};
  const WarpRows<kM, kWarps> warp_x{smem.take<float>("x", kWarps * kM)};
  const auto weight = smem.take<float>("weight", kM);
  const int thread = threadIdx.x;
  if (thread < kM) weight[thread] = of_row(thread);
  write(warp_x, make_rows<kM>([](int i) { return of_warp(warp_id(), i, 0); }));
  Accumulator<kM, C> acc;
  for_each(acc, [&](int i, int j, float& element) { element = of_warp(warp_id(), i, j); });
  write(warp_sums, acc);
  __syncthreads();
  Spread<kM, C, kThreads> x, sum;
  load(x, target, C + 4, rows, columns);
  sum_over_warps(sum, warp_sums, rows, columns);
  mul_rows(x, weight, rows, columns);
  add(x, sum, rows, columns);
  store(target, C + 4, x, rows, columns);
  if (thread < kM) {
    of_rows[thread] = max_over_warps(warp_x, thread);
    of_rows[kM + thread] = sum_over_warps(warp_x, thread);
  }
  const auto all = max_over_warps(warp_x);
  for_each_row(all, all,
               [&](int i, float most, float) { of_rows[(2 + warp_id()) * kM + i] = most; });
}

TEST_F(SUITE, WhatWarpsHaveIsPutTogetherWhereItExists) {
  const auto check = [&]<int C>(Case<float, C>, int rows, int columns) {
    SCOPED_TRACE(testing::Message() << C << ": " << rows << " × " << columns);
    const Matrix before = random_matrix<float>(kM, C + 4);
    Array& target = upload<float>("target", before);
    Array& of_rows = make("rows", (2 + kWarps) * kM * 4);
    const auto counts = run(over_warps<C>, 1, kThreads,
                            shared_bytes<float>(warp_sums_floats(kM, C, kWarps)) +
                                shared_bytes<float>(kWarps * kM) + shared_bytes<float>(kM),
                            target, of_rows, rows, columns);
    const auto got = matrix<float>(target, C + 4), row = matrix<float>(of_rows, kM);
    const auto together = [&](int i, int j, auto f) {
      float x = of_warp(0, i, j);
      for (int w = 1; w < kWarps; ++w) x = f(x, of_warp(w, i, j));
      return x;
    };
    const auto larger = [](float x, float y) { return std::max(x, y); };
    const auto is_wrong = [&](int i, int j) {
      double want = before(i, j);
      if (i < rows && j < columns) want = want * of_row(i) + together(i, j, std::plus());
      return !(std::abs(got(i, j) - want) <= 1e-5);
    };
    EXPECT_EQ(count_where(kM, C + 4, is_wrong), 0);
    const auto is_wrong_of_row = [&](int n, int i) {
      return row(n, i) != (n == 1 ? together(i, 0, std::plus()) : together(i, 0, larger));
    };
    EXPECT_EQ(count_where(2 + kWarps, kM, is_wrong_of_row), 0);
    if (!counts) return;
    // For each element three additions of four warps' sums, a product and an addition.
    EXPECT_EQ(counts->other_flops, (kWarps + 1) * rows * columns + 2 * (kWarps - 1) * kM);
    EXPECT_EQ(counts->arrays.at("target").requested_read, 4 * rows * columns);
    EXPECT_EQ(counts->arrays.at("target").requested_write, 4 * rows * columns);
  };
  check(Case<float, 32>{}, kM, 32);
  check(Case<float, 64>{}, kM, 40);
  check(Case<float, 128>{}, 5, 128);
  check(Case<float, 256>{}, 13, 200);
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
  // Even: head by head. Uneven: in groups that fit, the last of which may be smaller.
  check({.heads = 3, .tiles = 4, .head_bytes = 1, .uneven = false}, 1);
  check({.heads = 7, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 30}, 3);
  check({.heads = 6, .tiles = 5, .head_bytes = 10, .uneven = true, .group_bytes = 29}, 2);
  check({.heads = 5, .tiles = 2, .head_bytes = 10, .uneven = true, .group_bytes = 9}, 1);
  check({.heads = 4, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 40}, 4);
  check({.heads = 4, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 1000}, 4);
  check({.heads = 1, .tiles = 1, .head_bytes = int64_t{1} << 40, .uneven = true}, 1);
}
#endif

}  // namespace
}  // namespace ladder::MACHINE
