// 06 on Hopper, step 2: a producer starts copies by TMA (Shah et al. 2024, FlashAttention-3, §3.1).
//
//   build/bin/06_backward --step producer --seqlen 512 --causal
//
//   for each tile of Q and dO:
//     producer, one thread:       wait for a free stage of each ring;  start TMA's copies
//     consumers, two warpgroups:  wait for the tiles;  compute the five products;  free the stages
//
// Since `wgmma`: copies are made as in 05's `producer`. One thread of an extra warpgroup, the
// producer, has TMA copy the tiles of Q and dO into rings of stages; LSE arrives with Q, and D with
// dO. The two warpgroups that multiply are the consumers. A stage is free again once every warp of
// the consumers has released it. The producer's warpgroup gives most of its registers to the
// consumers. backward.h holds the code that this and the following steps share.

#include "backward.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile's rows are at least 64 columns wide
  return 2 * array_bytes<fp16>(Bc * columns) + 2 * array_bytes<fp16>(kStages * Br * columns) +
         2 * array_bytes<fp16>(Br * Bc) + 2 * array_bytes<float>(kStages * Br) +
         4 * array_bytes<Mbarrier>(1) + 4 * array_bytes<Mbarrier>(kStages);
}

/// Runs the producer thread: starts the copies of the block's tiles of K and V, and of the tiles of
/// Q and dO in all query heads that share them, into their rings. LSE arrives with Q, −D with dO.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ void produce(Rings<T, Dh, Br, Bc> rings, const Maps& maps,
                                        const Kept& kept, const KeyTile& keys, const Problem& p) {
  const int group = p.H / p.Hk, batch = keys.bh / p.Hk, head_kv = keys.bh % p.Hk;
  rings.K.fill(maps.K, 0, keys.key, head_kv, batch);
  rings.V.fill(maps.V, 0, keys.key, head_kv, batch);
#pragma unroll 1  // these loops mostly wait; unrolled, they would make up a fifth of the code
  for (int head = keys.bh * group; head < (keys.bh + 1) * group; ++head)
#pragma unroll 1
    for (int row = keys.first_row; row < p.N; row += Br) {
      const int64_t at = int64_t{head} * kept.rows + row;
      rings.Q.acquire();
      rings.Q.fill(maps.Q, 0, row, head % p.H, batch, kept.LSE_log2e + at);
      rings.dO.acquire();
      rings.dO.fill(maps.dO, 0, row, head % p.H, batch, kept.minus_delta + at);
    }
}

/// Runs a consumer, a warpgroup with kWarpgroupKeys of the block's keys: adds its part of dQ to the
/// sums in HBM, and returns the warp's rows of dK (unscaled) and dV, summed over all tiles of Q.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ KeyGradients<Dh> accumulate(const Rings<T, Dh, Br, Bc>& rings,
                                                       const SwizzledTile<T, Br, Bc>& tile_P,
                                                       const SwizzledTile<T, Br, Bc>& tile_dS,
                                                       const Kept& kept, const KeyTile& keys,
                                                       const Problem& p) {
  const auto tile_K = rings.K.tile(), tile_V = rings.V.tile();
  auto Q = rings.Q;  // a copy, which holds this warp's position in the ring
  auto dO = rings.dO;
  const auto [bh, key, first_row] = keys;
  KeyGradients<Dh> sums;
  auto& [dK_sum, dV_sum] = sums;
  const int group = p.H / p.Hk;
  auto dQ_at = kept.dQ_sum + (int64_t{bh} * group * kept.rows + first_row) * Dh;
  const int consumer = warpgroup_id() - 1, warp_row = warp_id() % 4 * 16;
  const int consumer_key = consumer * kWarpgroupKeys;  // its first key in the tile
  const Part<Br, Bc> of_S{consumer};                   // its part of S, P, dP and dS
  const Part<Br, Dh> of_dQ{consumer};
  const int S_row = of_S.row() + warp_row;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, of_S.kColumns> S, dP;
  int row = first_row;
  const int q_tiles = group * static_cast<int>(ceil_div(p.N - first_row, Br));
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    Q.wait();
    dO.wait();
    const auto tile_Q = Q.tile(), tile_dO = dO.tile();
    const auto minus_delta_tile = dO.of_rows(), LSE_tile = Q.of_rows();

    fill_rows(dP, load_rows<16>(minus_delta_tile + S_row));
    wgmma_fence(S, dP);
    wgmma_set_ABt(S, tile_Q, of_S.row(), tile_K, of_S.column());  // S = Q·Kᵀ
    wgmma_commit();
    wgmma_ABt(dP, tile_dO, of_S.row(), tile_V, of_S.column());  // dP = dO·Vᵀ - D
    wgmma_commit();
    wgmma_wait<1>(S);  // dP, committed last, may still run
    auto& P = S;
    exp2_rows(P, c, load_rows<16>(LSE_tile + S_row));
    // Keys past N_kv get P = 0, too: exp(0 − LSE) may be ∞, and ∞·0 would be NaN in dQ.
    if (key + Bc > p.keys(row))
      for_each(P, [&](int i, int j, float& x) {
        if (j >= p.keys(row + S_row + i) - key - of_S.column()) x = 0;
      });
    named_barrier_sync(kAll, kBackwardThreads);  // both consumers have read the previous P and dS
    write(tile_P, P, S_row, of_S.column());

    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    write(tile_dS, dS, S_row, of_S.column());
    fence_proxy_async();                         // makes this thread's writes visible to wgmma
    named_barrier_sync(kAll, kBackwardThreads);  // P and dS are complete

    wgmma_fence(dV_sum, dK_sum);
    wgmma_AtB(dV_sum, tile_P, consumer_key, tile_dO);  // dV += Pᵀ·dO
    wgmma_commit();
    wgmma_AtB(dK_sum, tile_dS, consumer_key, tile_Q);  // dK += dSᵀ·Q
    wgmma_commit();
    wgmma_wait<1>(dV_sum);  // dK, committed last, may still run
    dO.release();

    Accumulator<16, of_dQ.kColumns> dQ;
    wgmma_fence(dQ);
    wgmma_set_AB(dQ, tile_dS, of_dQ.row(), tile_K, of_dQ.column());  // dQ = dS·K
    wgmma_commit();
    wgmma_wait<0>(dQ, dK_sum);
    Q.release();
    add_to_dQ<Dh>(dQ_at, dQ, of_dQ.row() + warp_row, of_dQ.column());
    row += Br;
    dQ_at = dQ_at + Br * Dh;
    if (row >= p.N) {  // the next head
      row = first_row;
      dQ_at = dQ_at + int64_t{first_row} * Dh;
    }
  }
  return sums;
}

