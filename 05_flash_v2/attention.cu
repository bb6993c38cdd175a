// 05 · FlashAttention-2 (Dao 2023, Algorithm 1), the forward pass.
//
//   build/bin/05_flash_v2 --step large_tiles --seqlen 512 --causal
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
// Since `skip`: tiles are larger. They have 128 rows of Q, so that K and V are requested half as
// often, and 64 keys, because a thread's registers cannot hold both O and S for more keys. Also:
//
//   - The products load the next matrix of an operand while they multiply the current one
//     (tile/grouped.h).
//   - Heads are also padded to 96 and 192 columns. Heads of up to 32 columns use tiles of 128 keys,
//     and heads above 128 use blocks of eight warps.
//   - Where there are few tiles of Q, the plan takes smaller tiles, or several blocks share each
//     tile's keys (parts.h).
//   - The mask computes a row's number of keys once per row, not once per element (mask_columns).

#include "machine/machine.h"
#include "parts.h"
#include "rung.h"
#include "tile/grouped.h"
#include "tile/rows.h"
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

/// Compiled tiles: {largest head size, Br, Bc}. For each head size the fastest tile comes first.
constexpr TileSize kTiles[] = {{32, 128, 128}, {32, 64, 128},  {128, 128, 64}, {128, 64, 64},
                               {256, 128, 64}, {256, 128, 32}, {256, 64, 64},  {256, 64, 32}};
/// Returns the warps per block. For wide heads, a warp's registers hold only 16 rows of O.
constexpr int warps(int Dh, int Br) {
  return Dh <= 128 ? 4 : Br / 16;
}
/// Returns whether blocks may share a tile's keys. They may share only tiles of 64 rows, which make
/// the most blocks.
constexpr bool may_split(int Br) {
  return Br == 64;
}

