// 06 on Hopper, step 5: S one tile ahead (Shah et al. 2024, FlashAttention-3, §3.1, Appendix B).
//
//   build/bin/06_backward --step ahead --seqlen 512 --causal
//
//   compute S of the first tile
//   for each tile of Q and dO:
//     compute P, dP, dS and dV as before
//     start dQ = dS·K,  S of the next tile,  dK += dSᵀ·Q
//     add dQ to HBM, by TMA       while S and dK run
//
// Since `bulk_add`: S of the next tile and dK of this one are started before this tile's dQ is
// written out, so that the tensor cores have work in the meantime. The gradients are written out as
// in `bulk_add`; in this and the following steps, gradients.h holds that code.

#include "gradients.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

/// Runs a consumer, a warpgroup with kWarpgroupKeys of the block's keys: adds its part of dQ to the
/// sums in HBM, and returns the warp's rows of dK (unscaled) and dV, summed over all tiles of Q.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ KeyGradients<Dh> accumulate(const Rings<T, Dh, Br, Bc>& rings,
                                                       Smem<T> dS_stages, Smem<float> dQ_tile,
                                                       const Kept& kept, const KeyTile& keys,
                                                       const Problem& p) {
  using TileS = SwizzledTile<T, Bc, Br>;
  const auto tile_K = rings.K.tile(), tile_V = rings.V.tile();
  auto Q = rings.Q;  // a copy, which holds this warp's position in the ring
  auto dO = rings.dO;
  const auto [bh, key, first_row] = keys;
  KeyGradients<Dh> sums;
  auto& [dK_sum, dV_sum] = sums;
  const int group = p.H / p.Hk;
  auto dQ_at = kept.dQ_sum + (int64_t{bh} * group * kept.rows + first_row) * Dh;
  const int consumer = warpgroup_id() - 1, warp = warp_id() % 4, warp_row = warp * 16;
  const int consumer_key = consumer * kWarpgroupKeys;  // its first key in the tile
  const Part<Br, Dh> of_dQ{consumer};
  // Queries from first_attending + i on attend to key i of the tile; if that is negative, all do.
  const int first_attending = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;       // transposed: rows are keys, columns are queries
  auto Q_ahead = Q;                // S's position in the ring: one tile ahead of all other products
  const auto start_scores = [&] {  // Sᵀ = K·Qᵀ
    S = {};                        // so that the compiler need not keep the previous S
    Q_ahead.wait();
    wgmma_fence(S);
    wgmma_set_ABt(S, tile_K, consumer_key, Q_ahead.tile());
    wgmma_commit();
    Q_ahead.at.next();
  };
  start_scores();
  wgmma_wait<0>(S);
  int row = first_row;
  const int q_tiles = group * static_cast<int>(ceil_div(p.N - first_row, Br));
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_V, consumer_key, dO.tile());  // dPᵀ = V·dOᵀ − D
    wgmma_commit();
    auto& P = S;
    exp2_columns(P, c, columns_of_rows<Br>(Q));
    // Keys past N_kv get P = 0, too: exp(0 − LSE) may be ∞, and ∞·0 would be NaN in dQ.
    if (row < first_attending + Bc - 1 || key + Bc > p.N_kv)
      for_each(P, [&](int i, int j, float& x) {
        i += consumer_key + warp_row;
        if (row + j < first_attending + i || key + i >= p.N_kv) x = 0;
      });
    auto P_operand = as_operand<T>(P);
    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    auto dS_operand = as_operand<T>(dS);
    // This overwrites the dS of two tiles ago, which the other consumer finished reading before the
    // latest barrier. It may still read the previous tile's dS, which is in the other stage.
    const TileS tile_dS{dS_stages + q_tile % kStages * TileS::kElements};
    write_matrices(tile_dS, dS_operand, consumer_key + warp_row);
    wgmma_fence(dV_sum, P_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile());  // dV += Pᵀ·dO
    wgmma_commit();
    fence_proxy_async();                           // makes this thread's writes visible to wgmma
    if (lane_id() == 0) tma_store_wait_read<0>();  // this warp's previous dQ has left dQ_tile
    named_barrier_sync(kAll, kBackwardThreads);    // dS is complete
    // With dV still in flight, the products from here on would need more registers than there are,
    // and the compiler would make each wait for the previous one (ptxas: C7512).
    wgmma_wait<0>(dV_sum, P_operand);
    const auto start_dK = [&] {  // dK += dSᵀ·Q
      wgmma_fence(dK_sum, dS_operand);
      wgmma_AB(dK_sum, dS_operand, Q.tile());
      wgmma_commit();
    };

    Accumulator<16, of_dQ.kColumns> dQ;
    wgmma_fence(dQ);
    wgmma_set_AtB(dQ, tile_dS, of_dQ.row(), tile_K, of_dQ.column());  // dQ = dS·K
    wgmma_commit();
    dO.release();  // dV has read it already; an earlier release would delay the start of dQ
    // Groups in flight, oldest first. wgmma_wait<n> waits until only the newest n remain:
    //   before another tile:  dQ, S, dK  → wait<2>: S, dK  → wait<0>: none
    //   in the last tile:     dQ, dK     → wait<1>: dK     → wait<0>: none
    if (q_tile + 1 < q_tiles) {
      start_scores();  // of the next tile
      start_dK();
      wgmma_wait<2>(dQ);  // S and dK may still run
      add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
      wgmma_wait<0>(S);  // S must not be in flight where branches meet (C7515)
    } else {
      start_dK();
      wgmma_wait<1>(dQ);  // dK may still run
      add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
    }
    wgmma_wait<0>(dK_sum, dS_operand);
    Q.release();
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
    key_gradients(const __grid_constant__ Maps maps, const __grid_constant__ KeyMaps gradients,
                  Kept kept, Problem p) {
  const auto [bh, tile] = work_of(blockIdx.x, kept.tiles, p);
  const int key = tile * Bc, batch = bh / p.Hk, head_kv = bh % p.Hk;

  SharedMemory smem;
  Rings<T, Dh, Br, Bc> rings{smem};
  const auto dS_stages = smem.tiles<SwizzledTile<T, Bc, Br>>("dS", kStages);
  const auto dQ_tile = smem.take<float>("dQ", Br * Dh);
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
  auto sum = accumulate(rings, dS_stages, dQ_tile, kept, keys, p);
  named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K and V

  const int warp_row = (warp_id() - 4) * 16;  // in the tiles of K and V
  for_each(sum.dK, [&](int, int, float& x) { x *= p.scale; });
  start_stores(rings.K.tile(), rings.V.tile(), sum, warp_row, gradients, key, head_kv, batch);
  if (lane_id() == 0) tma_store_wait_read<0>();  // stay until TMA has read shared memory
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  return plan_of(p, device, bulk_smem_bytes);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const Kept kept = kept_of(p, plan, a);
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch_preprocess<T, Dh>(p, kept, a);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(key_tiles(p, kept)),
           dim3(kWarpgroup + kBackwardThreads), plan.smem_bytes, maps_of<T, Br, Bc>(p, a),
           key_maps_of<T, Bc>(p, a), kept, p);
    launch_postprocess_dQ<T, Dh, Br, Part<Br, Dh>::kColumns>(p, kept, a);
  });
}

/// Predicts the requested bytes; postprocess reads whole tiles of dQ's sums, padding included.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  return traffic_of(p, plan, bytes_of_tiles(p, plan));
}

const Register step{{
    .rung = "06_backward",
    .name = "ahead",
    .after = "bulk_add",
    .shown = {.idea = "S ahead",
              .change = {"stores_under_products", "from 0"},
              .summary = "and S computed one tile ahead",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
