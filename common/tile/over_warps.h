// Functions for a block whose warps split the keys, as in rung 04. Each warp computes some columns
// of S, so each row's maximum, sum and row of O must be combined through shared memory. On the
// simulator a function counts one FLOP per element (or row) and operation unless it says otherwise.
#pragma once

#include "tile/rows.h"
#include "tile/warp.h"

namespace ladder::MACHINE {

/// Writes each row's value to target[row], from the first of the row's lanes.
template <int M>
__device__ __forceinline__ void write(Smem<float> target, const Rows<M>& rows) {
  for_each_row(rows, rows, [&](int i, float x, float) { target[i] = x; });
}

/// kWarps · M floats in shared memory: the values of M rows from each warp, one warp after another.
template <int M, int kWarps>
struct WarpRows {
  Smem<float> data;
};

/// Writes the calling warp's value of each row. A barrier must follow before the values are read.
template <int M, int kWarps>
__device__ __forceinline__ void write(const WarpRows<M, kWarps>& target, const Rows<M>& rows) {
  write(target.data + warp_id() * M, rows);
}

/// Returns the largest of all warps' values of one row, for a thread that computes this row alone.
template <int M, int kWarps>
__device__ __forceinline__ Row max_over_warps(const WarpRows<M, kWarps>& of, int row) {
  float x = of.data[row];
  for (int w = 1; w < kWarps; ++w) x = fmaxf(x, of.data[w * M + row]);
  count_flops(kWarps - 1);
  return {x};
}
/// Returns the largest of all warps' values of each row, for every warp. It counts no FLOPs,
/// because all warps repeat the same work.
template <int M, int kWarps>
__device__ __forceinline__ Rows<M> max_over_warps(const WarpRows<M, kWarps>& of) {
  return make_rows<M>([&](int row) {
    float x = of.data[row];
    for (int w = 1; w < kWarps; ++w) x = fmaxf(x, of.data[w * M + row]);
    return x;
  });
}
/// Returns the sum of all warps' values of one row, for a thread that computes this row alone.
template <int M, int kWarps>
__device__ __forceinline__ Row sum_over_warps(const WarpRows<M, kWarps>& of, int row) {
  float x = of.data[row];
  for (int w = 1; w < kWarps; ++w) x += of.data[w * M + row];
  count_flops(kWarps - 1);
  return {x};
}

/// R × C fp32 values in a block's registers, each in one thread: in row-major order, thread t holds
/// elements t, t + kThreads and so on. The functions for it work on the first `rows` rows and
/// `columns` columns only.
template <int R, int C, int kThreads>
struct BlockFragment {
  static_assert(kThreads % C == 0 || C % kThreads == 0);
  float r[R * C / kThreads] = {};
};

/// Calls f(n, row, column) for the thread's r[n] in the first `rows` rows and `columns` columns.
template <int R, int C, int kThreads, class F>
__device__ __forceinline__ void for_each_place(const BlockFragment<R, C, kThreads>&, int rows,
                                               int columns, F f) {
  // The remainder equals threadIdx.x, but tells the compiler which comparisons cannot fail.
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int first_row = thread / C, first_column = thread % C;
#pragma unroll
  for (int n = 0; n < R * C / kThreads; ++n) {
    const int row = n * kThreads / C + first_row, column = n * kThreads % C + first_column;
    if (row < rows && column < columns) f(n, row, column);
  }
}

/// Reads the elements from `source`, whose rows are `pitch` floats apart.
template <int R, int C, int kThreads>
__device__ __forceinline__ void load(BlockFragment<R, C, kThreads>& x, Hbm<float> source, int pitch,
                                     int rows, int columns) {
  for_each_place(x, rows, columns, [&](int n, int i, int j) { x.r[n] = source[i * pitch + j]; });
}
/// Rounds the elements to T and stores them to `target`, whose rows are `pitch` elements apart.
template <class T, int R, int C, int kThreads>
__device__ __forceinline__ void store(Hbm<T> target, int pitch,
                                      const BlockFragment<R, C, kThreads>& x, int rows,
                                      int columns) {
  for_each_place(x, rows, columns, [&](int n, int i, int j) { target[i * pitch + j] = T(x.r[n]); });
}

/// Multiplies each element by its row's value, of_row[row].
template <int R, int C, int kThreads>
__device__ __forceinline__ void mul_rows(BlockFragment<R, C, kThreads>& x, Smem<float> of_row,
                                         int rows = R, int columns = C) {
  for_each_place(x, rows, columns, [&](int n, int i, int) {
    x.r[n] *= of_row[i];
    count_flops(1);
  });
}
/// R × C fp32 sums from each of kWarps warps, in shared memory. Each row begins 8 floats after the
/// end of the previous row, so that neighbouring rows start in different banks.
template <int R, int C, int kWarps>
struct PartialSums {
  static constexpr int kPitch = C + 8;
  Smem<float> data;  // partial_sums_floats() floats
};
/// Returns the number of floats in a PartialSums.
constexpr int partial_sums_floats(int R, int C, int warps) {
  return warps * R * (C + 8);
}

/// Writes the calling warp's sums to its part of `target`. A barrier must follow before any read.
template <int R, int C, int kWarps>
__device__ __forceinline__ void write(const PartialSums<R, C, kWarps>& target,
                                      const Accumulator<R, C>& acc) {
  constexpr int kPitch = PartialSums<R, C, kWarps>::kPitch;
  write(target.data + warp_id() * R * kPitch, kPitch, acc);
}
/// Sets each element of `sum` to the total of all warps' sums for its row and column.
template <int R, int C, int kThreads, int kWarps>
__device__ __forceinline__ void sum_over_warps(BlockFragment<R, C, kThreads>& sum,
                                               const PartialSums<R, C, kWarps>& of, int rows = R,
                                               int columns = C) {
  for_each_place(sum, rows, columns, [&](int n, int i, int j) {
    sum.r[n] = 0;
    for (int w = 0; w < kWarps; ++w) sum.r[n] += of.data[(w * R + i) * of.kPitch + j];
    count_flops(kWarps - 1);
  });
}
template <int R, int C, int kThreads>
__device__ __forceinline__ void add(BlockFragment<R, C, kThreads>& x,
                                    const BlockFragment<R, C, kThreads>& y, int rows = R,
                                    int columns = C) {
  for_each_place(x, rows, columns, [&](int n, int, int) {
    x.r[n] += y.r[n];
    count_flops(1);
  });
}

}  // namespace ladder::MACHINE
