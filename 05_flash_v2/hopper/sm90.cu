// 05 on Hopper, step 11: the problem's shape determines the tile and how many blocks share it (this
// project's own method).
//
//   build/bin/05_flash_v2 --step sm90 --seqlen 512 --causal
//
//   for each tile of Br rows of Q:
//     m = −∞, l = 0, O = 0
//     for each tile of Bc rows of K and V that one of a consumer's 64 rows attends to:
//       S = scale·Q·Kᵀ
//       if one of the warp's rows has rowmax S > m + 8·ln 2:
//         m_new = max(m, rowmax S),   α = exp(m − m_new)
//       else:   m_new = m,   α = 1, so nothing is rescaled
//       P = exp(S − m_new)
//       l ← α·l + rowsum P
//       O ← α·O + P·V
//     O ← O / l,   LSE = m + ln l
//
// Since `q_registers`: no single tile suits all shapes. tiles.h has twelve tiles, some of them for
// wide heads, few rows or few keys, and estimates which is fastest. The choice changes the kernel:
//
//   64 rows, one consumer     two or three blocks share an SM; consumers do not wait for turns
//   heads above 128           one stage of Q, reused only after O has been stored from it
//   few tiles of Q            blocks share a tile's keys (kSplit); ../parts.h merges their results
//   equal tiles, 1 block/SM   a block takes every gridDim.x-th tile, without a counter
//
// The mask is applied per row, which takes fewer instructions (softmax.h).

#include "block.h"
#include "machine/hopper.h"
#include "parts.h"
#include "rung.h"
#include "softmax.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"
#include "tiles.h"
#include "work.h"

