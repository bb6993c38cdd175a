// Building blocks for kernels on Hopper (05_flash_v2/hopper, 06_backward/hopper): tiles that TMA
// fills, and products that a warpgroup of 128 threads computes (WGMMA).
//
// A warpgroup computes 64 rows of sums, 16 in each of its four warps. Each warp holds its 16 rows
// as an Accumulator<16, N>, and its rows of a left operand as an Operand<T, 16, K>, so all
// functions for rows and operands apply. Products run asynchronously. From the start of a product
// until its wgmma_wait, other code must not touch its registers or write to the tiles that it
// reads, and an operand in registers must stay in scope.
#pragma once

#include "machine/hopper.h"
#include "tile/warp.h"

namespace ladder::MACHINE {

inline constexpr int kWarpgroup = 128;  // threads

/// Returns the number of the caller's warpgroup in its block. The shuffle tells the compiler that
/// all lanes have the same value.
__device__ __forceinline__ int warpgroup_id() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

/// R × C elements in shared memory, in the layout that TMA writes and WGMMA reads with 128-byte
/// swizzle (PTX ISA, "Swizzling modes"). A tile is a sequence of panels of R rows × 128 bytes,
/// which are 64 columns of a 16-bit type or 128 of e4m3. In a panel, 16-byte chunk c of row r is
/// stored at place c XOR r (mod 8). An e4m3 tile whose C is not a multiple of 128 has 64-byte
/// panels with 64-byte swizzle instead: chunk c of row r is stored at place c XOR r/2 (mod 4). In
/// both layouts, reading one chunk from each of 8 rows causes no bank conflict. (With a 16-bit
/// type, 32 columns, or the last 32 of 96, fill half of a panel.)
template <class T, int R, int C>
struct SwizzledTile {
  using Element = T;
  static constexpr int kChunk = 16 / int{sizeof(T)};                             // elements
  static constexpr int kPanelBytes = sizeof(T) == 2 || C % 128 == 0 ? 128 : 64;  // per row
  static constexpr int kColumns = kPanelBytes / int{sizeof(T)};                  // per panel
  static_assert(R % 8 == 0 && C % 32 == 0);
  static constexpr int kPanels = ceil_div(C, kColumns);
  static constexpr int kPanel = R * kColumns;  // elements
  static_assert(kPanel * sizeof(T) % 1024 == 0);
  static constexpr int kRows = R, kChunks = C / kChunk;  // rows; chunks per row
  static constexpr int kElements = kPanels * kPanel;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(T));
  static constexpr int kAlignment = 1024;  // bytes; the swizzle depends on address bits
  Smem<T> data;

  /// Returns where element (row, column) is, in elements from `data`. `row` must be a multiple of
  /// 8, because there the swizzle moves nothing, and `column` a multiple of 32 bytes.
  __device__ __forceinline__ static constexpr int at(int row, int column) {
    return column / kColumns * kPanel + row * kColumns + column % kColumns;
  }
  /// Returns at(row, column) in bytes.
  __device__ __forceinline__ static constexpr int bytes(int row, int column) {
    return at(row, column) * int{sizeof(T)};
  }
  /// Returns where 16-byte chunk c of row r starts, in elements from `data`.
  __device__ __forceinline__ static constexpr int chunk(int r, int c) {
    constexpr int kOfPanel = kColumns / kChunk;                       // chunks per row of a panel
    const unsigned line = static_cast<unsigned>(r) / (8 / kOfPanel);  // 128 bytes each
    const int place = static_cast<int>((static_cast<unsigned>(c) ^ line) % kOfPanel);
    return c / kOfPanel * kPanel + r * kColumns + place * kChunk;
  }
};

/// Stores the tile to `target`, as copy_out of a Tile does.
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

/// Starts filling a tile from column c0, row c1, head c2, batch c3 of a tensor map whose boxes have
/// R rows. One thread calls it; `barrier` must expect kBytes bytes (arrive_expect_tx).
template <class T, int R, int C>
__device__ __forceinline__ void tma_load(const TensorMap& map, MbarrierRef barrier,
                                         const SwizzledTile<T, R, C>& tile, int c0, int c1, int c2,
                                         int c3) {
#pragma unroll
  for (int i = 0; i < tile.kPanels; ++i)
    tma_load(map, barrier, tile.data + i * tile.kPanel, c0 + tile.kColumns * i, c1, c2, c3);
}
/// Starts storing a tile to column c0, row c1, head c2, batch c3 of a tensor map. One thread calls
/// it, after all that wrote the tile have called fence_proxy_async() and synchronised with it.
template <class T, int R, int C>
__device__ __forceinline__ void tma_store(const TensorMap& map, const SwizzledTile<T, R, C>& tile,
                                          int c0, int c1, int c2, int c3) {
#pragma unroll
  for (int i = 0; i < tile.kPanels; ++i)
    tma_store(map, tile.data + i * tile.kPanel, c0 + tile.kColumns * i, c1, c2, c3);
}

