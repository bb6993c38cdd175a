// 06 on Hopper, step 7: persistent blocks (this project's own method).
//
//   build/bin/06_backward --step sm90 --seqlen 512 --causal
//
//   one block per SM, each:
//     for its first share, and then for each share that a counter in HBM hands out:
//       producer:   copy K and V once a stage is free, and tiles of Q and dO, to their rings
//       consumers:  compute dK, dV and dQ of the share, as in `split`
//
// Since `split`: there is one block per SM, and a counter in HBM gives it one share of the work
// after another, as in 05's `counter`. So the next share's first tile of Q arrives while the
// previous share's dK and dV are written out. If there are two stages of K and V, the next share's
// K, V and dO also arrive during that time. Heads with d > 128 need another key_gradients, which
// wide.h defines.

#include "accumulate.h"
#include "wide.h"

namespace ladder::MACHINE {
namespace {

/// Returns the same share, but tells the compiler that all lanes hold equal numbers. So the
/// compiler keeps them in the warp's uniform registers, because the threads' own are all in use.
__device__ __forceinline__ QuerySplit of_warp(const QuerySplit& s) {
  return {uniform(s.bh),    uniform(s.tile), uniform(s.first_row), uniform(s.tiles_of_head),
          uniform(s.begin), uniform(s.end)};
}

/// Returns the number of stages of K and V: two where they fit in shared memory, so that the next
/// share's K and V arrive early.
constexpr int stages_of_KV(int Dh) {
  return Dh <= 64 ? 2 : 1;
}

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile's rows are at least 64 columns wide
  return array_bytes<fp16>(2 * stages_of_KV(Dh) * Bc * columns) +
         2 * array_bytes<fp16>(kStages * Br * columns) + array_bytes<fp16>(kStages * Bc * Br) +
         array_bytes<float>(Br * Dh) + 2 * array_bytes<float>(kStages * Br) +
         array_bytes<QuerySplit>(stages_of_KV(Dh)) +
         2 * array_bytes<Mbarrier>(2 * stages_of_KV(Dh)) + 4 * array_bytes<Mbarrier>(kStages);
}

/// Does the same work as in split.cu, and sets the counter `next` to 0: the number of times that
/// blocks of key_gradients have asked for another share.
template <class T, int Dh>
__global__ void preprocess_and_clear(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                                     Kept kept, KeySums sums, Hbm<int> next, Problem p) {
  constexpr int kLanes = lanes_of(Dh);
  const int64_t chunk = int64_t{blockIdx.x} * kElementwise + threadIdx.x, at = chunk / kLanes;
  clear(sums, chunk);
  if (at >= int64_t{p.B} * p.H * kept.rows) return;  // true for all of a block's threads or none
  if (blockIdx.x == 0 && threadIdx.x == 0) next[0] = 0;
  preprocess_row<kLanes, Dh>(at, O, dO, LSE, kept, p);
}

/// Like Rings in backward.h, except that K and V form a ring, too: each stage is a slot for K and
/// one for V. splits[i] is the share of the work whose K and V are in stage i of that ring.
template <class T, int Dh, int Br, int Bc>
struct PersistentRings {
  Stages<SwizzledTile<T, Bc, Dh>, stages_of_KV(Dh), 2> KV;
  StagesWithRows<SwizzledTile<T, Br, Dh>, kStages, Br> Q, dO;
  Smem<QuerySplit> splits;