namespace ladder::MACHINE {
namespace {

constexpr int kPingPong = 4;  // first named barrier for the consumers' turns

/// Returns whether a consumer keeps Q in registers. Narrower heads have tiles of three consumers,
/// so a thread has too few registers to hold Q; for wider heads, O takes too many registers.
constexpr bool q_in_registers(int Dh) {
  return Dh == 128;
}

/// Waits until S is complete; up to `groups` later products may still run. If Q is kept in
/// registers, the product also owns Q's registers until it completes.
template <int groups, class T, int Dh, int Bc>
__device__ __forceinline__ void wait_for_scores(Accumulator<16, Bc>& S,
                                                Operand<T, 16, Dh>& Q_rows) {
  if constexpr (q_in_registers(Dh))
    wgmma_wait<groups>(S, Q_rows);
  else
    wgmma_wait<groups>(S);
}

/// Runs a consumer warpgroup: computes O and LSE for its rows in each of the block's tiles of Q. A
/// stage of Q is free once the O of its tile has left through it. With two stages the previous
/// tile's stage is freed early in this tile, so that the next tile of Q arrives during this one.
/// With one stage, this tile's own stage is freed at the end of the tile.
template <class T, int Dh, int Br, int Bc, bool kSplit, class StagesQ, class StagesKV>
__device__ __forceinline__ void consume(StagesQ Q, StagesKV K, StagesKV V, const TensorMap& map_O,
                                        Hbm<float> LSE, Smem<WorkTile> smem_work,
                                        const Parts& parts, const Problem& p) {
  constexpr int kConsumers = Br / kWarpgroupRows;
  constexpr bool kTwoStages = stages_of_Q(Dh) == 2;  // the next tile of Q arrives during this one
  const int consumer = warpgroup_id() - 1;
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  // Consumers take turns issuing products, so that one's softmax overlaps another's products.
  const auto begin_turn = [&] {
    if (kConsumers > 1) named_barrier_sync(kPingPong + consumer, 2 * kWarpgroup);
  };
  const auto end_turn = [&] {
    if (kConsumers > 1)
      named_barrier_arrive(kPingPong + (consumer + 1) % kConsumers, 2 * kWarpgroup);
  };
  if (consumer == kConsumers - 1) end_turn();  // gives the first consumer its turn
  Q.slot = consumer;
  if (first_thread) Q.set_free();  // frees stage 0 of Q; stage 1, if any, follows in the first tile

  Accumulator<16, Bc> S;
  Operand<T, 16, Bc> P;
  Accumulator<16, Dh> O_sum;
  Operand<T, 16, Dh> Q_rows;       // used if Q is kept in registers
  const auto start_scores = [&] {  // S = Q·Kᵀ
    if constexpr (q_in_registers(Dh)) {
      wgmma_fence(S, Q_rows);
      wgmma_set_ABt(S, Q_rows, K.tile());
    } else {
      wgmma_fence(S);
      wgmma_set_ABt(S, Q.tile(), K.tile());
    }
    wgmma_commit();
  };
  const auto start_output = [&] {  // O += P·V
    V.wait();
    wgmma_fence(O_sum, P);
    wgmma_AB(O_sum, P, V.tile());
    wgmma_commit();
  };
  const auto free_stage = [&] {
    if (!first_thread) return;
    tma_store_wait_read<0>();
    Q.set_last_free();
  };
  const auto free_last_tiles = [&] {
    if (kTwoStages) free_stage();
  };
  const auto free_this_tiles = [&] {
    if (!kTwoStages) free_stage();
  };
  // Skips key tiles of other consumers' rows, but takes this consumer's turns and releases stages.
  const auto skip = [&](int kv_tiles) {
    for (int kv_tile = 0; kv_tile < kv_tiles; ++kv_tile) {
      // Without a wait, the release would be counted towards an earlier tile that other consumers
      // may still be reading. (For K the turns already prevent this.)
      K.wait();
      begin_turn();
      end_turn();
      K.release();
      V.wait();
      V.release();
    }
  };
  for (;; Q.next()) {
    Q.wait();
    const WorkTile work = smem_work[Q.number()];
    if (work.head < 0) break;
    const int block_row = row_from_end<Br>(work, p);
    const auto [begin, end] = key_tiles_of_split<kSplit>(kv_tiles_of<Bc>(block_row + Br, p));
    const int tile_row = block_row + consumer * kWarpgroupRows, row = tile_row + warp_id() % 4 * 16;
    if (tile_row < 0) {  // all its rows are before row 0: tiles are laid out from the last row up
      free_last_tiles();
      skip(end - begin);
      free_this_tiles();  // after skip()'s turns all warps have read `work`
      continue;
    }
    // m is kept in units of ln 2, like the exponents of 2^(c·s). alpha is set before it is used.
    auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0), alpha = m;
    O_sum = {};
    // Prologue: the first tile's S and softmax, which no product of this consumer overlaps.
    if constexpr (q_in_registers(Dh)) load(Q_rows, Q.tile(), warp_id() % 4 * 16);
    K.wait();
    begin_turn();
    start_scores();
    end_turn();
    // own_end is computed while S = Q·Kᵀ runs. If kSplit, each consumer goes through all tiles of
    // the block's part, even if its own rows attend to none: merge reads m, l and O of every row.
    const int own_end = kSplit ? end : kv_tiles_of<Bc>(tile_row + kWarpgroupRows, p);
    wait_for_scores<0>(S, Q_rows);
    K.release();
    softmax<Mask::by_row>(S, m, l, alpha, row, begin * Bc, p);
    P = as_operand<T>(S);
    free_last_tiles();
    // Main loop: S of a tile and P·V of the previous one, then the tile's softmax.
    for (int kv_tile = begin + 1; kv_tile < own_end; ++kv_tile) {
      K.wait();
      begin_turn();
      start_scores();
      start_output();
      end_turn();
      wait_for_scores<1>(S, Q_rows);  // P·V, committed last, may still run
      K.release();
      // ptxas sinks the exponentials below the wait for P·V; we let it: V's stage is freed sooner,
      // other consumers' products overlap the softmax, and the kernel is 2% faster.
      const bool raised = softmax<Mask::by_row>(S, m, l, alpha, row, kv_tile * Bc, p);
      wgmma_wait<0>(O_sum, P);
      V.release();
      if (raised) mul_rows(O_sum, alpha);  // not earlier: P·V owned these registers until here
      P = as_operand<T>(S);
    }
    // Epilogue: the last tile's P·V; then O and LSE go to HBM.
    start_output();
    wgmma_wait<0>(O_sum, P);
    V.release();
    skip(end - own_end);
    if constexpr (kSplit)
      store_part(O_sum, m, l, parts, work.head, row, p);
    else  // with Q in registers, too few remain for stmatrix's addresses
      store_output<T, !q_in_registers(Dh)>(Q, O_sum, m, l, map_O, LSE, work.head, tile_row, p);
    free_this_tiles();
  }
  if (first_thread) tma_store_wait_read<0>();  // stay until TMA has read shared memory
  if (consumer == 0) begin_turn();             // receives the last consumer's final hand-over
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. If kSplit, stores m, l and the unnormalised O of one part of
/// the keys instead. Grid without kSplit: as many blocks as run at once. Each takes one tile of Q
/// after another: if `ask`, the counter's next tile, otherwise every gridDim.x-th tile. Grid with
/// kSplit: (tiles of Q · B·H, parts); each block computes one part of one tile.
template <class T, int Dh, int Br, int Bc, bool kSplit>
__global__ void __launch_bounds__(threads(Br), blocks_of_SM(Dh, Br, Bc))
    attention(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
              const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_O,
              Hbm<float> LSE, Hbm<int> next, bool ask, Parts parts, Problem p) {
  using TileQ = SwizzledTile<T, kWarpgroupRows, Dh>;
  using TileKV = SwizzledTile<T, Bc, Dh>;
  constexpr int kConsumers = Br / kWarpgroupRows, kStages = stages_of_Q(Dh);
  if constexpr (kSplit) let_next_kernel_start();  // merge starts early, but waits for this kernel
  SharedMemory smem;
  Stages<TileQ, kStages, kConsumers> Q{smem, "Q"};  // one slot per consumer
  Stages<TileKV, stages_of_KV(Dh, Bc)> K{smem, "K"}, V{smem, "V"};
  const auto smem_work =
      smem.take<WorkTile>("work", kStages * kConsumers);  // the tile of Q in each slot
  Q.init(smem, "Q_full", "Q_free", 1);
  K.init(smem, "K_full", "K_free", 4 * kConsumers);  // one arrival per consumer warp
  V.init(smem, "V_full", "V_free", 4 * kConsumers);
  if (threadIdx.x == 0) fence_mbarrier_init();  // makes the initialised barriers visible to TMA
  __syncthreads();                              // all threads see them initialised

  if (warpgroup_id() == 0) {
    setmaxnreg_dec<producer_registers_of_tile(Dh, Br, Bc)>();
    if (threadIdx.x == 0)
      produce<Br, Bc, row_from_end<Br>, key_tiles_of_split<kSplit>>(
          Q, K, V, {map_Q, map_K, map_V}, smem_work,
          [&](int index) -> int { return ask ? take_next(next) : index + gridDim.x; }, p);
  } else {
    setmaxnreg_inc<consumer_registers_of_tile(Dh, Br, Bc)>();
    consume<T, Dh, Br, Bc, kSplit>(Q, K, V, map_O, LSE, smem_work, parts, p);
  }
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  Plan plan = plan_by_time(p, device, request);
  if (plan.parts > 1)
    plan.workspace = workspace_of_parts(p, plan.parts);
  else if (!in_turn(p, plan, device))
    plan.workspace = {{"next", 4}};
  return plan;
}
/// Returns whether blocks take tiles of Q from a counter, which is then in the plan's workspace.
bool asks(const Plan& plan) {
  return std::ranges::any_of(plan.workspace, [](const auto& a) { return a.name == "next"; });
}

/// Launches the attention kernel. `next` is the counter, if there is one.
template <class T, int Dh, int Br, int Bc, bool kSplit, Start when = Start::after>
void start(dim3 grid, Hbm<int> next, const Problem& p, const Plan& plan, const Arrays& a) {
  const auto [map_Q, map_K, map_V, map_O] = maps_of<T>(p, a, Bc);
  launch<when>("attention", attention<T, Dh, Br, Bc, kSplit>, grid, dim3(threads(Br)),
               plan.smem_bytes, map_Q, map_K, map_V, map_O, hbm<float>(a["LSE"]), next, asks(plan),
               kSplit ? parts_in(a) : Parts{}, p);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles, kAllHeadDims>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const int64_t works = ceil_div(p.N, Br) * p.B * p.H;
    if constexpr (may_split(Dh, Br))
      if (plan.parts > 1) {
        start<T, Dh, Br, Bc, true>(dim3(works, plan.parts), {}, p, plan, a);
        return merge_parts<T, Dh>(p, plan.parts, a);
      }
    const dim3 grid(std::min<int64_t>(works, blocks_of_SM(Dh, Br, Bc) * resident_blocks()));
    if (!asks(plan)) return start<T, Dh, Br, Bc, false>(grid, {}, p, plan, a);
    const auto next = hbm<int>(a["next"]);
    launch("clear", clear, dim3(1), dim3(1), 0, next);
    start<T, Dh, Br, Bc, false, Start::early>(grid, next, p, plan, a);
  });
}

/// Predicts the requested bytes, with those of the counter or of the merge, if any.
Traffic traffic(const Problem& p, const Plan& plan) {
  std::vector<ArrayTraffic> arrays = tiles_traffic(p, plan, kWarpgroupRows);
  if (plan.parts > 1) return traffic_of_parts(p, plan, arrays);
  if (!asks(plan)) return {{"attention", arrays}};
  return traffic_with_counter(p, plan, arrays);
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "sm90",
    .after = "q_registers",
    .is_default = kDevice == DeviceKind::gpu,
    .shown = {.idea = "tiles by shape",
              .change = {"matmul_flops", "less", "--head-dim 96"},
              .summary = "and the tile, and the blocks that share it, chosen by the shape",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .settings = kSettings,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
