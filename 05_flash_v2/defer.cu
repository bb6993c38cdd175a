// 05 · FlashAttention-2, second step: one division at the end.
//
//   build/bin/05_flash_v2 --step defer --seqlen 512
//
//   for each tile of Br rows of Q, one block each:
//     O = 0, l = 0, m = −∞ on chip
//     for each tile of Bc rows of K and V:
//       S = scale·Q·Kᵀ
//       m_new = max(m, rowmax S),   P = exp(S − m_new),   α = exp(m − m_new)
//       l ← α·l + rowsum P
//       O ← α·O + P·V
//     write O / l and LSE = m + ln l to HBM
//
// Since `swap`: O stays unnormalised until the end. That saves one division per row per tile, and
// one of the two multiplications per element of O per tile. Each lane keeps the sum l of its own
// elements of P, and the lanes' sums are added once, at the end. LSE is stored instead of l and m.

#include "machine/machine.h"
#include "rung.h"
#include "tile/over_warps.h"
#include "tile/rows.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
constexpr int kCombineRows = 16;  // rows of O that are combined at once

/// Compiled tiles: {largest head size, Br, Bc}. For each head size the largest tile comes first.
constexpr TileSize kTiles[] = {
    {128, 64, 128}, {128, 64, 64}, {128, 64, 32}, {256, 64, 64}, {256, 32, 32}};

/// Returns the warps per block. Each computes at least 16 columns of a tile of S.
constexpr int warps_of(int Bc) {
  return Bc < 64 ? 2 : 4;
}

int64_t smem_bytes(int Dh, int Br, int Bc) {
  const int warps = warps_of(Bc);
  return array_bytes<fp16>(Br * Dh) + 2 * array_bytes<fp16>(Bc * Dh) +
         array_bytes<float>(partial_sums_floats(kCombineRows, Dh, warps)) +
         2 * array_bytes<float>(warps * Br) + array_bytes<float>(Br);
}

/// O ← old_weight·O + P·V for 16 rows of O, with one weight per row. PV is the warp's P·V over its
/// own keys; the block adds up the warps' products through shared memory.
template <int Dh, int kWarps, int kThreads>
__device__ __forceinline__ void combine(BlockFragment<kCombineRows, Dh, kThreads>& O,
                                        Smem<float> old_weight,
                                        const Accumulator<kCombineRows, Dh>& PV,
                                        const PartialSums<kCombineRows, Dh, kWarps>& warp_PV,
                                        int rows = kCombineRows, int columns = Dh) {
  write(warp_PV, PV);
  __syncthreads();  // all warps have written their sums
  BlockFragment<kCombineRows, Dh, kThreads> PV_sum;
  sum_over_warps(PV_sum, warp_PV, rows, columns);
  __syncthreads();  // the warps' sums may be overwritten
  mul_rows(O, old_weight, rows, columns);
  add(O, PV_sum, rows, columns);
}

