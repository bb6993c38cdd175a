// The functions of common/tile on both machines: products against float64, the registers of a
// fragment against the PTX manual, and on the sim what they count.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/device_test.h"
#include "tile/columns.h"
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

template <int kWidth, class T>
int64_t product_smem() {
  return shared_bytes<T>(2 * kRows * kWidth) + shared_bytes<T>(kWidth * kWidth);
}

enum Form { kABt, kAB, kAtB };

/// C = A·Bᵀ, A·B or Aᵀ·B through tiles of kRows × kWidth (of Aᵀ: kWidth × kRows) and
/// kWidth × kWidth, of which `rows` × `inner`, … are there. C leaves as the accumulators are, and
/// rounded to T through a tile.
template <class T, int kWidth, int kForm>
__global__ void product(Hbm<const T> A, Hbm<const T> B, Hbm<T> C, Hbm<float> sums, int rows,
                        int columns, int inner) {
  constexpr int kInner = kWidth < 32 ? kWidth : 32;
  const int thread = threadIdx.x;
  const int warp_row = warp_id() % 2 * 16, warp_column = warp_id() / 2 * (kWidth / 2);
  SharedMemory smem;
  const Tile<T, kForm == kAtB ? kWidth : kRows, kForm == kAtB ? kRows : kWidth> tile_A{
      smem.take<T>("A", kRows * kWidth)};
  const Tile<T, kRows, kWidth> tile_C{smem.take<T>("C", kRows * kWidth)};
  const Tile<T, kWidth, kWidth> tile_B{smem.take<T>("B", kWidth * kWidth)};
  if (kForm == kAtB)
    copy_async<kThreads>(tile_A, A, rows, inner, rows, thread);
  else
    copy_async<kThreads>(tile_A, A, inner, rows, inner, thread);
  if (kForm == kABt)
    copy_async<kThreads>(tile_B, B, inner, columns, inner, thread);
  else
    copy_async<kThreads>(tile_B, B, columns, inner, columns, thread);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();

  Accumulator<16, kWidth / 2> acc;
  for (int k = 0; k < kWidth; k += kInner) {
    Operand<T, 16, kInner> a;
    if constexpr (kForm == kAtB)
      load_transposed(a, tile_A, k, warp_row);
    else
      load(a, tile_A, warp_row, k);
    if constexpr (kForm == kABt)
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
                 << (kType<T> == DType::fp16 ? "fp16" : "bf16") << ", width " << kWidth << ", form "
                 << kForm << ", " << rows << "×" << columns << "×" << inner);
    const Matrix a = kForm == kAtB ? random_matrix<T>(inner, rows) : random_matrix<T>(rows, inner);
    const Matrix b =
        kForm == kABt ? random_matrix<T>(columns, inner) : random_matrix<T>(inner, columns);
    Array& A = upload("A", a);
    Array& B = upload("B", b);
    Array& C = make("C", rows * columns * 2);
    Array& sums = make("sums", rows * columns * 4);
    const auto counts = run(product<T, kWidth, kForm>, 1, kThreads, product_smem<kWidth, T>(), A, B,
                            C, sums, rows, columns, inner);
    const auto in_fp32 = results<float>(sums, columns);
    const auto term = [&](int i, int j, int k) {
      return (kForm == kAtB ? a(k, i) : a(i, k)) * (kForm == kABt ? b(j, k) : b(k, j));
    };
    EXPECT_LT(worst_sum(in_fp32, rows, inner, term), 1e-3);
    EXPECT_LT(worst_rounding<T>(matrix<T>(C, rows, columns), in_fp32.all), 1e-7);
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
  const auto exchange = [](auto& x, auto& y) {
    const auto was = x;
    x = y;
    y = was;
  };
  if (swap == 1) exchange(a[0], a[1]);
  if (swap == 2) exchange(a[1], a[2]);
  if (swap == 3) exchange(b[0], b[1]);
  mma_m16n8k16<T>(c, a, b[0], b[1]);
  if (swap == 4) exchange(c[0], c[1]);
  if (swap == 5) exchange(c[1], c[2]);
  for (int i = 0; i < 4; ++i) C[(group + 8 * (i / 2)) * 8 + 2 * in_group + i % 2] = c[i];
}