/// Returns the WGMMA descriptor of a matrix that is not transposed: the first 32 bytes of each of
/// the tile's rows from `row` on. Use advanced() to get the descriptor for other columns.
template <class T, int R, int C>
__device__ __forceinline__ uint64_t by_rows(const SwizzledTile<T, R, C>& tile, int row) {
  return matrix_descriptor(tile.data + tile.at(row, 0), 16, 8 * tile.kPanelBytes, tile.kPanelBytes);
}
/// Returns the WGMMA descriptor of a transposed matrix: the columns from `column` on in the tile's
/// first 16 rows. Use advanced() to get the descriptor for other rows.
template <class T, int R, int C>
__device__ __forceinline__ uint64_t by_columns(const SwizzledTile<T, R, C>& tile, int column) {
  static_assert(sizeof(T) == 2, "operands of 8 bits cannot be transposed");
  return matrix_descriptor(tile.data + tile.at(0, column), tile.kPanel * int{sizeof(T)}, 1024);
}

/// Loads rows [row, row + 16) of a tile as a warp's left operand; `row` is a multiple of 8.
template <class T, int R, int C>
__device__ __forceinline__ void load(Operand<T, 16, C>& a, const SwizzledTile<T, R, C>& tile,
                                     int row) {
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < C * int{sizeof(T)} / 32; ++k)
    ldmatrix_x4(a.r[0][k],
                tile.data + (tile.at(row, 0) + tile.chunk(lane % 16, 2 * k + lane / 16)));
}

/// Orders earlier accesses to these accumulators and operands before the next products. Call it
/// before products that use registers which other code has touched, and before the first product.
template <class... Registers>
__device__ __forceinline__ void wgmma_fence(Registers&... registers) {
  (hold(registers.r[0]), ...);
  wgmma_fence_instruction();
}
/// Waits until at most the last `groups` committed groups of products are still in flight. Pass the
/// accumulators and operands whose products have then ended; only these may be used after the wait.
template <int groups, class... Registers>
__device__ __forceinline__ void wgmma_wait(Registers&... registers) {
  wgmma_wait_instruction<groups>();
  (hold(registers.r[0]), ...);
}

/// The number of elements of the inner dimension per instruction: 16 of a 16-bit type, 32 of e4m3.
template <class T>
inline constexpr int kInner = 32 / int{sizeof(T)};

/// Starts S += A·Bᵀ, where A is rows [row, row + 64) of one tile and B is rows [row_b, row_b + N)
/// of another. With scale_d = 0 this and the following functions overwrite the sums instead of
/// adding to them (see wgmma_set_ABt). The warpgroup's four warps call it together. In e4m3
/// operands the elements of the inner dimension must be contiguous, so e4m3 has no wgmma_AB: to
/// compute A·B, store Bᵀ and use wgmma_ABt.
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
/// Starts S += A·Bᵀ, where A is a whole tile of 64 rows.
template <int scale_d = 1, class T, int N, int RB, int C>
__device__ __forceinline__ void wgmma_ABt(Accumulator<16, N>& S, const SwizzledTile<T, 64, C>& A,
                                          const SwizzledTile<T, RB, C>& B, int row_b = 0) {
  wgmma_ABt<scale_d>(S, A, 0, B, row_b);
}
/// Starts S += A·Bᵀ with A in registers; each warp passes its 16 rows.
template <int scale_d = 1, class T, int N, int RB, int C>
__device__ __forceinline__ void wgmma_ABt(Accumulator<16, N>& S, Operand<T, 16, C>& a,
                                          const SwizzledTile<T, RB, C>& B, int row_b = 0) {
  static_assert(N <= RB);
  const uint64_t b = by_rows(B, row_b);
#pragma unroll
  for (int k = 0; k < C; k += kInner<T>)
    wgmma_m64<T, false>(S.r[0], a.r[0][k / kInner<T>], advanced(b, B.bytes(0, k)), k ? 1 : scale_d);
}
/// Starts O += A·B with A in registers; each warp passes its 16 rows. B is columns [column, column
/// + N) of a tile; `column` is a multiple of 64.
template <int scale_d = 1, class T, int N, int K, int C>
__device__ __forceinline__ void wgmma_AB(Accumulator<16, N>& O, Operand<T, 16, K>& a,
                                         const SwizzledTile<T, K, C>& B, int column = 0) {
  static_assert(N <= C);
  const uint64_t b = by_columns(B, column);
#pragma unroll
  for (int k = 0; k < K; k += 16)
    wgmma_m64<T, true>(O.r[0], a.r[0][k / 16], advanced(b, B.bytes(k, 0)), k ? 1 : scale_d);
}
/// Starts O += A·B, where A is rows [row, row + 64) of a tile.
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
/// Starts O += Aᵀ·B, where A is columns [column, column + 64) of one tile and B is columns
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

/// Start the same products, but overwrite the sums instead of adding to them.
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

/// Rounds a warp's sums to T and writes them from (row, column) on; `column` is a multiple of 64.
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
/// Writes an operand, rounded by as_operand(), to rows [row, row + 16) of a tile, from column 0 on.
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
/// Writes an operand with stmatrix from (row, column) on, multiples of 8 and of 64. It takes a
/// quarter of write()'s instructions, but a few more registers, which not every kernel can spare.
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

/// Writes a warp's 16 × N sums in fragment order, which is the order of its registers. Each 16 × 8
/// matrix takes 512 consecutive bytes: lane 0's four sums, then lane 1's, and so on. Each lane
/// therefore writes 16 bytes at once, next to its neighbours' bytes. add_fragments() atomically
/// adds to sums in this order, and read_fragments() reads them back.
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
