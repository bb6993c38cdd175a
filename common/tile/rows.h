// Functions on the rows of an accumulator, used from rung 03 on for the softmax of S and for O. A
// warp calls them together. On the simulator each function counts one FLOP per element (or row) and
// operation; exponentials are counted separately.
#pragma once

#include "tile/warp.h"

namespace ladder::MACHINE {

/// One value for each of M rows, in a warp's registers. Lane l holds the values of rows l/4, l/4 +
/// 8, …, as in an Accumulator. The four lanes that share a row hold the same value.
template <int M>
struct Rows {
  float r[M / 8];
};
/// The value of one row, in one thread. Functions on Rows that need no other lane accept it, too.
template <>
struct Rows<1> {
  float r[1];
  __device__ __forceinline__ operator float() const { return r[0]; }
};
using Row = Rows<1>;
/// The number of rows whose values a lane holds.
template <int M>
inline constexpr int kHeldRows = M == 1 ? 1 : M / 8;

template <int M>
__device__ __forceinline__ Rows<M> fill_rows(float x) {
  Rows<M> rows;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) rows.r[i] = x;
  return rows;
}

/// Returns f(a's value, b's value) for each row. Counts one FLOP per row, in one of its lanes.
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
/// Returns 2^x for each row's x. Counts one exponential per row.
template <int M>
__device__ __forceinline__ Rows<M> exp2(const Rows<M>& a) {
  Rows<M> out;
#pragma unroll
  for (int i = 0; i < kHeldRows<M>; ++i) out.r[i] = exp2_fast(a.r[i], M == 1 || lane_id() % 4 == 0);
  return out;
}
/// Returns 1/x for each row's x > 0, else 0: a row that attends to no key has l = 0 and gets O = 0.
template <int M>
__device__ __forceinline__ Rows<M> inverse_or_zero(const Rows<M>& a) {
  return row_by_row(a, a, [](float x, float) { return x > 0 ? 1 / x : 0.0f; });
}
/// Returns each row's x, or 0 for −∞, the maximum before the first key: −∞ − (−∞) would be NaN.
template <int M>
__device__ __forceinline__ Rows<M> finite_or_zero(const Rows<M>& a) {
  Rows<M> out;
#pragma unroll
  for (int i = 0; i < kHeldRows<M>; ++i) out.r[i] = a.r[i] == -INFINITY ? 0 : a.r[i];
  return out;
}

/// Reduces with f those elements of each row that the calling lane holds. Even and odd columns form
/// two chains per row, so that an operation need not wait for the one just before it.
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
/// Reduces with f the values of the four lanes that share a row. All four get the result.
template <int M, class F>
__device__ __forceinline__ Rows<M> reduce_over_lanes(Rows<M> rows, F f) {
#pragma unroll
  for (int i = 0; i < M / 8; ++i) {
    rows.r[i] = f(rows.r[i], __shfl_xor_sync(0xffffffff, rows.r[i], 1));
    rows.r[i] = f(rows.r[i], __shfl_xor_sync(0xffffffff, rows.r[i], 2));
  }
  return rows;
}
/// Returns the largest element of each row, in all four lanes of the row.
template <int M, int N>
__device__ __forceinline__ Rows<M> row_max(const Accumulator<M, N>& acc) {
  const auto f = [](float x, float y) { return fmaxf(x, y); };
  return reduce_over_lanes(reduce_in_lane(acc, f), f);
}
/// Returns each row's largest element in the calling lane; max_over_lanes() completes the maximum.
template <int M, int N>
__device__ __forceinline__ Rows<M> row_max_in_lane(const Accumulator<M, N>& acc) {
  return reduce_in_lane(acc, [](float x, float y) { return fmaxf(x, y); });
}
/// Returns, for each row, the largest value among its four lanes.
template <int M>
__device__ __forceinline__ Rows<M> max_over_lanes(const Rows<M>& rows) {
  return reduce_over_lanes(rows, [](float x, float y) { return fmaxf(x, y); });
}
/// Returns, in all lanes, whether the value of any of the warp's rows exceeds x; a NaN does not.
template <int M>
__device__ __forceinline__ bool any_above(const Rows<M>& rows, float x) {
  bool above = false;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) above = above || rows.r[i] > x;
  count_flops(lane_id() % 4 == 0 ? M / 8 : 0);
  return __any_sync(0xffffffff, above);
}
/// Returns each row's sum in the calling lane; after a loop, sum_over_lanes() completes the sums.
template <int M, int N>
__device__ __forceinline__ Rows<M> row_sum_in_lane(const Accumulator<M, N>& acc) {
  return reduce_in_lane(acc, [](float x, float y) { return x + y; });
}
/// Returns, for each row, the sum of the values of its four lanes.
template <int M>
__device__ __forceinline__ Rows<M> sum_over_lanes(const Rows<M>& rows) {
  return reduce_over_lanes(rows, [](float x, float y) { return x + y; });
}
/// Returns the sum of each row, in all four lanes of the row.
template <int M, int N>
__device__ __forceinline__ Rows<M> row_sum(const Accumulator<M, N>& acc) {
  return sum_over_lanes(row_sum_in_lane(acc));
}

