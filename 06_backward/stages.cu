// 06 · The backward pass whose next tiles arrive while it multiplies.
//
//   build/bin/06_backward --step stages --seqlen 512 --causal
//
// Since `recompute`: two stages hold tiles of Q and dO. While a block multiplies those of one, the
// next are copied into the other. The forward pass is `split_sums`'s.

#include "machine/machine.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of the backward pass: heads up to …, Br, Bc; for each head size the best first.
constexpr TileSize kBackwardTiles[] = {
    {128, 64, 64}, {128, 32, 64}, {128, 32, 32}, {256, 64, 64}, {256, 32, 32}};

/// Stages of copies of Q and dO; at d = 256 most GPUs have room for one.
constexpr int backward_stages(int Dh) {
  return Dh == 256 ? 1 : 2;
}
constexpr int kWarpRows = 16;  // that a warp makes of each product of a block
/// Warps of a block, two of them side by side in S.
constexpr int backward_warps(int Br) {
  return 2 * Br / kWarpRows;
}
int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int stages = backward_stages(Dh);
  return 2 * array_bytes<fp16>(Bc * Dh) + 2 * array_bytes<fp16>(stages * Br * Dh) +
         2 * array_bytes<fp16>(Br * Bc) + 2 * array_bytes<float>(stages * Br);
}

constexpr int kElementwise = 256;  // threads of a block of a small kernel

