// For Hopper: tiles that TMA fills, and products by a warpgroup of 128 threads.
//
// A warpgroup computes 64 rows of sums, each of its warps 16 of them: a warp's share is an
// Accumulator<16, N>, and a left operand in registers its Operand<T, 16, K>, so the functions of
// rows and operands work on them as before. From a product until the wait for it, these registers,
// and the tiles it reads, belong to the product: other code must not read or write them, and the
// operand must stay in scope.
#pragma once

#include "machine/hopper.h"
#include "tile/warp.h"

namespace ladder::MACHINE {

inline constexpr int kWarpgroup = 128;  // threads

/// The warpgroup's number; the same value in all lanes, for the compiler too.
__device__ __forceinline__ int warpgroup_id() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

/// R × C elements in panels, each R rows of 128 bytes: 64 columns of a 16-bit type, 128 of e4m3. In
/// a panel chunk c (16 bytes) of row r stands at place c XOR r (mod 8), as 128-byte swizzle has it.
/// Where C of e4m3 is no multiple of 128, panels are 64 bytes wide under a swizzle of as many:
/// chunk c of row r stands at place c XOR r/2 (mod 4), so that 8 rows meet no bank twice here too.
/// (32 columns, and the last 32 of 96, have a panel of 64 to themselves.)
template <class T, int R, int C>
struct SwizzledTile {
  using Element = T;
  static constexpr int kChunk = 16 / int{sizeof(T)};                             // elements
  static constexpr int kPanelBytes = sizeof(T) == 2 || C % 128 == 0 ? 128 : 64;  // of a row
  static constexpr int kColumns = kPanelBytes / int{sizeof(T)};                  // of a panel
  static_assert(R % 8 == 0 && C % 32 == 0);
  static constexpr int kPanels = ceil_div(C, kColumns);
  static constexpr int kPanel = R * kColumns;  // elements
  static_assert(kPanel * sizeof(T) % 1024 == 0);
  static constexpr int kRows = R, kChunks = C / kChunk;  // of the tile
  static constexpr int kElements = kPanels * kPanel;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(T));
  static constexpr int kAlignment = 1024;  // bytes: the swizzle is by bits of the address
  Smem<T> data;

  /// Where columns [column, …) of rows [row, …) start, in elements. Either a multiple of 8 rows
  /// and a panel's columns, or a multiple of 32 bytes within them.
  __device__ __forceinline__ static constexpr int at(int row, int column) {
    return column / kColumns * kPanel + row * kColumns + column % kColumns;
  }
  /// The same in bytes.
  __device__ __forceinline__ static constexpr int bytes(int row, int column) {
    return at(row, column) * int{sizeof(T)};
  }
  /// Where chunk c of row r starts, in elements.
  __device__ __forceinline__ static constexpr int chunk(int r, int c) {
    constexpr int kOfPanel = kColumns / kChunk;                       // chunks of a panel's row
    const unsigned line = static_cast<unsigned>(r) / (8 / kOfPanel);  // of 128 bytes
    const int place = static_cast<int>((static_cast<unsigned>(c) ^ line) % kOfPanel);
    return c / kOfPanel * kPanel + r * kColumns + place * kChunk;
  }
};

/// Stores the tile's first `rows` rows and `columns` columns (a multiple of 8) to `target`.
template <int kThreads, class T, int R, int C>
__device__ __forceinline__ void copy_out(std::type_identity_t<Hbm<T>> target, int pitch,
                                         const SwizzledTile<T, R, C>& tile, int rows, int columns,
                                         int thread) {
  static_assert(sizeof(T) == 2);
  constexpr int kChunks = C / 8;
#pragma unroll
  for (int i = thread; i < R * kChunks; i += kThreads) {
    const int r = i / kChunks, c = i % kChunks;
    if (r < rows && c * 8 < columns)
      store_16_bytes(target + (r * pitch + c * 8), tile.data + tile.chunk(r, c));
  }
}

/// Starts filling a tile from column c0, row c1, head c2, batch c3 of a map with boxes of R rows;
/// the barrier must expect SwizzledTile::kBytes (arrive_expect_tx). By one thread.
template <class T, int R, int C>
__device__ __forceinline__ void tma_load(const TensorMap& map, MbarrierRef barrier,
                                         const SwizzledTile<T, R, C>& tile, int c0, int c1, int c2,
                                         int c3) {
#pragma unroll
  for (int i = 0; i < tile.kPanels; ++i)
    tma_load(map, barrier, tile.data + i * tile.kPanel, c0 + tile.kColumns * i, c1, c2, c3);
}
/// Starts storing a tile there. By one thread, after fence_proxy_async() by those that wrote it.
template <class T, int R, int C>
__device__ __forceinline__ void tma_store(const TensorMap& map, const SwizzledTile<T, R, C>& tile,
                                          int c0, int c1, int c2, int c3) {
#pragma unroll
  for (int i = 0; i < tile.kPanels; ++i)
    tma_store(map, tile.data + i * tile.kPanel, c0 + tile.kColumns * i, c1, c2, c3);
}

