// Functions of the rows of an accumulator, from 03 on: what softmax does to S and to O.
// On the simulator they count FLOPs: one per element (or row) and operation, exponentials excepted.
#pragma once

#include "tile/warp.h"

namespace ladder::MACHINE {

/// One value for each of M rows. A lane holds those of rows l/4, l/4 + 8, …, as it does in an
/// Accumulator; the four lanes of a row hold the same value.
template <int M>
struct Rows {
  float r[M / 8];
};
/// The value of one row, where each row has a thread. The functions of Rows are its too.
template <>
struct Rows<1> {
  float r[1];
  __device__ __forceinline__ operator float() const { return r[0]; }
};
using Row = Rows<1>;
/// Rows of which a lane holds the value.
template <int M>
inline constexpr int kHeldRows = M == 1 ? 1 : M / 8;

template <int M>
__device__ __forceinline__ Rows<M> fill_rows(float x) {
  Rows<M> rows;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) rows.r[i] = x;
  return rows;
}

/// f of each row's values. Counts one FLOP per row, in one of its four lanes.
template <int M, class F>
__device__ __forceinline__ Rows<M> row_by_row(const Rows<M>& a, const Rows<M>& b, F f) {
  Rows<M> out;
#pragma unroll
  for (int i = 0; i < kHeldRows<M>; ++i) out.r[i] = f(a.r[i], b.r[i]);
  count_flops(M == 1 || lane_id() % 4 == 0 ? kHeldRows<M> : 0);
  return out;
}
template <int M>
__device__ __forceinline__ Rows<M> max(const Rows<M>& a, const Rows<M>& b) {
  return row_by_row(a, b, [](float x, float y) { return fmaxf(x, y); });
}
template <int M>
__device__ __forceinline__ Rows<M> operator+(const Rows<M>& a, const Rows<M>& b) {
  return row_by_row(a, b, [](float x, float y) { return x + y; });
}
template <int M>
__device__ __forceinline__ Rows<M> operator-(const Rows<M>& a, const Rows<M>& b) {
  return row_by_row(a, b, [](float x, float y) { return x - y; });
}
template <int M>
__device__ __forceinline__ Rows<M> operator*(const Rows<M>& a, const Rows<M>& b) {
  return row_by_row(a, b, [](float x, float y) { return x * y; });
}
template <int M>
__device__ __forceinline__ Rows<M> operator*(float c, const Rows<M>& a) {
  return row_by_row(a, a, [c](float x, float) { return c * x; });
}
/// 2^x; counted as exponentials.
template <int M>
__device__ __forceinline__ Rows<M> exp2(const Rows<M>& a) {
  Rows<M> out;
#pragma unroll
  for (int i = 0; i < kHeldRows<M>; ++i) out.r[i] = exp2_fast(a.r[i], M == 1 || lane_id() % 4 == 0);
  return out;
}
/// 1/x, and 0 for x = 0: a row that has seen no key has l = 0 and gives O = 0.
template <int M>
__device__ __forceinline__ Rows<M> inverse_or_zero(const Rows<M>& a) {
  return row_by_row(a, a, [](float x, float) { return x > 0 ? 1 / x : 0.0f; });
}
/// x, and 0 for x = −∞: a row that has seen no key yet, whose −∞ − (−∞) would be NaN.
template <int M>
__device__ __forceinline__ Rows<M> finite_or_zero(const Rows<M>& a) {
  Rows<M> out;
#pragma unroll
  for (int i = 0; i < kHeldRows<M>; ++i) out.r[i] = a.r[i] == -INFINITY ? 0 : a.r[i];
  return out;
}

