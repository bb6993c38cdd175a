// Functions on the columns of an accumulator, for products that are computed transposed: a row of S
// is a column of Sᵀ. On the simulator they count FLOPs like the functions on rows (tile/rows.h).
#pragma once

#include "tile/warp.h"

namespace ladder::MACHINE {

/// One value for each of N columns. Lane l holds those of columns 2·(l%4) and 2·(l%4) + 1 of every
/// 8 columns, as in an Accumulator; the eight lanes that share a column hold the same values.
template <int N>
struct Columns {
  float r[N / 8][2];
};

/// Returns f(column) for each column. Each lane calls f for the columns whose values it holds.
template <int N, class F>
__device__ __forceinline__ Columns<N> make_columns(F f) {
  Columns<N> out;
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) out.r[j][e] = f(8 * j + lane_id() % 4 * 2 + e);
  return out;
}

/// Returns LSE or −D of a ring's current stage (StagesWithRows::of_rows()), one value per column.
template <int N, class Stages>
__device__ __forceinline__ Columns<N> columns_of_rows(const Stages& stages) {
  return make_columns<N>([&](int j) -> float { return stages.of_rows()[j]; });
}

/// Sets every element to its column's value.
template <int M, int N>
__device__ __forceinline__ void fill_columns(Accumulator<M, N>& acc, const Columns<N>& columns) {
  for_each_register(acc, [&](int i, int j, int e) { acc.r[i][j][e] = columns.r[j][e % 2]; });
}

/// Replaces each S_ij with 2^(c·S_ij − shift_j). Counts two FLOPs and one exponential per element.
template <int M, int N>
__device__ __forceinline__ void exp2_columns(Accumulator<M, N>& S, float c,
                                             const Columns<N>& shift) {
  for_each_register(S, [&](int i, int j, int e) {
    S.r[i][j][e] = exp2_fast(S.r[i][j][e] * c - shift.r[j][e % 2]);
  });
  count_flops(2 * M * N / 32);
}

}  // namespace ladder::MACHINE
