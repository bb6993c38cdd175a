// 06 on Hopper, step 6: a key tile's queries are split among blocks (this project's own method).
//
//   build/bin/06_backward --step split --seqlen 512 --heads 8 --kv-heads 1 --causal --verbose
//
//   for each tile of keys, divide the tiles of Q that attend to it into `parts` shares;
//   for each share, one block:
//     compute dK, dV and dQ of the share, as in `ahead`
//     dK_sum += dK,  dV_sum += dV         in HBM, in fp32
//
// Since `ahead`: `parts` blocks share each tile of keys. One block per tile would leave most SMs
// idle if there are few tiles, as with short sequences or with many query heads per head of K and
// V. Each block adds its sums to the sums in HBM, which costs traffic, so the plan estimates the
// time for each number of parts and takes the fastest. Each consumer runs the loop of `ahead` over
// its block's share. query_split.h and accumulate.h hold the code that `sm90` uses, too.

#include "accumulate.h"

namespace ladder::MACHINE {
namespace {

/// Does the work of preprocess() in backward.h, and clears the sums of dK and dV, if there are any.
template <class T, int Dh>
__global__ void preprocess_and_clear(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                                     Kept kept, KeySums sums, Problem p) {
  constexpr int kLanes = lanes_of(Dh);
  const int64_t chunk = int64_t{blockIdx.x} * kElementwise + threadIdx.x, at = chunk / kLanes;
  clear(sums, chunk);
  if (at >= int64_t{p.B} * p.H * kept.rows) return;  // true for all of a block's threads or none
  preprocess_row<kLanes, Dh>(at, O, dO, LSE, kept, p);
}

/// Runs the producer thread: starts the copies of the block's tiles of K and V, and of its share's
/// tiles of Q and dO, into their rings. LSE arrives with Q, −D with dO.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ void produce(Rings<T, Dh, Br, Bc> rings, const Maps& maps,
                                        const Kept& kept, const QuerySplit& split,
                                        const Problem& p) {
  rings.K.fill(maps.K, 0, split.tile * Bc, split.bh % p.Hk, split.bh / p.Hk);
  rings.V.fill(maps.V, 0, split.tile * Bc, split.bh % p.Hk, split.bh / p.Hk);
  int head = head_of(split, p), row = row_of<Br>(split);
#pragma unroll 1  // this loop mostly waits; unrolled, it would make up a fifth of the code
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

/// Computes a share's part of dK and dV for one tile of keys, and adds its part of dQ to the sums
/// in HBM. If parts is 1, the share is all tiles of Q. grid: (tiles of K · B·Hk · parts).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup + kBackwardThreads, 1)
    key_gradients(const __grid_constant__ Maps maps, const __grid_constant__ KeyMaps gradients,
                  const __grid_constant__ Kept kept, const __grid_constant__ KeySums sums,
                  int parts, int at_once, Problem p) {
  const auto split = query_split<Br, Bc>(blockIdx.x, kept.tiles, parts, at_once, p);
  if (split.begin == split.end) return;  // an empty share: there are more parts than tiles of Q

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
  auto Q = rings.Q, dO = rings.dO;  // copies, with this warp's positions in the rings
  auto sum = accumulate<Br, false>(Q, dO, rings.K.tile(), rings.V.tile(), dS_stages, dQ_tile, kept,
                                   split, p);
  named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K and V

  const int warp_row = (warp_id() - 4) * 16;  // in the tiles of K and V
  for_each(sum.dK, [&](int, int, float& x) { x *= p.scale; });
  if (parts > 1) {
    const int64_t at = ((int64_t{split.bh} * kept.tiles + split.tile) * Bc + warp_row) * Dh;
    add_fragments(sums.dK + at, sum.dK);
    add_fragments(sums.dV + at, sum.dV);
    if (lane_id() == 0) tma_store_wait_read<0>();  // stay until TMA has read shared memory
    return;
  }
  start_stores(rings.K.tile(), rings.V.tile(), sum, warp_row, gradients, split.tile * Bc,
               split.bh % p.Hk, split.bh / p.Hk);
  if (lane_id() == 0) tma_store_wait_read<0>();  // stay until TMA has read shared memory
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

/// Predicts the requested bytes: `ahead`'s bytes, plus the cost of splitting, because each part
/// reads K and V and adds its dK and dV to sums in HBM.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  Traffic all = traffic_of(p, plan, bytes_of_tiles(p, plan));
  add_traffic_of_parts(all, p, plan);
  return all;
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
