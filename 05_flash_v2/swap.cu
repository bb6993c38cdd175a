// 05 · FlashAttention-2, first step: the loops swapped.
//
//   for each tile of Br rows of Q, one block each:
//     O = 0, l = 0, m = −∞ on chip
//     for each tile of Bc rows of K and V:
//       S = scale·Q·Kᵀ
//       m̃ = rowmax S,   P = exp(S − m̃),   l̃ = rowsum P
//       m_new = max(m, m̃),   l_new = e^(m − m_new)·l + e^(m̃ − m_new)·l̃
//       O ← (l·e^(m − m_new)·O + e^(m̃ − m_new)·P·V) / l_new
//     write O, l, m to HBM
//
// Since 04: Q outside, K and V inside. O, l and m of a tile of Q stay on chip until they are final,
// and no tile of Q needs another's, so each has a block of its own: the grid is over the sequence
// too.

#include "machine/machine.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/tile.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
constexpr int Br = 64;             // rows of Q in a tile
constexpr int kGroup = 16;         // rows of O that are combined at once
constexpr int kElementwise = 256;  // threads of a block of the kernels before and after

/// Compiled tiles: heads up to …, Br, Bc; for each head size the largest first.
constexpr TileSize kTiles[] = {{128, Br, 128}, {128, Br, 64}, {256, Br, 64}};
/// Floats from row to row of the partial sums: 8 more than D, so that rows start in other banks.
constexpr int partial_pitch(int D) {
  return D + 8;
}
int64_t smem_bytes(int D, int Bc) {
  return shared_bytes<fp16>(Br * D) + 2 * shared_bytes<fp16>(Bc * D) +
         shared_bytes<float>(kWarps * kGroup * partial_pitch(D)) +
         2 * shared_bytes<float>(kWarps * Br) + 2 * shared_bytes<float>(Br);
}

/// O, l and m for one tile of Q. m is kept in units of ln 2: exp(scale·s) = 2^(c·s).
/// grid: (B·H, tiles of Q).
template <class T, int D, int Bc>
__global__ void __launch_bounds__(kThreads)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> l_hbm,
              Hbm<float> m_hbm, Problem p) {
  constexpr int kKeys = Bc / kWarps;  // columns of S of a warp
  constexpr int kPitch = partial_pitch(D);
  const int64_t bh = blockIdx.x;
  const int row = blockIdx.y * Br;
  const int thread = threadIdx.x;
  const int warp_key = warp_id() * kKeys;
  const auto Q_head = Q + p.q_row(bh) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const auto O_head = O + p.q_row(bh) * p.d;
  const auto l_head = l_hbm + bh * p.N;
  const auto m_head = m_hbm + bh * p.N;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Br, D> tile_Q{smem.take<T>("Q", Br * D)};
  const Tile<T, Bc, D> tile_K{smem.take<T>("K", Bc * D)};
  const Tile<T, Bc, D> tile_V{smem.take<T>("V", Bc * D)};
  const auto partial = smem.take<float>("partial O", kWarps * kGroup * kPitch);
  const auto warp_m = smem.take<float>("rowmax", kWarps * Br);
  const auto warp_l = smem.take<float>("rowsum", kWarps * Br);
  const auto old_weight = smem.take<float>("weight of O", Br);   // l·e^(m − m_new) / l_new
  const auto new_weight = smem.take<float>("weight of PV", Br);  // e^(m̃ − m_new) / l_new

  copy_async<kThreads>(tile_Q, Q_head + int64_t{row} * p.d, p.d, p.N - row, p.d, thread);
  copy_async<kThreads>(tile_K, K_head, p.d, p.N_kv, p.d, thread);
  cp_async_commit();

  float m = -INFINITY, l = 0;                            // of row `thread`, where that is < Br
  float O_sum[Br / kGroup][kGroup * D / kThreads] = {};  // this thread's elements of O
  for (int key = 0; key < p.N_kv; key += Bc) {
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, p.N_kv - key, p.d, thread);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();  // K is there

    Accumulator<Br, kKeys> S;  // this warp's columns
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      Operand<T, Br, 16> q;
      load(q, tile_Q, 0, k);
      mma_ABt(S, q, tile_K, warp_key, k);
    }
    if (key + Bc > p.keys(row))
      for_each(S, [&](int i, int j, float& s) {
        if (key + warp_key + j >= p.keys(row + i)) s = -INFINITY;
      });

    // m̃: every warp writes its columns' maxima and reads everybody's.
    const auto m_warp = c * row_max(S);
    for_each_row(m_warp, m_warp, [&](int i, float x, float) { warp_m[warp_id() * Br + i] = x; });
    __syncthreads();  // and all warps are done with this tile of K
    if (key + Bc < p.N_kv)
      copy_async<kThreads>(tile_K, K_head + int64_t{key + Bc} * p.d, p.d, p.N_kv - key - Bc, p.d,
                           thread);
    cp_async_commit();
    const auto m_tile = make_rows<Br>([&](int i) {
      float x = warp_m[i];
      for (int w = 1; w < kWarps; ++w) x = fmaxf(x, warp_m[w * Br + i]);
      return x;
    });
    exp2_rows(S, c, finite_or_zero(m_tile));  // S is P from here on
    const auto l_warp = row_sum(S);
    for_each_row(l_warp, m_tile,
                 [&](int i, float sum, float) { warp_l[warp_id() * Br + i] = sum; });
    cp_async_wait<1>();
    __syncthreads();  // V is there too

    // One thread a row: l and m, and what O and P·V weigh in the new O.
    if (thread < Br) {
      float m_row = warp_m[thread], l_row = warp_l[thread];
      for (int w = 1; w < kWarps; ++w) {
        m_row = fmaxf(m_row, warp_m[w * Br + thread]);
        l_row += warp_l[w * Br + thread];
      }
      const float m_new = fmaxf(m, m_row);
      const float shift = m_new == -INFINITY ? 0 : m_new;
      const float alpha = exp2_fast(m - shift), beta = exp2_fast(m_row - shift);
      const float l_new = alpha * l + beta * l_row;
      const float inverse = l_new > 0 ? 1 / l_new : 0;
      old_weight[thread] = alpha * l * inverse;
      new_weight[thread] = beta * inverse;
      m = m_new;
      l = l_new;
      count_flops(2 * (kWarps - 1) + 10);
    }

    // O, 16 rows at a time: each warp's P·V over its own keys, then their sum.
    const auto P = as_operand<T>(S);
