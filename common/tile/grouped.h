// A warp's products in the last portable steps, 05/large_tiles and 06/split_sums. They compute the
// same as warp.h's, but faster: each matrix of an operand is loaded while the previous one is
// multiplied, because ldmatrix takes about 30 cycles, and offsets in a tile are written so that
// addresses take few registers, as the operands loaded ahead need them. Tiles have 16·n columns.
#pragma once

#include <bit>

#include "tile/warp.h"

namespace ladder::MACHINE {

/// R × C elements in shared memory, row after row in chunks of 8 elements (16 bytes), swizzled
/// within groups of chunks. A group has 8 chunks, or 4 or 2 if the number of chunks per row is not
/// a multiple of 8 or 4. Within its group, chunk c of row r is stored at place c XOR r (mod the
/// group's size), as in a Tile.
template <class T, int R, int C>
struct GroupedTile {
  static_assert(C % 16 == 0);
  using Element = T;
  static constexpr int kRows = R, kChunks = C / 8;
  static constexpr int kGroup = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  Smem<T> data;

  /// Returns where chunk c of row r starts, in elements from `data`. The group's offset is a
  /// separate term, so that the compiler adds it to an address as a constant instead of keeping a
  /// register for each c. With groups of 4, rows r and r + 2 start in the same banks, so the XOR
  /// uses r / 2; with groups of 2 it uses r / 4.
  __device__ __forceinline__ static constexpr int chunk(int r, int c) {
    const unsigned line = static_cast<unsigned>(r) / (8 / kGroup), place = static_cast<unsigned>(c);
    return r * C + static_cast<int>(place / kGroup * kGroup + (place ^ line) % kGroup) * 8;
  }
  /// Returns where row r, a multiple of 8, starts, in elements from `data`. All groups of 8 rows
  /// have the same layout.
  __device__ __forceinline__ static constexpr int row(int r) { return r * C; }
  /// Returns where chunk c of row first + r starts, in elements from `data`, for a constant r.
  __device__ __forceinline__ static constexpr int chunk(int first, int r, int c) {
    return row(r / 8 * 8) + chunk(first + r % 8, c);
  }
};

/// Returns lane_id(), for use in addresses. The compiler knows that this unsigned remainder is
/// below 32, so it can fold a tile's constant offsets into the instruction.
__device__ __forceinline__ int lane_of_address() {
  return static_cast<int>(threadIdx.x % 32);
}

/// The number of rows that kThreads threads copy at once, one chunk per thread: a power of two,
/// which must divide the tile's number of rows. The remaining threads copy nothing.
template <int kThreads, int kChunks>
inline constexpr int kRowsAtOnce = static_cast<int>(std::bit_floor(unsigned{kThreads / kChunks}));

/// Starts copying R × C elements from `source` into the tile, as copy_async of a Tile does.
template <int kThreads, class T, int R, int C>
__device__ __forceinline__ void copy_async(const GroupedTile<T, R, C>& tile,
                                           Hbm<const typename GroupedTile<T, R, C>::Element> source,
                                           int pitch, int rows, int columns, int thread) {
  constexpr int kChunks = C / 8, kStride = kRowsAtOnce<kThreads, kChunks>;
  static_assert(R % kStride == 0);
  const int first = thread / kChunks, c = thread % kChunks;
  if (kStride * kChunks < kThreads && first >= kStride) return;
  const bool column_valid = c * 8 < columns;
  auto from = source + (first * pitch + c * 8);
#pragma unroll
  for (int r = 0; r < R; r += kStride) {
    cp_async(tile.data + tile.chunk(first, r, c), from, column_valid && first + r < rows);
    from = from + kStride * pitch;
  }
}

/// Stores the tile to `target`, as copy_out of a Tile does.
template <int kThreads, class T, int R, int C>
__device__ __forceinline__ void copy_out(std::type_identity_t<Hbm<T>> target, int pitch,
                                         const GroupedTile<T, R, C>& tile, int rows, int columns,
                                         int thread) {
  constexpr int kChunks = C / 8, kStride = kRowsAtOnce<kThreads, kChunks>;
  static_assert(R % kStride == 0);
  opaque(thread);  // for the reason that write() below gives
  thread = static_cast<int>(static_cast<unsigned>(thread) % kThreads);
  const int first = thread / kChunks, c = thread % kChunks;
  if (c * 8 >= columns || (kStride * kChunks < kThreads && first >= kStride)) return;
  auto to = target + (first * pitch + c * 8);
#pragma unroll
  for (int r = 0; r < R; r += kStride) {
    if (first + r < rows) store_16_bytes(to, tile.data + tile.chunk(first, r, c));
    to = to + kStride * pitch;
  }
}

/// Rounds the sums to T and writes them to rows [row, row + M) × columns [column, column + N) of a
/// tile. The addresses depend only on the lane. opaque() hides its origin, because the compiler
/// would otherwise compute them before a kernel's main loop and keep them in registers throughout.
template <class T, int M, int N, int R, int C>
__device__ __forceinline__ void write(const GroupedTile<T, R, C>& tile,
                                      const Accumulator<M, N>& acc, int row, int column) {
  int lane = lane_of_address();
  opaque(lane);
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_pair(tile.data + (tile.row(row + 16 * i + 8 * half) +
                                tile.chunk(lane / 4, column / 8 + j) + lane % 4 * 2),
                   pack<T>(acc.r[i][j][2 * half], acc.r[i][j][2 * half + 1]));
}

/// Adds A·B to `acc`, where A has K columns. load_A(a, k) loads columns [16·k, 16·k + 16) of A, and
/// load_B(b, k, j) loads rows [16·k, 16·k + 16) × columns [16·j, 16·j + 16) of B. Both run one
/// matrix ahead: while one 16 × 16 matrix of B is multiplied, the next one is loaded.
template <class T, int K, int M, int N, class LoadA, class LoadB>
__device__ __forceinline__ void multiply(Accumulator<M, N>& acc, LoadA load_A, LoadB load_B) {
  static_assert(N % 16 == 0);
  constexpr int kAcross = N / 16, kPieces = K / 16 * kAcross;
  Operand<T, M, 16> a[2];
  unsigned b[2][4];
  load_A(a[0], 0);
  load_B(b[0], 0, 0);
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
      const int next = k * kAcross + j + 1;
      if (j == kAcross - 1 && next < kPieces) load_A(a[(k + 1) % 2], k + 1);
      if (next < kPieces) load_B(b[next % 2], next / kAcross, next % kAcross);
      const auto& now = b[(next - 1) % 2];
#pragma unroll
      for (int i = 0; i < M / 16; ++i) {
        mma_m16n8k16<T>(acc.r[i][2 * j], a[k % 2].r[i][0], now[0], now[1]);
        mma_m16n8k16<T>(acc.r[i][2 * j + 1], a[k % 2].r[i][0], now[2], now[3]);
      }
    }
}
/// Returns a load_A for multiply() that reads rows [row, row + M) of a tile.
template <class T, int R, int C>
__device__ __forceinline__ auto rows_from(const GroupedTile<T, R, C>& tile, int row) {
  return [=]<int M>(Operand<T, M, 16>& a, int k) {
    const int lane = lane_of_address();
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
      ldmatrix_x4(a.r[i][0],
                  tile.data + (tile.row(row + 16 * i) + tile.chunk(lane % 16, 2 * k + lane / 16)));
  };
}
/// Returns a load_B for A·Bᵀ that reads a tile's rows from `row` on.
template <class T, int R, int C>
__device__ __forceinline__ auto transposed_from(const GroupedTile<T, R, C>& tile, int row) {
  return [=](unsigned(&b)[4], int k, int j) {
    const int lane = lane_of_address();
    ldmatrix_x4(b, tile.data + (tile.row(row + 16 * j) +
                                tile.chunk(lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2)));
  };
}
/// Returns a load_B for A·B that reads a tile's columns from `column` on.
template <class T, int R, int C>
__device__ __forceinline__ auto columns_from(const GroupedTile<T, R, C>& tile, int column) {
  return [=](unsigned(&b)[4], int k, int j) {
    const int lane = lane_of_address();
    ldmatrix_x4_trans(
        b, tile.data + (tile.row(16 * k) + tile.chunk(lane % 16, column / 8 + 2 * j + lane / 16)));
  };
}

