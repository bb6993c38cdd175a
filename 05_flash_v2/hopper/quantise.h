// 05/fp8: the kernel `quantise`, which runs before the attention kernel and writes its operands to
// HBM: Q̂, K̂ and V̂ᵀ, that is, Q, K and Vᵀ in e4m3. Each tile has a scale, or several share one.
#pragma once

#include "block.h"
#include "fp8.h"
#include "machine/machine.h"
#include "rung.h"

namespace ladder::MACHINE {
namespace {

/// Returns the threads per block of `quantise`. From d = 64 on, each reads 64 numbers (128 bytes)
/// of a tile of K or V. An SM's registers suffice for five blocks of 128 threads or two of 256, so
/// at least 512 · 128 bytes = 64 KiB of such reads are in flight.
constexpr int quantisers(int Dh, int Bc) {
  return std::max(Dh, 64) * Bc / 64;
}

/// Numbers of tiles. Every tile has a scale. All heads' tiles of Q are numbered first, then the
/// tiles of K, then the tiles of V; V has the same number of tiles as K.
struct ScaledTiles {
  int q, kv;       // per head: tiles of Q (kWarpgroupRows rows each); tiles of K (Bc rows each)
  int of_Q, of_K;  // of all heads: tiles of Q; tiles of K
  int64_t all;     // tiles of Q, K and V of all heads
};
constexpr ScaledTiles scaled_tiles(const Problem& p, int Bc) {
  const int q = static_cast<int>(ceil_div(p.N, kWarpgroupRows)),
            kv = static_cast<int>(ceil_div(p.N_kv, Bc));
  const int of_Q = q * p.B * p.H, of_K = kv * p.B * p.Hk;
  return {q, kv, of_Q, of_K, of_Q + int64_t{2} * of_K};
}

/// Returns the padded length of a row of V̂ᵀ in keys: a multiple of 16, because a key takes one byte
/// and TMA's pitches are multiples of 16 bytes.
constexpr int64_t padded_keys(int N_kv) {
  return ceil_div(N_kv, 16) * 16;
}

/// Returns where row r of V̂ᵀ starts in shared memory, in bytes. When a warp writes, its lanes are
/// in 8 rows, each 8 below the last; the 16 extra bytes after every 8 rows put these rows in
/// different banks. Reads are runs of 128 bytes, whose banks differ in any case.
template <int Bc>
__device__ __forceinline__ constexpr int transposed_row(int r) {
  return r * Bc + r / 8 * 16;
}
/// The bytes of shared memory per block of `quantise`: one float per warp, and a tile of V̂ᵀ.
template <int Dh, int Bc>
constexpr int64_t kQuantiseBytes = array_bytes<float>(quantisers(Dh, Bc) / 32) +
                                   array_bytes<e4m3>(transposed_row<Bc>(std::max(Dh, 64)));

/// The tile of Q, K or V that a block quantises. If is_Q and is_V are false, it is a tile of K.
struct OwnTile {
  bool is_Q, is_V;
  int number, head, of_head;           // number among all tiles, head, number within the head
  int first, array_tiles, head_tiles;  // the array's first tile, its tiles, its tiles per head
};
__device__ __forceinline__ OwnTile own_tile(const ScaledTiles& tiles) {
  const int block = static_cast<int>(blockIdx.x);
  const bool is_Q = block < tiles.of_Q, is_V = block >= tiles.of_Q + tiles.of_K;
  const int first = is_Q ? 0 : is_V ? tiles.of_Q + tiles.of_K : tiles.of_Q;
  const int head_tiles = is_Q ? tiles.q : tiles.kv, array_tiles = is_Q ? tiles.of_Q : tiles.of_K;
  return {is_Q,  is_V,        block,     (block - first) / head_tiles, (block - first) % head_tiles,
          first, array_tiles, head_tiles};
}

/// Writes the maximum or the scale of a block's tile. All threads call, each with `own`, the
/// largest magnitude that it holds. `maxima` and `scales` have one float per tile, in the order of
/// ScaledTiles; of_warps has kThreads / 32 floats of shared memory.
template <int kThreads>
struct TileScale {
  OwnTile tile;
  Quantisation::Scope scope;
  Hbm<float> maxima, scales;
  Smem<float> of_warps;

  __device__ __forceinline__ void write_maximum(float own) const {
    own = block_max<kThreads / 32>(own, of_warps);
    if (threadIdx.x == 0) maxima[tile.number] = own;
  }
  /// Writes the scale to HBM, and returns it to every thread. If several tiles share a scale, it is
  /// derived from the largest of their maxima.
  __device__ __forceinline__ float write_scale(float own) const {
    if (scope != Quantisation::Scope::tile) {
      const bool whole = scope == Quantisation::Scope::tensor;
      const int begin = whole ? tile.first : tile.number - tile.of_head,
                end = begin + (whole ? tile.array_tiles : tile.head_tiles);
      for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads)
        own = fmaxf(own, maxima[i]);
    }
    const float scale = e4m3_scale(block_max<kThreads / 32>(own, of_warps));
    if (threadIdx.x == 0) scales[tile.number] = scale;
    return scale;
  }
};

/// Quantises a tile of R rows of Q or K; N is the number of rows per head. If `rotate`, transforms
/// the rows first (hadamard). If only_maxima, writes the tile's maximum and nothing else. A thread
/// takes 8 columns of every kStride-th row.
template <int R, int Dh, bool only_maxima, class T, int kThreads>
__device__ __forceinline__ void quantise_rows(Hbm<const T> X, Hbm<e4m3> X8, int N,
                                              const TileScale<kThreads>& of, bool rotate,
                                              const Problem& p) {
  constexpr int kStride = kThreads / (Dh / 8), n = (R + kStride - 1) / kStride;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = int64_t{of.tile.head} * N + of.tile.of_head * R;
  const int rows = min(R, N - of.tile.of_head * R);
  const int row = thread / (Dh / 8), column = thread % (Dh / 8) * 8;
  const auto source = X + ((first_row + row) * p.d + column);
  Chunk<T> chunks[n];
#pragma unroll
  for (int k = 0; k < n; ++k)
    chunks[k] = read_chunk(source + k * kStride * p.d, row + k * kStride < rows && column < p.d);
  float x[n][8], own = 0;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    widen(x[k], chunks[k]);
    if (rotate) hadamard<Dh>(x[k], column);
    own = fmaxf(own, largest(x[k]));
  }
  if constexpr (only_maxima) return of.write_maximum(own);
  const float inverse = 1 / of.write_scale(own);
  const auto target = X8 + ((first_row + row) * Dh + column);
#pragma unroll
  for (int k = 0; k < n; ++k)
    if (row + k * kStride < rows) write_chunk(target + k * kStride * Dh, rounded(x[k], inverse));
}

