// Building blocks for kernels, used from rung 01 on (common/README.md lists them). A block works on
// tiles, which are parts of a matrix in shared memory. A warp multiplies them on the tensor cores.
// Its operands and sums are spread over the registers of its 32 lanes in the layout that the PTX
// ISA gives under "Matrix Fragments for mma.m16n8k16". Whole warps must call every function, and
// blocks are one-dimensional. Rows, columns and pitches are in elements.
#pragma once

#include "machine/machine.h"

namespace ladder::MACHINE {

/// Returns the number of the calling thread's warp in its block.
__device__ __forceinline__ int warp_id() {
  return static_cast<int>(threadIdx.x) / 32;
}
/// Returns the calling thread's number in its warp, 0 to 31.
__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) % 32;
}

/// Returns the largest x among the warp's 32 lanes, in every lane.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, bit));
  return x;
}
/// Returns the sum of x over the warp's 32 lanes, with the same bits in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(0xffffffff, x, bit);
  return x;
}

/// The order of a tile's chunks: swizzled, or plain as in 01/mma, which precedes 01/swizzle.
enum class Layout { swizzled, plain };

/// R × C elements of a 16-bit type in shared memory, row after row in chunks of 8 elements (16
/// bytes). C is a power of two, at least 16. ldmatrix reads one chunk from each of 8 rows at once,
/// all in the same column. In plain order, with 128-byte rows, they would start in the same bank,
/// so chunk c of row r is stored at place c XOR r (mod 8), in 8 different groups of four banks.
template <class T, int R, int C, Layout kLayout = Layout::swizzled>
struct Tile {
  static_assert(C % 16 == 0 && (C & (C - 1)) == 0);
  using Element = T;
  static constexpr int kRows = R, kChunks = C / 8;
  Smem<T> data;

  /// Returns where chunk c of row r starts, in elements from `data`. Rows shorter than 128 bytes,
  /// four from each bank, share such a line; then the XOR uses the line's number, not the row's.
  __device__ __forceinline__ static constexpr int chunk(int r, int c) {
    if constexpr (kLayout == Layout::plain) return r * C + c * 8;
    constexpr int kRowsOfALine = kChunks >= 8 ? 1 : 8 / kChunks;
    return r * C + ((c ^ (static_cast<unsigned>(r) / kRowsOfALine % 8 % kChunks)) * 8);
  }
  /// Returns where row r, a multiple of 8, starts, in elements from `data`. Chunk c of row r + i
  /// starts at row(r) + chunk(i, c), a sum that needs no register of its own for each r.
  __device__ __forceinline__ static constexpr int row(int r) { return r * C; }
};

/// Copies R × C elements from `source`, whose rows are `pitch` elements apart, into the tile: the
/// first `rows` rows and `columns` columns (a multiple of 8), and 0 for the rest. The kThreads
/// threads that call it, numbered by `thread` from 0, share the 16-byte chunks.
template <int kThreads, class T, int R, int C, Layout L>
__device__ __forceinline__ void copy_in(const Tile<T, R, C, L>& tile,
                                        std::type_identity_t<Hbm<const T>> source, int pitch,
                                        int rows, int columns, int thread) {
  constexpr int kChunks = C / 8;
  // A thread stays in its column and moves down kStride rows at a time.
  constexpr int kStride = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && R % kStride == 0);
  const int first = thread / kChunks, c = thread % kChunks;
  const bool column_valid = c * 8 < columns;
  auto from = source + (first * pitch + c * 8);
#pragma unroll
  for (int r = 0; r < R; r += kStride) {
    write_chunk(tile.data + tile.chunk(first + r, c),
                read_chunk(from, column_valid && first + r < rows));
    from = from + kStride * pitch;
  }
}

/// Starts the same copy asynchronously, with cp.async. Threads may read the tile after all of them
/// have called cp_async_wait and then passed a barrier. If WGMMA is to read the tile, as a
/// SwizzledTile, each thread also calls fence_proxy_async between the wait and the barrier.
template <int kThreads, class AnyTile>
__device__ __forceinline__ void copy_async(const AnyTile& tile,
                                           Hbm<const typename AnyTile::Element> source, int pitch,
                                           int rows, int columns, int thread) {
  static_assert(sizeof(typename AnyTile::Element) == 2);
  constexpr int kChunks = AnyTile::kChunks, kStride = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && AnyTile::kRows % kStride == 0,
                "the threads copy whole rows: kThreads / kChunks of them must divide the tile's");
  const int first = thread / kChunks, c = thread % kChunks;
  const bool column_valid = c * 8 < columns;
  auto from = source + (first * pitch + c * 8);
#pragma unroll
  for (int r = 0; r < AnyTile::kRows; r += kStride) {
    cp_async(tile.data + tile.chunk(first + r, c), from, column_valid && first + r < rows);
    from = from + kStride * pitch;
  }
}

