// 06 on Hopper, step 7: persistent blocks. This project's own way.
//
//   build/bin/06_backward --step sm90 --seqlen 512 --causal
//
// Since `split`: there are as many blocks as SMs, and a block takes one share of work after
// another, by a counter in HBM, as in 05's `counter`. So the first tiles of Q and dO of the next
// come while dK and dV of the last are written out. (Heads wider than 128 have kernels of their
// own: wide.h.)

#include "tile/rows.h"
#include "wide.h"

namespace ladder::MACHINE {
namespace {

/// A share, `uniform`: in registers of the warp, since those of the threads are all in use.
__device__ __forceinline__ QuerySplit of_warp(const QuerySplit& s) {
  return {uniform(s.bh),    uniform(s.tile), uniform(s.first_row), uniform(s.tiles_of_head),
          uniform(s.begin), uniform(s.end)};
}

/// Stages of copies of K and of V: two where there is room, so that the next come early.
constexpr int stages_of_KV(int Dh) {
  return Dh <= 64 ? 2 : 1;
}

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile has 64 at least
  return array_bytes<fp16>(2 * stages_of_KV(Dh) * Bc * columns) +
         2 * array_bytes<fp16>(kStages * Br * columns) + array_bytes<fp16>(kStages * Bc * Br) +
         array_bytes<float>(Br * Dh) + 2 * array_bytes<float>(kStages * Br) +
         array_bytes<QuerySplit>(stages_of_KV(Dh)) +
         2 * array_bytes<Mbarrier>(2 * stages_of_KV(Dh)) + 4 * array_bytes<Mbarrier>(kStages);
}

/// As before; and no block has asked for a further tile of keys yet.
template <class T, int Dh>
__global__ void preprocess_and_clear(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                                     Kept kept, KeySums sums, Hbm<int> next, Problem p) {
  constexpr int kLanes = lanes_of(Dh);
  const int64_t chunk = int64_t{blockIdx.x} * kElementwise + threadIdx.x, at = chunk / kLanes;
  clear(sums, chunk);
  if (at >= int64_t{p.B} * p.H * kept.rows) return;  // a whole block
  if (blockIdx.x == 0 && threadIdx.x == 0) next[0] = 0;
  preprocess_row<kLanes, Dh>(at, O, dO, LSE, kept, p);
}

/// What producer and consumers share: as before, but that K and V are of a ring too, a slot each,
/// and which share of work its stages are of.
template <class T, int Dh, int Br, int Bc>
struct PersistentRings {
  Stages<SwizzledTile<T, Bc, Dh>, stages_of_KV(Dh), 2> KV;
  StagesWithRows<SwizzledTile<T, Br, Dh>, kStages, Br> Q, dO;
  Smem<QuerySplit> splits;