/// Quantises a tile of Bc rows of V (see only_maxima above) and transposes it, keys in KeyOrder. If
/// KeyOrder is `column_at`, each group of 16 columns of V̂ᵀ holds its 16 keys in this order:
///
///   column   0  1  2  3  4  5  6  7  |  8  9 10 11 12 13 14 15
///   key      0  1  8  9  2  3 10 11  |  4  5 12 13  6  7 14 15
///
/// A thread reads an 8 × 8 block of V: 8 neighbouring columns, and the keys that belong in columns
/// place to place + 7 of V̂ᵀ. If `place` is 8, these are keys 4, 5, 12, 13, 6, 7, 14 and 15, that
/// is, 4 + 0, 4 + 1, 4 + 8 and so on. Eight lanes together read 128 bytes of a row of V and later,
/// from shared memory, write 128 bytes of a row of V̂ᵀ.
template <class KeyOrder, int Dh, int Bc, bool only_maxima, class T, int kThreads>
__device__ __forceinline__ void quantise_transposed(SharedMemory& smem, Hbm<const T> V,
                                                    Hbm<e4m3> V8, const TileScale<kThreads>& of,
                                                    const Problem& p) {
  const int thread = static_cast<int>(threadIdx.x), tile_key = of.tile.of_head * Bc;
  const int place = thread / 8 % (Bc / 8) * 8, column = (thread % 8 + thread / Bc * 8) * 8;
  const int first_key = tile_key + KeyOrder{}(place);
  const auto source = V + ((int64_t{of.tile.head} * p.N_kv + first_key) * p.d + column);
  Chunk<T> chunks[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int key = KeyOrder{}(e);
    chunks[e] = read_chunk(source + key * p.d, first_key + key < p.N_kv && column < p.d);
  }
  float x[8][8], own = 0;  // [key][column]
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    widen(x[e], chunks[e]);
    own = fmaxf(own, largest(x[e]));
  }
  if constexpr (only_maxima) return of.write_maximum(own);
  const float inverse = 1 / of.write_scale(own);
  const auto transposed = smem.take<e4m3>("transposed", transposed_row<Bc>(std::max(Dh, 64)));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float of_column[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) of_column[e] = x[e][i];
    write_chunk(transposed + (transposed_row<Bc>(column + i) + place), rounded(of_column, inverse));
  }
  __syncthreads();  // the tile is transposed
  constexpr int kPieces = Bc / 16;
  const int64_t pitch = padded_keys(p.N_kv);
  const int piece = thread % kPieces * 16;
  const auto target = V8 + (int64_t{of.tile.head} * p.d * pitch + tile_key + piece);
  if (tile_key + piece < pitch)  // the last tile may extend past the padded row
    for (int row = thread / kPieces; row < p.d; row += kThreads / kPieces)
      store_16_bytes(target + row * pitch, transposed + (transposed_row<Bc>(row) + piece));
}

/// Quantises Q, K and V to e4m3, one tile per block, and writes each tile's scale. Q8 has B·H·N ×
/// Dh elements, K8 B·Hk·N_kv × Dh, and V8, which is V̂ᵀ, B·Hk·d × padded_keys(N_kv). If tiles share
/// a scale, a run with only_maxima comes first and writes the maximum of each tile. KeyOrder{}(i)
/// is the key in column i of V̂ᵀ; KeyOrder{}(i + e) must equal KeyOrder{}(i) + KeyOrder{}(e) for
/// multiples i of 8 and e < 8. grid: (tiles of Q, K and V of all heads).
template <class T, int Dh, int Bc, bool only_maxima, class KeyOrder>
__global__ void __launch_bounds__(quantisers(Dh, Bc), std::max(1, 640 / quantisers(Dh, Bc)))
    quantise(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<e4m3> Q8, Hbm<e4m3> K8,
             Hbm<e4m3> V8, Hbm<float> maxima, Hbm<float> scales, Quantisation how, Problem p) {
  constexpr int kThreads = quantisers(Dh, Bc);
  SharedMemory smem;
  const auto of_warps = smem.take<float>("of_warps", kThreads / 32);
  const OwnTile tile = own_tile(scaled_tiles(p, Bc));
  const TileScale<kThreads> of{tile, how.scope, maxima, scales, of_warps};
  if (tile.is_Q)
    return quantise_rows<kWarpgroupRows, Dh, only_maxima>(Q, Q8, p.N, of, how.hadamard, p);
  if (!tile.is_V) return quantise_rows<Bc, Dh, only_maxima>(K, K8, p.N_kv, of, how.hadamard, p);
  quantise_transposed<KeyOrder, Dh, Bc, only_maxima>(smem, V, V8, of, p);
}

}  // namespace
}  // namespace ladder::MACHINE
