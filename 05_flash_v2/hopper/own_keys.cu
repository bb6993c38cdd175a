// 05 on Hopper, step 9: consumers stop at their own last key (this project's own method).
//
//   build/bin/05_flash_v2 --step own_keys --seqlen 512 --causal
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
// Since `lazy`: under the mask a consumer stops at the last key that its own 64 rows attend to, not
// at the block's last key, and skips the tiles that only other consumers need. Tiles of Q are laid
// out from the last row up, so that a partly empty tile is the one with the fewest keys. softmax.h
// holds `lazy`'s softmax.

#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "softmax.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"
#include "work.h"

namespace ladder::MACHINE {
namespace {

constexpr int kStages = 2;    // stages of Q, of K and of V
constexpr int kPingPong = 4;  // first named barrier for the consumers' turns

/// Compiled tiles: {largest head size, Br, Bc}. Each consumer has kWarpgroupRows of the Br rows.
constexpr TileSize kTiles[] = {{64, 192, 128}, {128, 128, 128}};

/// Returns a tile's first row. Tiles are laid out from the last row up, because the last rows
/// attend to the most keys. A tile that extends before row 0, and so leaves some consumers idle, is
/// therefore the one with the fewest keys.
template <int Br>
__device__ __forceinline__ int row_of(const WorkTile& work, const Problem& p) {
  const int end = static_cast<int>(ceil_div(p.N, kWarpgroupRows)) * kWarpgroupRows;
  return end - (work.tile + 1) * Br;
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

  // Frees the previous tile's stage of Q once that tile's O has left.
  const auto free_last_stage = [&] {
    if (!first_thread) return;
    tma_store_wait_read<0>();
    Q.set_last_free();
  };
  // Skips key tiles that only other consumers' rows attend to. The other consumers still need this
  // one's turns and releases:
  //   a tile of keys       K                       turn                   V
  //   own rows attend      wait, S = Q·Kᵀ, release begin, products, end   wait, P·V, release
  //   only others' do      wait, release           begin, end             wait, release
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
    const int block_row = row_of<Br>(work, p), kv_tiles = kv_tiles_of<Bc>(block_row + Br, p);
    const int tile_row = block_row + consumer * kWarpgroupRows, row = tile_row + warp_id() % 4 * 16;
    if (tile_row < 0) {  // all its rows are before row 0: tiles are laid out from the last row up
      free_last_stage();
      skip(kv_tiles);
      continue;
    }
    // m is kept in units of ln 2, like the exponents of 2^(c·s). alpha is set before it is used.
    auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0), alpha = m;
    O_sum = {};

    // Prologue: the first tile's S and softmax, which no product of this consumer overlaps.
    K.wait();
    begin_turn();
    start_scores();
    end_turn();
    // Computed while the product S runs.
    const int own_kv_tiles = kv_tiles_of<Bc>(tile_row + kWarpgroupRows, p);
    wgmma_wait<0>(S);
    K.release();
    softmax(S, m, l, alpha, row, 0, p);
    P = as_operand<T>(S);
    free_last_stage();
    // Main loop: S of a tile and P·V of the previous one, then the tile's softmax.
    for (int kv_tile = 1; kv_tile < own_kv_tiles; ++kv_tile) {
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
    skip(kv_tiles - own_kv_tiles);
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
  return traffic_with_counter(p, plan, tiles_traffic(p, plan, kWarpgroupRows));
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "own_keys",
    .after = "lazy",
    .shown = {.idea = "own keys only",
              .change = {"matmul_flops", "less", "--causal"},
              .summary = "and consumers that stop at the last key that their rows attend to",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