/// A descriptor of rows [row, row + …) × the first 32 bytes of a tile, as they stand. That of other
/// columns is the same, advanced.
template <class T, int R, int C>
__device__ __forceinline__ uint64_t by_rows(const SwizzledTile<T, R, C>& tile, int row) {
  return matrix_descriptor(tile.data + tile.at(row, 0), 16, 8 * tile.kPanelBytes, tile.kPanelBytes);
}
/// A descriptor of the first 16 rows × columns [column, …) of a tile, transposed. That of other
/// rows is the same, advanced.
template <class T, int R, int C>
__device__ __forceinline__ uint64_t by_columns(const SwizzledTile<T, R, C>& tile, int column) {
  static_assert(sizeof(T) == 2, "operands of 8 bits cannot be transposed");
  return matrix_descriptor(tile.data + tile.at(0, column), tile.kPanel * int{sizeof(T)}, 1024);
}

/// Loads rows [row, row + 16), a multiple of 8, of a tile.
template <class T, int R, int C>
__device__ __forceinline__ void load(Operand<T, 16, C>& a, const SwizzledTile<T, R, C>& tile,
                                     int row) {
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < C * int{sizeof(T)} / 32; ++k)
    ldmatrix_x4(a.r[0][k],
                tile.data + (tile.at(row, 0) + tile.chunk(lane % 16, 2 * k + lane / 16)));
}

/// Before a product: what other code did to these accumulators and operands is done.
template <class... Registers>
__device__ __forceinline__ void wgmma_fence(Registers&... registers) {
  (hold(registers.r[0]), ...);
  wgmma_fence_instruction();
}
/// Waits until at most `groups` groups of products are still in flight, after which these
/// accumulators, whose products are done, may be used.
template <int groups, class... Registers>
__device__ __forceinline__ void wgmma_wait(Registers&... registers) {
  wgmma_wait_instruction<groups>();
  (hold(registers.r[0]), ...);
}

/// Elements of the inner dimension that one instruction multiplies.
template <class T>
inline constexpr int kInner = 32 / int{sizeof(T)};

/// S += A·Bᵀ: rows [row, row + 64) of a tile times rows [row_b, row_b + N) of another. Like
/// mma_ABt, wgmma_… adds; wgmma_set_…, below, is the same with scale_d = 0: it overwrites. Of e4m3
/// there is no wgmma_AB: both operands must have the inner dimension's elements next to each other,
/// so that A·B takes B stored as Bᵀ and is wgmma_ABt too.
template <int scale_d = 1, class T, int N, int RA, int RB, int C>
__device__ __forceinline__ void wgmma_ABt(Accumulator<16, N>& S, const SwizzledTile<T, RA, C>& A,
                                          int row, const SwizzledTile<T, RB, C>& B, int row_b = 0) {
  static_assert(N <= RB);
  const uint64_t a = by_rows(A, row), b = by_rows(B, row_b);
#pragma unroll
  for (int k = 0; k < C; k += kInner<T>)
    wgmma_m64<T, false, false>(S.r[0], advanced(a, A.bytes(0, k)), advanced(b, B.bytes(0, k)),
                               k ? 1 : scale_d);
}
/// The same with all of A.
template <int scale_d = 1, class T, int N, int RB, int C>
__device__ __forceinline__ void wgmma_ABt(Accumulator<16, N>& S, const SwizzledTile<T, 64, C>& A,
                                          const SwizzledTile<T, RB, C>& B, int row_b = 0) {
  wgmma_ABt<scale_d>(S, A, 0, B, row_b);
}
/// The same with A from registers.
template <int scale_d = 1, class T, int N, int RB, int C>
__device__ __forceinline__ void wgmma_ABt(Accumulator<16, N>& S, Operand<T, 16, C>& a,
                                          const SwizzledTile<T, RB, C>& B, int row_b = 0) {
  static_assert(N <= RB);
  const uint64_t b = by_rows(B, row_b);
#pragma unroll
  for (int k = 0; k < C; k += kInner<T>)
    wgmma_m64<T, false>(S.r[0], a.r[0][k / kInner<T>], advanced(b, B.bytes(0, k)), k ? 1 : scale_d);
}
/// O += A·B, A from registers, B all rows and columns [column, column + N) of a tile,
/// column a multiple of 64.
template <int scale_d = 1, class T, int N, int K, int C>
__device__ __forceinline__ void wgmma_AB(Accumulator<16, N>& O, Operand<T, 16, K>& a,
                                         const SwizzledTile<T, K, C>& B, int column = 0) {
  static_assert(N <= C);
  const uint64_t b = by_columns(B, column);
#pragma unroll
  for (int k = 0; k < K; k += 16)
    wgmma_m64<T, true>(O.r[0], a.r[0][k / 16], advanced(b, B.bytes(k, 0)), k ? 1 : scale_d);
}
/// The same with A rows [row, row + 64) of a tile.
template <int scale_d = 1, class T, int N, int K, int RA, int C>
__device__ __forceinline__ void wgmma_AB(Accumulator<16, N>& O, const SwizzledTile<T, RA, K>& A,
                                         int row, const SwizzledTile<T, K, C>& B, int column = 0) {
  static_assert(N <= C);
  const uint64_t a = by_rows(A, row), b = by_columns(B, column);
#pragma unroll
  for (int k = 0; k < K; k += 16)
    wgmma_m64<T, false, true>(O.r[0], advanced(a, A.bytes(0, k)), advanced(b, B.bytes(k, 0)),
                              k ? 1 : scale_d);
}
/// O += Aᵀ·B: columns [column, column + 64) of a tile, transposed, times columns
/// [column_b, column_b + N) of another.
template <int scale_d = 1, class T, int N, int K, int CA, int C>
__device__ __forceinline__ void wgmma_AtB(Accumulator<16, N>& O, const SwizzledTile<T, K, CA>& A,
                                          int column, const SwizzledTile<T, K, C>& B,
                                          int column_b = 0) {
  static_assert(N <= C);
  const uint64_t a = by_columns(A, column), b = by_columns(B, column_b);
#pragma unroll
  for (int k = 0; k < K; k += 16)
    wgmma_m64<T, true, true>(O.r[0], advanced(a, A.bytes(k, 0)), advanced(b, B.bytes(k, 0)),
                             k ? 1 : scale_d);
}