  __device__ __forceinline__ explicit PersistentRings(SharedMemory& smem)
      : KV{smem, "KV"}, Q{smem, "Q"}, dO{smem, "dO"} {}
  __device__ __forceinline__ void init(SharedMemory& smem) {
    constexpr int kReleases = 4 * kConsumersBackward;  // one by each warp
    Q.init(smem, "LSE_log2e", "Q_full", "Q_free", kReleases);
    dO.init(smem, "minus_delta", "dO_full", "dO_free", kReleases);
    splits = smem.take<QuerySplit>("split", stages_of_KV(Dh));
    KV.init(smem, "KV_full", "KV_free", 1);
    if (threadIdx.x == 0) fence_mbarrier_init();  // before TMA counts bytes at the barriers,
    __syncthreads();                              // and before anybody waits there
  }
};

/// The producer, one thread: fetches one tile of keys after another, and the tiles of Q and dO of
/// its share into their rings.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ void produce(PersistentRings<T, Dh, Br, Bc> rings, const Maps& maps,
                                        const Kept& kept, Hbm<int> next, int parts,
                                        const Problem& p) {
  auto& [KV, Q, dO, splits] = rings;
  int index = blockIdx.x;
  while (index < kept.tiles * p.B * p.Hk * parts) {
    const auto split = query_split<Br, Bc>(index, kept.tiles, parts, gridDim.x, p);
    int head = split.bh * (p.H / p.Hk) + split.begin / split.tiles_of_head;
    int row = split.first_row + split.begin % split.tiles_of_head * Br;
#pragma unroll 1  // or a fifth of the code would be copies of this loop, which only waits
    for (int q_tile = split.begin; q_tile < split.end; ++q_tile) {
      const int64_t at = int64_t{head} * kept.rows + row;
      Q.acquire();
      Q.fill(maps.Q, 0, row, head % p.H, head / p.H, kept.LSE_log2e + at);
      if (q_tile == split.begin) {
        KV.acquire();  // once the last dK has left
        splits[KV.at.stage] = split;
        KV.fill(maps.K, 0, split.tile * Bc, split.bh % p.Hk, split.bh / p.Hk);
        KV.acquire();
        KV.fill(maps.V, 0, split.tile * Bc, split.bh % p.Hk, split.bh / p.Hk);
      }
      dO.acquire();
      dO.fill(maps.dO, 0, row, head % p.H, head / p.H, kept.minus_delta + at);
      row += Br;
      if (row >= p.N) ++head, row = split.first_row;
    }
    index = uniform(gridDim.x + atomicAdd(next, 1), 1);
  }
  KV.acquire();
  splits[KV.at.stage] = QuerySplit{.bh = -1};  // the end
  KV.signal_end();
}

/// What a consumer, a warpgroup with kWarpgroupKeys of the block's keys, does: it sums up its rows
/// of dK and dV over the share's tiles of Q, and adds its part of dQ to the sums in HBM.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ KeyGradients<Dh> accumulate(PersistentRings<T, Dh, Br, Bc>& rings,
                                                       const SwizzledTile<T, Bc, Dh>& tile_K,
                                                       const SwizzledTile<T, Bc, Dh>& tile_V,
                                                       Smem<T> dS_stages, Smem<float> dQ_tile,
                                                       const Kept& kept, const QuerySplit& split,
                                                       const Problem& p) {
  using TileS = SwizzledTile<T, Bc, Br>;
  auto& Q = rings.Q;
  auto& dO = rings.dO;
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
      Q_ahead = Q;  // worked out anew: kept, it would take registers that are scarce here
      Q_ahead.at.next();
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

/// dK and dV, and what each tile of keys adds to dQ. grid: as many blocks as SMs; each takes tiles
/// of keys as long as there are any.
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup + kBackwardThreads, 1)
    key_gradients(const __grid_constant__ Maps maps, const __grid_constant__ KeyMaps gradients,
                  const __grid_constant__ Kept kept, const __grid_constant__ KeySums sums,
                  Hbm<int> next, int parts, Problem p) {
  SharedMemory smem;
  PersistentRings<T, Dh, Br, Bc> rings{smem};
  const auto dS_stages = smem.tiles<SwizzledTile<T, Bc, Br>>("dS", kStages);
  const auto dQ_tile = smem.take<float>("dQ", Br * Dh);
  rings.init(smem);

  if (warpgroup_id() == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) produce(rings, maps, kept, next, parts, p);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  auto& K = rings.KV;
  auto V = K;  // of a stage's two slots
  V.slot = 1;
  for (;; K.at.next(), V.at.next()) {
    K.wait();
    const QuerySplit split = of_warp(rings.splits[K.at.stage]);
    if (split.bh < 0) break;
    V.wait();
    auto sum = accumulate(rings, K.tile(), V.tile(), dS_stages, dQ_tile, kept, split, p);
    // Read anew: kept, it would take registers that are scarce there.
    const QuerySplit of = of_warp(rings.splits[K.at.stage]);
    named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K, V and the share

    // Of the tiles of K and V; not kept either, since a shuffle makes it.
    const int warp_row = (uniform(warp_id()) - 4) * 16;
    for_each(sum.dK, [&](int, int, float& x) { x *= p.scale; });
    if (parts > 1) {
      const int64_t at = ((int64_t{of.bh} * kept.tiles + of.tile) * Bc + warp_row) * Dh;
      add_fragments(sums.dK + at, sum.dK);
      add_fragments(sums.dV + at, sum.dV);
      if (threadIdx.x == kWarpgroup) {
        K.set_free();
        V.set_free();
      }
      continue;
    }
    start_stores(K.tile(), V.tile(), sum, warp_row, gradients, of.tile * Bc, of.bh % p.Hk,
                 of.bh / p.Hk);
    if (threadIdx.x == kWarpgroup) {
      tma_store_wait_read<0>();  // dK and dV have left the tiles of K and V
      K.set_free();
      V.set_free();
    }
  }
  if (lane_id() == 0) tma_store_wait_read<0>();  // shared memory must live until then
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  Plan plan = p.d > 128 ? plan_of<wide::kTiles, kHopperHeadDims>(p, device, wide::smem_bytes,
                                                                 wide::kConsumers)
                        : plan_of(p, device, backward_smem_bytes);
  plan.workspace.push_back({"next", 4});
  plan_parts(plan, p, device, request);
  return plan;
}