TEST_F(SUITE, FragmentsAreTheManualsAndNoOthers) {
  const auto check = [&]<class T>(Case<T>) {
    const Matrix a = random_matrix<T>(16, 16), b = random_matrix<T>(16, 8);
    Array& A = upload("A", a);
    Array& B = upload("B", b);
    Array& C = make("C", 16 * 8 * 4);
    for (int swap = 0; swap <= 5; ++swap) {
      run(product_of_fragments<T>, 1, 32, 0, A, B, C, swap);
      const double worst = worst_sum(results<float>(C, 8), 16, 16,
                                     [&](int i, int j, int k) { return a(i, k) * b(k, j); });
      if (swap == 0)
        EXPECT_LT(worst, 1e-4);
      else
        EXPECT_GT(worst, 0.1) << "exchange " << swap << " of two registers went unnoticed";
    }
  };
  check_each(check, Case<fp16>{}, Case<bf16>{});
}

/// Four 8 × 8 matrices, whose rows of 16 bytes lie one after the other; what each lane receives.
template <bool kTransposed>
__global__ void load_matrices(Hbm<const fp16> matrices, Hbm<unsigned> registers) {
  SharedMemory smem;
  const auto rows = smem.take<fp16>("rows", 4 * 8 * 8);
  for (int i = lane_id(); i < 4 * 8 * 8; i += 32) rows[i] = matrices[i];
  __syncwarp();
  unsigned r[4];
  if constexpr (kTransposed)
    ldmatrix_x4_trans(r, rows + lane_id() * 8);
  else
    ldmatrix_x4(r, rows + lane_id() * 8);
  for (int m = 0; m < 4; ++m) registers[32 * m + lane_id()] = r[m];
}

TEST_F(SUITE, LdmatrixGivesEachLaneWhatTheManualSays) {
  std::vector<uint16_t> numbers(256);
  std::iota(numbers.begin(), numbers.end(), uint16_t{0});
  Array& matrices = upload("matrices", numbers);
  Array& registers = make("registers", 4 * 32 * 4);
  for (const bool transposed : {false, true}) {
    run(transposed ? load_matrices<true> : load_matrices<false>, 1, 32, shared_bytes<fp16>(256),
        matrices, registers);
    const auto got = results<unsigned>(registers, 32);
    for (int m = 0; m < 4; ++m)
      for (int lane = 0; lane < 32; ++lane) {
        const unsigned row = lane / 4, column = 2 * (lane % 4);
        const unsigned low = 64 * m + (transposed ? 8 * column + row : 8 * row + column);
        const unsigned high = low + (transposed ? 8 : 1);
        EXPECT_EQ(got(m, lane), low | high << 16)
            << "matrix " << m << ", lane " << lane << (transposed ? ", transposed" : "");
      }
  }
}

/// One operand from a tile without the swizzle, of which `rows` × `columns` are there.
template <int kWidth>
__global__ void load_plainly(Hbm<const fp16> A, Hbm<unsigned> out, int rows, int columns) {
  SharedMemory smem;
  const Tile<fp16, 16, kWidth, Layout::plain> tile{smem.take<fp16>("tile", 16 * kWidth)};
  copy_in<32>(tile, A, kWidth, rows, columns, lane_id());
  __syncwarp();
  Operand<fp16, 16, 16> a;
  load(a, tile, 0, 0);
  for (int e = 0; e < 4; ++e) out[32 * e + lane_id()] = a.r[0][0][e];
}