/// f reduced over what the lane holds of each row of an accumulator: two dependency chains per row,
/// so that an operation need not wait for the one before it.
template <int M, int N, class F>
__device__ __forceinline__ Rows<M> reduce_in_lane(const Accumulator<M, N>& acc, F f) {
  Rows<M> out;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) {
    float even = acc.r[i / 2][0][i % 2 * 2], odd = acc.r[i / 2][0][i % 2 * 2 + 1];
#pragma unroll
    for (int j = 1; j < N / 8; ++j) {
      even = f(even, acc.r[i / 2][j][i % 2 * 2]);
      odd = f(odd, acc.r[i / 2][j][i % 2 * 2 + 1]);
    }
    out.r[i] = f(even, odd);
  }
  count_flops(M * N / 32);
  return out;
}
/// f reduced over the four lanes of a row.
template <int M, class F>
__device__ __forceinline__ Rows<M> reduce_over_lanes(Rows<M> rows, F f) {
#pragma unroll
  for (int i = 0; i < M / 8; ++i) {
    rows.r[i] = f(rows.r[i], __shfl_xor_sync(0xffffffff, rows.r[i], 1));
    rows.r[i] = f(rows.r[i], __shfl_xor_sync(0xffffffff, rows.r[i], 2));
  }
  return rows;
}
template <int M, int N>
__device__ __forceinline__ Rows<M> row_max(const Accumulator<M, N>& acc) {
  const auto f = [](float x, float y) { return fmaxf(x, y); };
  return reduce_over_lanes(reduce_in_lane(acc, f), f);
}
/// The largest that the lane has of each row; max_over_lanes() completes it.
template <int M, int N>
__device__ __forceinline__ Rows<M> row_max_in_lane(const Accumulator<M, N>& acc) {
  return reduce_in_lane(acc, [](float x, float y) { return fmaxf(x, y); });
}
template <int M>
__device__ __forceinline__ Rows<M> max_over_lanes(const Rows<M>& rows) {
  return reduce_over_lanes(rows, [](float x, float y) { return fmaxf(x, y); });
}
/// Whether any row's value, of any lane, is above x, which NaN is not; the same in all lanes.
template <int M>
__device__ __forceinline__ bool any_above(const Rows<M>& rows, float x) {
  bool above = false;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) above = above || rows.r[i] > x;
  count_flops(lane_id() % 4 == 0 ? M / 8 : 0);
  return __any_sync(0xffffffff, above);
}
/// The lane's share of each row's sum, for running sums; sum_over_lanes() completes them.
template <int M, int N>
__device__ __forceinline__ Rows<M> row_sum_in_lane(const Accumulator<M, N>& acc) {
  return reduce_in_lane(acc, [](float x, float y) { return x + y; });
}
template <int M>
__device__ __forceinline__ Rows<M> sum_over_lanes(const Rows<M>& rows) {
  return reduce_over_lanes(rows, [](float x, float y) { return x + y; });
}
template <int M, int N>
__device__ __forceinline__ Rows<M> row_sum(const Accumulator<M, N>& acc) {
  return sum_over_lanes(row_sum_in_lane(acc));
}

/// Every element becomes its row's value.
template <int M, int N>
__device__ __forceinline__ void fill_rows(Accumulator<M, N>& acc, const Rows<M>& rows) {
  for_each_register(acc, [&](int i, int j, int e) { acc.r[i][j][e] = rows.r[2 * i + e / 2]; });
}

/// Every element times its row's value.
template <int M, int N>
__device__ __forceinline__ void mul_rows(Accumulator<M, N>& acc, const Rows<M>& rows) {
  for_each_register(acc, [&](int i, int j, int e) { acc.r[i][j][e] *= rows.r[2 * i + e / 2]; });
  count_flops(M * N / 32);
}

/// Every element times that of another accumulator.
template <int M, int N>
__device__ __forceinline__ void mul(Accumulator<M, N>& acc, const Accumulator<M, N>& by) {
  for_each_register(acc, [&](int i, int j, int e) { acc.r[i][j][e] *= by.r[i][j][e]; });
  count_flops(M * N / 32);
}

/// Columns [column, column + N) of an accumulator plus those of another.
template <int M, int N, int C>
__device__ __forceinline__ void add_columns(Accumulator<M, C>& acc, int column,
                                            const Accumulator<M, N>& by) {
#pragma unroll
  for (int first = 0; first < C; first += N)
    if (first == column)  // so that every register has a number the compiler knows
#pragma unroll
      for (int i = 0; i < M / 16; ++i)
#pragma unroll
        for (int j = 0; j < N / 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) acc.r[i][first / 8 + j][e] += by.r[i][j][e];
  count_flops(M * N / 32);
}

