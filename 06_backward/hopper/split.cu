// 06 on Hopper, step 6: the queries of a tile of keys split among blocks. This project's own way.
//
//   build/bin/06_backward --step split --seqlen 512 --heads 8 --kv-heads 1 --causal --verbose
//
//   for each tile of keys, and each of `parts` shares of the tiles of Q that see it, a block each:
//       …
//       dK, dV += the share's sums, in HBM, in fp32
//
// Since `ahead`: where tiles of keys are few, as with a short sequence or with one head of K and V
// under many of Q, they would leave most SMs idle. So several blocks share one; how many, the plan
// says by what takes least time, since what they add up costs traffic. What sm90 keeps of this step
// is in query_split.h.

#include "query_split.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

/// As before; and where several blocks add to the sums of dK and dV, it clears them.
template <class T, int Dh>
__global__ void preprocess_and_clear(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                                     Kept kept, KeySums sums, Problem p) {
  constexpr int kLanes = lanes_of(Dh);
  const int64_t chunk = int64_t{blockIdx.x} * kElementwise + threadIdx.x, at = chunk / kLanes;
  clear(sums, chunk);
  if (at >= int64_t{p.B} * p.H * kept.rows) return;  // a whole block
  preprocess_row<kLanes, Dh>(at, O, dO, LSE, kept, p);
}

/// The producer, one thread: fetches the block's tile of keys, and the tiles of Q and dO of its
/// share into their rings.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ void produce(Rings<T, Dh, Br, Bc> rings, const Maps& maps,
                                        const Kept& kept, const QuerySplit& split,
                                        const Problem& p) {
  rings.K.fill(maps.K, 0, split.tile * Bc, split.bh % p.Hk, split.bh / p.Hk);
  rings.V.fill(maps.V, 0, split.tile * Bc, split.bh % p.Hk, split.bh / p.Hk);
  int head = split.bh * (p.H / p.Hk) + split.begin / split.tiles_of_head;
  int row = split.first_row + split.begin % split.tiles_of_head * Br;
#pragma unroll 1  // or a fifth of the code would be copies of this loop, which only waits
  for (int q_tile = split.begin; q_tile < split.end; ++q_tile) {
    const int64_t at = int64_t{head} * kept.rows + row;
    rings.Q.acquire();
    rings.Q.fill(maps.Q, 0, row, head % p.H, head / p.H, kept.LSE_log2e + at);
    rings.dO.acquire();
    rings.dO.fill(maps.dO, 0, row, head % p.H, head / p.H, kept.minus_delta + at);
    row += Br;
    if (row >= p.N) ++head, row = split.first_row;
  }
}

