// 05 on Hopper, step 2: copies by TMA (Shah et al. 2024, FlashAttention-3, §2.2).
//
//   build/bin/05_flash_v2 --step tma --seqlen 512 --causal
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
// Since `wgmma`: one thread starts each copy. The thread names a box of an array; TMA fetches the
// box, swizzles it for the products, fills rows past the end with zeros, and signals a barrier in
// shared memory when the last byte has arrived. O leaves by TMA, too, from Q's tile, into which
// stmatrix has written it.

#include "bytes.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarps = 8;  // two warpgroups
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpgroupRows = 64;  // rows of Q per warpgroup
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

/// Compiled tiles: {largest head size, Br, Bc}. `large_tiles` and `sm90` support wider heads.
constexpr TileSize kTiles[] = {{128, 128, 64}};

int64_t smem_bytes(int Dh, int Br, int Bc) {
  return array_bytes<fp16>((Br + 2 * Bc) * std::max(Dh, 64)) +  // whole panels of 64 columns
         3 * array_bytes<Mbarrier>(1);
}

/// A sequence of the batch, one of its heads of Q, and the head of K and V that this head uses.
struct Head {
  int batch, of_Q, of_KV;
};
__device__ __forceinline__ Head head_of(int bh, const Problem& p) {
  return {bh / p.H, bh % p.H, p.kv_head(bh % p.H)};
}

/// Divides the rows of O by l and stores O and LSE to HBM. O goes through Q's tile, and TMA stores
/// it from there.
template <class T, int Br, int Dh>
__device__ __forceinline__ void store_output(const SwizzledTile<T, Br, Dh>& tile,
                                             Accumulator<16, Dh>& O_sum, const Rows<16>& m,
                                             Rows<16>& l, const TensorMap& map_O, Hbm<float> LSE,
                                             int bh, int tile_row, const Problem& p) {
  const int warp_row = warp_id() * 16, row = tile_row + warp_row;
  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  write_matrices(tile, as_operand<T>(O_sum), warp_row);
  fence_proxy_async();  // makes this thread's writes visible to TMA
  __syncthreads();      // all of O has been written
  if (threadIdx.x == 0) {
    tma_store(map_O, tile, 0, tile_row, bh % p.H, bh / p.H);
    tma_store_commit();
  }
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (tiles of Q · B·H).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, 2)
    attention(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
              const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_O,
              Hbm<float> LSE, Problem p) {
  using TileQ = SwizzledTile<T, Br, Dh>;
  using TileKV = SwizzledTile<T, Bc, Dh>;
  constexpr int kWarpRows = Br / kWarps;  // rows of Q per warp
  const int tiles = ceil_div(p.N, Br);
  const auto [bh, tile] = longest_first(blockIdx.x, {.heads = p.B * p.H,
                                                     .tiles = tiles,
                                                     .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                                                     .uneven = p.causal});
  const int block_row = (tiles - 1 - tile) * Br;  // the last rows attend to the most keys
  const int warp_row = warp_id() * kWarpRows, row = block_row + warp_row;
  const int warpgroup_row = warpgroup_id() * kWarpgroupRows;
  const bool first_thread = threadIdx.x == 0;
  const Head head = head_of(bh, p);
  const int keys = p.keys(min(block_row + Br, p.N) - 1);  // that the block's last row attends to
  // The number of tiles of K and V. There is at least one, which may be entirely masked.
  const int kv_tiles = keys > 0 ? static_cast<int>(ceil_div(keys, Bc)) : 1;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const TileQ tile_Q{smem.tiles<TileQ>("Q")};
  const TileKV tile_K{smem.tiles<TileKV>("K")};
  const TileKV tile_V{smem.tiles<TileKV>("V")};
  const auto Q_full = smem.take<Mbarrier>("Q_full", 1);
  const auto K_full = smem.take<Mbarrier>("K_full", 1), V_full = smem.take<Mbarrier>("V_full", 1);
  if (first_thread) {
    Q_full[0].init(1);
    K_full[0].init(1);
    V_full[0].init(1);
    fence_mbarrier_init();  // makes the initialised barriers visible to TMA
  }
  __syncthreads();  // all threads see them initialised
  // Announces a tile's bytes to the barrier and starts copying them. One thread calls it.
  const auto start_copy = [&](const TensorMap& map, MbarrierRef full, const auto& to, int first_row,
                              int of_head) {
    full.arrive_expect_tx(to.kBytes);
    tma_load(map, full, to, 0, first_row, of_head, head.batch);
  };
  if (first_thread) {
    start_copy(map_Q, Q_full[0], tile_Q, block_row, head.of_Q);
    start_copy(map_K, K_full[0], tile_K, 0, head.of_KV);
  }

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<kWarpRows>(-INFINITY), l = fill_rows<kWarpRows>(0);
  Accumulator<kWarpRows, Dh> O_sum;
  Q_full[0].wait(0);
  for (int kv_tile = 0; kv_tile < kv_tiles; ++kv_tile) {
    const int key = kv_tile * Bc;
    K_full[0].wait(kv_tile % 2);  // the phase's parity; there is one phase per tile
    __syncthreads();              // all warps are done with the previous V
    if (first_thread) start_copy(map_V, V_full[0], tile_V, key, head.of_KV);

    Accumulator<kWarpRows, Bc> S;
    wgmma_fence(S);
    wgmma_set_ABt(S, tile_Q, warpgroup_row, tile_K);
    wgmma_commit();
    wgmma_wait<0>(S);
    if (key + Bc > p.keys(row))
      for_each(S, [&](int i, int j, float& s) {
        if (key + j >= p.keys(row + i)) s = -INFINITY;
      });

    __syncthreads();  // all warps are done with this K
    if (first_thread && kv_tile + 1 < kv_tiles)
      start_copy(map_K, K_full[0], tile_K, key + Bc, head.of_KV);

    const auto m_new = max(m, c * row_max(S));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    auto& P = S;
    exp2_rows(P, c, shift);
    l = alpha * l + row_sum_in_lane(P);
    m = m_new;
    mul_rows(O_sum, alpha);
    auto P_operand = as_operand<T>(P);  // owned by the product until it is done
    V_full[0].wait(kv_tile % 2);
    wgmma_fence(O_sum, P_operand);
    wgmma_AB(O_sum, P_operand, tile_V);
    wgmma_commit();
    wgmma_wait<0>(O_sum, P_operand);
  }

  store_output(tile_Q, O_sum, m, l, map_O, LSE, bh, block_row, p);
  if (first_thread) tma_store_wait_read<0>();  // stay until TMA has read shared memory
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .warps = kWarps, .stages = 1};
  choose_tile(plan, kTiles, request, device.smem_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const auto map = [&](const char* name, int rows, int heads, int box_rows) {
      return tensor_map<T>(a[name], p.d, rows, heads, p.B, box_rows);
    };
    launch("attention", attention<T, Dh, Br, Bc>, dim3(ceil_div(p.N, Br) * p.B * p.H),
           dim3(kThreads), plan.smem_bytes, map("Q", p.N, p.H, Br), map("K", p.N_kv, p.Hk, Bc),
           map("V", p.N_kv, p.Hk, Bc), map("O", p.N, p.H, Br), hbm<float>(a["LSE"]), p);
  });
}

Traffic traffic(const Problem& p, const Plan& plan) {
  return {{"attention", tiles_traffic(p, plan, plan.block_q)}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "tma",
    .after = "wgmma",
    .shown = {.idea = "copies by TMA",
              .change = {"consumer_copies", "less"},
              .summary = "and copies by TMA",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