TEST_F(SUITE, WithoutTheSwizzleBanksConflict) {
  const auto check = [&]<int kWidth>(Case<fp16, kWidth>, int rows, int columns, int conflicts) {
    SCOPED_TRACE(testing::Message() << "width " << kWidth << ", " << rows << "×" << columns);
    const Matrix a = random_matrix<fp16>(16, kWidth);
    Array& A = upload("A", a);
    Array& out = make("out", 4 * 32 * 4);
    const auto counts =
        run(load_plainly<kWidth>, 1, 32, shared_bytes<fp16>(16 * kWidth), A, out, rows, columns);
    const Matrix pairs = matrix<fp16>(out, 4 * 32, 2);
    const auto is_wrong = [&](int at, int half) {
      const int e = at / 32, lane = at % 32;
      const int i = lane / 4 + e % 2 * 8, c = 2 * (lane % 4) + half + e / 2 * 8;
      return pairs(at, half) != (i < rows && c < columns ? a(i, c) : 0);
    };
    EXPECT_EQ(count_where(4 * 32, 2, is_wrong), 0);
    if (!counts) return;
    EXPECT_EQ(counts->bank_conflicts, conflicts);
    EXPECT_EQ(counts->arrays.at("A").requested_read, 2 * rows * columns);
    EXPECT_EQ(counts->sram_write, 2 * 16 * kWidth);
  };
  // Of four matrices, each read in 1 pass at best; rows 64 bytes apart meet four at a time, rows
  // 128 bytes or a multiple apart all eight.
  check(Case<fp16, 32>{}, 16, 32, 4 * 3);
  check(Case<fp16, 64>{}, 16, 64, 4 * 7);
  check(Case<fp16, 128>{}, 16, 128, 4 * 7);
  check(Case<fp16, 256>{}, 16, 256, 4 * 7);
  check(Case<fp16, 64>{}, 13, 8, 4 * 7);
}

// ------------------------------------------------------------------------------ functions for rows

constexpr int kQueries = 32, kKeys = 64, kHead = 64;
constexpr int kBlindRow = 5;  // sees no key
/// What the kernel below leaves of each row.
enum RowValue { kMax, kSum, kInverse, kLarger, kPlus, kMinus, kTimes, kTwice, kPower, kRowValues };

/// O = softmax(scale·Q·Kᵀ)·V of one tile by one warp, with what the functions leave on the way: P,
/// and of each row m, l and what those from row to row make of l.
template <class T>
__global__ void attention_of_a_tile(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V,
                                    Hbm<float> P_out, Hbm<float> O_out, Hbm<float> rows_out,
                                    int keys) {
  SharedMemory smem;
  const Tile<T, kQueries, kHead> tile_Q{smem.take<T>("Q", kQueries * kHead)};
  const Tile<T, kKeys, kHead> tile_K{smem.take<T>("K", kKeys * kHead)};
  const Tile<T, kKeys, kHead> tile_V{smem.take<T>("V", kKeys * kHead)};
  copy_async<32>(tile_Q, Q, kHead, kQueries, kHead, lane_id());
  copy_async<32>(tile_K, K, kHead, keys, kHead, lane_id());
  copy_async<32>(tile_V, V, kHead, keys, kHead, lane_id());
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();

  Operand<T, kQueries, kHead> q;
  load(q, tile_Q, 0, 0);
  Accumulator<kQueries, kKeys> S;
  mma_ABt(S, q, tile_K, 0, 0);
  for_each(S, [&](int i, int j, float& s) {
    if (j >= keys || i == kBlindRow) s = -INFINITY;
  });
  const float c = 0.125f * 1.44269504f;  // scale · log₂ e
  const auto m = row_max(S);
  exp2_rows(S, c, finite_or_zero(c * m));
  const auto l = row_sum(S);
  const auto inverse = inverse_or_zero(l);
  mul_rows(S, inverse);
  for_each(S, [&](int i, int j, float p) { P_out[i * kKeys + j] = p; });
  Accumulator<kQueries, kHead> O;
  mma_AB(O, as_operand<T>(S), tile_V, 0, 0);
  for_each(O, [&](int i, int j, float o) { O_out[i * kHead + j] = o; });

  const auto put = [&](RowValue what, const Rows<kQueries>& rows) {
    for_each_row(rows, rows, [&](int i, float x, float) { rows_out[i * kRowValues + what] = x; });
  };
  const auto three = fill_rows<kQueries>(3);
  put(kMax, m);
  put(kSum, l);
  put(kInverse, inverse);
  put(kLarger, max(l, three));
  put(kPlus, l + three);
  put(kMinus, l - three);
  put(kTimes, l * three);
  put(kTwice, 2.0f * l);
  put(kPower, exp2(l - three));
}