int64_t smem_bytes(int Dh, int Br, int Bc) {
  return array_bytes<fp16>((Br + 2 * Bc) * Dh);
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. If kSplit, stores m, l and the unnormalised O of one part of
/// the keys instead. Grid without kSplit: (tiles of Q · B·H). Grid with kSplit: (tiles of Q · B·H,
/// parts).
template <class T, int Dh, int Br, int Bc, bool kSplit>
__global__ void __launch_bounds__(32 * warps(Dh, Br), Dh <= 128 ? 2 : 1)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> LSE, Parts parts,
              Problem p) {
  constexpr int kWarps = warps(Dh, Br), kThreads = 32 * kWarps;
  constexpr int kWarpRows = Br / kWarps;  // rows of Q per warp
  const int tiles = ceil_div(p.N, Br);
  const int index = blockIdx.x;
  // Without the mask all tiles are equally long, and plain order needs fewer divisions.
  const auto [bh, tile] = p.causal
                              ? longest_first(index, {.heads = p.B * p.H,
                                                      .tiles = tiles,
                                                      .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                                                      .uneven = true})
                              : WorkTile{index / tiles, index % tiles};
  const int block_row = (tiles - 1 - tile) * Br;  // the last rows attend to the most keys
  const int warp_row = warp_id() * kWarpRows, row = block_row + warp_row;
  const int thread = threadIdx.x;
  const auto Q_tile = Q + (p.q_row(bh) + block_row) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const int keys = p.keys(min(block_row + Br, p.N) - 1);     // that the block's last row attends to
  const auto [begin, end] = keys_of_part<kSplit, Bc>(keys);  // this block's part of the keys
  const float c = p.scale * kLog2e;                          // exp(scale·s) = 2^(c·s)

  if constexpr (kSplit) let_next_kernel_start();  // merge starts early, but waits for this kernel
  SharedMemory smem;
  const GroupedTile<T, Br, Dh> tile_Q{smem.take<T>("Q", Br * Dh)};
  const GroupedTile<T, Bc, Dh> tile_K{smem.take<T>("K", Bc * Dh)};
  const GroupedTile<T, Bc, Dh> tile_V{smem.take<T>("V", Bc * Dh)};
  copy_async<kThreads>(tile_Q, Q_tile, p.d, p.N - block_row, p.d, thread);
  copy_async<kThreads>(tile_K, K_head + int64_t{begin} * p.d, p.d, end - begin, p.d, thread);
  cp_async_commit();

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<kWarpRows>(-INFINITY), l = fill_rows<kWarpRows>(0);
  Accumulator<kWarpRows, Dh> O_sum;
  for (int key = begin; key < end; key += Bc) {
    cp_async_wait<0>();
    __syncthreads();  // K has arrived, and all warps are done with the previous V
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, end - key, p.d, thread);
    cp_async_commit();

    Accumulator<kWarpRows, Bc> S;
    mma_ABt(S, tile_Q, warp_row, tile_K);
    if (key + Bc > p.keys(row))
      mask_columns(S, [&](int i) {
        opaque(i);  // otherwise the rows' limits would occupy registers in every iteration
        return p.keys(row + i) - key;
      });

    cp_async_wait<0>();
    __syncthreads();  // V has arrived, and all warps are done with this K
    if (key + Bc < end)
      copy_async<kThreads>(tile_K, K_head + int64_t{key + Bc} * p.d, p.d, end - key - Bc, p.d,
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
  if constexpr (kSplit) return store_part(O_sum, m, l, parts, bh, row, p);
  __syncthreads();  // Q has arrived even if there were no keys

  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  // O goes through the warp's own rows of Q's tile, so that it is written in 16-byte chunks.
  const GroupedTile<T, kWarpRows, Dh> tile_O{tile_Q.data + warp_row * Dh};
  write(tile_O, O_sum, 0, 0);
  __syncwarp();  // all lanes have written
  copy_out<32>(O + (p.q_row(bh) + row) * p.d, p.d, tile_O, p.N - row, p.d, lane_id());
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

/// Plans the tile and the number of parts: on a GPU those with the lowest estimated time (parts.h).
Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim<kAllHeadDims>(p.d);
  const auto smem = [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); };
  Plan plan{.head_dim = Dh, .stages = 1, .settings = choose_settings(kSettings, request.settings)};
  const std::string& asked = plan.settings.at("parts");
  const int parts = asked == "auto" ? 0 : std::stoi(asked);
  // On the simulator the plan ignores the SMs, so that counts depend on the algorithm alone.
  Choice choice{.tile = request, .parts = std::max(1, parts)};
  if (device.kind == DeviceKind::gpu)
    choice = fastest_of(kTiles, p, Dh, device, request, parts, warps, may_split, smem_bytes);
  else if (parts > 1 && request.block_q == 0)
    choice.tile.block_q = 64;
  plan.parts = choice.parts;
  choose_tile(plan, kTiles, choice.tile, device.smem_bytes, smem,
              Dh <= 128 ? 2 : 1);  // blocks per SM: while one waits, the other runs
  if (plan.parts > 1 && !may_split(plan.block_q))
    throw Error(Exit::bad_usage, "--set parts=" + asked + ": blocks cannot share a tile of " +
                                     std::to_string(plan.block_q) +
                                     " rows; leave --block-q to the plan");
  plan.warps = warps(Dh, plan.block_q);
  if (plan.parts > 1) plan.workspace = workspace_of_parts(p, plan.parts);
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles, kAllHeadDims>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const auto start = [&]<bool kSplit>(const Parts& parts) {
      launch("attention", attention<T, Dh, Br, Bc, kSplit>,
             dim3(ceil_div(p.N, Br) * p.B * p.H, plan.parts), dim3(32 * warps(Dh, Br)),
             plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]), hbm<const T>(a["V"]),
             hbm<T>(a["O"]), hbm<float>(a["LSE"]), parts, p);
    };
    if constexpr (may_split(Br))
      if (plan.parts > 1) {
        start.template operator()<true>(parts_in(a));
        return merge_parts<T, Dh>(p, plan.parts, a);
      }
    start.template operator()<false>(Parts{});
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
  if (plan.parts > 1) return traffic_of_parts(p, plan.parts, k);
  return {{"attention",
           {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}, {"LSE", 0, heads * p.N * 4}}}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "large_tiles",
    .after = "skip",
    .formerly = {"mma"},
    .is_default = true,
    .shown = {.idea = "larger tiles",
              .change = {"requested_bytes", "less"},
              .summary = "128 rows of Q per tile, so that K and V are requested half as often",
              .colour = "#0072B2"},
    .has_lse = true,
    .tiles = kTiles,
    .settings = kSettings,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
