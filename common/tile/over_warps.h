// For a block whose warps have split the keys: each has its own columns of S, so that a row's
// maximum and sum, and the sums for O, are combined through shared memory.
// On the simulator each function counts one FLOP per element (or row) and operation, unless it says
// that it counts nothing.
#pragma once

#include "tile/rows.h"
#include "tile/warp.h"

namespace ladder::MACHINE {

/// Writes each row's value to target[row].
template <int M>
__device__ __forceinline__ void write(Smem<float> target, const Rows<M>& rows) {
  for_each_row(rows, rows, [&](int i, float x, float) { target[i] = x; });
}

/// A value of each of M rows from each of kWarps warps; takes kWarps · M floats.
template <int M, int kWarps>
struct WarpRows {
  Smem<float> data;
};

/// Writes what the calling warp has of its rows. A barrier must come before any read of it.
template <int M, int kWarps>
__device__ __forceinline__ void write(const WarpRows<M, kWarps>& target, const Rows<M>& rows) {
  write(target.data + warp_id() * M, rows);
}

/// The largest of the warps' values of one row, for a thread that asks for this row alone.
template <int M, int kWarps>
__device__ __forceinline__ Row max_over_warps(const WarpRows<M, kWarps>& of, int row) {
  float x = of.data[row];
  for (int w = 1; w < kWarps; ++w) x = fmaxf(x, of.data[w * M + row]);
  count_flops(kWarps - 1);
  return {x};
}
/// The same for all rows, in every warp. Counts nothing, because all warps repeat the same work.
template <int M, int kWarps>
__device__ __forceinline__ Rows<M> max_over_warps(const WarpRows<M, kWarps>& of) {
  return make_rows<M>([&](int row) {
    float x = of.data[row];
    for (int w = 1; w < kWarps; ++w) x = fmaxf(x, of.data[w * M + row]);
    return x;
  });
}
/// The sum of the warps' values of one row.
template <int M, int kWarps>
__device__ __forceinline__ Row sum_over_warps(const WarpRows<M, kWarps>& of, int row) {
  float x = of.data[row];
  for (int w = 1; w < kWarps; ++w) x += of.data[w * M + row];
  count_flops(kWarps - 1);
  return {x};
}

/// R × C fp32 values of a block, each in one thread: thread t has the elements t, t + kThreads, …
/// in row-major order. Functions of it skip what lies past `rows` or `columns`.
template <int R, int C, int kThreads>
struct BlockFragment {
  static_assert(kThreads % C == 0 || C % kThreads == 0);
  float r[R * C / kThreads] = {};
};

/// Calls f(n, row, column) for each element r[n] of a BlockFragment that the calling thread has in
/// the first `rows` rows and `columns` columns.
template <int R, int C, int kThreads, class F>
__device__ __forceinline__ void for_each_place(const BlockFragment<R, C, kThreads>&, int rows,
                                               int columns, F f) {
  // The remainder is the number itself, but tells the compiler which comparisons cannot fail.
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int first_row = thread / C, first_column = thread % C;
#pragma unroll
  for (int n = 0; n < R * C / kThreads; ++n) {
    const int row = n * kThreads / C + first_row, column = n * kThreads % C + first_column;
    if (row < rows && column < columns) f(n, row, column);
  }
}

/// Reads it; rows are `pitch` elements apart.
template <int R, int C, int kThreads>
__device__ __forceinline__ void load(BlockFragment<R, C, kThreads>& x, Hbm<float> source, int pitch,
                                     int rows, int columns) {
  for_each_place(x, rows, columns, [&](int n, int i, int j) { x.r[n] = source[i * pitch + j]; });
}
/// Stores it, rounded to T.
template <class T, int R, int C, int kThreads>
__device__ __forceinline__ void store(Hbm<T> target, int pitch,
                                      const BlockFragment<R, C, kThreads>& x, int rows,
                                      int columns) {
  for_each_place(x, rows, columns, [&](int n, int i, int j) { target[i * pitch + j] = T(x.r[n]); });
}

/// Every element times its row's value.
template <int R, int C, int kThreads>
__device__ __forceinline__ void mul_rows(BlockFragment<R, C, kThreads>& x, Smem<float> of_row,
                                         int rows = R, int columns = C) {
  for_each_place(x, rows, columns, [&](int n, int i, int) {
    x.r[n] *= of_row[i];
    count_flops(1);
  });
}
/// Sums of R × C from each of kWarps warps, in shared memory. A row begins 8 floats after the end
/// of the last, so that rows start in different banks.
template <int R, int C, int kWarps>
struct PartialSums {
  static constexpr int kPitch = C + 8;
  Smem<float> data;  // of partial_sums_floats()
};
constexpr int partial_sums_floats(int R, int C, int warps) {
  return warps * R * (C + 8);
}

/// Writes the calling warp's sums. A barrier must come before any read of it.
template <int R, int C, int kWarps>
__device__ __forceinline__ void write(const PartialSums<R, C, kWarps>& target,
                                      const Accumulator<R, C>& acc) {
  constexpr int kPitch = PartialSums<R, C, kWarps>::kPitch;
  write(target.data + warp_id() * R * kPitch, kPitch, acc);
}
/// The sums of all warps, added up.
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
/// Every element plus that of another.
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