/// Starts copying n floats to shared memory, one per thread: the first `count`; the rest become 0.
template <int kThreads, int n>
__device__ __forceinline__ void copy_async(Smem<float> target, Hbm<const float> source, int count,
                                           int thread) {
  static_assert(n <= kThreads);
  if (thread < n) cp_async<4>(target + thread, source + thread, thread < count);
}

/// Stores the tile's first `rows` rows and `columns` columns (a multiple of 8) to `target`, whose
/// rows are `pitch` elements apart, in 16-byte chunks.
template <int kThreads, class T, int R, int C, Layout L>
__device__ __forceinline__ void copy_out(std::type_identity_t<Hbm<T>> target, int pitch,
                                         const Tile<T, R, C, L>& tile, int rows, int columns,
                                         int thread) {
  constexpr int kChunks = C / 8;
  constexpr int kStride = kThreads / kChunks;  // as in copy_async
  static_assert(kThreads % kChunks == 0 && R % kStride == 0);
  const int first = thread / kChunks, c = thread % kChunks;
  if (c * 8 >= columns) return;
  auto to = target + (first * pitch + c * 8);
#pragma unroll
  for (int r = 0; r < R; r += kStride) {
    if (first + r < rows)
      store_16_bytes(to, tile.data + (tile.row(r / 8 * 8) + tile.chunk(first + r % 8, c)));
    to = to + kStride * pitch;
  }
}

/// Left operand of a product: M × K elements of T in a warp's registers. r[i][k] holds the lane's 8
/// elements of the 16 × 16 matrix that starts at row 16·i and column 16·k, two per register.
template <class T, int M, int K>
struct Operand {
  unsigned r[M / 16][K / 16][4];
};
/// Left operand of e4m3: r[i][k] holds the lane's 16 elements of a 16 × 32 matrix, 4 per register.
template <int M, int K>
struct Operand<e4m3, M, K> {
  unsigned r[M / 16][K / 32][4];
};

/// M × N fp32 sums in a warp's registers, initially 0. r[i][j] holds the lane's four sums of the 16
/// × 8 matrix that starts at row 16·i and column 8·j: lane l holds columns 2·(l%4) and 2·(l%4) + 1
/// of row l/4, then the same columns of row l/4 + 8.
template <int M, int N>
struct Accumulator {
  float r[M / 16][N / 8][4] = {};
};

/// The part of an R × C product that the calling warp computes: kRows = M rows × kColumns columns,
/// from `row` and `column` on. kWarps warps divide the product into kDown = R / M parts vertically
/// and kAcross parts horizontally. In a larger block the next kWarps warps get the same parts of
/// another product.
template <int R, int C, int M, int kWarps>
struct WarpTile {
  static constexpr int kDown = R / M, kAcross = kWarps / kDown;
  static_assert(R % M == 0 && kWarps % kDown == 0 && C % (16 * kAcross) == 0);
  static constexpr int kRows = M, kColumns = C / kAcross;
  int row = warp_id() % kDown * kRows, column = warp_id() % kWarps / kDown * kColumns;
};

/// Loads rows [row, row + M) × columns [column, column + K) of a tile as a left operand.
template <class T, int M, int K, int R, int C, Layout L>
__device__ __forceinline__ void load(Operand<T, M, K>& a, const Tile<T, R, C, L>& tile, int row,
                                     int column) {
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int k = 0; k < K / 16; ++k)
      ldmatrix_x4(a.r[i][k], tile.data + (tile.row(row + 16 * i) +
                                          tile.chunk(lane % 16, column / 8 + 2 * k + lane / 16)));
}

/// Loads rows [row, row + K) × columns [column, column + M) of a tile as left operand of tileᵀ·B.
template <class T, int M, int K, int R, int C>
__device__ __forceinline__ void load_transposed(Operand<T, M, K>& a, const Tile<T, R, C>& tile,
                                                int row, int column) {
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int k = 0; k < K / 16; ++k)
      ldmatrix_x4_trans(a.r[i][k], tile.data + (tile.row(row + 16 * k) +
                                                tile.chunk(lane % 8 + lane / 16 * 8,
                                                           column / 8 + 2 * i + lane / 8 % 2)));
}

/// Adds A·Bᵀ to `acc`. B is rows [row, row + N) × columns [column, column + K) of a tile.
template <class T, int M, int N, int K, int R, int C, Layout L>
__device__ __forceinline__ void mma_ABt(Accumulator<M, N>& acc, const Operand<T, M, K>& a,
                                        const Tile<T, R, C, L>& tile, int row, int column) {
  static_assert(N % 16 == 0);
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      // Each row of the tile is a column of Bᵀ. One ldmatrix loads two 16 × 8 right operands.
      unsigned b[4];
      ldmatrix_x4(
          b, tile.data + (tile.row(row + 16 * j) +
                          tile.chunk(lane % 8 + lane / 16 * 8, column / 8 + 2 * k + lane / 8 % 2)));
#pragma unroll
      for (int i = 0; i < M / 16; ++i) {
        mma_m16n8k16<T>(acc.r[i][2 * j], a.r[i][k], b[0], b[1]);
        mma_m16n8k16<T>(acc.r[i][2 * j + 1], a.r[i][k], b[2], b[3]);
      }
    }
}