#pragma unroll
    for (int g = 0; g < Br / kGroup; ++g) {
      Accumulator<kGroup, D> PV;
      mma_AB(PV, rows_of(P, g), tile_V, warp_key, 0);
      write(partial + warp_id() * kGroup * kPitch, kPitch, PV);
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kGroup * D / kThreads; ++n) {
        const int e = n * kThreads + thread, i = kGroup * g + e / D, column = e % D;
        float sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += partial[(w * kGroup + e / D) * kPitch + column];
        O_sum[g][n] = old_weight[i] * O_sum[g][n] + new_weight[i] * sum;
        count_flops(kWarps - 1 + 3);
      }
      __syncthreads();  // the partial sums may be overwritten
    }
  }
  cp_async_wait<0>();

#pragma unroll
  for (int g = 0; g < Br / kGroup; ++g)
#pragma unroll
    for (int n = 0; n < kGroup * D / kThreads; ++n) {
      const int e = n * kThreads + thread, i = kGroup * g + e / D, column = e % D;
      if (row + i < p.N && column < p.d) O_head[int64_t{row + i} * p.d + column] = T(O_sum[g][n]);
    }
  if (thread < Br && row + thread < p.N) {
    m_head[row + thread] = m;
    l_head[row + thread] = l;
  }
}

/// LSE = m + ln l.
__global__ void finish(Hbm<const float> l, Hbm<const float> m, Hbm<float> LSE, Problem p) {
  const int64_t i = int64_t{blockIdx.x} * kElementwise + threadIdx.x;
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  if (i < rows) LSE[i] = m[i] * kLn2 + logf(l[i]);  // −∞ for a row that sees no key
}

/// Algorithm 1's block sizes for on-chip memory of M elements: Bc = ⌈M/4d⌉, Br = min(⌈M/4d⌉, d).
/// A quarter each for Q, K, V and O. Bc is rounded down to a compiled tile. Br is 64 for every d:
/// 64 rows are what the registers of four warps hold of S.
Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int D = padded_head_dim(p.d);
  Plan plan{.head_dim = D, .warps = kWarps, .stages = 1};
  std::vector<TileSize> tiles(std::begin(kTiles), std::end(kTiles));
  const int64_t rule = ceil_div(device.sram_bytes / kIoBytes, 4 * p.d);
  if (request.any())
    std::erase_if(tiles,
                  [&](const TileSize& t) { return t.block_kv > std::max<int64_t>(rule, 64); });
  choose_tile(plan, tiles, request, device.sram_bytes,
              [&](int, int Bc) { return smem_bytes(D, Bc); });
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  plan.workspace = {{"l", rows * 4}, {"m", rows * 4}};
  return plan;
}

template <class T, int D, int Bc>
void launch_forward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
  const auto O = hbm<T>(a["O"]);
  const auto l = hbm<float>(a["l"]), m = hbm<float>(a["m"]), LSE = hbm<float>(a["LSE"]);
  const dim3 rows(ceil_div(int64_t{p.B} * p.H * p.N, kElementwise));

  launch("attention", attention<T, D, Bc>, dim3(p.B * p.H, grid_blocks(p.N, Br)), dim3(kThreads),
         plan.smem_bytes, Q, K, V, O, l, m, p);
  launch("finish", finish, rows, dim3(kElementwise), 0, l, m, LSE, p);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan,
                    [&]<class T, int D, int, int Bc>() { launch_forward<T, D, Bc>(p, plan, a); });
}

/// Requested bytes: K and V once for each tile of Q.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;     // bytes of Q, and of O
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;  // bytes of K, and of V, as heads use them
  const int64_t l = heads * p.N * 4;                  // bytes of l, m and LSE
  const int64_t blocks = ceil_div(p.N, Br);
  return {{"attention",
           {{"Q", q, 0},
            {"K", k * blocks, 0},
            {"V", k * blocks, 0},
            {"O", 0, q},
            {"l", 0, l},
            {"m", 0, l}}},
          {"finish", {{"l", l, 0}, {"m", l, 0}, {"LSE", 0, l}}}};
}

const Register step{{.rung = "05_flash_v2",
                     .name = "swap",
                     .summary = "Q outside, K/V inside: O, l, m stay on chip, a block a tile of Q",
                     .colour = "#0072B2",
                     .has_lse = true,
                     .tiles = kTiles,
                     .plan = plan,
                     .forward = forward,
                     .traffic = traffic}};

}  // namespace
}  // namespace ladder::MACHINE
