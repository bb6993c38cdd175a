// 05 on Hopper, step 4: the softmax overlaps a product (Shah et al. 2024, FlashAttention-3, §3.2,
// Algorithm 2).
//
//   build/bin/05_flash_v2 --step overlap --seqlen 512 --causal
//
//   for each tile of Br rows of Q, one block each:
//     O = 0
//     for the first tile of Bc rows of K:  S = scale·Q·Kᵀ,   m = rowmax S,   P = exp(S − m),
//                                          l = rowsum P
//     for each further tile of K and V that one of these rows attends to:
//       start S = scale·Q·Kᵀ
//       start O ← O + P·V of the previous tile
//       when S is done:   m_new = max(m, rowmax S),   P_new = exp(S − m_new),   α = exp(m − m_new)
//                         l ← α·l + rowsum P_new
//       when O is done:   O ← α·O,   P = P_new
//     O ← O + P·V of the last tile
//     O ← O / l,   LSE = m + ln l
//
// Since `producer`: the product P·V of one tile runs while the consumer computes the softmax of the
// next tile. So the consumer starts the next S before this P·V, and waits for P·V only after the
// softmax. From here on the consumer is a function, and block.h holds the kernel and host code that
// later steps do not change.

#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr int kStages = 2;  // stages of K and of V

/// Compiled tiles: {largest head size, Br, Bc}. Each consumer has kWarpgroupRows of the Br rows.
constexpr TileSize kTiles[] = {{64, 192, 128}, {128, 128, 128}};

int64_t smem_bytes(int Dh, int Br, int Bc) {
  return stages_bytes(Dh, Br, Bc, 1, kStages);
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

/// Runs a consumer warpgroup: computes O and LSE for its rows in the block's tile of Q.
template <class T, int Dh, int Br, int Bc, class StagesQ, class StagesKV>
__device__ __forceinline__ void consume(StagesQ& Q, StagesKV& K, StagesKV& V,
                                        const TensorMap& map_O, Hbm<float> LSE, int bh,
                                        int block_row, int kv_tiles, const Problem& p) {
  const int consumer = warpgroup_id() - 1;
  const int tile_row = block_row + consumer * kWarpgroupRows, row = tile_row + warp_id() % 4 * 16;
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  Q.slot = consumer;

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
  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0);

  // Prologue: the first tile's S and softmax, which no product of this consumer overlaps.
  Q.wait();
  K.wait();
  start_scores();
  wgmma_wait<0>(S);
  K.release();
  softmax(S, m, l, row, 0, p);
  P = as_operand<T>(S);
  // Main loop: a tile's softmax overlaps the product P·V of the previous tile.
  for (int kv_tile = 1; kv_tile < kv_tiles; ++kv_tile) {
    K.wait();
    start_scores();
    start_output();
    wgmma_wait<1>(S);  // P·V, committed last, may still run
    K.release();
    const auto alpha = softmax(S, m, l, row, kv_tile * Bc, p);
    scheduling_barrier();  // otherwise ptxas sinks the softmax below the wait for P·V
    wgmma_wait<0>(O_sum, P);
    V.release();
    mul_rows(O_sum, alpha);  // not earlier: P·V owned these registers until here
    P = as_operand<T>(S);
  }
  // Epilogue: the last tile's P·V; then O and LSE go to HBM.
  start_output();
  wgmma_wait<0>(O_sum, P);
  V.release();

  store_output<T>(Q, O_sum, m, l, map_O, LSE, bh, tile_row, p);
  if (first_thread) tma_store_wait_read<0>();  // stay until TMA has read shared memory
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (tiles of Q · B·H).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(threads(Br), 1)
    attention(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
              const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_O,
              Hbm<float> LSE, Problem p) {
  using TileQ = SwizzledTile<T, kWarpgroupRows, Dh>;
  using TileKV = SwizzledTile<T, Bc, Dh>;
  constexpr int kConsumers = Br / kWarpgroupRows;
  const int tiles = ceil_div(p.N, Br);
  const auto [bh, tile] = longest_first(blockIdx.x, {.heads = p.B * p.H,
                                                     .tiles = tiles,
                                                     .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                                                     .uneven = p.causal});
  const int block_row = (tiles - 1 - tile) * Br;  // the last rows attend to the most keys
  const Head head = head_of(bh, p);
  const int kv_tiles = kv_tiles_of<Bc>(block_row + Br, p);

  SharedMemory smem;
  Stages<TileQ, 1, kConsumers> Q{smem, "Q"};  // one slot per consumer
  Stages<TileKV, kStages> K{smem, "K"}, V{smem, "V"};
  Q.init(smem, "Q_full", "Q_free", 1);
  K.init(smem, "K_full", "K_free", 4 * kConsumers);  // one arrival per consumer warp
  V.init(smem, "V_full", "V_free", 4 * kConsumers);
  if (threadIdx.x == 0) fence_mbarrier_init();  // makes the initialised barriers visible to TMA
  __syncthreads();                              // all threads see them initialised

  if (warpgroup_id() == 0) {
    setmaxnreg_dec<producer_registers(Br)>();
    if (threadIdx.x == 0) produce<Br, Bc>(Q, K, V, map_Q, map_K, map_V, head, block_row, kv_tiles);
  } else {
    setmaxnreg_inc<consumer_registers(Br)>();
    consume<T, Dh, Br, Bc>(Q, K, V, map_O, LSE, bh, block_row, kv_tiles, p);
  }
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  return plan_of(p, device, request, kTiles, kStages, smem_bytes);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const auto [map_Q, map_K, map_V, map_O] = maps_of<T>(p, a, Bc);
    launch("attention", attention<T, Dh, Br, Bc>, dim3(ceil_div(p.N, Br) * p.B * p.H),
           dim3(threads(Br)), plan.smem_bytes, map_Q, map_K, map_V, map_O, hbm<float>(a["LSE"]), p);
  });
}

Traffic traffic(const Problem& p, const Plan& plan) {
  return {{"attention", tiles_traffic(p, plan, plan.block_q)}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "overlap",
    .after = "producer",
    .shown = {.idea = "softmax overlaps PV",
              .change = {"exps_under_products", "from 0"},
              .summary = "and a softmax that overlaps the previous tile's product",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