/// The launches, with the kernel of these heads.
template <class T, int Dh, int Br, int Bc, int kQColumns, int kKeyColumns, class Kernel>
void launch_all(const Problem& p, const Plan& plan, const Arrays& a, Kernel key_gradients) {
  const Kept kept = kept_of(p, plan, a);
  const KeySums sums = key_sums_of(p, plan, kept, a);
  const auto next = hbm<int>(a["next"]);
  const int64_t blocks = std::min<int64_t>(key_tiles(p, kept) * plan.parts, resident_blocks());
  launch("preprocess", preprocess_and_clear<T, Dh>, preprocess_blocks<Dh>(p, kept, sums),
         dim3(kElementwise), 0, hbm<const T>(a["O"]), hbm<const T>(a["dO"]),
         hbm<const float>(a["LSE"]), kept, sums, next, p);
  launch("key_gradients", key_gradients, dim3(blocks), dim3(32 * plan.warps), plan.smem_bytes,
         maps_of<T, Br, Bc>(p, a), key_maps_of<T, Bc>(p, a), kept, sums, next, plan.parts, p);
  launch_postprocess_dQ<T, Dh, Br, kQColumns>(p, kept, a);
  launch_postprocess_keys<T, Dh, Bc, kKeyColumns>(p, plan, kept, sums, a);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  if (plan.head_dim <= 128)
    with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
      launch_all<T, Dh, Br, Bc, Part<Br, Dh>::kColumns, Part<Bc, Dh>::kColumns>(
          p, plan, a, key_gradients<T, Dh, Br, Bc>);
    });
  else
    with_type_and_head_dim<kHopperHeadDims>(p, [&]<class T, int Dh>() {
      if constexpr (Dh > 128)
        launch_all<T, Dh, wide::Br, wide::Bc, wide::kPiece, wide::Sums<Dh>::kColumns>(
            p, plan, a, wide::key_gradients<T, Dh>);
    });
}

/// As before; and a block asks for another share after each that it has had, the last time in vain.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t asked = 4 * plan.parts * ceil_div(p.N_kv, plan.block_kv) * p.B * p.Hk;
  Traffic all = traffic_of(p, plan, true);
  all[0].arrays.push_back({"next", 0, 4});
  all[1].arrays.push_back({"next", asked, asked});
  return all;
}

const Register step{{
    .rung = "06_backward",
    .name = "sm90",
    .after = "split",
    .is_default = kDevice == DeviceKind::gpu,
    .shown = {.idea = "persistent backward",
              .change = {"blocks", "less"},
              .summary = "and blocks that stay for further tiles of keys",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .settings = kSettings,
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
