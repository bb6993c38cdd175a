// 06 · The backward pass with two stages: the next tiles arrive while a block multiplies.
//
//   build/bin/06_backward --step stages --seqlen 512 --causal
//
// Since `recompute`: Q, dO, LSE and D have two stages, not one. While a block multiplies the tiles
// in one stage, the next tiles are copied into the other. The forward pass is `split_sums`'s.

#include "machine/machine.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of the backward pass: {largest head size, Br, Bc}. For each head size the fastest
/// tile comes first.
constexpr TileSize kBackwardTiles[] = {
    {128, 64, 64}, {128, 32, 64}, {128, 32, 32}, {256, 64, 64}, {256, 32, 32}};

/// Returns the stages for Q and dO. At d = 256, two stages exceed most GPUs' shared memory.
constexpr int backward_stages(int Dh) {
  return Dh == 256 ? 1 : 2;
}
constexpr int kWarpRows = 16;  // rows of each product per warp
/// Returns the warps per block. Two warps compute the same rows of S, half of the columns each.
constexpr int backward_warps(int Br) {
  return 2 * Br / kWarpRows;
}
int64_t backward_smem_bytes(int Dh, int Br, int Bc) {  // per block of key_gradients
  const int stages = backward_stages(Dh);
  return 2 * array_bytes<fp16>(Bc * Dh) + 2 * array_bytes<fp16>(stages * Br * Dh) +
         2 * array_bytes<fp16>(Br * Bc) + 2 * array_bytes<float>(stages * Br);
}

constexpr int kElementwise = 256;  // threads per block in the small kernels