/// Computes O and LSE for one tile of Q. m is kept in units of ln 2, because exp(scale·s) is
/// computed as 2^(c·s). grid: (B·H, tiles of Q).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(32 * warps_of(Bc))
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> LSE, Problem p) {
  constexpr int kWarps = warps_of(Bc), kThreads = 32 * kWarps;
  constexpr int kWarpKeys = Bc / kWarps;  // columns of S per warp
  const int64_t bh = blockIdx.x;
  const int row = blockIdx.y * Br;
  const int thread = threadIdx.x, warp_key = warp_id() * kWarpKeys;
  const auto Q_head = Q + p.q_row(bh) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const auto O_head = O + p.q_row(bh) * p.d;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Br, Dh> tile_Q{smem.take<T>("Q", Br * Dh)};
  const Tile<T, Bc, Dh> tile_K{smem.take<T>("K", Bc * Dh)};
  const Tile<T, Bc, Dh> tile_V{smem.take<T>("V", Bc * Dh)};
  const PartialSums<kCombineRows, Dh, kWarps> warp_PV{
      smem.take<float>("partial O", partial_sums_floats(kCombineRows, Dh, kWarps))};
  const WarpRows<Br, kWarps> warp_m{smem.take<float>("rowmax", kWarps * Br)};
  const WarpRows<Br, kWarps> warp_l{smem.take<float>("rowsum", kWarps * Br)};
  const auto weight = smem.take<float>("weight of O", Br);  // α = e^(m − m_new), at the end 1 / l

  copy_async<kThreads>(tile_Q, Q_head + int64_t{row} * p.d, p.d, p.N - row, p.d, thread);
  copy_async<kThreads>(tile_K, K_head, p.d, p.N_kv, p.d, thread);
  cp_async_commit();

  auto m = fill_rows<Br>(-INFINITY), l = fill_rows<Br>(0);  // m over all keys, l over this lane's
  BlockFragment<kCombineRows, Dh, kThreads> O_sum[Br / kCombineRows];  // this thread's part of O
  for (int key = 0; key < p.N_kv; key += Bc) {
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, p.N_kv - key, p.d, thread);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();  // K has arrived

    Accumulator<Br, kWarpKeys> S;  // this warp's columns
    mma_ABt(S, tile_Q, tile_K, warp_key);
    if (key + Bc > p.keys(row))
      for_each(S, [&](int i, int j, float& s) {
        if (key + warp_key + j >= p.keys(row + i)) s = -INFINITY;
      });

    write(warp_m, c * row_max(S));
    __syncthreads();  // all maxima are written, and all warps are done with this tile of K
    if (key + Bc < p.N_kv)
      copy_async<kThreads>(tile_K, K_head + int64_t{key + Bc} * p.d, p.d, p.N_kv - key - Bc, p.d,
                           thread);
    cp_async_commit();
    const auto m_new = max(m, max_over_warps(warp_m));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    auto& P = S;
    exp2_rows(P, c, shift);
    l = alpha * l + row_sum_in_lane(P);
    m = m_new;
    if (warp_id() == 0) write(weight, alpha);
    cp_async_wait<1>();
    __syncthreads();  // V has arrived, and the writes above are visible

    // O is updated 16 rows at a time.
    const auto P_operand = as_operand<T>(P);
#pragma unroll
    for (int g = 0; g < Br / kCombineRows; ++g) {
      Accumulator<kCombineRows, Dh> PV;  // over this warp's keys
      mma_AB(PV, rows_of(P_operand, g), tile_V, warp_key, 0);
      auto O_rows = O_sum[g];
      combine(O_rows, weight + kCombineRows * g, PV, warp_PV);
      O_sum[g] = O_rows;
    }
  }

  // Add up l over all keys: each warp writes its own sums, and one thread per row adds them.
  write(warp_l, sum_over_lanes(l));
  write(warp_m, m);
  __syncthreads();  // all warps have written their sums
  if (thread < Br) {
    const auto l_row = sum_over_warps(warp_l, thread);
    const float m_row = warp_m.data[thread];
    weight[thread] = inverse_or_zero(l_row);  // a row that attends to no key gives O = 0, LSE = −∞
    if (row + thread < p.N)
      LSE[bh * p.N + row + thread] = l_row > 0 ? m_row * kLn2 + logf(l_row) : -INFINITY;
  }
  __syncthreads();  // all rows' weights are written
#pragma unroll
  for (int g = 0; g < Br / kCombineRows; ++g) {
    mul_rows(O_sum[g], weight + kCombineRows * g);
    store(O_head + int64_t{row + kCombineRows * g} * p.d, p.d, O_sum[g],
          p.N - row - kCombineRows * g, p.d);
  }
}

/// Chooses the tile by Algorithm 1's rule, which gives Q, K, V and O each a quarter of the M
/// elements that fit on the chip: Bc = ⌈M/4d⌉, Br = min(⌈M/4d⌉, d). Here Bc is max(⌈M/4d⌉, 64),
/// rounded down to a compiled size. Unlike the rule's Br, ours does not depend on d: 64 rows of S
/// fill the registers of four warps, and 32 are used only where tiles of 64 do not fit.
Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = 1};
  std::vector<TileSize> tiles(std::begin(kTiles), std::end(kTiles));
  const int64_t rule = ceil_div(device.smem_bytes / kIoBytes, 4 * p.d);
  if (request.is_empty())
    std::erase_if(tiles,
                  [&](const TileSize& t) { return t.block_kv > std::max<int64_t>(rule, 64); });
  choose_tile(plan, tiles, request, device.smem_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  grid_blocks(p.N, plan.block_q);  // throws beyond 65,535 blocks
  plan.warps = warps_of(plan.block_kv);
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch("attention", attention<T, Dh, Br, Bc>, dim3(p.B * p.H, grid_blocks(p.N, Br)),
           dim3(32 * plan.warps), plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]),
           hbm<const T>(a["V"]), hbm<T>(a["O"]), hbm<float>(a["LSE"]), p);
  });
}

/// Predicts the requested bytes: K and V are read once per tile of Q.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;     // bytes of Q or O
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;  // bytes of K or V, once per query head
  const int64_t blocks = ceil_div(p.N, plan.block_q);
  return {{"attention",
           {{"Q", q, 0},
            {"K", k * blocks, 0},
            {"V", k * blocks, 0},
            {"O", 0, q},
            {"LSE", 0, heads * p.N * 4}}}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "defer",
    .after = "swap",
    .shown = {.idea = "one final division",
              .change = {"other_flops", "less"},
              .summary = "O stays unnormalised until the end, and only LSE is stored",
              .colour = "#0072B2"},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
