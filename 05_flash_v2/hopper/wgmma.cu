// 05 on Hopper, step 1: products by warpgroups (Shah et al. 2024, FlashAttention-3, §2.2).
//
//   build/bin/05_flash_v2 --step wgmma --seqlen 512 --causal
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
// Since `large_tiles`: a warpgroup, which is four warps, multiplies 64 rows at once. The warps no
// longer load Q, K and V into registers, because the tensor cores read them from shared memory
// themselves. Meanwhile the warps could do other work, but in this step they still wait for each
// product.

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
  return array_bytes<fp16>((Br + 2 * Bc) * std::max(Dh, 64));  // whole panels of 64 columns
}

/// Divides the rows of O by l and stores O and LSE to HBM. O goes through Q's tile, so that it is
/// stored in whole 16-byte chunks.
template <class T, int Br, int Dh>
__device__ __forceinline__ void store_output(const SwizzledTile<T, Br, Dh>& tile,
                                             Accumulator<16, Dh>& O_sum, const Rows<16>& m,
                                             Rows<16>& l, Hbm<T> O, Hbm<float> LSE, int bh,
                                             int tile_row, const Problem& p) {
  const int warp_row = warp_id() * 16, row = tile_row + warp_row;
  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  write(tile, O_sum, warp_row);
  __syncthreads();  // all of O has been written
  copy_out<kThreads>(O + (p.q_row(bh) + tile_row) * p.d, p.d, tile, p.N - tile_row, p.d,
                     threadIdx.x);
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (tiles of Q · B·H).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, 2)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> LSE, Problem p) {
  using TileQ = SwizzledTile<T, Br, Dh>;
  using TileKV = SwizzledTile<T, Bc, Dh>;
  constexpr int kWarpRows = Br / kWarps;  // rows of Q per warp
  const int tiles = ceil_div(p.N, Br);
  // The order is the same without the mask, where `large_tiles` numbers tiles differently, because
  // code for both orders would spill registers.
  const auto [bh, tile] = longest_first(blockIdx.x, {.heads = p.B * p.H,
                                                     .tiles = tiles,
                                                     .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                                                     .uneven = p.causal});
  const int block_row = (tiles - 1 - tile) * Br;  // the last rows attend to the most keys
  const int warp_row = warp_id() * kWarpRows, row = block_row + warp_row;
  const int thread = threadIdx.x, warpgroup_row = warpgroup_id() * kWarpgroupRows;
  const auto Q_tile = Q + (p.q_row(bh) + block_row) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const int keys = p.keys(min(block_row + Br, p.N) - 1);  // that the block's last row attends to
  const float c = p.scale * kLog2e;                       // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const TileQ tile_Q{smem.tiles<TileQ>("Q")};
  const TileKV tile_K{smem.tiles<TileKV>("K")};
  const TileKV tile_V{smem.tiles<TileKV>("V")};
  copy_async<kThreads>(tile_Q, Q_tile, p.d, p.N - block_row, p.d, thread);
  copy_async<kThreads>(tile_K, K_head, p.d, keys, p.d, thread);
  cp_async_commit();

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<kWarpRows>(-INFINITY), l = fill_rows<kWarpRows>(0);
  Accumulator<kWarpRows, Dh> O_sum;
  for (int key = 0; key < keys; key += Bc) {
    cp_async_wait<0>();
    fence_proxy_async();  // makes this thread's copies visible to products
    __syncthreads();      // K has arrived, and all warps are done with the previous V
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, keys - key, p.d, thread);
    cp_async_commit();

    Accumulator<kWarpRows, Bc> S;
    wgmma_fence(S);
    wgmma_set_ABt(S, tile_Q, warpgroup_row, tile_K);
    wgmma_commit();
    wgmma_wait<0>(S);
    if (key + Bc > p.keys(row))
      for_each(S, [&](int i, int j, float& s) {
        if (key + j >= p.keys(row + i)) s = -INFINITY;
      });

    cp_async_wait<0>();
    fence_proxy_async();  // makes this thread's copies visible to products
    __syncthreads();      // V has arrived, and all warps are done with this K
    if (key + Bc < keys)
      copy_async<kThreads>(tile_K, K_head + int64_t{key + Bc} * p.d, p.d, keys - key - Bc, p.d,
                           thread);
    cp_async_commit();

    const auto m_new = max(m, c * row_max(S));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    auto& P = S;
    exp2_rows(P, c, shift);
    l = alpha * l + row_sum_in_lane(P);
    m = m_new;
    mul_rows(O_sum, alpha);
    auto P_operand = as_operand<T>(P);  // owned by the product until it is done
    wgmma_fence(O_sum, P_operand);
    wgmma_AB(O_sum, P_operand, tile_V);
    wgmma_commit();
    wgmma_wait<0>(O_sum, P_operand);
  }
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived even if there were no keys

  store_output(tile_Q, O_sum, m, l, O, LSE, bh, block_row, p);
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
    launch("attention", attention<T, Dh, Br, Bc>, dim3(ceil_div(p.N, Br) * p.B * p.H),
           dim3(kThreads), plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]),
           hbm<const T>(a["V"]), hbm<T>(a["O"]), hbm<float>(a["LSE"]), p);
  });
}

/// Predicts the requested bytes: each tile of Q reads K and V up to its last row's last key.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q or O
  int64_t rows = 0;                                // rows of K or V that a head's tiles read
  for (int64_t row = 0; row < p.N; row += plan.block_q)
    rows += p.keys(static_cast<int>(std::min<int64_t>(row + plan.block_q, p.N) - 1));
  const int64_t k = heads * rows * p.d * kIoBytes;
  return {{"attention",
           {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}, {"LSE", 0, heads * p.N * 4}}}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "wgmma",
    .after = "large_tiles",
    .shown = {.idea = "products by warpgroups",
              .change = {"products", "less"},
              .summary = "large_tiles, with products by warpgroups",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
