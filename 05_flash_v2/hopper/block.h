// 05 on Hopper: code of the step `producer` that the steps from `overlap` on share: the threads and
// registers of a block with one producer and several consumers, store_output, the plan and the
// tensor maps. Only `overlap` and `ping_pong` use `produce` from here; `persistent` and `counter`
// define their own, and later steps use the one in work.h.
#pragma once

#include "bytes.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarpgroupRows = 64;  // rows of Q per consumer, which is a warpgroup
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
// The consumer that is warpgroup w (from 1 to 3) has the named barrier kWarpgroupBarrier + w.
constexpr int kWarpgroupBarrier = 0;

/// Returns the threads per block: one warpgroup for the producer, and one for each consumer.
constexpr int threads(int Br) {
  return kWarpgroup * (1 + Br / kWarpgroupRows);
}
/// Return the registers per thread of the producer and of a consumer. At the launch all warpgroups
/// get equal numbers: 168 if Br is 128, or 128 if Br is 192. The producer needs few, so it gives up
/// most of its own to the two or three consumers.
constexpr int producer_registers(int Br) {
  return Br == 192 ? 32 : 40;
}
constexpr int consumer_registers(int Br) {
  return Br == 192 ? 160 : 232;
}

/// Returns the bytes of shared memory for of_Q stages of Q (Br rows each), of_KV stages of K and as
/// many of V (Bc rows each), and their barriers.
constexpr int64_t stages_bytes(int Dh, int Br, int Bc, int of_Q, int of_KV) {
  const int64_t columns = ceil_div(Dh, 64) * 64;  // of a tile: whole panels of 64
  const int consumers = Br / kWarpgroupRows;
  return array_bytes<fp16>(of_Q * Br * columns) + 2 * array_bytes<fp16>(of_KV * Bc * columns) +
         2 * array_bytes<Mbarrier>(of_Q * consumers) + 4 * array_bytes<Mbarrier>(of_KV);
}

/// A sequence of the batch, one of its heads of Q, and the head of K and V that this head uses.
struct Head {
  int batch, of_Q, of_KV;
};
__device__ __forceinline__ Head head_of(int bh, const Problem& p) {
  return {bh / p.H, bh % p.H, p.kv_head(bh % p.H)};
}

/// Returns the number of tiles of K and V for a tile of Q whose rows end before row `end`. There is
/// at least one, which may be entirely masked.
template <int Bc>
__device__ __forceinline__ int kv_tiles_of(int end, const Problem& p) {
  const int keys = p.keys(min(end, p.N) - 1);
  return keys > 0 ? static_cast<int>(ceil_div(keys, Bc)) : 1;
}

/// Runs the producer thread: starts the copies of a tile of Q and of its tiles of K and V.
template <int Br, int Bc, class StagesQ, class StagesKV>
__device__ __forceinline__ void produce(StagesQ Q, StagesKV K, StagesKV V, const TensorMap& map_Q,
                                        const TensorMap& map_K, const TensorMap& map_V,
                                        const Head& head, int block_row, int kv_tiles) {
  for (int row = block_row; row < block_row + Br; row += kWarpgroupRows)
    Q.fill(map_Q, 0, row, head.of_Q, head.batch);  // no acquire(), because it is filled only once
  for (int kv_tile = 0; kv_tile < kv_tiles; ++kv_tile) {
    K.acquire();
    K.fill(map_K, 0, kv_tile * Bc, head.of_KV, head.batch);
    V.acquire();
    V.fill(map_V, 0, kv_tile * Bc, head.of_KV, head.batch);
  }
}

/// Divides a consumer's rows of O by l and stores O and LSE to HBM. O goes through the consumer's
/// tile of Q, and TMA stores it from there. Each warp overwrites its own rows of Q with O, without
/// a barrier beforehand: we assume that the warp's part of a product reads no other rows of Q, so
/// that a wait for it suffices. If kStmatrix is false, as in `q_registers` and `sm90` at d = 128, O
/// is written without stmatrix, whose addresses take more registers.
template <class T, bool kStmatrix = true, class StagesQ, int Dh>
__device__ __forceinline__ void store_output(StagesQ& Q, Accumulator<16, Dh>& O_sum,
                                             const Rows<16>& m, Rows<16> l, const TensorMap& map_O,
                                             Hbm<float> LSE, int bh, int tile_row,
                                             const Problem& p) {
  const int warp_row = warp_id() % 4 * 16, row = tile_row + warp_row;
  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  if constexpr (kStmatrix)
    write_matrices(Q.tile(), as_operand<T>(O_sum), warp_row);
  else
    write(Q.tile(), O_sum, warp_row);
  fence_proxy_async();  // makes this thread's writes visible to TMA
  named_barrier_sync(kWarpgroupBarrier + warpgroup_id(), kWarpgroup);  // all of the tile is written
  if (threadIdx.x % kWarpgroup == 0) {
    tma_store(map_O, Q.tile(), 0, tile_row, bh % p.H, bh / p.H);
    tma_store_commit();
  }
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

/// Returns a plan with one of `tiles` and with `stages` stages of K and of V. Throws
/// Error(bad_usage) if no tile matches the request and fits in shared memory.
template <class Tiles, class SmemBytes>
Plan plan_of(const Problem& p, const DeviceInfo& device, const TileRequest& request,
             const Tiles& tiles, int stages, SmemBytes smem_bytes) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = stages};
  choose_tile(plan, tiles, request, device.smem_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  plan.warps = threads(plan.block_q) / 32;
  return plan;
}

/// Tensor maps: boxes of Q and O hold a consumer's rows, boxes of K and V hold Bc rows.
struct Maps {
  TensorMap Q, K, V, O;
};
template <class T>
Maps maps_of(const Problem& p, const Arrays& a, int Bc) {
  const auto map = [&](const char* name, int rows, int heads, int box_rows) {
    return tensor_map<T>(a[name], p.d, rows, heads, p.B, box_rows);
  };
  return {map("Q", p.N, p.H, kWarpgroupRows), map("K", p.N_kv, p.Hk, Bc),
          map("V", p.N_kv, p.Hk, Bc), map("O", p.N, p.H, kWarpgroupRows)};
}

}  // namespace
}  // namespace ladder::MACHINE
