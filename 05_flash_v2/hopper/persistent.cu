// 05 on Hopper, step 6: persistent blocks, as in FlashAttention-3.
//
//   build/bin/05_flash_v2 --step persistent --seqlen 512 --causal
//
//   for each tile of Br rows of Q:
//     m = −∞, l = 0, O = 0
//     for each tile of Bc rows of K and V that one of these rows attends to:
//       S = scale·Q·Kᵀ
//       m_new = max(m, rowmax S),   P = exp(S − m_new),   α = exp(m − m_new)
//       l ← α·l + rowsum P
//       O ← α·O + P·V
//     O ← O / l,   LSE = m + ln l
//
// Since `ping_pong`: there is one block per SM, and block b takes tiles b, b + gridDim.x, … of Q.
// Q's tiles pass through a ring of two stages, and O leaves through the same ring. So the next tile
// of Q is fetched, and the previous tile's O is stored, while the consumers compute the current
// tile. scheduling_barrier() is gone: without it ptxas sinks exponentials below the wait for P·V,
// and that order is faster here.

#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr int kStages = 2;    // stages of Q, of K and of V
constexpr int kPingPong = 4;  // first named barrier for the consumers' turns

/// Compiled tiles: {largest head size, Br, Bc}. Each consumer has kWarpgroupRows of the Br rows.
constexpr TileSize kTiles[] = {{64, 192, 128}, {128, 128, 128}};

int64_t smem_bytes(int Dh, int Br, int Bc) {
  return stages_bytes(Dh, Br, Bc, kStages, kStages) +
         array_bytes<WorkTile>(kStages * Br / kWarpgroupRows);
}

/// Returns a tile's first row.
template <int Br>
__device__ __forceinline__ int row_of(const WorkTile& work, const Problem& p) {
  const int tiles = ceil_div(p.N, Br);
  return (tiles - 1 - work.tile) * Br;  // the last rows attend to the most keys
}

/// Runs the producer thread: starts the copies of the block's tiles of Q and, for each of these, of
/// its tiles of K and V.
template <int Br, int Bc, class StagesQ, class StagesKV>
__device__ __forceinline__ void produce(StagesQ Q, StagesKV K, StagesKV V, const TensorMap& map_Q,
                                        const TensorMap& map_K, const TensorMap& map_V,
                                        Smem<WorkTile> smem_work, const Problem& p) {
  // Sends a tile of Q with its number and head, so that the consumers need no divisions. A negative
  // head, sent after the last tile, ends the consumers' loops.
  const auto send = [&](const WorkTile& work) {
    for (int row = 0; row < Br; row += kWarpgroupRows) {
      Q.acquire_freed();  // waits until the slot's consumer frees it, even in the first round
      smem_work[Q.number()] = work;
      if (work.head >= 0)
        Q.fill(map_Q, 0, row_of<Br>(work, p) + row, work.head % p.H, work.head / p.H);
      else
        Q.signal_end();
    }
  };
  // Compared with `large_tiles`, half the blocks run at once. So a group of heads (longest_first)
  // needs only half the default bytes, and requests to HBM at its start come in smaller bursts.
  const WorkList all{.heads = p.B * p.H,
                     .tiles = static_cast<int>(ceil_div(p.N, Br)),
                     .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                     .uneven = p.causal,
                     .group_bytes = 8 << 20};
  for (int index = blockIdx.x; index < all.heads * all.tiles; index += gridDim.x) {
    const WorkTile work = longest_first(index, all);
    send(work);
    const int batch = work.head / p.H, head_kv = p.kv_head(work.head % p.H);
    const int kv_tiles = kv_tiles_of<Bc>(row_of<Br>(work, p) + Br, p);
    for (int kv_tile = 0; kv_tile < kv_tiles; ++kv_tile) {
      K.acquire();
      K.fill(map_K, 0, kv_tile * Bc, head_kv, batch);
      V.acquire();
      V.fill(map_V, 0, kv_tile * Bc, head_kv, batch);
    }
  }
  send({-1, -1});
}

/// Turns S into P, and updates the running maxima m and sums l of the warp's rows. Returns α, the
/// factors that rescale O. S starts at (row, key).
template <int Bc>
__device__ __forceinline__ Rows<16> softmax(Accumulator<16, Bc>& S, Rows<16>& m, Rows<16>& l,
                                            int row, int key, const Problem& p) {
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)
  if (key + Bc > p.keys(row))
    for_each(S, [&](int i, int j, float& s) {
      if (key + j >= p.keys(row + i)) s = -INFINITY;
    });
  const auto m_new = max(m, c * row_max(S));
  const auto shift = finite_or_zero(m_new);
  const auto alpha = exp2(m - shift);
  exp2_rows(S, c, shift);
  l = alpha * l + row_sum_in_lane(S);
  m = m_new;
  return alpha;
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
    // m is kept in units of ln 2, like the exponents of 2^(c·s).
    auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0);
    O_sum = {};

    // Prologue: the first tile's S and softmax, which no product of this consumer overlaps.
    K.wait();
    begin_turn();
    start_scores();
    end_turn();
    wgmma_wait<0>(S);
    K.release();
    softmax(S, m, l, row, 0, p);
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
      const auto alpha = softmax(S, m, l, row, kv_tile * Bc, p);
      wgmma_wait<0>(O_sum, P);
      V.release();
      mul_rows(O_sum, alpha);  // not earlier: P·V owned these registers until here
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

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: one block per SM; each takes every gridDim.x-th tile of
/// Q.
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(threads(Br), 1)
    attention(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
              const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_O,
              Hbm<float> LSE, Problem p) {
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
    if (threadIdx.x == 0) produce<Br, Bc>(Q, K, V, map_Q, map_K, map_V, smem_work, p);
  } else {
    setmaxnreg_inc<consumer_registers(Br)>();
    consume<T, Dh, Br, Bc>(Q, K, V, map_O, LSE, smem_work, p);
  }
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  return plan_of(p, device, request, kTiles, kStages, smem_bytes);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const auto [map_Q, map_K, map_V, map_O] = maps_of<T>(p, a, Bc);
    const int64_t works = ceil_div(p.N, Br) * p.B * p.H;
    launch("attention", attention<T, Dh, Br, Bc>, dim3(std::min<int64_t>(works, resident_blocks())),
           dim3(threads(Br)), plan.smem_bytes, map_Q, map_K, map_V, map_O, hbm<float>(a["LSE"]), p);
  });
}

Traffic traffic(const Problem& p, const Plan& plan) {
  return {{"attention", tiles_traffic(p, plan, plan.block_q)}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "persistent",
    .after = "ping_pong",
    .shown = {.idea = "persistent blocks",
              .change = {"blocks", "less"},
              .summary = "and blocks that stay for several tiles of Q",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