/// delta = rowsum(dO∘O), which dS takes from dP; LSE in units of ln 2; and dQ's sums, 0 to begin
/// with. A row that attends to no key has LSE = −∞: +∞ in its place makes its P 0, as the mask does
/// once more; without it exp would first give ∞. Dh/8 lanes per row.
template <class T, int Dh>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE, Hbm<float> delta,
                           Hbm<float> LSE_log2e, Hbm<float> dQ_sum, Problem p) {
  constexpr int kLanes = Dh / 8;
  const int64_t row = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  const int column = threadIdx.x % kLanes * 8;
  const bool inside = row < int64_t{p.B} * p.H * p.N, first = inside && column == 0;
  const float lse = first ? LSE[row] : 0;
  float sum = 0;
  if (inside && column < p.d) {
    const int64_t at = row * p.d + column;
    const auto o = read_chunk(O + at), g = read_chunk(dO + at);
    for (int e = 0; e < 8; ++e) sum += float(o[e]) * float(g[e]);
    write_chunk(dQ_sum + at, Chunk<float>{});
  }
  for (int bit = kLanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bit);
  if (first) {
    delta[row] = sum;
    LSE_log2e[row] = lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
}

/// What block `index` works on: a tile of keys of one of the B·Hk heads of K and V. The first keys
/// are seen by the most rows.
__device__ __forceinline__ WorkTile work_of(int index, int tiles, const Problem& p) {
  return longest_first(index, {.heads = p.B * p.Hk,
                               .tiles = tiles,
                               .head_bytes = 4 * kIoBytes * p.N * p.d * (p.H / p.Hk),
                               .uneven = p.causal});
}
/// A tile of Q: its head of Q and its first row.
struct Place {
  int head, row;
};

/// dK and dV of one tile of keys, and what it adds to dQ. grid: (tiles of K · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(32 * backward_warps(Br))
    key_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                  Hbm<const float> delta, Hbm<const float> LSE_log2e, Hbm<float> dQ_sum, Hbm<T> dK,
                  Hbm<T> dV, Problem p) {
  constexpr int kBackwardWarps = backward_warps(Br), kBackwardThreads = 32 * kBackwardWarps;
  constexpr int kStages = backward_stages(Dh);
  const WarpTile<Br, Bc, kWarpRows, kBackwardWarps> of_S;  // and of P, dP and dS
  const WarpTile<Br, Dh, kWarpRows, kBackwardWarps> of_dQ;
  const WarpTile<Bc, Dh, kWarpRows, kBackwardWarps> of_sum;  // of dV and of dK
  const auto [bh, tile] = work_of(blockIdx.x, static_cast<int>(ceil_div(p.N_kv, Bc)), p);
  const int key = tile * Bc;
  const int thread = threadIdx.x;
  const int64_t kv_first = (int64_t{bh} * p.N_kv + key) * p.d;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Bc, Dh> tile_K{smem.take<T>("K", Bc * Dh)};
  const Tile<T, Bc, Dh> tile_V{smem.take<T>("V", Bc * Dh)};
  const auto Q_stages = smem.take<T>("Q", kStages * Br * Dh);
  const auto dO_stages = smem.take<T>("dO", kStages * Br * Dh);
  const Tile<T, Br, Bc> tile_P{smem.take<T>("P", Br * Bc)};
  const Tile<T, Br, Bc> tile_dS{smem.take<T>("dS", Br * Bc)};
  const auto delta_stages = smem.take<float>("D", kStages * Br);
  const auto LSE_stages = smem.take<float>("LSE_log2e", kStages * Br);

  // The query heads of this head of K and V, one after the other; of each, the tiles of Q from the
  // first row that attends to a key of this tile.
  const int group = p.H / p.Hk, heads_end = (bh + 1) * group;
  const int first_row = p.first_query(key) / Br * Br;
  const auto after = [&](Place last) {
    return last.row + Br < p.N ? Place{last.head, last.row + Br} : Place{last.head + 1, first_row};
  };
  const auto start_copies = [&](Place from, int stage) {
    if (from.head < heads_end) {
      const int rows = p.N - from.row;
      const int64_t at = p.q_row(from.head) + from.row;
      const Tile<T, Br, Dh> tile_Q{Q_stages + stage * Br * Dh},
          tile_dO{dO_stages + stage * Br * Dh};
      copy_async<kBackwardThreads>(tile_Q, Q + at * p.d, p.d, rows, p.d, thread);
      copy_async<kBackwardThreads>(tile_dO, dO + at * p.d, p.d, rows, p.d, thread);
      // Past N all are zeros: P is 1 there, harmless since dO and D are 0.
      copy_async<kBackwardThreads, Br>(delta_stages + stage * Br, delta + at, rows, thread);
      copy_async<kBackwardThreads, Br>(LSE_stages + stage * Br, LSE_log2e + at, rows, thread);
    }
    cp_async_commit();
  };
  copy_async<kBackwardThreads>(tile_K, K + kv_first, p.d, p.N_kv - key, p.d, thread);
  copy_async<kBackwardThreads>(tile_V, V + kv_first, p.d, p.N_kv - key, p.d, thread);
  Place next{bh * group, first_row};
  int stage = 0;
  start_copies(next, stage);

  Accumulator<kWarpRows, of_sum.kColumns> dV_sum, dK_sum;
  while (next.head < heads_end) {
    const auto [head, row] = next;
    next = after(next);
    cp_async_wait<0>();
    __syncthreads();  // these tiles are here, and all warps are done with the last, P and dS
    const Tile<T, Br, Dh> tile_Q{Q_stages + stage * Br * Dh}, tile_dO{dO_stages + stage * Br * Dh};
    const auto delta_tile = delta_stages + stage * Br, LSE_tile = LSE_stages + stage * Br;

    Accumulator<kWarpRows, of_S.kColumns> S;
    mma_ABt(S, tile_Q, of_S.row, tile_K, of_S.column);
    if (kStages == 2) start_copies(next, 1 - stage);  // under S's products
    auto P = S;
    exp2_rows(P, c, load_rows<kWarpRows>(LSE_tile + of_S.row));

    // dP begins at −D, which dS subtracts. Its products overlap the exponentials, so the mask is
    // looked at after them. Of keys past N_kv too: exp(0 − LSE) may be ∞, and ∞·0 is NaN in dQ.
    Accumulator<kWarpRows, of_S.kColumns> dP;
    fill_rows(dP, make_rows<kWarpRows>([&](int i) -> float { return -delta_tile[of_S.row + i]; }));
    mma_ABt(dP, tile_dO, of_S.row, tile_V, of_S.column);
    if (key + Bc > p.keys(row))
      for_each(P, [&](int i, int j, float& x) {
        if (key + of_S.column + j >= p.keys(row + of_S.row + i)) x = 0;
      });
    write(tile_P, P, of_S.row, of_S.column);

    auto dS = dP;
    mul(dS, P);
    write(tile_dS, dS, of_S.row, of_S.column);
    __syncthreads();  // P and dS are complete

#pragma unroll
    for (int k = 0; k < Br; k += 16) {
      Operand<T, kWarpRows, 16> p_t, ds_t;
      load_transposed(p_t, tile_P, k, of_sum.row);
      mma_AB(dV_sum, p_t, tile_dO, k, of_sum.column);
      load_transposed(ds_t, tile_dS, k, of_sum.row);
      mma_AB(dK_sum, ds_t, tile_Q, k, of_sum.column);
    }
    Accumulator<kWarpRows, of_dQ.kColumns> dQ;
    mma_AB(dQ, tile_dS, of_dQ.row, tile_K, of_dQ.column);
    const auto dQ_tile = dQ_sum + (p.q_row(head) + row) * p.d;
    for_each_pair(dQ, [&](int i, int j, float a, float b) {
      i += of_dQ.row, j += of_dQ.column;
      if (row + i < p.N && j < p.d) atomic_add_pair(dQ_tile + (i * p.d + j), a, b);
    });
    if (kStages == 1) {
      __syncthreads();  // all warps are done with Q and dO
      start_copies(next, stage);
    }
    stage = kStages - 1 - stage;  // where there are two, the other one
  }
  __syncthreads();  // all warps are done with K and V, which came with the first tiles

  // Through the tiles of K and V, so that dK and dV are written in whole 16-byte pieces.
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write(tile_K, dK_sum, of_sum.row, of_sum.column);
  write(tile_V, dV_sum, of_sum.row, of_sum.column);
  __syncthreads();
  copy_out<kBackwardThreads>(dK + kv_first, p.d, tile_K, p.N_kv - key, p.d, thread);
  copy_out<kBackwardThreads>(dV + kv_first, p.d, tile_V, p.N_kv - key, p.d, thread);
}