/// What a consumer, a warpgroup with kWarpgroupKeys of the block's keys, does: it sums up its rows
/// of dK and dV over the share's tiles of Q, and adds its part of dQ to the sums in HBM.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ KeyGradients<Dh> accumulate(const Rings<T, Dh, Br, Bc>& rings,
                                                       Smem<T> dS_stages, Smem<float> dQ_tile,
                                                       const Kept& kept, const QuerySplit& split,
                                                       const Problem& p) {
  using TileS = SwizzledTile<T, Bc, Br>;
  const auto tile_K = rings.K.tile(), tile_V = rings.V.tile();
  auto Q = rings.Q;  // with this warp's own place in the ring
  auto dO = rings.dO;
  KeyGradients<Dh> sums;
  auto& [dK_sum, dV_sum] = sums;
  const int consumer = warpgroup_id() - 1, warp = warp_id() % 4, warp_row = warp * 16;
  const int consumer_key = consumer * kWarpgroupKeys;  // the first of its keys
  const Part<Br, Dh> of_dQ{consumer};
  const int key = split.tile * Bc, first_row = split.first_row;
  // The first query that attends to key i of the tile is first_attending + i.
  const int first_attending = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;       // their transposes: rows are keys, columns are queries
  auto Q_ahead = Q;                // where S is computed, a tile before the rest
  const auto start_scores = [&] {  // Sᵀ = K·Qᵀ
    S = {};                        // or the compiler would keep the last tile's
    Q_ahead.wait();
    wgmma_fence(S);
    wgmma_set_ABt(S, tile_K, consumer_key, Q_ahead.tile());
    wgmma_commit();
    Q_ahead.at.next();
  };
  start_scores();
  wgmma_wait<0>(S);
  int row = first_row + split.begin % split.tiles_of_head * Br;
  const int q_tiles = split.end - split.begin;
  const int head = split.bh * (p.H / p.Hk) + split.begin / split.tiles_of_head;
  auto dQ_at = kept.dQ_sum + (int64_t{head} * kept.rows + row) * Dh;
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_V, consumer_key, dO.tile());  // dPᵀ = V·dOᵀ - D
    wgmma_commit();
    auto& P = S;
    exp2_columns(P, c, columns_of_rows<Br>(Q));
    // Of keys past N_kv too: exp(0 − LSE) may be ∞, and ∞·0 is NaN in dQ.
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
    // Two stages do: the other consumer's dQ may still read the last dS, but since the last barrier
    // not the one before.
    const TileS tile_dS{dS_stages + q_tile % kStages * TileS::kElements};
    write_matrices(tile_dS, dS_operand, consumer_key + warp_row);
    wgmma_fence(dV_sum, P_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile());  // dV += Pᵀ·dO
    wgmma_commit();
    fence_proxy_async();                           // dQ reads what threads have written
    if (lane_id() == 0) tma_store_wait_read<0>();  // this warp's last dQ has left dQ_tile
    named_barrier_sync(kAll, kBackwardThreads);    // dS is complete
    // With dV still in flight, the products from here on would want more registers than there are,
    // and the compiler would have each of them wait for the one before (C7512).
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
    dO.release();  // dV has read it; before dQ, this would only hold dQ up
    if (q_tile + 1 < q_tiles) {
      start_scores();  // of the next tile
      start_dK();
      wgmma_wait<2>(dQ);  // S and dK may still run
      add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
      wgmma_wait<0>(S);  // S cannot be in flight where branches meet (C7515)
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

/// dK and dV of one tile of keys by a share of the queries, and what it adds to dQ.
/// grid: (tiles of K · B·Hk · parts).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup + kBackwardThreads, 1)
    key_gradients(const __grid_constant__ Maps maps, const __grid_constant__ KeyMaps gradients,
                  const __grid_constant__ Kept kept, const __grid_constant__ KeySums sums,
                  int parts, int at_once, Problem p) {
  const auto split = query_split<Br, Bc>(blockIdx.x, kept.tiles, parts, at_once, p);
  if (split.begin == split.end) return;

  SharedMemory smem;
  Rings<T, Dh, Br, Bc> rings{smem};
  const auto dS_stages = smem.tiles<SwizzledTile<T, Bc, Br>>("dS", kStages);
  const auto dQ_tile = smem.take<float>("dQ", Br * Dh);
  rings.init(smem);

  if (warpgroup_id() == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) produce(rings, maps, kept, split, p);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  rings.K.wait();
  rings.V.wait();
  auto sum = accumulate(rings, dS_stages, dQ_tile, kept, split, p);
  named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K and V

  const int warp_row = (warp_id() - 4) * 16;  // of the tiles of K and V
  for_each(sum.dK, [&](int, int, float& x) { x *= p.scale; });
  if (parts > 1) {
    const int64_t at = ((int64_t{split.bh} * kept.tiles + split.tile) * Bc + warp_row) * Dh;
    add_fragments(sums.dK + at, sum.dK);
    add_fragments(sums.dV + at, sum.dV);
    if (lane_id() == 0) tma_store_wait_read<0>();  // shared memory must live until then
    return;
  }
  start_stores(rings.K.tile(), rings.V.tile(), sum, warp_row, gradients, split.tile * Bc,
               split.bh % p.Hk, split.bh / p.Hk);
  if (lane_id() == 0) tma_store_wait_read<0>();  // shared memory must live until then
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  Plan plan = plan_of(p, device, bulk_smem_bytes);
  plan_parts(plan, p, device, request);
  return plan;
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const Kept kept = kept_of(p, plan, a);
  const KeySums sums = key_sums_of(p, plan, kept, a);
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch("preprocess", preprocess_and_clear<T, Dh>, preprocess_blocks<Dh>(p, kept, sums),
           dim3(kElementwise), 0, hbm<const T>(a["O"]), hbm<const T>(a["dO"]),
           hbm<const float>(a["LSE"]), kept, sums, p);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(key_tiles(p, kept) * plan.parts),
           dim3(kWarpgroup + kBackwardThreads), plan.smem_bytes, maps_of<T, Br, Bc>(p, a),
           key_maps_of<T, Bc>(p, a), kept, sums, plan.parts, resident_blocks(), p);
    launch_postprocess_dQ<T, Dh, Br, Part<Br, Dh>::kColumns>(p, kept, a);
    launch_postprocess_keys<T, Dh, Bc, Part<Bc, Dh>::kColumns>(p, plan, kept, sums, a);
  });
}

/// As before. With several parts, more blocks read K and V, and each adds its sums of dK and dV.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  return traffic_of(p, plan, true);
}

const Register step{{
    .rung = "06_backward",
    .name = "split",
    .after = "ahead",
    .shown = {.idea = "queries split",
              .change = {"blocks", "more", "--heads 8 --kv-heads 1"},
              .summary = "and the queries of a tile of keys split among blocks",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .settings = kSettings,
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