/// Computes dK and dV for one tile of keys, and adds the tile's part of dQ to the sums in HBM.
/// grid: (tiles of K · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup + kBackwardThreads, 1)
    key_gradients(const __grid_constant__ Maps maps, Kept kept, Hbm<T> dK, Hbm<T> dV, Problem p) {
  using TileS = SwizzledTile<T, Br, Bc>;
  const auto [bh, tile] = work_of(blockIdx.x, kept.tiles, p);
  const int key = tile * Bc;
  const int thread = threadIdx.x - kWarpgroup;  // counted from the consumers' first thread
  const int64_t kv_first = (int64_t{bh} * p.N_kv + key) * p.d;

  SharedMemory smem;
  Rings<T, Dh, Br, Bc> rings{smem};
  const TileS tile_P{smem.tiles<TileS>("P")};
  const TileS tile_dS{smem.tiles<TileS>("dS")};
  rings.init(smem);

  const KeyTile keys{bh, key, p.first_query(key) / Br * Br};
  if (warpgroup_id() == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) produce(rings, maps, kept, keys, p);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  rings.K.wait();
  rings.V.wait();
  auto [dK_sum, dV_sum] = accumulate(rings, tile_P, tile_dS, kept, keys, p);
  named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K and V

  // dK and dV go through the tiles of K and V, so that they are written in 16-byte chunks.
  const auto tile_K = rings.K.tile(), tile_V = rings.V.tile();
  const int warp_row = (warp_id() - 4) * 16;  // in the tiles of K and V
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write(tile_K, dK_sum, warp_row);
  write(tile_V, dV_sum, warp_row);
  named_barrier_sync(kAll, kBackwardThreads);  // all rows are written
  copy_out<kBackwardThreads>(dK + kv_first, p.d, tile_K, p.N_kv - key, p.d, thread);
  copy_out<kBackwardThreads>(dV + kv_first, p.d, tile_V, p.N_kv - key, p.d, thread);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  return plan_of(p, device, backward_smem_bytes);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const Kept kept = kept_of(p, plan, a);
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch_preprocess<T, Dh>(p, kept, a);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(key_tiles(p, kept)),
           dim3(kWarpgroup + kBackwardThreads), plan.smem_bytes, maps_of<T, Br, Bc>(p, a), kept,
           hbm<T>(a["dK"]), hbm<T>(a["dV"]), p);
    launch_postprocess_rows<T, Dh>(p, kept, a);
  });
}

/// Predicts the requested bytes, as in `wgmma`; postprocess reads dQ's sums without their padding.
/// (From `bulk_add` on it reads whole tiles.)
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  return traffic_of(p, plan, bytes_of_elements(p));
}

const Register step{{
    .rung = "06_backward",
    .name = "producer",
    .after = "wgmma",
    .formerly = {"tma"},
    .shown = {.idea = "a copying warpgroup",
              .change = {"consumer_copies", "to 0"},
              .summary = "and a producer, which has TMA make the copies",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