/// dQ in the I/O type. A thread has 8 elements.
template <class T>
__global__ void postprocess(Hbm<const float> dQ_sum, Hbm<T> dQ, Problem p) {
  const int64_t at = 8 * (int64_t{blockIdx.x} * kElementwise + threadIdx.x);
  if (at >= int64_t{p.B} * p.H * p.N * p.d) return;
  const auto sum = read_chunk(dQ_sum + at);
  Chunk<T> out;
  for (int e = 0; e < 8; ++e) out[e] = T(p.scale * sum[e]);
  write_chunk(dQ + at, out);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = backward_stages(Dh)};
  choose_tile(plan, kBackwardTiles, {}, device.smem_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(Dh, Br, Bc); });
  plan.warps = backward_warps(plan.block_q);
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  plan.workspace = {{"D", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * p.d * 4}};
  return plan;
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto O = hbm<const T>(a["O"]), dO = hbm<const T>(a["dO"]);
    const auto LSE = hbm<const float>(a["LSE"]);
    const auto delta = hbm<float>(a["D"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
    const auto dQ_sum = hbm<float>(a["dQ_sum"]);
    const auto dQ = hbm<T>(a["dQ"]), dK = hbm<T>(a["dK"]), dV = hbm<T>(a["dV"]);
    const dim3 of_rows(ceil_div(int64_t{p.B} * p.H * p.N * (Dh / 8), kElementwise));

    launch("preprocess", preprocess<T, Dh>, of_rows, dim3(kElementwise), 0, O, dO, LSE, delta,
           LSE_log2e, dQ_sum, p);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(ceil_div(p.N_kv, Bc) * p.B * p.Hk),
           dim3(32 * backward_warps(Br)), plan.smem_bytes, Q, K, V, dO, delta, LSE_log2e, dQ_sum,
           dK, dV, p);
    launch("postprocess", postprocess<T>, of_rows, dim3(kElementwise), 0, dQ_sum, dQ, p);
  });
}

/// Requested bytes of the backward pass: every tile of keys reads Q and dO from the first row that
/// attends to one of its keys, and adds to dQ there.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO and dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK and dV
  const int64_t rows = heads * p.N * 4;                   // bytes of LSE, LSE_log2e and D
  int64_t queries = 0;  // rows that the tiles of keys of a head read
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key));
    if (first < p.N) queries += p.N - first / plan.block_q * plan.block_q;
  }
  queries *= heads;
  const int64_t tiles = queries * p.d * kIoBytes;  // bytes of Q, and of dO, that they read
  return {{"preprocess",
           {{"O", q, 0},
            {"dO", q, 0},
            {"LSE", rows, 0},
            {"D", 0, rows},
            {"LSE_log2e", 0, rows},
            {"dQ_sum", 0, 2 * q}}},
          {"key_gradients",
           {{"Q", tiles, 0},
            {"K", kv, 0},
            {"V", kv, 0},
            {"dO", tiles, 0},
            {"D", queries * 4, 0},
            {"LSE_log2e", queries * 4, 0},
            {"dQ_sum", 2 * tiles, 2 * tiles},
            {"dK", 0, kv},
            {"dV", 0, kv}}},
          {"postprocess", {{"dQ_sum", 2 * q, 0}, {"dQ", 0, q}}}};
}

const Register step{{
    .rung = "06_backward",
    .name = "stages",
    .after = "recompute",
    .shown = {.idea = "copies ahead",
              .change = {"flops_under_copies", "from 0"},
              .summary = "recompute with the next tiles copied while it multiplies",
              .colour = "#D55E00"},
    .forward_of = "06_backward/split_sums",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