  __device__ __forceinline__ explicit PersistentRings(SharedMemory& smem)
      : KV{smem, "KV"}, Q{smem, "Q"}, dO{smem, "dO"} {}
  __device__ __forceinline__ void init(SharedMemory& smem) {
    constexpr int kReleases = 4 * kConsumersBackward;  // one arrival per consumer warp
    Q.init(smem, "LSE_log2e", "Q_full", "Q_free", kReleases);
    dO.init(smem, "minus_delta", "dO_full", "dO_free", kReleases);
    splits = smem.take<QuerySplit>("split", stages_of_KV(Dh));
    KV.init(smem, "KV_full", "KV_free", 1);
    if (threadIdx.x == 0) fence_mbarrier_init();  // makes the initialised barriers visible to TMA
    __syncthreads();                              // all threads see them initialised
  }
};

/// Runs the producer thread: for share blockIdx.x and then for each share that the counter `next`
/// gives, starts the copies of K and V, and of the share's tiles of Q and dO, into their rings.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ void produce(PersistentRings<T, Dh, Br, Bc> rings, const Maps& maps,
                                        const Kept& kept, Hbm<int> next, int parts,
                                        const Problem& p) {
  auto& [KV, Q, dO, splits] = rings;
  int index = blockIdx.x;
  while (index < kept.tiles * p.B * p.Hk * parts) {
    const auto split = query_split<Br, Bc>(index, kept.tiles, parts, gridDim.x, p);
    int head = head_of(split, p), row = row_of<Br>(split);
#pragma unroll 1  // this loop mostly waits; unrolled, it would make up a fifth of the code
    for (int q_tile = split.begin; q_tile < split.end; ++q_tile) {
      const int64_t at = int64_t{head} * kept.rows + row;
      Q.acquire();
      Q.fill(maps.Q, 0, row, head % p.H, head / p.H, kept.LSE_log2e + at);
      if (q_tile == split.begin) {
        KV.acquire();  // dK has left K's tile, and all consumers have read the stage's share
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
    index = uniform(gridDim.x + atomicAdd(next, 1), kFirstLane);
  }
  KV.acquire();
  splits[KV.at.stage] = QuerySplit{.bh = -1};  // tells the consumers to stop
  KV.signal_end();
}

/// Computes dK and dV, and adds each share's part of dQ to the sums in HBM. grid: one block per SM;
/// each takes shares of the work until none is left.
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
  auto V = K;  // the same ring, but the second slot of each stage
  V.slot = 1;
  for (;; K.at.next(), V.at.next()) {
    K.wait();
    const QuerySplit split = of_warp(rings.splits[K.at.stage]);
    if (split.bh < 0) break;
    V.wait();
    auto sum = accumulate<Br, true>(rings.Q, rings.dO, K.tile(), V.tile(), dS_stages, dQ_tile, kept,
                                    split, p);
    // The share is read a second time, because keeping it during accumulate() would take registers
    // that are scarce there.
    const QuerySplit of = of_warp(rings.splits[K.at.stage]);
    named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K, V and the share

    // The warp's first row in the tiles of K and V. Because of uniform(), no register of a thread
    // has to hold it during accumulate().
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
  if (lane_id() == 0) tma_store_wait_read<0>();  // stay until TMA has read shared memory
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  Plan plan =
      p.d > 128 ? plan_of<wide::kTiles, kAllHeadDims>(p, device, wide::smem_bytes, wide::kConsumers)
                : plan_of(p, device, backward_smem_bytes);
  plan.workspace.push_back({"next", 4});
  plan_parts(plan, p, device, request);
  return plan;
}

/// Launches all kernels. Parts of tiles have kQColumns columns in dQ, kKeyColumns in dK and dV.
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
    with_type_and_head_dim<kAllHeadDims>(p, [&]<class T, int Dh>() {
      if constexpr (Dh > 128)
        launch_all<T, Dh, wide::Br, wide::Bc, wide::kPiece, wide::Sums<Dh>::kColumns>(
            p, plan, a, wide::key_gradients<T, Dh>);
    });
}

/// Predicts the requested bytes: `split`'s bytes, plus the counter's, because a block adds 1 to the
/// counter after each share to ask for the next one.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t asked = 4 * plan.parts * ceil_div(p.N_kv, plan.block_kv) * p.B * p.Hk;
  Traffic all = traffic_of(p, plan, bytes_of_tiles(p, plan));
  add_traffic_of_parts(all, p, plan);
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
              .summary = "and blocks that take one tile of keys after another",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .settings = kSettings,
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
