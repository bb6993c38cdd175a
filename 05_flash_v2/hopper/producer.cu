// 05 on Hopper, step 3: warp specialisation (Shah et al. 2024, FlashAttention-3, §3.1).
//
//   build/bin/05_flash_v2 --step producer --seqlen 512 --causal
//
//   for each tile of Br rows of Q, one block each:
//     m = −∞, l = 0, O = 0
//     for each tile of Bc rows of K and V that one of these rows attends to:
//       S = scale·Q·Kᵀ
//       m_new = max(m, rowmax S),   P = exp(S − m_new),   α = exp(m − m_new)
//       l ← α·l + rowsum P
//       O ← α·O + P·V
//     O ← O / l,   LSE = m + ln l
//
// Since `tma`: the warps divide the work. One thread of a producer warpgroup keeps copies in flight
// into rings of stages; two or three consumer warpgroups multiply, and signal when a stage is free
// again. No block-wide barrier is left in the loop. A block has the SM to itself, so its tile is
// larger, and the producer hands registers to the consumers.

#include "bytes.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarpgroupRows = 64;  // rows of Q per consumer, which is a warpgroup
constexpr int kStages = 2;          // stages of K and of V
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
// The consumer that is warpgroup w (from 1 to 3) has the named barrier kWarpgroupBarrier + w.
constexpr int kWarpgroupBarrier = 0;

/// Compiled tiles: {largest head size, Br, Bc}. Each consumer has kWarpgroupRows of the Br rows.
constexpr TileSize kTiles[] = {{64, 192, 128}, {128, 128, 128}};
/// Returns the threads per block: one warpgroup for the producer, and one for each consumer.
constexpr int threads(int Br) {
  return kWarpgroup * (1 + Br / kWarpgroupRows);
}
/// Return the registers per thread of the producer and of a consumer. At the launch all warpgroups
/// get equal numbers: 168 if Br is 128, or 128 if Br is 192. The producer needs few, so it gives up
/// most of its own to the two or three consumers.
constexpr int producer_registers(int Br) {
  return Br == 192 ? 32 : 40;
}
constexpr int consumer_registers(int Br) {
  return Br == 192 ? 160 : 232;
}

int64_t smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // of a tile: whole panels of 64
  const int consumers = Br / kWarpgroupRows;
  return array_bytes<fp16>(Br * columns) + 2 * array_bytes<fp16>(kStages * Bc * columns) +
         2 * array_bytes<Mbarrier>(consumers) + 4 * array_bytes<Mbarrier>(kStages);
}

/// A sequence of the batch, one of its heads of Q, and the head of K and V that this head uses.
struct Head {
  int batch, of_Q, of_KV;
};
__device__ __forceinline__ Head head_of(int bh, const Problem& p) {
  return {bh / p.H, bh % p.H, p.kv_head(bh % p.H)};
}

/// Runs the producer thread: starts the copies of the tiles of Q, K and V.
template <int Br, int Bc, class StagesQ, class StagesKV>
__device__ __forceinline__ void produce(StagesQ& Q, StagesKV& K, StagesKV& V,
                                        const TensorMap& map_Q, const TensorMap& map_K,
                                        const TensorMap& map_V, const Head& head, int block_row,
                                        int kv_tiles) {
  for (int row = block_row; row < block_row + Br; row += kWarpgroupRows)
    Q.fill(map_Q, 0, row, head.of_Q, head.batch);
  for (int kv_tile = 0; kv_tile < kv_tiles; ++kv_tile) {
    K.acquire();
    K.fill(map_K, 0, kv_tile * Bc, head.of_KV, head.batch);
    V.acquire();
    V.fill(map_V, 0, kv_tile * Bc, head.of_KV, head.batch);
  }
}