/// S_ij ← 2^(c·S_ij − shift_i). Two FLOPs and an exponential for each element.
template <int M, int N>
__device__ __forceinline__ void exp2_rows(Accumulator<M, N>& S, float c, const Rows<M>& shift) {
  for_each_register(S, [&](int i, int j, int e) {
    S.r[i][j][e] = exp2_fast(S.r[i][j][e] * c - shift.r[2 * i + e / 2]);
  });
  count_flops(2 * M * N / 32);
}

/// The accumulator of one product as the left operand of the next, rounded to T. No data moves
/// between lanes: two neighbouring 16 × 8 pieces of sums are laid out like one 16 × 16 operand.
template <class T, int M, int N>
__device__ __forceinline__ Operand<T, M, N> as_operand(const Accumulator<M, N>& acc) {
  Operand<T, M, N> a;
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int k = 0; k < N / 16; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float* pair = &acc.r[i][2 * k + e / 2][e % 2 * 2];
        a.r[i][k][e] = pack<T>(pair[0], pair[1]);
      }
  return a;
}

/// Which column of the sums stands in column i of their permuted operand.
constexpr int column_at(int i) {
  return i / 16 * 16 + i % 16 / 4 * 2 + i % 2 + i % 4 / 2 * 8;
}
/// The accumulator as an operand of 8-bit numbers, its columns permuted. Of each 16 columns a lane
/// has sums 2t, 2t + 1, 2t + 8 and 2t + 9, t = lane mod 4, where the operand has columns 4t … 4t
/// + 3. No data moves: the operand takes the sums that the lane has. So its column i is the
/// accumulator's column_at(i), and the next product's right operand must have its rows in that
/// order.
template <class T, int M, int N>
__device__ __forceinline__ Operand<T, M, N> as_permuted_operand(const Accumulator<M, N>& acc) {
  Operand<T, M, N> a;
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int k = 0; k < N / 32; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float* pair = &acc.r[i][4 * k + e / 2 * 2][e % 2 * 2];
        const float* next = &acc.r[i][4 * k + e / 2 * 2 + 1][e % 2 * 2];
        a.r[i][k][e] = pack<T>(pair[0], pair[1], next[0], next[1]);
      }
  return a;
}

/// Rows of f(row): each lane asks for the rows that it holds.
template <int M, class F>
__device__ __forceinline__ Rows<M> make_rows(F f) {
  Rows<M> out;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) out.r[i] = f(lane_id() / 4 + 8 * i);
  return out;
}

/// The rows' values from shared memory, one after the other.
template <int M>
__device__ __forceinline__ Rows<M> load_rows(Smem<float> source) {
  return make_rows<M>([&](int i) -> float { return source[i]; });
}

/// Rows [16·g, 16·g + 16) of an operand.
template <class T, int M, int K>
__device__ __forceinline__ Operand<T, 16, K> rows_of(const Operand<T, M, K>& a, int g) {
  Operand<T, 16, K> out;
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
#pragma unroll
    for (int e = 0; e < 4; ++e) out.r[0][k][e] = a.r[g][k][e];
  return out;
}

/// Calls f(row, a, b) with the values of two Rows once for each row, in the first of its four
/// lanes.
template <int M, class F>
__device__ __forceinline__ void for_each_row(const Rows<M>& a, const Rows<M>& b, F f) {
  if (lane_id() % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) f(lane_id() / 4 + 8 * i, a.r[i], b.r[i]);
}

/// Masks of each row i the columns from limit(i) on: they become −∞, or what is said.
template <int M, int N, class F>
__device__ __forceinline__ void mask_columns(Accumulator<M, N>& S, F limit,
                                             float masked = -INFINITY) {
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int first = limit(16 * i + lane / 4 + 8 * half) - lane % 4 * 2;  // of this lane's columns
      opaque(first);
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * j + e >= first) S.r[i][j][2 * half + e] = masked;
    }
}

}  // namespace ladder::MACHINE