TEST_F(SUITE, FunctionsOfRowsMakeSoftmax) {
  const auto check = [&]<class T>(Case<T>, int keys) {
    SCOPED_TRACE(testing::Message() << (kType<T> == DType::fp16 ? "fp16, " : "bf16, ") << keys);
    const Matrix q = random_matrix<T>(kQueries, kHead), k = random_matrix<T>(keys, kHead),
                 v = random_matrix<T>(keys, kHead);
    Array& Q = upload("Q", q);
    Array& K = upload("K", k);
    Array& V = upload("V", v);
    Array& P = make("P", kQueries * kKeys * 4);
    Array& O = make("O", kQueries * kHead * 4);
    Array& rows = make("rows", kQueries * kRowValues * 4);
    const auto counts = run(attention_of_a_tile<T>, 1, 32,
                            shared_bytes<T>(kQueries * kHead) + 2 * shared_bytes<T>(kKeys * kHead),
                            Q, K, V, P, O, rows, keys);
    const auto p_out = results<float>(P, kKeys), o_out = results<float>(O, kHead),
               row_out = results<float>(rows, kRowValues);
    double worst_p = 0, worst_o = 0;
    for (int i = 0; i < kQueries; ++i) {
      const bool blind = i == kBlindRow;
      double s[kKeys] = {}, m = -INFINITY, l = 0;
      for (int j = 0; j < keys && !blind; ++j) {
        for (int c = 0; c < kHead; ++c) s[j] += q(i, c) * k(j, c);
        m = std::max(m, s[j]);
      }
      for (int j = 0; j < keys && !blind; ++j) l += s[j] = std::exp(0.125 * (s[j] - m));
      for (int j = 0; j < kKeys; ++j)
        worst_p = worse(worst_p, std::abs(p_out(i, j) - (blind ? 0 : s[j] / l)));
      for (int c = 0; c < kHead; ++c) {
        double o = 0;
        for (int j = 0; j < keys && !blind; ++j) o += s[j] / l * v(j, c);
        worst_o = worse(worst_o, std::abs(o_out(i, c) - o));
      }
      const auto row = [&](RowValue what) { return double{row_out(i, what)}; };
      if (blind)
        EXPECT_EQ(row(kMax), -INFINITY);
      else
        EXPECT_NEAR(row(kMax), m, 1e-4);
      EXPECT_NEAR(row(kSum), l, 1e-4 * l);
      const double sum = row(kSum);
      EXPECT_NEAR(row(kInverse), blind ? 0 : 1 / sum, 1e-6);
      EXPECT_EQ(row(kLarger), std::max(sum, 3.0));
      EXPECT_NEAR(row(kPlus), sum + 3, 1e-5);
      EXPECT_NEAR(row(kMinus), sum - 3, 1e-5);
      EXPECT_NEAR(row(kTimes), sum * 3, 1e-5 * sum);
      EXPECT_NEAR(row(kTwice), sum * 2, 1e-5 * sum);
      EXPECT_NEAR(row(kPower), std::exp2(row(kMinus)), 1e-5 * std::exp2(row(kMinus)));
    }
    EXPECT_LT(worst_p, 1e-5);
    EXPECT_LT(worst_o, rounding<T>(1));  // P, a row of which adds up to 1, was rounded to T
    if (!counts) return;
    constexpr int kElements = kQueries * kKeys;
    EXPECT_EQ(counts->matmul_flops, 2 * 2 * kElements * kHead);
    EXPECT_EQ(counts->exps, kElements + kQueries);
    // row_max, row_sum and mul_rows take one for each element, exp2_rows two; c·m, the inverse and
    // seven of the functions at the end one for each row.
    EXPECT_EQ(counts->other_flops, 5 * kElements + 8 * kQueries);
    EXPECT_EQ(counts->bank_conflicts, 0);
  };
  for (const int keys : {64, 41, 1})
    check_each([&](auto type) { check(type, keys); }, Case<fp16>{}, Case<bf16>{});
}

