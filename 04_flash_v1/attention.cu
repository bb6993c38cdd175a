// 04 · FlashAttention (Dao et al. 2022), Algorithm 1, the forward pass.
//
//   build/bin/04_flash_v1 --step flash_v1 --seqlen 512 --block-kv 64
//
//   O = 0, l = 0, m = −∞ in HBM
//   for each tile of Bc rows of K and V:
//     for each tile of Br rows of Q:
//       read O, l, m of these rows from HBM
//       S = scale·Q·Kᵀ
//       m̃ = rowmax S,   P = exp(S − m̃),   l̃ = rowsum P
//       m_new = max(m, m̃),   l_new = e^(m − m_new)·l + e^(m̃ − m_new)·l̃
//       O ← (l·e^(m − m_new)·O + e^(m̃ − m_new)·P·V) / l_new
//       write O, l_new, m_new to HBM
//
// Since 03: a block copies each tile of K and V to shared memory once, and all tiles of Q stream
// past it. One block computes a whole head, because a row's O, l and m pass through HBM from one
// tile of keys to the next, and blocks cannot wait for each other. The warps split the keys: each
// of the four computes Bc/4 columns of S (if Bc is 32, each of two warps computes Bc/2). Therefore
// row statistics and the sums for O have to be combined through shared memory.

#include "machine/machine.h"
#include "rung.h"
#include "tile/over_warps.h"
#include "tile/rows.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
constexpr int kCombineRows = 16;   // rows of O that are combined at once
constexpr int kElementwise = 256;  // threads per block of the elementwise kernels

/// Compiled tiles: {largest head size, Br, Bc}. For each head size the largest tile comes first.
constexpr TileSize kTiles[] = {{128, 64, 256}, {128, 64, 128}, {128, 64, 64},
                               {128, 64, 32},  {256, 64, 64},  {256, 32, 32}};

/// Returns the warps per block. Each computes at least 16 columns of a tile of S.
constexpr int warps_of(int Bc) {
  return Bc < 64 ? 2 : 4;
}

int64_t smem_bytes(int Dh, int Br, int Bc) {
  const int warps = warps_of(Bc);
  return array_bytes<fp16>(Br * Dh) + 2 * array_bytes<fp16>(Bc * Dh) +
         array_bytes<float>(partial_sums_floats(kCombineRows, Dh, warps)) +
         2 * array_bytes<float>(warps * Br) + 2 * array_bytes<float>(Br);
}

/// Sets O = 0, l = 0 and m = −∞ for all B·H·N rows.
__global__ void initialise(Hbm<float> O_fp32, Hbm<float> l, Hbm<float> m, Problem p) {
  const int64_t i = int64_t{blockIdx.x} * kElementwise + threadIdx.x;
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  if (i < rows * p.d) O_fp32[i] = 0;
  if (i < rows) l[i] = 0;
  if (i < rows) m[i] = -INFINITY;
}

/// O ← old_weight·O + new_weight·P·V for 16 rows of O, of which `rows` × `columns` exist, with one
/// weight of each kind per row. PV is the warp's P·V; the block adds up all through shared memory.
template <int Dh, int kWarps, int kThreads>
__device__ __forceinline__ void combine(BlockFragment<kCombineRows, Dh, kThreads>& O,
                                        Smem<float> old_weight,
                                        const Accumulator<kCombineRows, Dh>& PV,
                                        Smem<float> new_weight,
                                        const PartialSums<kCombineRows, Dh, kWarps>& warp_PV,
                                        int rows = kCombineRows, int columns = Dh) {
  write(warp_PV, PV);
  __syncthreads();  // all warps have written their sums
  BlockFragment<kCombineRows, Dh, kThreads> PV_sum;
  sum_over_warps(PV_sum, warp_PV, rows, columns);
  __syncthreads();  // the warps' sums may be overwritten
  mul_rows(O, old_weight, rows, columns);
  mul_rows(PV_sum, new_weight, rows, columns);
  add(O, PV_sum, rows, columns);
}

