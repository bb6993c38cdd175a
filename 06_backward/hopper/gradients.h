// 06 on Hopper, from `ahead` on: code that writes out a block's dQ, dK and dV through TMA, and the
// kernel that rounds the sums in HBM. bulk_add.cu, which introduces them, has copies of its own.
#pragma once

#include "columns.h"
#include "produce.h"

namespace ladder::MACHINE {
namespace {

/// Writes a warp's part of a tile's dQ to dQ_tile and lets TMA add it to the sums at dQ_at, both in
/// fragment order, warp by warp. Before the next call, lane 0 must wait: tma_store_wait_read<0>().
template <int N>
__device__ __forceinline__ void add_to_dQ(Hbm<float> dQ_at, Smem<float> dQ_tile,
                                          const Accumulator<16, N>& dQ, int warp) {
  const int at = warp * 16 * N;
  write_fragments(dQ_tile + at, dQ);
  fence_proxy_async();  // makes this lane's writes visible to TMA
  __syncwarp();         // all lanes have passed the fence before lane 0 goes on
  if (lane_id() == 0) {
    bulk_add(dQ_at + at, dQ_tile + at, 16 * N);
    tma_store_commit();
  }
}

/// Writes a warp's sums dV and dK (scaled), from row warp_row on, to the tiles of V and K, and lets
/// TMA store these from `key` on. All consumers call it, once none needs K and V any more; then the
/// first consumer thread must wait (tma_store_wait_read), because TMA still reads the tiles.
template <class T, int Dh, int Bc>
__device__ __forceinline__ void start_stores(const SwizzledTile<T, Bc, Dh>& tile_K,
                                             const SwizzledTile<T, Bc, Dh>& tile_V,
                                             const KeyGradients<Dh>& sum, int warp_row,
                                             const KeyMaps& gradients, int key, int head,
                                             int batch) {
  write_matrices(tile_K, as_operand<T>(sum.dK), warp_row);
  write_matrices(tile_V, as_operand<T>(sum.dV), warp_row);
  fence_proxy_async();                         // makes this thread's writes visible to TMA
  named_barrier_sync(kAll, kBackwardThreads);  // all rows are written
  if (threadIdx.x == kWarpgroup) {             // the first consumer thread
    tma_store(gradients.dK, tile_K, 0, key, head, batch);
    tma_store(gradients.dV, tile_V, 0, key, head, batch);
    tma_store_commit();
  }
}

/// Multiplies sums of dQ, dK or dV, in fragment order, by a factor and rounds them to the I/O type.
/// A head has N rows in `out` and `rows` rows in `sums`, in whole tiles of kRows rows. A block
/// converts one part of a tile, 64 rows × kColumns columns. If kRows is 128, a tile's two parts are
/// one below the other; if it is 64, its Dh / kColumns parts are side by side. grid: (parts per
/// tile · tiles of all heads).
template <class T, int Dh, int kRows, int kColumns>
__global__ void __launch_bounds__(kWarpgroup)
    postprocess_tiles(Hbm<const float> sums, Hbm<T> out, int N, int rows, int d, float factor) {
  constexpr int kPartsDown = kRows / 64, kPartsAcross = Dh / kColumns;
  static_assert(kPartsDown == 1 || kPartsAcross == 1);
  constexpr int kParts = kPartsDown * kPartsAcross;
  const int part = static_cast<int>(blockIdx.x) % kParts;
  const int64_t at = int64_t{blockIdx.x} / kParts * kRows;  // the tile's first row in `sums`
  const int row = static_cast<int>(at % rows) + part / kPartsAcross * 64;
  const int column = part % kPartsAcross * kColumns;
  Accumulator<16, kColumns> sum;
  read_fragments(sum, sums + (at * Dh + (part * 4 + warp_id()) * 16 * kColumns));
  for_each(sum, [&](int, int, float& x) { x *= factor; });
  using Tile = SwizzledTile<T, 64, kColumns>;
  SharedMemory smem;
  const Tile tile{smem.tiles<Tile>("tile")};
  write(tile, sum, warp_id() * 16);
  __syncthreads();
  copy_out<kWarpgroup>(out + ((at / rows * N + row) * d + column), d, tile, N - row, d - column,
                       threadIdx.x);
}
template <class T, int Dh, int kRows, int kColumns>
void launch_postprocess(const char* name, int64_t heads, Hbm<float> sums, Hbm<T> out, int N,
                        int rows, int d, float factor) {
  launch(name, postprocess_tiles<T, Dh, kRows, kColumns>, dim3(heads * rows / 64 * (Dh / kColumns)),
         dim3(kWarpgroup), array_bytes<T>(64 * std::max(kColumns, 64)), sums, out, N, rows, d,
         factor);
}
/// Launches postprocess_tiles for dQ, whose parts have kColumns columns.
template <class T, int Dh, int Br, int kColumns>
void launch_postprocess_dQ(const Problem& p, const Kept& kept, const Arrays& a) {
  launch_postprocess<T, Dh, Br, kColumns>("postprocess", int64_t{p.B} * p.H, kept.dQ_sum,
                                          hbm<T>(a["dQ"]), p.N, kept.rows, p.d, p.scale);
}

/// Returns the bytes of shared memory per block of key_gradients in `ahead` and `split`. (sm90.cu
/// defines its own formula.)
inline int64_t bulk_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile's rows are at least 64 columns wide
  return 2 * array_bytes<fp16>(Bc * columns) + 2 * array_bytes<fp16>(kStages * Br * columns) +
         array_bytes<fp16>(kStages * Bc * Br) + array_bytes<float>(Br * Dh) +
         2 * array_bytes<float>(kStages * Br) + 4 * array_bytes<Mbarrier>(1) +
         4 * array_bytes<Mbarrier>(kStages);
}

}  // namespace
}  // namespace ladder::MACHINE
