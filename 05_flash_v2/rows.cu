// 05 · FlashAttention-2, third step: the warps split the rows of Q, not the keys.
//
//   build/bin/05_flash_v2 --step rows --seqlen 512
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
// Since `defer`: each warp holds whole rows of S and O in its own registers, so the warps exchange
// nothing. The block order and the largest tile for each head size are the same as in `defer`.

#include "machine/machine.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

/// Compiled tiles: {largest head size, Br, Bc}. For each head size the largest tile comes first.
constexpr TileSize kTiles[] = {{128, 64, 128}, {128, 64, 64}, {256, 64, 64}, {256, 64, 32}};

int64_t smem_bytes(int Dh, int Br, int Bc) {
  return array_bytes<fp16>((Br + 2 * Bc) * Dh);
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (B·H, tiles of Q).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kThreads)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> LSE, Problem p) {
  constexpr int kWarpRows = Br / kWarps;  // rows of Q per warp
  const int64_t bh = blockIdx.x;
  const int block_row = blockIdx.y * Br;
  const int warp_row = warp_id() * kWarpRows, row = block_row + warp_row;
  const int thread = threadIdx.x;
  const auto Q_tile = Q + (p.q_row(bh) + block_row) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const int keys = p.N_kv;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Br, Dh> tile_Q{smem.take<T>("Q", Br * Dh)};
  const Tile<T, Bc, Dh> tile_K{smem.take<T>("K", Bc * Dh)};
  const Tile<T, Bc, Dh> tile_V{smem.take<T>("V", Bc * Dh)};
  copy_async<kThreads>(tile_Q, Q_tile, p.d, p.N - block_row, p.d, thread);
  copy_async<kThreads>(tile_K, K_head, p.d, keys, p.d, thread);
  cp_async_commit();

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<kWarpRows>(-INFINITY), l = fill_rows<kWarpRows>(0);
  Accumulator<kWarpRows, Dh> O_sum;
  for (int key = 0; key < keys; key += Bc) {
    cp_async_wait<0>();
    __syncthreads();  // K has arrived, and all warps are done with the previous V
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, keys - key, p.d, thread);
    cp_async_commit();

    Accumulator<kWarpRows, Bc> S;
    mma_ABt(S, tile_Q, warp_row, tile_K);
    if (key + Bc > p.keys(row))
      for_each(S, [&](int i, int j, float& s) {
        if (key + j >= p.keys(row + i)) s = -INFINITY;
      });

    cp_async_wait<0>();
    __syncthreads();  // V has arrived, and all warps are done with this K
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
    mma_AB(O_sum, as_operand<T>(P), tile_V);
  }
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived, too; `skip` needs this, because its tiles may have no keys

  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  // O goes through the warp's own rows of Q's tile, so that it is written in 16-byte chunks.
  const Tile<T, kWarpRows, Dh> tile_O{tile_Q.data + warp_row * Dh};
  write(tile_O, O_sum, 0, 0);
  __syncwarp();  // all lanes have written
  copy_out<32>(O + (p.q_row(bh) + row) * p.d, p.d, tile_O, p.N - row, p.d, lane_id());
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

/// Chooses the tile by Algorithm 1's rule, which gives Q, K, V and O each a quarter of the M
/// elements that fit on the chip: Bc = ⌈M/4d⌉, Br = min(⌈M/4d⌉, d). Here Bc is max(⌈M/4d⌉, 64),
/// rounded down to a compiled size. Br is 64 for every d, because each of the four warps needs the
/// 16 rows of an mma.
Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .warps = kWarps, .stages = 1};
  std::vector<TileSize> tiles(std::begin(kTiles), std::end(kTiles));
  const int64_t rule = ceil_div(device.smem_bytes / kIoBytes, 4 * p.d);
  if (request.is_empty())
    std::erase_if(tiles,
                  [&](const TileSize& t) { return t.block_kv > std::max<int64_t>(rule, 64); });
  choose_tile(plan, tiles, request, device.smem_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  grid_blocks(p.N, plan.block_q);  // throws beyond 65,535 blocks
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch("attention", attention<T, Dh, Br, Bc>, dim3(p.B * p.H, grid_blocks(p.N, Br)),
           dim3(kThreads), plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]),
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
    .name = "rows",
    .after = "defer",
    .shown = {.idea = "warps split rows",
              .change = {"barriers", "less"},
              .summary = "warps split the rows of Q, not the keys",
              .colour = "#0072B2"},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