/// The products that overwrite their sums, of the operands that wgmma_… takes.
template <class Sums, class... Operands>
__device__ __forceinline__ void wgmma_set_ABt(Sums& S, Operands&&... operands) {
  wgmma_ABt<0>(S, operands...);
}
template <class Sums, class... Operands>
__device__ __forceinline__ void wgmma_set_AB(Sums& O, Operands&&... operands) {
  wgmma_AB<0>(O, operands...);
}
template <class Sums, class... Operands>
__device__ __forceinline__ void wgmma_set_AtB(Sums& O, Operands&&... operands) {
  wgmma_AtB<0>(O, operands...);
}

/// Rounds to T and writes to rows [row, row + 16) × columns [column, column + N) of a tile, column
/// a multiple of 64.
template <class T, int N, int R, int C>
__device__ __forceinline__ void write(const SwizzledTile<T, R, C>& tile,
                                      const Accumulator<16, N>& acc, int row, int column = 0) {
  const int lane = lane_id();
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_pair(tile.data + (tile.at(0, column) + tile.chunk(row + lane / 4 + 8 * half, j)) +
                     lane % 4 * 2,
                 pack<T>(acc.r[0][j][2 * half], acc.r[0][j][2 * half + 1]));
}
/// The same with what as_operand() has rounded already.
template <class T, int K, int R, int C>
__device__ __forceinline__ void write(const SwizzledTile<T, R, C>& tile, const Operand<T, 16, K>& a,
                                      int row) {
  const int lane = lane_id();
#pragma unroll
  for (int j = 0; j < K / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_pair(tile.data + tile.chunk(row + lane / 4 + 8 * half, j) + lane % 4 * 2,
                 a.r[0][j / 2][j % 2 * 2 + half]);
}
/// To columns [column, …) of it by stmatrix, row a multiple of 8, column of 64: a quarter of the
/// instructions, and a few registers more, which not every kernel has.
template <class T, int K, int R, int C>
__device__ __forceinline__ void write_matrices(const SwizzledTile<T, R, C>& tile,
                                               const Operand<T, 16, K>& a, int row,
                                               int column = 0) {
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
    stmatrix_x4(tile.data + (tile.at(row, column) + tile.chunk(lane % 16, 2 * k + lane / 16)),
                a.r[0][k]);
}

/// A warp's 16 × N sums in register (fragment) order: each lane's four of a piece together, and
/// pieces one after the other. So all accesses are of 16 bytes, next to each other in a warp; where
/// an element stands only matters to who reads it.
template <int N>
__device__ __forceinline__ void write_fragments(Smem<float> target, const Accumulator<16, N>& acc) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) store_4(target + 4 * (32 * j + lane_id()), acc.r[0][j]);
}
template <int N>
__device__ __forceinline__ void add_fragments(Hbm<float> target, const Accumulator<16, N>& acc) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) atomic_add_4(target + 4 * (32 * j + lane_id()), acc.r[0][j]);
}
template <int N>
__device__ __forceinline__ void read_fragments(Accumulator<16, N>& acc, Hbm<const float> source) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) read_4(acc.r[0][j], source + 4 * (32 * j + lane_id()));
}

}  // namespace ladder::MACHINE