/// For each row, writes minus_delta = −D = −rowsum(dO∘O) and LSE in units of ln 2, and sets dQ's
/// sums to 0. In key_gradients dP's sums start at minus_delta, and so end as dP − D. The arrays
/// written hold whole tiles, with `rows` rows per head. Rows past p.N, and rows that attend to no
/// key (LSE = −∞), get LSE = +∞, which makes their P 0. grid: Dh/8 lanes for each of B·H·rows rows.
template <class T, int Dh>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                           Hbm<float> minus_delta, Hbm<float> LSE_log2e, Hbm<float> dQ_sum,
                           int rows, Problem p) {
  constexpr int kLanes = Dh / 8;
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  if (at >= int64_t{p.B} * p.H * rows) return;  // true for all of a warp's lanes or none
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  const bool real = row < p.N;
  const float lse = real && column == 0 ? LSE[head * p.N + row] : -INFINITY;
  float sum = 0;
  write_chunk(dQ_sum + (at * Dh + column), Chunk<float>{});
  if (real && column < p.d) {
    const int64_t from = (head * p.N + row) * p.d + column;
    const auto o = read_chunk(O + from), g = read_chunk(dO + from);
    for (int e = 0; e < 8; ++e) sum += float(o[e]) * float(g[e]);
  }
  for (int bit = kLanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bit);
  if (column == 0) {
    minus_delta[at] = -sum;
    LSE_log2e[at] = lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
}

/// Returns the work of block `index`: one of the B·Hk heads of K and V, and one of the head's
/// `tiles` tiles of keys. The tiles that take longest come first: under the mask, the most rows
/// attend to the first keys.
__device__ __forceinline__ WorkTile work_of(int index, int tiles, const Problem& p) {
  return longest_first(index, {.heads = p.B * p.Hk,
                               .tiles = tiles,
                               .head_bytes = 4 * kIoBytes * p.N * p.d * (p.H / p.Hk),  // Q, dO, dQ
                               .uneven = p.causal});
}
/// A tile of Q: its head, among B·H, and its first row within the head.
struct Place {
  int head, row;
};

/// Computes dK and dV for one tile of keys, and adds the tile's part of dQ to the sums in HBM. A
/// head of K and V has `tiles` tiles. In minus_delta, LSE_log2e and dQ_sum a head of Q has `rows`
/// rows, in whole tiles. grid: (tiles · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(32 * backward_warps(Br))
    key_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                  Hbm<const float> minus_delta, Hbm<const float> LSE_log2e, Hbm<float> dQ_sum,
                  Hbm<T> dK, Hbm<T> dV, int tiles, int rows, Problem p) {
  constexpr int kBackwardWarps = backward_warps(Br), kBackwardThreads = 32 * kBackwardWarps;
  constexpr int kStages = backward_stages(Dh);
  const WarpTile<Br, Bc, kWarpRows, kBackwardWarps> of_S;  // the warp's part of S, P, dP and dS
  const WarpTile<Br, Dh, kWarpRows, kBackwardWarps> of_dQ;
  const WarpTile<Bc, Dh, kWarpRows, kBackwardWarps> of_sum;  // its part of dV and of dK
  const auto [bh, tile] = work_of(blockIdx.x, tiles, p);
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
  const auto LSE_stages = smem.take<float>("LSE_log2e", kStages * Br);
  const auto minus_delta_stages = smem.take<float>("minus_delta", kStages * Br);

  // The block works on the query heads that share its head of K and V one after the other. In each
  // it begins with the first tile of Q that has a row attending to one of the block's keys.
  const int group = p.H / p.Hk, heads_end = (bh + 1) * group;
  const int first_row = p.first_query(key) / Br * Br;
  const auto after = [&](Place last) {  // the tile of Q that follows `last`
    return last.row + Br < p.N ? Place{last.head, last.row + Br} : Place{last.head + 1, first_row};
  };
  const auto start_copies = [&](Place place, int stage) {
    if (place.head < heads_end) {
      const int64_t at = int64_t{place.head} * rows + place.row;
      const int64_t from = p.q_row(place.head) + place.row;
      const Tile<T, Br, Dh> tile_Q{Q_stages + stage * Br * Dh},
          tile_dO{dO_stages + stage * Br * Dh};
      copy_async<kBackwardThreads>(tile_Q, Q + from * p.d, p.d, p.N - place.row, p.d, thread);
      copy_async<kBackwardThreads>(tile_dO, dO + from * p.d, p.d, p.N - place.row, p.d, thread);
      copy_async<kBackwardThreads, Br>(minus_delta_stages + stage * Br, minus_delta + at, Br,
                                       thread);
      copy_async<kBackwardThreads, Br>(LSE_stages + stage * Br, LSE_log2e + at, Br, thread);
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
    __syncthreads();  // Q and dO have arrived; all warps are done with P, dS and the previous tiles
    const Tile<T, Br, Dh> tile_Q{Q_stages + stage * Br * Dh}, tile_dO{dO_stages + stage * Br * Dh};
    const auto minus_delta_tile = minus_delta_stages + stage * Br,
               LSE_tile = LSE_stages + stage * Br;

    Accumulator<kWarpRows, of_S.kColumns> S;
    mma_ABt(S, tile_Q, of_S.row, tile_K, of_S.column);
    if (kStages == 2) start_copies(next, 1 - stage);  // overlaps S's products
    auto P = S;
    exp2_rows(P, c, load_rows<kWarpRows>(LSE_tile + of_S.row));

    // dP starts at −D, so that it ends as dP − D. Its products overlap the exponentials of P, so
    // the mask comes after both. Keys past N_kv, whose S is 0, get P = 0, too: exp(0 − LSE) may
    // be ∞, and ∞·0 would be NaN in dQ.
    Accumulator<kWarpRows, of_S.kColumns> dP;
    fill_rows(dP, load_rows<kWarpRows>(minus_delta_tile + of_S.row));
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
    const auto dQ_tile = dQ_sum + (int64_t{head} * rows + row) * Dh;
    for_each_pair(dQ, [&](int i, int j, float a, float b) {
      i += of_dQ.row, j += of_dQ.column;
      if (j < p.d) atomic_add_pair(dQ_tile + (i * Dh + j), a, b);
    });
    if (kStages == 1) {
      __syncthreads();  // all warps are done with Q and dO
      start_copies(next, stage);
    }
    stage = kStages - 1 - stage;  // the other stage, if there are two
  }
  __syncthreads();  // all warps are done with K and V
  // No wait for K and V is needed: they arrived with the first tile of Q, in one cp.async group.
  // Every block has a tile of Q, because the last query attends to every key.

  // dK and dV go through the tiles of K and V, so that they are written in 16-byte chunks.
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write(tile_K, dK_sum, of_sum.row, of_sum.column);
  write(tile_V, dV_sum, of_sum.row, of_sum.column);
  __syncthreads();
  copy_out<kBackwardThreads>(dK + kv_first, p.d, tile_K, p.N_kv - key, p.d, thread);
  copy_out<kBackwardThreads>(dV + kv_first, p.d, tile_V, p.N_kv - key, p.d, thread);
}

/// Writes dQ: its sums (`rows` rows per head) times the scale, rounded. Dh/8 lanes share a row.
template <class T, int Dh>
__global__ void postprocess(Hbm<const float> dQ_sum, Hbm<T> dQ, int rows, Problem p) {
  constexpr int kLanes = Dh / 8;
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  if (at >= int64_t{p.B} * p.H * rows || row >= p.N || column >= p.d) return;
  const auto sum = read_chunk(dQ_sum + (at * Dh + column));
  Chunk<T> out;
  for (int e = 0; e < 8; ++e) out[e] = T(p.scale * sum[e]);
  write_chunk(dQ + ((head * p.N + row) * p.d + column), out);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = backward_stages(Dh)};
  choose_tile(plan, kBackwardTiles, {}, device.smem_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(Dh, Br, Bc); });
  plan.warps = backward_warps(plan.block_q);
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q;
  plan.workspace = {{"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * Dh * 4}};
  return plan;
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto minus_delta = hbm<float>(a["minus_delta"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
  const auto dQ_sum = hbm<float>(a["dQ_sum"]);
  const int rows = static_cast<int>(ceil_div(p.N, plan.block_q)) * plan.block_q;  // per head
  const int tiles = static_cast<int>(ceil_div(p.N_kv, plan.block_kv));            // per head
  const int64_t rows_of_all = int64_t{p.B} * p.H * rows;
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const dim3 of_rows(ceil_div(rows_of_all * (Dh / 8), kElementwise));
    launch("preprocess", preprocess<T, Dh>, of_rows, dim3(kElementwise), 0, hbm<const T>(a["O"]),
           hbm<const T>(a["dO"]), hbm<const float>(a["LSE"]), minus_delta, LSE_log2e, dQ_sum, rows,
           p);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(int64_t{tiles} * p.B * p.Hk),
           dim3(32 * backward_warps(Br)), plan.smem_bytes, hbm<const T>(a["Q"]),
           hbm<const T>(a["K"]), hbm<const T>(a["V"]), hbm<const T>(a["dO"]), minus_delta,
           LSE_log2e, dQ_sum, hbm<T>(a["dK"]), hbm<T>(a["dV"]), tiles, rows, p);
    launch("postprocess", postprocess<T, Dh>, of_rows, dim3(kElementwise), 0, dQ_sum,
           hbm<T>(a["dQ"]), rows, p);
  });
}

