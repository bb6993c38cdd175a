// 03 · Online softmax: attention in one pass, b keys at a time on the tensor cores.
//
//   build/bin/03_online_softmax --step one_pass_tile --seqlen 512
//
//   m_new = max(m, rowmax S),   P = exp(S − m_new),   α = exp(m − m_new)
//   l ← α·l + rowsum P
//   O ← α·O + P·V                                       at the end O / l
//
// Since `one_pass`: a warp applies the same recurrence to 32 rows of Q and b keys at once. Each
// warp works alone: it keeps its rows of Q and copies every tile of K and V for itself. Nothing of
// size N × N is stored.

#include "machine/machine.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Returns the rows of Q per warp, for d padded to Dh. The warp's sums for O take kWarpRows·Dh/32
/// of each lane's 255 registers.
constexpr int rows_of_warp(int Dh) {
  return Dh <= 128 ? 32 : 16;
}
constexpr int kWarpKeys = 32;  // b: keys per tile

/// Returns the elements of shared memory for one warp's tiles of Q, K and V.
constexpr int warp_elements(int Dh) {
  return (rows_of_warp(Dh) + 2 * kWarpKeys) * Dh;
}

/// O = softmax(scale·Q·Kᵀ)·V. grid: (B·H, blocks of kWarps·kWarpRows rows).
template <class T, int Dh, int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Problem p) {
  constexpr int kWarpRows = rows_of_warp(Dh);
  const int64_t bh = blockIdx.x;
  const int row = (blockIdx.y * kWarps + warp_id()) * kWarpRows;
  if (row >= p.N) return;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const auto mine =
      smem.take<T>("tiles", kWarps * warp_elements(Dh)) + warp_id() * warp_elements(Dh);
  const Tile<T, kWarpRows, Dh> tile_Q{mine};
  const Tile<T, kWarpKeys, Dh> tile_K{mine + kWarpRows * Dh};
  const Tile<T, kWarpKeys, Dh> tile_V{mine + (kWarpRows + kWarpKeys) * Dh};

  copy_async<32>(tile_Q, Q + (p.q_row(bh) + row) * p.d, p.d, p.N - row, p.d, lane_id());
  copy_async<32>(tile_K, K_head, p.d, p.N_kv, p.d, lane_id());
  cp_async_commit();

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<kWarpRows>(-INFINITY), l = fill_rows<kWarpRows>(0);
  Accumulator<kWarpRows, Dh> O_sum;
  for (int key = 0; key < p.N_kv; key += kWarpKeys) {
    cp_async_wait<0>();
    __syncwarp();  // K has arrived, and all lanes are done with the previous V
    copy_async<32>(tile_V, V_head + int64_t{key} * p.d, p.d, p.N_kv - key, p.d, lane_id());
    cp_async_commit();

    Accumulator<kWarpRows, kWarpKeys> S;
    mma_ABt(S, tile_Q, tile_K);
    if (key + kWarpKeys > p.keys(row))
      for_each(S, [&](int i, int j, float& s) {
        if (key + j >= p.keys(row + i)) s = -INFINITY;
      });

    cp_async_wait<0>();
    __syncwarp();  // V has arrived, and all lanes are done with this K
    if (key + kWarpKeys < p.N_kv)
      copy_async<32>(tile_K, K_head + int64_t{key + kWarpKeys} * p.d, p.d, p.N_kv - key - kWarpKeys,
                     p.d, lane_id());
    cp_async_commit();

    const auto m_new = max(m, c * row_max(S));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    auto& P = S;
    exp2_rows(P, c, shift);
    l = alpha * l + row_sum(P);
    m = m_new;
    mul_rows(O_sum, alpha);
    mma_AB(O_sum, as_operand<T>(P), tile_V);
  }
  mul_rows(O_sum, inverse_or_zero(l));

  // O goes through shared memory, so that its rows are written in whole 16-byte chunks.
  write(tile_Q, O_sum, 0, 0);
  __syncwarp();
  copy_out<32>(O + (p.q_row(bh) + row) * p.d, p.d, tile_Q, p.N - row, p.d, lane_id());
}

/// Chooses four warps per block, or two or one where the tiles of wide heads are too large for
/// four. The warps share nothing.
Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int Dh = padded_head_dim(p.d);
  const auto smem_bytes = [&](int warps) { return array_bytes<fp16>(warps * warp_elements(Dh)); };
  int warps = 4;
  while (Dh >= 128 && warps > 1 && smem_bytes(warps) > device.smem_bytes) warps /= 2;
  grid_blocks(p.N, warps * rows_of_warp(Dh));  // throws beyond 65,535 blocks
  return {.block_q = rows_of_warp(Dh),
          .block_kv = kWarpKeys,
          .head_dim = Dh,
          .warps = warps,
          .stages = 1,
          .smem_bytes = smem_bytes(warps)};
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_type_and_head_dim(p, [&]<class T, int Dh>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto O = hbm<T>(a["O"]);
    auto kernel = attention<T, Dh, 4>;
    if constexpr (Dh >= 128)
      if (plan.warps < 4) kernel = plan.warps == 2 ? attention<T, Dh, 2> : attention<T, Dh, 1>;
    launch("attention", kernel, dim3(p.B * p.H, grid_blocks(p.N, plan.warps * plan.block_q)),
           dim3(32 * plan.warps), plan.smem_bytes, Q, K, V, O, p);
  });
}

/// Predicts the requested bytes: every warp reads all of K and V.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q or O
  const int64_t k = heads * p.N_kv * p.d * kIoBytes * ceil_div(p.N, plan.block_q);
  return {{"attention", {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}}}};
}

const Register step{{
    .rung = "03_online_softmax",
    .name = "one_pass_tile",
    .after = "one_pass",
    .is_default = true,
    .shown = {.idea = "tiles per warp",
              .change = {"requested_bytes", "less"},
              .summary = "the same for 32 rows and 32 keys at once, tensor cores",
              .colour = "#009E73"},
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