/// Computes one head by Algorithm 1. m is kept in units of ln 2, because exp(scale·s) is computed
/// as 2^(c·s). grid: (B·H).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(32 * warps_of(Bc))
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<float> O_fp32, Hbm<float> l_hbm,
              Hbm<float> m_hbm, Problem p) {
  constexpr int kWarps = warps_of(Bc), kThreads = 32 * kWarps;
  constexpr int kWarpKeys = Bc / kWarps;  // columns of S per warp
  const int64_t bh = blockIdx.x;
  const int thread = threadIdx.x, warp_key = warp_id() * kWarpKeys;
  const auto Q_head = Q + p.q_row(bh) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const auto O_head = O_fp32 + p.q_row(bh) * p.d;
  const auto l_head = l_hbm + bh * p.N;
  const auto m_head = m_hbm + bh * p.N;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Br, Dh> tile_Q{smem.take<T>("Q", Br * Dh)};
  const Tile<T, Bc, Dh> tile_K{smem.take<T>("K", Bc * Dh)};
  const Tile<T, Bc, Dh> tile_V{smem.take<T>("V", Bc * Dh)};
  const PartialSums<kCombineRows, Dh, kWarps> warp_PV{
      smem.take<float>("partial O", partial_sums_floats(kCombineRows, Dh, kWarps))};
  const WarpRows<Br, kWarps> warp_m{smem.take<float>("rowmax", kWarps * Br)};
  const WarpRows<Br, kWarps> warp_l{smem.take<float>("rowsum", kWarps * Br)};
  const auto old_weight = smem.take<float>("weight of O", Br);   // l·e^(m − m_new) / l_new
  const auto new_weight = smem.take<float>("weight of PV", Br);  // e^(m̃ − m_new) / l_new

  for (int key = 0; key < p.N_kv; key += Bc) {
    copy_async<kThreads>(tile_K, K_head + int64_t{key} * p.d, p.d, p.N_kv - key, p.d, thread);
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, p.N_kv - key, p.d, thread);
    copy_async<kThreads>(tile_Q, Q_head, p.d, p.N, p.d, thread);
    cp_async_commit();

    for (int row = 0; row < p.N; row += Br) {
      cp_async_wait<0>();
      __syncthreads();  // the tiles have arrived

      // l and m of row `thread` are requested early, to hide the latency of HBM.
      const bool has_row = thread < Br && row + thread < p.N;
      Row m{0}, l{0};
      if (has_row) m = {m_head[row + thread]}, l = {l_head[row + thread]};

      Accumulator<Br, kWarpKeys> S;  // this warp's columns
      mma_ABt(S, tile_Q, tile_K, warp_key);
      if (key + Bc > p.keys(row))
        for_each(S, [&](int i, int j, float& s) {
          if (key + warp_key + j >= p.keys(row + i)) s = -INFINITY;
        });

      write(warp_m, c * row_max(S));
      __syncthreads();  // all maxima are written, and all warps are done with this tile of Q
      if (row + Br < p.N)
        copy_async<kThreads>(tile_Q, Q_head + int64_t{row + Br} * p.d, p.d, p.N - row - Br, p.d,
                             thread);
      cp_async_commit();
      auto& P = S;
      exp2_rows(P, c, finite_or_zero(max_over_warps(warp_m)));
      write(warp_l, row_sum(P));
      __syncthreads();  // all warps have written their sums

      // One thread per row updates l and m in HBM, and computes the weights of O and P·V.
      if (has_row) {
        const auto m_tile = max_over_warps(warp_m, thread), l_tile = sum_over_warps(warp_l, thread);
        const auto m_new = max(m, m_tile), shift = finite_or_zero(m_new);
        const auto alpha = exp2(m - shift), beta = exp2(m_tile - shift);
        const auto l_new = alpha * l + beta * l_tile;
        const auto inverse = inverse_or_zero(l_new);
        m_head[row + thread] = m_new;
        l_head[row + thread] = l_new;
        old_weight[thread] = alpha * l * inverse;
        new_weight[thread] = beta * inverse;
      }

      // O is updated 16 rows at a time. The old rows are in flight while P·V is computed.
      const auto P_operand = as_operand<T>(P);
#pragma unroll
      for (int g = 0; g < Br / kCombineRows; ++g) {
        const int first = row + kCombineRows * g, rows = p.N - first;
        const auto O_rows = O_head + int64_t{first} * p.d;
        BlockFragment<kCombineRows, Dh, kThreads> O;
        load(O, O_rows, p.d, rows, p.d);
        Accumulator<kCombineRows, Dh> PV;  // over this warp's keys
        mma_AB(PV, rows_of(P_operand, g), tile_V, warp_key, 0);
        combine(O, old_weight + kCombineRows * g, PV, new_weight + kCombineRows * g, warp_PV, rows,
                p.d);
        store(O_rows, p.d, O, rows, p.d);
      }
    }
  }
}

