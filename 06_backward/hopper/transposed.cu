// 06 on Hopper, step 3: S and dP transposed (Shah et al. 2024, FlashAttention-3, Appendix B).
//
//   build/bin/06_backward --step transposed --seqlen 512 --causal
//
//       Sᵀ = scale·K·Qᵀ,   Pᵀ = exp(Sᵀ − LSE)
//       dPᵀ = V·dOᵀ,       dSᵀ = Pᵀ∘(dPᵀ − D)
//
// Since `producer`: S and dP are computed transposed. So a consumer's registers already hold Pᵀ and
// dSᵀ in the order of a left operand, as the products dV and dK need them. Only dS still goes
// through shared memory, because dQ sums over the keys of both consumers. With two stages of dS, an
// iteration needs one barrier fewer. The producer is unchanged, but now in produce.h.

#include "columns.h"
#include "produce.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile's rows are at least 64 columns wide
  return 2 * array_bytes<fp16>(Bc * columns) + 2 * array_bytes<fp16>(kStages * Br * columns) +
         array_bytes<fp16>(kStages * Bc * Br) + 2 * array_bytes<float>(kStages * Br) +
         4 * array_bytes<Mbarrier>(1) + 4 * array_bytes<Mbarrier>(kStages);
}

/// Runs a consumer, a warpgroup with kWarpgroupKeys of the block's keys: adds its part of dQ to the
/// sums in HBM, and returns the warp's rows of dK (unscaled) and dV, summed over all tiles of Q.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ KeyGradients<Dh> accumulate(const Rings<T, Dh, Br, Bc>& rings,
                                                       Smem<T> dS_stages, const Kept& kept,
                                                       const KeyTile& keys, const Problem& p) {
  using TileS = SwizzledTile<T, Bc, Br>;
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
  const Part<Br, Dh> of_dQ{consumer};
  // The first query that attends to key i of the tile is first_attending + i. Example: with 100
  // queries and 160 keys under the mask, query 128 − 160 + 100 + i = 68 + i is the first that
  // attends to key 128 + i. Without a mask, −Bc + i is negative, so every query attends to the key.
  const int first_attending = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;  // transposed: rows are keys, columns are queries
  int row = first_row;
  const int q_tiles = group * static_cast<int>(ceil_div(p.N - first_row, Br));
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    Q.wait();
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(S, dP);
    wgmma_set_ABt(S, tile_K, consumer_key, Q.tile());  // Sᵀ = K·Qᵀ
    wgmma_commit();
    wgmma_ABt(dP, tile_V, consumer_key, dO.tile());  // dPᵀ = V·dOᵀ − D
    wgmma_commit();
    wgmma_wait<1>(S);  // dP, committed last, may still run
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
    wgmma_fence(dV_sum, dK_sum, P_operand, dS_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile());  // dV += Pᵀ·dO
    wgmma_commit();
    wgmma_AB(dK_sum, dS_operand, Q.tile());  // dK += dSᵀ·Q
    wgmma_commit();
    fence_proxy_async();                         // makes this thread's writes visible to wgmma
    named_barrier_sync(kAll, kBackwardThreads);  // dS is complete
    wgmma_wait<1>(dV_sum, P_operand);            // dK, committed last, may still run
    dO.release();

    Accumulator<16, of_dQ.kColumns> dQ;
    wgmma_fence(dQ);
    wgmma_set_AtB(dQ, tile_dS, of_dQ.row(), tile_K, of_dQ.column());  // dQ = dS·K
    wgmma_commit();
    wgmma_wait<0>(dQ, dK_sum, dS_operand);
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
  const auto [bh, tile] = work_of(blockIdx.x, kept.tiles, p);
  const int key = tile * Bc;
  const int thread = threadIdx.x - kWarpgroup;  // counted from the consumers' first thread
  const int64_t kv_first = (int64_t{bh} * p.N_kv + key) * p.d;

  SharedMemory smem;
  Rings<T, Dh, Br, Bc> rings{smem};
  const auto dS_stages = smem.tiles<SwizzledTile<T, Bc, Br>>("dS", kStages);
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
  auto [dK_sum, dV_sum] = accumulate(rings, dS_stages, kept, keys, p);
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
    .name = "transposed",
    .after = "producer",
    .shown = {.idea = "P in registers",
              .change = {"sram_write_bytes", "less"},
              .summary = "and S and dP transposed, so that P needs no shared memory",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
