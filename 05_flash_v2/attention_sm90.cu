// 05 on Hopper: the algorithm of attention.cu, unchanged, on the asynchronous engines of sm_90a
// (Shah et al. 2024, FlashAttention-3).
//
//   for each tile of Br rows of Q, one block each:
//     m = −∞, l = 0, O = 0
//     for each tile of Bc rows of K and V:
//       S = scale·Q·Kᵀ
//       m_new = max(m, rowmax S),   P = exp(S − m_new),   α = exp(m − m_new)
//       l ← α·l + rowsum P
//       O ← α·O + P·V
//     O ← O / l,   LSE = m + ln l
//
// Since `mma`: the warps no longer all do the same. One thread of a producer warpgroup keeps copies
// of K and V tiles under way, by the copy engine, into a ring of stages; two consumer warpgroups of
// 64 rows each multiply them, straight from shared memory, and say when a stage is free again. Both
// sides wait on barriers of their own in shared memory and never for the whole block.

#include <cfloat>

#include "machine/hopper.h"
#include "rung.h"
#include "tile/hopper.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

constexpr int kConsumers = 2;  // warpgroups, beside the producer
constexpr int kRows = 64;      // rows of Q of a consumer
constexpr int kThreads = kWarpgroup * (1 + kConsumers);
constexpr int kStages = 2;
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