/// Adds A·B to `acc`. B is rows [row, row + K) × columns [column, column + N) of a tile.
template <class T, int M, int N, int K, int R, int C, Layout L>
__device__ __forceinline__ void mma_AB(Accumulator<M, N>& acc, const Operand<T, M, K>& a,
                                       const Tile<T, R, C, L>& tile, int row = 0, int column = 0) {
  static_assert(N % 16 == 0);
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      unsigned b[4];
      ldmatrix_x4_trans(b, tile.data + (tile.row(row + 16 * k) +
                                        tile.chunk(lane % 16, column / 8 + 2 * j + lane / 16)));
#pragma unroll
      for (int i = 0; i < M / 16; ++i) {
        mma_m16n8k16<T>(acc.r[i][2 * j], a.r[i][k], b[0], b[1]);
        mma_m16n8k16<T>(acc.r[i][2 * j + 1], a.r[i][k], b[2], b[3]);
      }
    }
}

/// Adds A·Bᵀ: A is rows [row_A, row_A + M) of tile_A, B is rows [row_B, row_B + N) of tile_B.
template <class T, int M, int N, int RA, int RB, int C, Layout L>
__device__ __forceinline__ void mma_ABt(Accumulator<M, N>& acc, const Tile<T, RA, C, L>& tile_A,
                                        int row_A, const Tile<T, RB, C, L>& tile_B, int row_B = 0) {
#pragma unroll
  for (int k = 0; k < C; k += 16) {
    Operand<T, M, 16> a;
    load(a, tile_A, row_A, k);
    mma_ABt(acc, a, tile_B, row_B, k);
  }
}
/// Adds A·Bᵀ to `acc`. A is a whole tile and B is rows [row_B, row_B + N) of another.
template <class T, int M, int N, int RB, int C, Layout L>
__device__ __forceinline__ void mma_ABt(Accumulator<M, N>& acc, const Tile<T, M, C, L>& tile_A,
                                        const Tile<T, RB, C, L>& tile_B, int row_B = 0) {
  mma_ABt(acc, tile_A, 0, tile_B, row_B);
}
/// Adds A·B: A is rows [row_A, row_A + M) of tile_A, B columns [column_B, column_B + N) of tile_B.
template <class T, int M, int N, int R, int K, int C, Layout L>
__device__ __forceinline__ void mma_AB(Accumulator<M, N>& acc, const Tile<T, R, K, L>& tile_A,
                                       int row_A, const Tile<T, K, C, L>& tile_B,
                                       int column_B = 0) {
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    Operand<T, M, 16> a;
    load(a, tile_A, row_A, k);
    mma_AB(acc, a, tile_B, k, column_B);
  }
}

/// Calls f(i, j, e) for each register r[i][j][e] of an accumulator.
template <int M, int N, class F>
__device__ __forceinline__ void for_each_register(const Accumulator<M, N>&, F f) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(i, j, e);
}

/// Calls f(row, column, element) for each element that the calling lane holds; f may change it.
template <int M, int N, class F>
__device__ __forceinline__ void for_each(Accumulator<M, N>& acc, F f) {
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        f(16 * i + lane / 4 + e / 2 * 8, 8 * j + lane % 4 * 2 + e % 2, acc.r[i][j][e]);
}

/// Calls f(row, column, element, next) for each pair of neighbouring elements in a row that the
/// calling lane holds. `column` is the column of `element`, and is even.
template <int M, int N, class F>
__device__ __forceinline__ void for_each_pair(const Accumulator<M, N>& acc, F f) {
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        f(16 * i + lane / 4 + 8 * half, 8 * j + lane % 4 * 2, acc.r[i][j][2 * half],
          acc.r[i][j][2 * half + 1]);
}

/// Rounds the sums to T and writes them to a tile, from row `row` and column `column` on.
template <class T, int M, int N, int R, int C, Layout L>
__device__ __forceinline__ void write(const Tile<T, R, C, L>& tile, const Accumulator<M, N>& acc,
                                      int row, int column) {
  const int lane = lane_id();
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

/// Writes the sums as fp32 to shared memory, in rows that are `pitch` (even) floats apart.
template <int M, int N>
__device__ __forceinline__ void write(Smem<float> target, int pitch, const Accumulator<M, N>& acc) {
  for_each_pair(acc, [&](int row, int column, float x, float y) {
    store_pair(target + (row * pitch + column), x, y);
  });
}

}  // namespace ladder::MACHINE
