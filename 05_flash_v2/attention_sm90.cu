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
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

constexpr int kRows = 64;  // rows of Q of a consumer, which is a warpgroup
constexpr int kStages = 2;
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
// Named barriers: a consumer's own, and its turn at the tensor cores.
constexpr int kOwn = 1, kTurn = 4;

constexpr int consumers(int D) {
  return D <= 64 ? 3 : 2;
}
constexpr int keys_of_a_tile(int D) {
  return D == 256 ? 64 : 128;
}
/// Registers of a consumer's thread; the producer keeps 24 of the 168 or 128 that each has at
/// first.
constexpr int registers(int consumers) {
  return consumers == 3 ? 160 : 240;
}
int64_t smem_bytes(int D) {
  const int columns = std::max(D, 64);  // of a tile, whose panels have 64
  return shared_bytes<fp16>(consumers(D) * kRows * columns) +
         2 * shared_bytes<fp16>(kStages * keys_of_a_tile(D) * columns) +
         2 * shared_bytes<Mbarrier>(consumers(D)) + 4 * shared_bytes<Mbarrier>(kStages);
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: as many blocks as there are SMs; each takes one tile of
/// Q after another.
template <class T, int D, int kConsumers, int Bc>
__global__ void __launch_bounds__(kWarpgroup*(1 + kConsumers), 1)
    attention(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
              const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O,
              Hbm<float> LSE, Problem p) {
  using TileQ = SwizzledTile<T, kRows, D>;
  using TileKV = SwizzledTile<T, Bc, D>;
  constexpr int Br = kConsumers * kRows;
  const int tiles = ceil_div(p.N, Br), works = tiles * p.B * p.H;
  const auto work = [&](int index) {
    auto w = longest_first(index, p.B * p.H, tiles, int64_t{4} * p.N_kv * p.d);
    w.tile = tiles - 1 - w.tile;  // the last rows see the most keys
    return w;
  };
  const auto keys_of = [&](Work w) { return p.keys(min((w.tile + 1) * Br, p.N) - 1); };

  SharedMemory smem;
  const auto smem_Q = smem.take<T>("Q", kConsumers * TileQ::kElements);
  const auto smem_K = smem.take<T>("K", kStages * TileKV::kElements);
  const auto smem_V = smem.take<T>("V", kStages * TileKV::kElements);
  const auto Q_full = smem.take<Mbarrier>("Q_full", kConsumers);
  const auto Q_free = smem.take<Mbarrier>("Q_free", kConsumers);
  const auto K_full = smem.take<Mbarrier>("K_full", kStages);
  const auto K_free = smem.take<Mbarrier>("K_free", kStages);
  const auto V_full = smem.take<Mbarrier>("V_full", kStages);
  const auto V_free = smem.take<Mbarrier>("V_free", kStages);
  const auto tile_K = [&](int stage) { return TileKV{smem_K + stage * TileKV::kElements}; };
  const auto tile_V = [&](int stage) { return TileKV{smem_V + stage * TileKV::kElements}; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kConsumers; ++i) {
      Q_full[i].init(1);
      Q_free[i].init(1);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      K_full[stage].init(1);
      K_free[stage].init(kConsumers);
      V_full[stage].init(1);
      V_free[stage].init(kConsumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  if (warpgroup_id() == 0) {  // the producer
    setmaxnreg_dec<24>();
    if (threadIdx.x != 0) return;
    Ring<kStages> at;
    for (int index = blockIdx.x, round = 1; index < works; index += gridDim.x, round ^= 1) {
      const Work w = work(index);
      const int batch = w.head / p.H, head = w.head % p.H, head_kv = head * p.Hk / p.H;
      for (int i = 0; i < kConsumers; ++i) {
        Q_free[i].wait(round);  // the first time it is: the phase before the first
        Q_full[i].arrive_expect_tx(TileQ::kBytes);
        tma_load(Q, Q_full[i], TileQ{smem_Q + i * TileQ::kElements}, 0, w.tile * Br + i * kRows,
                 head, batch);
      }
      const int keys = keys_of(w);
      for (int key = 0; key < keys; key += Bc, at.next()) {
        K_free[at.stage].wait(1 - at.round);
        K_full[at.stage].arrive_expect_tx(TileKV::kBytes);
        tma_load(K, K_full[at.stage], tile_K(at.stage), 0, key, head_kv, batch);
        V_free[at.stage].wait(1 - at.round);
        V_full[at.stage].arrive_expect_tx(TileKV::kBytes);
        tma_load(V, V_full[at.stage], tile_V(at.stage), 0, key, head_kv, batch);
      }
    }
    return;
  }

  setmaxnreg_inc<registers(kConsumers)>();  // a consumer
  const int consumer = warpgroup_id() - 1, warp_row = warp_id() % 4 * 16;
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  const TileQ tile_Q{smem_Q + consumer * TileQ::kElements};
  const float c = fmaxf(fabsf(p.scale) * kLog2e, FLT_MIN);  // exp(scale·s) = 2^(c·s)
  // Consumers take turns to issue products, so that one's softmax runs under another's products.
  const auto begin_turn = [&] { named_barrier_sync(kTurn + consumer, 2 * kWarpgroup); };
  const auto end_turn = [&] {
    named_barrier_arrive(kTurn + (consumer + 1) % kConsumers, 2 * kWarpgroup);
  };
  if (consumer == kConsumers - 1) end_turn();  // the first one's turn

  Ring<kStages> at_K, at_V;
  Accumulator<16, Bc> S;
  Operand<T, 16, Bc> P;
  for (int index = blockIdx.x, round = 0; index < works; index += gridDim.x, round ^= 1) {
    const Work w = work(index);
    const int batch = w.head / p.H, head = w.head % p.H;
    const int tile_row = w.tile * Br + consumer * kRows, row = tile_row + warp_row;
    const int keys = keys_of(w);

    // m is kept in units of ln 2, like the exponents of 2^(c·s).
    auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0), alpha = m;
    Accumulator<16, D> O_sum;
    // S becomes P, by the rows' running maxima; alpha is what O has to be scaled by.
    const auto softmax = [&](int key) {
      if (key + Bc > p.keys(row) || p.scale < 0)
        for_each(S, [&](int i, int j, float& s) {
          if (p.scale < 0) s = -s;
          if (key + j >= p.keys(row + i)) s = -INFINITY;
        });
      const auto m_new = max(m, c * row_max(S));
      const auto shift = finite_or_zero(m_new);
      alpha = exp2(m - shift);
      exp2_rows(S, c, shift);
      l = alpha * l + row_sum(S);
      m = m_new;
    };

    const auto start_scores = [&] {  // S = Q·Kᵀ
      wgmma_fence(S);
      wgmma_ABt(S, tile_Q, 0, tile_K(at_K.stage), 0);
      wgmma_commit();
    };
    const auto start_output = [&] {  // O += P·V
      V_full[at_V.stage].wait(at_V.round);
      wgmma_fence(O_sum, P);
      wgmma_AB(O_sum, P, tile_V(at_V.stage));
      wgmma_commit();
    };
    const auto free_K = [&] {
      if (first_thread) K_free[at_K.stage].arrive();
      at_K.next();
    };
    const auto free_V = [&] {
      if (first_thread) V_free[at_V.stage].arrive();
      at_V.next();
    };

    Q_full[consumer].wait(round);
    if (keys > 0) {
      K_full[at_K.stage].wait(at_K.round);
      begin_turn();
      start_scores();
      end_turn();
      wgmma_wait<0>(S);
      free_K();
      softmax(0);
      P = as_operand<T>(S);
      // From here on the softmax of one step runs under the product P·V of the step before.
      for (int key = Bc; key < keys; key += Bc) {
        K_full[at_K.stage].wait(at_K.round);
        begin_turn();
        start_scores();
        start_output();
        end_turn();
        wgmma_wait<1>(S);
        free_K();
        softmax(key);
        wgmma_wait<0>(O_sum, P);
        free_V();
        mul_rows(O_sum, alpha);
        P = as_operand<T>(S);
      }
      start_output();
      wgmma_wait<0>(O_sum, P);
      free_V();
    }

    mul_rows(O_sum, inverse_or_zero(l));
    // Through the consumer's own tile of Q, from where the copy engine takes it.
    write(tile_Q, O_sum, warp_row);
    fence_proxy_async();
    named_barrier_sync(kOwn + consumer, kWarpgroup);
    if (first_thread) {
      tma_store(O, tile_Q, 0, tile_row, head, batch);
      tma_store_commit();
      tma_store_wait_read<0>();
      Q_free[consumer].arrive();
    }
    for_each_row(m, l, [&](int i, float max, float sum) {
      if (row + i < p.N)
        LSE[p.q_row(w.head) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
    });
  }
  if (consumer == 0) begin_turn();  // takes the last one's last hand-over
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int D = padded_head_dim(p.d);
  Plan plan{.head_dim = D, .warps = 4 * (1 + consumers(D)), .stages = kStages};
  std::tie(plan.block_q, plan.block_kv) = choose_tile(
      {{consumers(D) * kRows, keys_of_a_tile(D)}}, request, device.sram_bytes,
      [&](int, int) { return smem_bytes(D); }, plan.note);
  plan.smem_bytes = smem_bytes(D);
  return plan;
}

template <class T, int D>
void launch_forward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto map = [&](const char* name, int rows, int heads, int box_rows) {
    return tensor_map<T>(a[name], p.d, rows, heads, p.B, box_rows);
  };
  constexpr int kConsumers = consumers(D), Bc = keys_of_a_tile(D);
  const int64_t works = ceil_div(p.N, plan.block_q) * p.B * p.H;
  launch("attention", attention<T, D, kConsumers, Bc>,
         dim3(std::min<int64_t>(works, multiprocessors())), dim3(kWarpgroup * (1 + kConsumers)),
         plan.smem_bytes, map("Q", p.N, p.H, kRows), map("K", p.N_kv, p.Hk, Bc),
         map("V", p.N_kv, p.Hk, Bc), map("O", p.N, p.H, kRows), hbm<float>(a["LSE"]), p);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_type_and_head_dim(p, [&]<class T, int D>() { launch_forward<T, D>(p, plan, a); });
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
                     .tiles = {{192, 128}, {128, 128}, {128, 64}},
                     .plan = plan,
                     .forward = forward,
                     .traffic = traffic}};

}  // namespace
}  // namespace ladder::MACHINE