/// Predicts the requested bytes of the backward pass. A tile of keys reads Q and dO from the first
/// tile of Q that attends to one of its keys on, and adds to dQ's sums for the same tiles of Q.
/// minus_delta, LSE_log2e and dQ_sum hold whole tiles of rows.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO or dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK or dV
  const int64_t padded = heads * ceil_div(p.N, plan.block_q) * plan.block_q;  // rows in whole tiles
  const int64_t sums = padded * plan.head_dim * 4;                            // bytes of dQ_sum
  int64_t queries = 0, tiles = 0;  // rows and tiles of Q that a head's tiles of keys read
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    queries += p.N - first;
    tiles += ceil_div(p.N - first, plan.block_q);
  }
  const int64_t read = heads * queries * p.d * kIoBytes;  // bytes of Q or dO
  const int64_t rows = heads * tiles * plan.block_q;      // rows of LSE, D or dQ's sums
  return {{"preprocess",
           {{"O", q, 0},
            {"dO", q, 0},
            {"LSE", heads * p.N * 4, 0},
            {"minus_delta", 0, padded * 4},
            {"LSE_log2e", 0, padded * 4},
            {"dQ_sum", 0, sums}}},
          {"key_gradients",
           {{"Q", read, 0},
            {"K", kv, 0},
            {"V", kv, 0},
            {"dO", read, 0},
            {"minus_delta", rows * 4, 0},
            {"LSE_log2e", rows * 4, 0},
            {"dQ_sum", rows * p.d * 4, rows * p.d * 4},
            {"dK", 0, kv},
            {"dV", 0, kv}}},
          {"postprocess", {{"dQ_sum", 2 * q, 0}, {"dQ", 0, q}}}};  // the sums are fp32
}

const Register step{{
    .rung = "06_backward",
    .name = "stages",
    .after = "recompute",
    .shown = {.idea = "copies ahead",
              .change = {"flops_under_copies", "from 0"},
              .summary = "copies the next tiles while it multiplies",
              .colour = "#D55E00"},
    .forward_of = "06_backward/split_sums",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
