// 05 on Hopper, step 8: O is rarely rescaled (Zadouri et al. 2026, FlashAttention-4).
//
//   build/bin/05_flash_v2 --step lazy --seqlen 512 --causal
//
//   for each tile of Br rows of Q:
//     m = −∞, l = 0, O = 0
//     for each tile of Bc rows of K and V that one of these rows attends to:
//       S = scale·Q·Kᵀ
//       if one of the warp's rows has rowmax S > m + 8·ln 2:
//         m_new = max(m, rowmax S),   α = exp(m − m_new)
//       else:   m_new = m,   α = 1, so nothing is rescaled
//       P = exp(S − m_new)
//       l ← α·l + rowsum P
//       O ← α·O + P·V
//     O ← O / l,   LSE = m + ln l
//
// Since `counter`: m stays the same while P is at most 2⁸, so that O is rarely rescaled, and the
// lanes of a row compare their maxima only when m is raised. work.h holds the code of `counter`
// that later steps do not change.

#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"
#include "work.h"

namespace ladder::MACHINE {
namespace {

constexpr int kStages = 2;  // stages of Q, of K and of V
// A warp's rows keep their m while no P exceeds 2^kSlack. Any m gives the same O and LSE, as long
// as P and the sums fit in their types.
constexpr float kSlack = 8;
constexpr int kPingPong = 4;  // first named barrier for the consumers' turns

/// Compiled tiles: {largest head size, Br, Bc}. Each consumer has kWarpgroupRows of the Br rows.
constexpr TileSize kTiles[] = {{64, 192, 128}, {128, 128, 128}};

/// Returns a tile's first row.
template <int Br>
__device__ __forceinline__ int row_of(const WorkTile& work, const Problem& p) {
  const int tiles = ceil_div(p.N, Br);
  return (tiles - 1 - work.tile) * Br;  // the last rows attend to the most keys
}

/// Turns S into P relative to the maxima m of the warp's rows, raising m first if P would grow
/// too large, and updates the running sums l. Returns whether m was raised; if so, O has to be
/// rescaled by alpha. S starts at (row, key).
template <int Bc>
__device__ __forceinline__ bool softmax(Accumulator<16, Bc>& S, Rows<16>& m, Rows<16>& l,
                                        Rows<16>& alpha, int row, int key, const Problem& p) {
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)
  if (key + Bc > p.keys(row))
    for_each(S, [&](int i, int j, float& s) {
      if (key + j >= p.keys(row + i)) s = -INFINITY;
    });
  const auto largest = c * row_max_in_lane(S);
  const bool raised = any_above(largest - m, kSlack);
  if (raised) {
    const auto m_new = max(m, max_over_lanes(largest));
    alpha = exp2(m - finite_or_zero(m_new));
    l = alpha * l;
    m = m_new;
  }
  exp2_rows(S, c, finite_or_zero(m));
  l = l + row_sum_in_lane(S);
  return raised;
}

/// Runs a consumer warpgroup: computes O and LSE for its rows in each of the block's tiles of Q.
template <class T, int Dh, int Br, int Bc, class StagesQ, class StagesKV>
__device__ __forceinline__ void consume(StagesQ Q, StagesKV K, StagesKV V, const TensorMap& map_O,
                                        Hbm<float> LSE, Smem<WorkTile> smem_work,
                                        const Problem& p) {
  constexpr int kConsumers = Br / kWarpgroupRows;
  const int consumer = warpgroup_id() - 1;
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  // Consumers take turns issuing products, so that one's softmax overlaps another's products.
  const auto begin_turn = [&] { named_barrier_sync(kPingPong + consumer, 2 * kWarpgroup); };
  const auto end_turn = [&] {
    named_barrier_arrive(kPingPong + (consumer + 1) % kConsumers, 2 * kWarpgroup);
  };
  if (consumer == kConsumers - 1) end_turn();  // gives the first consumer its turn
  Q.slot = consumer;
  if (first_thread) Q.set_free();  // frees stage 0 of Q; stage 1 follows during the first tile

  Accumulator<16, Bc> S;
  Operand<T, 16, Bc> P;
  Accumulator<16, Dh> O_sum;
  const auto start_scores = [&] {  // S = Q·Kᵀ
    wgmma_fence(S);
    wgmma_set_ABt(S, Q.tile(), K.tile());
    wgmma_commit();
  };
  const auto start_output = [&] {  // O += P·V
    V.wait();
    wgmma_fence(O_sum, P);
    wgmma_AB(O_sum, P, V.tile());
    wgmma_commit();
  };

  for (;; Q.next()) {
    Q.wait();
    const WorkTile work = smem_work[Q.number()];
    if (work.head < 0) break;
    const int block_row = row_of<Br>(work, p), kv_tiles = kv_tiles_of<Bc>(block_row + Br, p);
    const int tile_row = block_row + consumer * kWarpgroupRows, row = tile_row + warp_id() % 4 * 16;
    // m is kept in units of ln 2, like the exponents of 2^(c·s). alpha is set before it is used.
    auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0), alpha = m;
    O_sum = {};

    // Prologue: the first tile's S and softmax, which no product of this consumer overlaps.
    K.wait();
    begin_turn();
    start_scores();
    end_turn();
    wgmma_wait<0>(S);
    K.release();
    softmax(S, m, l, alpha, row, 0, p);
    P = as_operand<T>(S);
    if (first_thread) {
      tma_store_wait_read<0>();  // O of the previous tile of Q has left,
      Q.set_last_free();         // so the next one may take its place
    }
    // Main loop: S of a tile and P·V of the previous one, then the tile's softmax.
    for (int kv_tile = 1; kv_tile < kv_tiles; ++kv_tile) {
      K.wait();
      begin_turn();
      start_scores();
      start_output();
      end_turn();
      wgmma_wait<1>(S);  // P·V, committed last, may still run
      K.release();
      // ptxas sinks the exponentials below the wait for P·V; we let it: V's stage is freed sooner,
      // other consumers' products overlap the softmax, and the kernel is 2% faster.
      const bool raised = softmax(S, m, l, alpha, row, kv_tile * Bc, p);
      wgmma_wait<0>(O_sum, P);
      V.release();
      if (raised) mul_rows(O_sum, alpha);  // not earlier: P·V owned these registers until here
      P = as_operand<T>(S);
    }
    // Epilogue: the last tile's P·V; then O and LSE go to HBM.
    start_output();
    wgmma_wait<0>(O_sum, P);
    V.release();
    store_output<T>(Q, O_sum, m, l, map_O, LSE, work.head, tile_row, p);
  }
  if (first_thread) tma_store_wait_read<0>();  // stay until TMA has read shared memory
  if (consumer == 0) begin_turn();             // receives the last consumer's final hand-over
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: one block per SM; whenever a block finishes a tile of
/// Q, it takes the next tile that no block has taken.
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(threads(Br), 1)
    attention(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
              const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_O,
              Hbm<float> LSE, Hbm<int> next, Problem p) {
  using TileQ = SwizzledTile<T, kWarpgroupRows, Dh>;
  using TileKV = SwizzledTile<T, Bc, Dh>;
  constexpr int kConsumers = Br / kWarpgroupRows;
  SharedMemory smem;
  Stages<TileQ, kStages, kConsumers> Q{smem, "Q"};  // one slot per consumer
  Stages<TileKV, kStages> K{smem, "K"}, V{smem, "V"};
  const auto smem_work =
      smem.take<WorkTile>("work", kStages * kConsumers);  // the tile of Q in each slot
  Q.init(smem, "Q_full", "Q_free", 1);
  K.init(smem, "K_full", "K_free", 4 * kConsumers);  // one arrival per consumer warp
  V.init(smem, "V_full", "V_free", 4 * kConsumers);
  if (threadIdx.x == 0) fence_mbarrier_init();  // makes the initialised barriers visible to TMA
  __syncthreads();                              // all threads see them initialised

  if (warpgroup_id() == 0) {
    setmaxnreg_dec<producer_registers(Br)>();
    if (threadIdx.x == 0)
      produce<Br, Bc, row_of<Br>>(
          Q, K, V, {map_Q, map_K, map_V}, smem_work, [&](int) { return take_next(next); }, p);
  } else {
    setmaxnreg_inc<consumer_registers(Br)>();
    consume<T, Dh, Br, Bc>(Q, K, V, map_O, LSE, smem_work, p);
  }
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  return plan_with_counter(p, device, request, kTiles, kStages);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch_with_counter<T>(attention<T, Dh, Br, Bc>, p, plan, a);
  });
}

Traffic traffic(const Problem& p, const Plan& plan) {
  return traffic_with_counter(p, plan, tiles_traffic(p, plan, plan.block_q));
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "lazy",
    .after = "counter",
    .shown = {.idea = "O rarely rescaled",
              .change = {"other_flops", "less"},
              .summary = "and O rescaled only after a maximum has risen a lot",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