/// Of 16 rows of lane numbers, one lane has x instead in one row. What all lanes say of it.
__global__ void one_is_above(Hbm<int> votes, Hbm<float> maxima, float x) {
  for (int lane = 0; lane < 32; ++lane)
    for (int row = 0; row < 2; ++row) {
      auto rows = fill_rows<16>(-static_cast<float>(lane_id()));
      if (lane_id() == lane) rows.r[row] = x;
      votes[(2 * lane + row) * 32 + lane_id()] = any_above(rows, 8);
      const auto m = max_over_lanes(rows);
      maxima[(2 * lane + row) * 32 + lane_id()] = m.r[row];
    }
}

TEST_F(SUITE, WhatOneLaneHasAboveAllLanesLearn) {
  Array& votes = make("votes", 64 * 32 * 4);
  Array& maxima = make("maxima", 64 * 32 * 4);
  for (const float x : {8.5f, INFINITY, 8.0f, -INFINITY, NAN}) {
    run(one_is_above, 1, 32, 0, votes, maxima, x);
    EXPECT_EQ(values<int>(votes), std::vector<int>(64 * 32, x > 8)) << x;
    const auto m = results<float>(maxima, 32);
    const auto is_wrong = [&](int i, int lane) {  // only the four lanes of the row have it
      return m(i, lane) != (i / 8 == lane / 4 ? x : -(lane / 4 * 4));
    };
    EXPECT_EQ(x > 8 ? count_where(64, 32, is_wrong) : 0, 0) << x;
  }
}

// What softmax's gradient needs: an accumulator less its rows' values, times another accumulator.

constexpr float row_value(int i) {
  return 0.25f * i - 3;
}

/// dS = P∘(dP − D) with D_i = row_value(i), by one warp.
template <int M, int N>
__global__ void gradient_of_a_tile(Hbm<const float> P, Hbm<const float> dP, Hbm<float> dS) {
  Accumulator<M, N> x, y;
  for_each(x, [&](int i, int j, float& p) { p = P[i * N + j]; });
  for_each(y, [&](int i, int j, float& dp) { dp = dP[i * N + j]; });
  sub_rows(y, make_rows<M>([](int i) { return row_value(i); }));
  mul(y, x);
  for_each(y, [&](int i, int j, float ds) { dS[i * N + j] = ds; });
}

TEST_F(SUITE, FunctionsOfElementsMakeSoftmaxsGradient) {
  const auto check = [&]<int M, int N>(Case<fp16, M, N>) {
    const std::vector<float> p = widen_all(random_matrix<fp16>(M, N).elements),
                             dp = widen_all(random_matrix<fp16>(M, N).elements);
    Array& P = upload("P", p);
    Array& dP = upload("dP", dp);
    Array& dS = make("dS", M * N * 4);
    const auto counts = run(gradient_of_a_tile<M, N>, 1, 32, 0, P, dP, dS);
    std::vector<float> right(M * N);
    for (size_t i = 0; i < right.size(); ++i)
      right[i] = (dp[i] - row_value(static_cast<int>(i) / N)) * p[i];
    EXPECT_EQ(values<float>(dS), right) << M << "×" << N;
    if (!counts) return;
    EXPECT_EQ(counts->other_flops, 2 * M * N);  // one each for sub_rows and mul
    EXPECT_EQ(counts->exps, 0);
  };
  check_each(check, Case<fp16, 16, 32>{}, Case<fp16, 32, 64>{});
}

// --------------------------------------------------------------------------- functions for columns

constexpr float kScale = 1.7f;

/// M × N sums that are all their column's value, and 2^(kScale·S − another value for each), by one
/// warp.
template <int M, int N>
__global__ void functions_of_columns(Hbm<const float> S, Hbm<const float> value,
                                     Hbm<const float> shift, Hbm<float> filled, Hbm<float> powers) {
  Accumulator<M, N> x, y;
  for_each(y, [&](int i, int j, float& s) { s = S[i * N + j]; });
  fill_columns(x, make_columns<N>([&](int j) { return value[j]; }));
  exp2_columns(y, kScale, make_columns<N>([&](int j) { return shift[j]; }));
  for_each(x, [&](int i, int j, float s) { filled[i * N + j] = s; });
  for_each(y, [&](int i, int j, float s) { powers[i * N + j] = s; });
}