/// Adds A·Bᵀ: A is rows [row_A, row_A + M) of tile_A, B is rows [row_B, row_B + N) of tile_B.
template <class T, int M, int N, int RA, int RB, int C>
__device__ __forceinline__ void mma_ABt(Accumulator<M, N>& acc, const GroupedTile<T, RA, C>& tile_A,
                                        int row_A, const GroupedTile<T, RB, C>& tile_B,
                                        int row_B = 0) {
  multiply<T, C>(acc, rows_from(tile_A, row_A), transposed_from(tile_B, row_B));
}
/// Adds A·B: A is rows [row_A, row_A + M) of tile_A, B columns [column_B, column_B + N) of tile_B.
template <class T, int M, int N, int R, int K, int C>
__device__ __forceinline__ void mma_AB(Accumulator<M, N>& acc, const GroupedTile<T, R, K>& tile_A,
                                       int row_A, const GroupedTile<T, K, C>& tile_B,
                                       int column_B = 0) {
  multiply<T, K>(acc, rows_from(tile_A, row_A), columns_from(tile_B, column_B));
}
/// Adds A·B to `acc`, where A is in registers and B is the tile's first N columns.
template <class T, int M, int N, int K, int C>
__device__ __forceinline__ void mma_AB(Accumulator<M, N>& acc, const Operand<T, M, K>& operand,
                                       const GroupedTile<T, K, C>& tile) {
  multiply<T, K>(
      acc,
      [&](Operand<T, M, 16>& a, int k) {
#pragma unroll
        for (int i = 0; i < M / 16; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) a.r[i][0][e] = operand.r[i][k][e];
      },
      columns_from(tile, 0));
}
/// Adds Aᵀ·B: A is columns [column_A, column_A + M) of tile_A, and B is as for mma_AB.
template <class T, int M, int N, int K, int CA, int CB>
__device__ __forceinline__ void mma_AtB(Accumulator<M, N>& acc, const GroupedTile<T, K, CA>& tile_A,
                                        int column_A, const GroupedTile<T, K, CB>& tile_B,
                                        int column_B) {
  const auto load_A = [&](Operand<T, M, 16>& a, int k) {
    const int lane = lane_of_address();
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
      ldmatrix_x4_trans(
          a.r[i][0],
          tile_A.data + (tile_A.row(16 * k) + tile_A.chunk(lane % 8 + lane / 16 * 8,
                                                           column_A / 8 + 2 * i + lane / 8 % 2)));
  };
  multiply<T, K>(acc, load_A, columns_from(tile_B, column_B));
}

}  // namespace ladder::MACHINE