/// Converts O to the I/O type, and writes LSE = m + ln l.
template <class T>
__global__ void finish(Hbm<const float> O_fp32, Hbm<const float> l, Hbm<const float> m, Hbm<T> O,
                       Hbm<float> LSE, Problem p) {
  const int64_t i = int64_t{blockIdx.x} * kElementwise + threadIdx.x;
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  if (i < rows * p.d) O[i] = T(O_fp32[i]);
  if (i < rows) LSE[i] = m[i] * kLn2 + logf(l[i]);  // −∞ for a row that attends to no key
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
  plan.warps = warps_of(plan.block_kv);
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  plan.workspace = {{"O_fp32", rows * p.d * 4}, {"l", rows * 4}, {"m", rows * 4}};
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto O = hbm<T>(a["O"]);
    const auto O_fp32 = hbm<float>(a["O_fp32"]), l = hbm<float>(a["l"]), m = hbm<float>(a["m"]);
    const auto LSE = hbm<float>(a["LSE"]);
    const dim3 elements(ceil_div(int64_t{p.B} * p.H * p.N * p.d, kElementwise));

    launch("initialise", initialise, elements, dim3(kElementwise), 0, O_fp32, l, m, p);
    launch("attention", attention<T, Dh, Br, Bc>, dim3(p.B * p.H), dim3(32 * plan.warps),
           plan.smem_bytes, Q, K, V, O_fp32, l, m, p);
    launch("finish", finish<T>, elements, dim3(kElementwise), 0, O_fp32, l, m, O, LSE, p);
  });
}

/// Predicts the requested bytes: for each tile of K and V, Q is read once, and O, l and m are read
/// and written once.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;     // bytes of Q or O
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;  // bytes of K or V, once per query head
  const int64_t O_fp32 = 2 * q, l = heads * p.N * 4;  // bytes of O in fp32; of l, m or LSE
  const int64_t Tc = ceil_div(p.N_kv, plan.block_kv);
  return {
      {"initialise", {{"O_fp32", 0, O_fp32}, {"l", 0, l}, {"m", 0, l}}},
      {"attention",
       {{"Q", q * Tc, 0},
        {"K", k, 0},
        {"V", k, 0},
        {"O_fp32", O_fp32 * Tc, O_fp32 * Tc},
        {"l", l * Tc, l * Tc},
        {"m", l * Tc, l * Tc}}},
      {"finish", {{"O_fp32", O_fp32, 0}, {"l", l, 0}, {"m", l, 0}, {"O", 0, q}, {"LSE", 0, l}}}};
}

const Register step{{
    .rung = "04_flash_v1",
    .name = "flash_v1",
    .is_default = true,
    .shown = {.idea = "tiles per block",
              .change = {"requested_bytes", "less"},
              .summary = "Algorithm 1: outer loop over K/V, inner over Q; O, l, m through HBM",
              .colour = "#CC79A7",
              .grid_limit = {8192, 2048}},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