/// Divides a consumer's rows of O by l and stores O and LSE to HBM. O goes through the consumer's
/// tile of Q, and TMA stores it from there. Each warp overwrites its own rows of Q with O, without
/// a barrier beforehand: we assume that the warp's part of a product reads no other rows of Q, so
/// that a wait for it suffices.
template <class T, class StagesQ, int Dh>
__device__ __forceinline__ void store_output(StagesQ& Q, Accumulator<16, Dh>& O_sum,
                                             const Rows<16>& m, Rows<16>& l, const TensorMap& map_O,
                                             Hbm<float> LSE, int bh, int tile_row,
                                             const Problem& p) {
  const int warp_row = warp_id() % 4 * 16, row = tile_row + warp_row;
  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  write_matrices(Q.tile(), as_operand<T>(O_sum), warp_row);
  fence_proxy_async();  // makes this thread's writes visible to TMA
  named_barrier_sync(kWarpgroupBarrier + warpgroup_id(), kWarpgroup);  // all of the tile is written
  if (threadIdx.x % kWarpgroup == 0) {
    tma_store(map_O, Q.tile(), 0, tile_row, bh % p.H, bh / p.H);
    tma_store_commit();
  }
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
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
  const int keys = p.keys(min(block_row + Br, p.N) - 1);  // that the block's last row attends to
  // The number of tiles of K and V. There is at least one, which may be entirely masked.
  const int kv_tiles = keys > 0 ? static_cast<int>(ceil_div(keys, Bc)) : 1;

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
    return;
  }

  setmaxnreg_inc<consumer_registers(Br)>();  // this warpgroup is a consumer
  const int consumer = warpgroup_id() - 1;
  const int tile_row = block_row + consumer * kWarpgroupRows, row = tile_row + warp_id() % 4 * 16;
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)
  Q.slot = consumer;

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0);
  Accumulator<16, Dh> O_sum;
  Q.wait();
  for (int kv_tile = 0; kv_tile < kv_tiles; ++kv_tile) {
    const int key = kv_tile * Bc;
    K.wait();
    Accumulator<16, Bc> S;
    wgmma_fence(S);
    wgmma_set_ABt(S, Q.tile(), K.tile());
    wgmma_commit();
    wgmma_wait<0>(S);
    K.release();
    if (key + Bc > p.keys(row))
      for_each(S, [&](int i, int j, float& s) {
        if (key + j >= p.keys(row + i)) s = -INFINITY;
      });

    const auto m_new = max(m, c * row_max(S));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    auto& P = S;
    exp2_rows(P, c, shift);
    l = alpha * l + row_sum_in_lane(P);
    m = m_new;
    mul_rows(O_sum, alpha);
    auto P_operand = as_operand<T>(P);  // owned by the product until it is done
    V.wait();
    wgmma_fence(O_sum, P_operand);
    wgmma_AB(O_sum, P_operand, V.tile());
    wgmma_commit();
    wgmma_wait<0>(O_sum, P_operand);
    V.release();
  }

  store_output<T>(Q, O_sum, m, l, map_O, LSE, bh, tile_row, p);
  if (first_thread) tma_store_wait_read<0>();  // stay until TMA has read shared memory
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = kStages};
  choose_tile(plan, kTiles, request, device.smem_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  plan.warps = threads(plan.block_q) / 32;
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const auto map = [&](const char* name, int rows, int heads, int box_rows) {
      return tensor_map<T>(a[name], p.d, rows, heads, p.B, box_rows);
    };
    launch("attention", attention<T, Dh, Br, Bc>, dim3(ceil_div(p.N, Br) * p.B * p.H),
           dim3(threads(Br)), plan.smem_bytes, map("Q", p.N, p.H, kWarpgroupRows),
           map("K", p.N_kv, p.Hk, Bc), map("V", p.N_kv, p.Hk, Bc),
           map("O", p.N, p.H, kWarpgroupRows), hbm<float>(a["LSE"]), p);
  });
}

Traffic traffic(const Problem& p, const Plan& plan) {
  return {{"attention", tiles_traffic(p, plan, plan.block_q)}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "producer",
    .after = "tma",
    .shown = {.idea = "warp specialisation",
              .change = {"consumer_copies", "to 0"},
              .summary = "and one warpgroup that copies, others that compute",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