TEST_F(SUITE, FunctionsOfColumnsTakeEachColumnsValue) {
  const auto check = [&]<int M, int N>(Case<fp16, M, N>) {
    SCOPED_TRACE(testing::Message() << M << "×" << N);
    std::mt19937 random(M * N);
    std::uniform_real_distribution<float> uniform(-8, 8);
    Results<float> s{std::vector<float>(M * N), N}, value{std::vector<float>(N), N}, shift = value;
    for (auto* const one : {&s, &value, &shift})
      for (float& x : one->all) x = uniform(random);
    s.all[N + 3] = -INFINITY;  // a key that a query does not see
    shift.all[5] = INFINITY;   // a query that sees none
    Array& filled_sums = make("filled", M * N * 4);
    Array& powers = make("powers", M * N * 4);
    const auto counts =
        run(functions_of_columns<M, N>, 1, 32, 0, upload("S", s.all), upload("value", value.all),
            upload("shift", shift.all), filled_sums, powers);
    const auto filled = results<float>(filled_sums, N), power = results<float>(powers, N);
    const auto is_wrong = [&](int i, int j) {
      const double right = std::exp2(double{kScale} * s(i, j) - shift(0, j));
      return filled(i, j) != value(0, j) || !(std::abs(power(i, j) - right) <= 1e-5 * right);
    };
    EXPECT_EQ(count_where(M, N, is_wrong), 0);
    if (!counts) return;
    EXPECT_EQ(counts->other_flops, 2 * M * N);
    EXPECT_EQ(counts->exps, M * N);
  };
  check_each(check, Case<fp16, 16, 32>{}, Case<fp16, 16, 80>{}, Case<fp16, 16, 96>{},
             Case<fp16, 16, 112>{}, Case<fp16, 16, 128>{}, Case<fp16, 32, 64>{});
}

// ------------------------------------------------------------------------- floats of a tile's rows

constexpr int kFloats = 80;  // more than the threads that copy them

__global__ void copy_floats(Hbm<const float> source, Hbm<float> out, int count) {
  SharedMemory smem;
  const auto floats = smem.take<float>("floats", kFloats);
  copy_async<32, kFloats>(floats, source, count, lane_id());
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  for (int i = lane_id(); i < kFloats; i += 32) out[i] = floats[i];
}

TEST_F(SUITE, FloatsPastTheCountAreZerosAndAreNotRead) {
  std::vector<float> x(kFloats);
  std::iota(x.begin(), x.end(), 1.0f);
  Array& source = upload("source", x);
  for (const int count : {0, 7, 32, 45, kFloats}) {
    SCOPED_TRACE(count);
    Array& out = make("out", kFloats * 4);
    const auto counts = run(copy_floats, 1, 32, shared_bytes<float>(kFloats), source, out, count);
    std::vector<float> right(x);
    std::fill(right.begin() + count, right.end(), 0.0f);
    EXPECT_EQ(values<float>(out), right);
    if (!counts) continue;
    EXPECT_EQ(counts->hbm.requested_read, 4 * count);
  }
}

// ----------------------------------------------------------------------------- the order of blocks

__global__ void list_work(Hbm<int> head, Hbm<int> tile, WorkList list) {
  const Work w = longest_first(blockIdx.x, list);
  head[blockIdx.x] = w.head;
  tile[blockIdx.x] = w.tile;
}

TEST_F(SUITE, WorkComesGroupByGroupAndLongestFirst) {
  const auto check = [&](const WorkList& list, int group) {
    SCOPED_TRACE(testing::Message() << list.heads << " heads of " << list.tiles << " tiles");
    const int n = list.heads * list.tiles;
    Array& head_of = make("head", n * 4);
    Array& tile_of = make("tile", n * 4);
    run(list_work, n, 1, 0, head_of, tile_of, list);
    const auto head = values<int>(head_of), tile = values<int>(tile_of);
    std::vector<std::pair<int, int>> wanted, got;
    for (int first = 0; first < list.heads; first += group)
      for (int t = 0; t < list.tiles; ++t)
        for (int h = first; h < std::min(first + group, list.heads); ++h) wanted.push_back({h, t});
    for (size_t i = 0; i < head.size(); ++i) got.push_back({head[i], tile[i]});
    EXPECT_EQ(got, wanted);
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

}  // namespace
}  // namespace ladder::MACHINE