/// Sets every element to its row's value.
template <int M, int N>
__device__ __forceinline__ void fill_rows(Accumulator<M, N>& acc, const Rows<M>& rows) {
  for_each_register(acc, [&](int i, int j, int e) { acc.r[i][j][e] = rows.r[2 * i + e / 2]; });
}
/// Multiplies every element by its row's value.
template <int M, int N>
__device__ __forceinline__ void mul_rows(Accumulator<M, N>& acc, const Rows<M>& rows) {
  for_each_register(acc, [&](int i, int j, int e) { acc.r[i][j][e] *= rows.r[2 * i + e / 2]; });
  count_flops(M * N / 32);
}
/// Multiplies every element by the corresponding element of `by`.
template <int M, int N>
__device__ __forceinline__ void mul(Accumulator<M, N>& acc, const Accumulator<M, N>& by) {
  for_each_register(acc, [&](int i, int j, int e) { acc.r[i][j][e] *= by.r[i][j][e]; });
  count_flops(M * N / 32);
}

/// Adds `by` to columns [column, column + N) of `acc`; `column` is a multiple of N.
template <int M, int N, int C>
__device__ __forceinline__ void add_columns(Accumulator<M, C>& acc, int column,
                                            const Accumulator<M, N>& by) {
#pragma unroll
  for (int first = 0; first < C; first += N)
    if (first == column)  // `first` is a constant here, so the register is known
#pragma unroll
      for (int i = 0; i < M / 16; ++i)
#pragma unroll
        for (int j = 0; j < N / 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) acc.r[i][first / 8 + j][e] += by.r[i][j][e];
  count_flops(M * N / 32);
}

/// Replaces each S_ij with 2^(c·S_ij − shift_i). Counts two FLOPs and one exponential per element.
template <int M, int N>
__device__ __forceinline__ void exp2_rows(Accumulator<M, N>& S, float c, const Rows<M>& shift) {
  for_each_register(S, [&](int i, int j, int e) {
    S.r[i][j][e] = exp2_fast(S.r[i][j][e] * c - shift.r[2 * i + e / 2]);
  });
  count_flops(2 * M * N / 32);
}

/// Rounds the sums of a product to T, as the left operand of the next product. No data moves: two
/// neighbouring 16 × 8 matrices of sums have the register layout of one 16 × 16 operand.
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

/// Returns which column of the sums becomes column i of the operand in as_permuted_operand().
constexpr int column_at(int i) {
  return i / 16 * 16 + i % 16 / 4 * 2 + i % 2 + i % 4 / 2 * 8;
}
/// Rounds the sums to 8-bit T, as a left operand with permuted columns. In each group of 16 columns
/// lane l, with t = l mod 4, holds the sums of columns 2t, 2t + 1, 2t + 8 and 2t + 9, but in an
/// operand columns 4t to 4t + 3. No data moves: column i of the operand is column column_at(i) of
/// the sums. The rows of the next product's right operand must be permuted in the same way.
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

/// Returns f(row) for each row. Each lane calls f for the rows whose values it holds.
template <int M, class F>
__device__ __forceinline__ Rows<M> make_rows(F f) {
  Rows<M> out;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) out.r[i] = f(lane_id() / 4 + 8 * i);
  return out;
}

/// Reads the values of M rows from M consecutive floats in shared memory.
template <int M>
__device__ __forceinline__ Rows<M> load_rows(Smem<float> source) {
  return make_rows<M>([&](int i) -> float { return source[i]; });
}

/// Returns rows [16·g, 16·g + 16) of an operand.
template <class T, int M, int K>
__device__ __forceinline__ Operand<T, 16, K> rows_of(const Operand<T, M, K>& a, int g) {
  Operand<T, 16, K> out;
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
#pragma unroll
    for (int e = 0; e < 4; ++e) out.r[0][k][e] = a.r[g][k][e];
  return out;
}

/// Calls f(row, a's value, b's value) once per row, in the first of the row's four lanes.
template <int M, class F>
__device__ __forceinline__ void for_each_row(const Rows<M>& a, const Rows<M>& b, F f) {
  if (lane_id() % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < M / 8; ++i) f(lane_id() / 4 + 8 * i, a.r[i], b.r[i]);
}

/// Sets columns [limit(i), N) of each row i to `masked`. limit(i) may be negative or exceed N.
/// (opaque() keeps the compiler from computing the rows' limits ahead, which would take registers.)
template <int M, int N, class F>
__device__ __forceinline__ void mask_columns(Accumulator<M, N>& S, F limit,
                                             float masked = -INFINITY) {
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int first = limit(16 * i + lane / 4 + 8 * half) - lane % 4 * 2;  // from this lane's column 0
      opaque(first);
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * j + e >= first) S.r[i][j][2 * half + e] = masked;
    }
}

}  // namespace ladder::MACHINE