/// Compiled tiles (Br, Bc) for d padded to D.
std::vector<std::pair<int, int>> tiles(int D) {
  return {{kConsumers * kRows, D == 256 ? 64 : 128}};
}
int64_t smem_bytes(int D, int Br, int Bc) {
  const int columns = std::max(D, 64);  // of a tile, whose panels have 64
  return shared_bytes<fp16>(Br * columns) + 2 * shared_bytes<fp16>(kStages * Bc * columns) +
         shared_bytes<Mbarrier>(1) + 4 * shared_bytes<Mbarrier>(kStages);
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (B·H, tiles of Q).
template <class T, int D, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, 1)
    attention(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
              const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O,
              Hbm<float> LSE, Problem p) {
  using TileQ = SwizzledTile<T, kRows, D>;
  using TileKV = SwizzledTile<T, Bc, D>;
  const int64_t bh = blockIdx.x;
  const int batch = blockIdx.x / p.H, head = blockIdx.x % p.H, head_kv = head * p.Hk / p.H;
  const int block_row = (gridDim.y - 1 - blockIdx.y) * Br;  // the last rows see the most keys
  const int keys = p.keys(min(block_row + Br, p.N) - 1);    // that the block's last row sees

  SharedMemory smem;
  const auto smem_Q = smem.take<T>("Q", kConsumers * TileQ::kElements);
  const auto smem_K = smem.take<T>("K", kStages * TileKV::kElements);
  const auto smem_V = smem.take<T>("V", kStages * TileKV::kElements);
  const auto Q_full = smem.take<Mbarrier>("Q_full", 1);
  const auto K_full = smem.take<Mbarrier>("K_full", kStages);
  const auto V_full = smem.take<Mbarrier>("V_full", kStages);
  const auto K_free = smem.take<Mbarrier>("K_free", kStages);
  const auto V_free = smem.take<Mbarrier>("V_free", kStages);
  const auto tile_Q = [&](int i) { return TileQ{smem_Q + i * TileQ::kElements}; };
  const auto tile_K = [&](int stage) { return TileKV{smem_K + stage * TileKV::kElements}; };
  const auto tile_V = [&](int stage) { return TileKV{smem_V + stage * TileKV::kElements}; };
  if (threadIdx.x == 0) {
    Q_full[0].init(1);
    for (int stage = 0; stage < kStages; ++stage) {
      K_full[stage].init(1);
      V_full[stage].init(1);
      K_free[stage].init(kConsumers * 4);  // an arrival from each warp
      V_free[stage].init(kConsumers * 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  if (warpgroup_id() == 0) {  // the producer
    setmaxnreg_dec<24>();
    if (threadIdx.x != 0) return;
    Q_full[0].arrive_expect_tx(kConsumers * TileQ::kBytes);
    for (int i = 0; i < kConsumers; ++i)
      tma_load(Q, Q_full[0], tile_Q(i), 0, block_row + i * kRows, head, batch);
    for (int key = 0, stage = 0, round = 0; key < keys; key += Bc) {
      K_free[stage].wait(1 - round);  // in the first round it is: the phase before the first
      K_full[stage].arrive_expect_tx(TileKV::kBytes);
      tma_load(K, K_full[stage], tile_K(stage), 0, key, head_kv, batch);
      V_free[stage].wait(1 - round);
      V_full[stage].arrive_expect_tx(TileKV::kBytes);
      tma_load(V, V_full[stage], tile_V(stage), 0, key, head_kv, batch);
      if (++stage == kStages) stage = 0, round ^= 1;
    }
    return;
  }

  setmaxnreg_inc<240>();  // a consumer
  const int consumer = warpgroup_id() - 1, warp_row = warp_id() % 4 * 16;
  const int row = block_row + consumer * kRows + warp_row;
  const float c = fmaxf(fabsf(p.scale) * kLog2e, FLT_MIN);  // exp(scale·s) = 2^(c·s)

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0);
  Accumulator<16, D> O_sum;
  Q_full[0].wait(0);
  for (int key = 0, stage = 0, round = 0; key < keys; key += Bc) {
    Accumulator<16, Bc> S;
    K_full[stage].wait(round);
    wgmma_fence(S);
    wgmma_ABt(S, tile_Q(consumer), 0, tile_K(stage), 0);
    wgmma_commit();
    wgmma_wait<0>(S);
    if (lane_id() == 0) K_free[stage].arrive();
    if (key + Bc > p.keys(row) || p.scale < 0)
      for_each(S, [&](int i, int j, float& s) {
        if (p.scale < 0) s = -s;
        if (key + j >= p.keys(row + i)) s = -INFINITY;
      });

    const auto m_new = max(m, c * row_max(S));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    exp2_rows(S, c, shift);  // S is P from here on
    l = alpha * l + row_sum(S);
    m = m_new;
    mul_rows(O_sum, alpha);

    auto P = as_operand<T>(S);
    V_full[stage].wait(round);
    wgmma_fence(O_sum, P);
    wgmma_AB(O_sum, P, tile_V(stage));
    wgmma_commit();
    wgmma_wait<0>(O_sum, P);
    if (lane_id() == 0) V_free[stage].arrive();
    if (++stage == kStages) stage = 0, round ^= 1;
  }

  mul_rows(O_sum, inverse_or_zero(l));
  // Through the consumer's own tile of Q, from where the copy engine takes it.
  write(tile_Q(consumer), O_sum, warp_row);
  fence_proxy_async();
  named_barrier_sync(1 + consumer, kWarpgroup);
  if (threadIdx.x % kWarpgroup == 0) {
    tma_store(O, tile_Q(consumer), 0, block_row + consumer * kRows, head, batch);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[bh * p.N + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int D = padded_head_dim(p.d);
  Plan plan{.head_dim = D, .warps = kThreads / 32, .stages = kStages};
  const auto bytes = [&](int Br, int Bc) { return smem_bytes(D, Br, Bc); };
  std::tie(plan.block_q, plan.block_kv) =
      choose_tile(tiles(D), request, device.sram_bytes, bytes, plan.note);
  plan.smem_bytes = bytes(plan.block_q, plan.block_kv);
  return plan;
}

template <class T, int D, int Br, int Bc>
void launch_forward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto map = [&](const char* name, int rows, int heads, int box_rows) {
    return tensor_map<T>(a[name], p.d, rows, heads, p.B, box_rows);
  };
  launch("attention", attention<T, D, Br, Bc>, dim3(p.B * p.H, grid_blocks(p.N, Br)),
         dim3(kThreads), plan.smem_bytes, map("Q", p.N, p.H, kRows), map("K", p.N_kv, p.Hk, Bc),
         map("V", p.N_kv, p.Hk, Bc), map("O", p.N, p.H, kRows), hbm<float>(a["LSE"]), p);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_type_and_head_dim(p, [&]<class T, int D>() {
    launch_forward<T, D, kConsumers * kRows, D == 256 ? 64 : 128>(p, plan, a);
  });
}

/// Requested bytes: every tile of Q reads whole tiles of K and V as far as its last row sees.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q, and of O
  int64_t rows = 0;                                // of K, and of V, that the tiles of a head read
  for (int64_t row = 0; row < p.N; row += plan.block_q) {
    const int keys = p.keys(static_cast<int>(std::min<int64_t>(row + plan.block_q, p.N) - 1));
    rows += std::min<int64_t>(ceil_div(keys, plan.block_kv) * plan.block_kv, p.N_kv);
  }
  const int64_t k = heads * rows * p.d * kIoBytes;
  return {{"attention",
           {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}, {"LSE", 0, heads * p.N * 4}}}};
}

const Register sm90{{.rung = "05_flash_v2",
                     .name = "sm90",
                     .summary = "mma's algorithm on Hopper's bulk copies and warpgroup products",
                     .step = 3,
                     .has_lse = true,
                     .min_compute_capability = 90,
                     .exact_architecture = true,
                     .by_name_only = kDevice == DeviceKind::sim,
                     .tiles = {{128, 128}, {128, 64}},
                     .plan = plan,
                     .forward = forward,
                     .traffic = traffic}};

}  // namespace
}  // namespace ladder::MACHINE
