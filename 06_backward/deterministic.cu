// 06 · An aside: FlashAttention-2's backward pass with bitwise identical results in every run.
//
//   build/bin/06_backward --step deterministic --seqlen 512 --causal
//
//   D = rowsum(dO∘O)
//   for each tile of Bc rows of K and V, one block each:
//     dK = 0, dV = 0
//     for each tile of Br rows of Q and dO:
//       S = scale·Q·Kᵀ,   P = exp(S − LSE)
//       dP = dO·Vᵀ,       dS = P∘(dP − D)
//       dV += Pᵀ·dO
//       dK += scale·dSᵀ·Q
//   for each tile of Br rows of Q and dO, one block each:
//     dQ = 0
//     for each tile of Bc rows of K and V:
//       compute S, P, dP and dS again
//       dQ += scale·dS·K        in registers
//
// Since `split_sums`: atomic additions are gone, because their order, and with it the last bits of
// dQ, may differ from run to run. Instead, a second kernel computes dQ with the queries in the
// outer loop, as the forward pass computes O, and adds in a fixed order. The price is that S and dP
// are computed twice: seven products instead of five. The forward pass is `split_sums`'s.

#include "machine/machine.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of key_gradients: {largest head size, Br, Bc}. The fastest come first.
constexpr TileSize kBackwardTiles[] = {
    {32, 128, 128}, {32, 32, 64},  {64, 128, 128}, {64, 64, 128}, {64, 32, 64},
    {128, 64, 128}, {128, 32, 64}, {128, 32, 32},  {256, 64, 64}, {256, 32, 32}};

/// Returns the stages for Q and dO. At d = 256, two stages exceed most GPUs' shared memory.
constexpr int backward_stages(int Dh) {
  return Dh == 256 ? 1 : 2;
}
/// Returns the rows of S and dP per warp. (backward_warps() returns the warps per block.)
constexpr int backward_rows(int Br) {
  return Br == 32 ? 16 : 32;
}
constexpr int backward_warps(int Br) {
  return Br == 32 ? 4 : 8;
}
int64_t backward_smem_bytes(int Dh, int Br, int Bc) {  // per block of key_gradients
  const int stages = backward_stages(Dh);
  return 2 * array_bytes<fp16>(Bc * Dh) + 2 * array_bytes<fp16>(stages * Br * Dh) +
         2 * array_bytes<fp16>(Br * Bc) + 2 * array_bytes<float>(stages * Br);
}

/// Return query_gradients' tile (query_tile) and its bytes of shared memory per block
/// (query_smem_bytes), if key_gradients has key_tile keys per tile.
constexpr TileSize query_tile(int Dh, int key_tile) {
  return {Dh, 64, Dh == 256 || key_tile == 32 ? 32 : 64};
}
int64_t query_smem_bytes(int Dh, int key_tile) {
  const auto [max_d, Br, Bc] = query_tile(Dh, key_tile);
  return 2 * array_bytes<fp16>(Br * Dh) + 2 * array_bytes<fp16>(Bc * Dh) +
         2 * array_bytes<float>(Br);
}

constexpr int kElementwise = 256;  // threads per block in the small kernels

/// For each row, writes minus_delta = −D = −rowsum(dO∘O) and LSE in units of ln 2. In the next
/// two kernels dP's sums start at minus_delta, and so end as dP − D. The arrays written hold whole
/// tiles, with `rows` rows per head. Rows past p.N, and rows that attend to no key (LSE = −∞), get
/// LSE = +∞, which makes their P 0. grid: Dh/8 lanes for each of B·H·rows rows.
template <class T, int Dh>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                           Hbm<float> minus_delta, Hbm<float> LSE_log2e, int rows, Problem p) {
  constexpr int kLanes = Dh / 8;
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  if (at >= int64_t{p.B} * p.H * rows) return;  // true for all of a warp's lanes or none
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  const bool real = row < p.N;
  const float lse = real && column == 0 ? LSE[head * p.N + row] : -INFINITY;
  float sum = 0;
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
                               .head_bytes = 4 * kIoBytes * p.N * p.d * (p.H / p.Hk),
                               .uneven = p.causal});
}
/// A tile of Q: its head, among B·H, and its first row within the head.
struct Place {
  int head, row;
};

/// Computes dK and dV for one tile of keys. A head of K and V has `tiles` tiles. In minus_delta and
/// LSE_log2e a head of Q has `rows` rows, in whole tiles. grid: (tiles · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(32 * backward_warps(Br))
    key_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                  Hbm<const float> minus_delta, Hbm<const float> LSE_log2e, Hbm<T> dK, Hbm<T> dV,
                  int tiles, int rows, Problem p) {
  constexpr int kBackwardWarps = backward_warps(Br), kBackwardThreads = 32 * kBackwardWarps;
  constexpr int kStages = backward_stages(Dh);
  constexpr int kWarpRows = backward_rows(Br);
  const WarpTile<Br, Bc, kWarpRows, kBackwardWarps> of_S;  // the warp's part of S, P, dP and dS
  // Half of the warps sum up dV, the others dK. If every warp did both, its part of each sum would
  // be half the size, and its products would read more bytes from shared memory per FLOP.
  const bool sums_dV = warp_id() < kBackwardWarps / 2;
  const WarpTile<Bc, Dh, 2 * kWarpRows, kBackwardWarps / 2> of_sum;
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

  Accumulator<2 * kWarpRows, of_sum.kColumns> sum;  // of dV or of dK
  while (next.head < heads_end) {
    const auto [head, row] = next;
    next = after(next);
    cp_async_wait<0>();
    __syncthreads();  // Q and dO have arrived; all warps are done with P, dS and the previous tiles
    const Tile<T, Br, Dh> tile_Q{Q_stages + stage * Br * Dh}, tile_dO{dO_stages + stage * Br * Dh};
    const auto minus_delta_tile = minus_delta_stages + stage * Br,
               LSE_tile = LSE_stages + stage * Br;

    Accumulator<kWarpRows, of_S.kColumns> S;
#pragma unroll 2  // if fully unrolled, registers spill at d = 128
    for (int k = 0; k < Dh; k += 16) {
      Operand<T, kWarpRows, 16> q;
      load(q, tile_Q, of_S.row, k);
      mma_ABt(S, q, tile_K, of_S.column, k);
    }
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

    const auto left = sums_dV ? tile_P : tile_dS;
    const auto right = sums_dV ? tile_dO : tile_Q;
#pragma unroll
    for (int k = 0; k < Br; k += 16) {
      Operand<T, 2 * kWarpRows, 16> a;
      load_transposed(a, left, k, of_sum.row);
      mma_AB(sum, a, right, k, of_sum.column);
    }
    if (kStages == 1) {
      __syncthreads();  // all warps are done with Q and dO
      start_copies(next, stage);
    }
    stage = kStages - 1 - stage;  // the other stage, if there are two
  }
  __syncthreads();  // all warps are done with K and V, which arrived with the first tiles

  // dK and dV go through the tiles of K and V, so that they are written in 16-byte chunks.
  if (!sums_dV) for_each(sum, [&](int, int, float& x) { x *= p.scale; });
  write(sums_dV ? tile_V : tile_K, sum, of_sum.row, of_sum.column);
  __syncthreads();
  copy_out<kBackwardThreads>(dK + kv_first, p.d, tile_K, p.N_kv - key, p.d, thread);
  copy_out<kBackwardThreads>(dV + kv_first, p.d, tile_V, p.N_kv - key, p.d, thread);
}

/// Computes dQ for one tile of queries; for `rows` see key_gradients. grid: (tiles of Q · B·H).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kThreads)
    query_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                    Hbm<const float> minus_delta, Hbm<const float> LSE_log2e, Hbm<T> dQ, int rows,
                    Problem p) {
  constexpr int kWarpRows = Br / kWarps;  // rows of Q per warp
  const int tiles = ceil_div(p.N, Br);
  const auto [bh, tile] = longest_first(blockIdx.x, {.heads = p.B * p.H,
                                                     .tiles = tiles,
                                                     .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                                                     .uneven = p.causal});
  const int block_row = (tiles - 1 - tile) * Br;  // the last rows attend to the most keys
  const int warp_row = warp_id() * kWarpRows, row = block_row + warp_row;
  const int thread = threadIdx.x;
  const int64_t at = int64_t{bh} * rows + block_row, from = p.q_row(bh) + block_row;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const int keys = p.keys(min(block_row + Br, p.N) - 1);  // that the block's last row attends to
  const float c = p.scale * kLog2e;                       // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Br, Dh> tile_Q{smem.take<T>("Q", Br * Dh)}, tile_dO{smem.take<T>("dO", Br * Dh)};
  const Tile<T, Bc, Dh> tile_K{smem.take<T>("K", Bc * Dh)}, tile_V{smem.take<T>("V", Bc * Dh)};
  const auto LSE_tile = smem.take<float>("LSE_log2e", Br);
  const auto minus_delta_tile = smem.take<float>("minus_delta", Br);
  copy_async<kThreads>(tile_Q, Q + from * p.d, p.d, p.N - block_row, p.d, thread);
  copy_async<kThreads>(tile_dO, dO + from * p.d, p.d, p.N - block_row, p.d, thread);
  // A tile of this kernel may reach beyond the rows that minus_delta and LSE_log2e hold, so only
  // rows up to N are read, and the others are 0. In these P is 1, which does no harm, because dO
  // and D are 0.
  copy_async<kThreads, Br>(minus_delta_tile, minus_delta + at, p.N - block_row, thread);
  copy_async<kThreads, Br>(LSE_tile, LSE_log2e + at, p.N - block_row, thread);
  cp_async_commit();

  Accumulator<kWarpRows, Dh> dQ_sum;
  for (int key = 0; key < keys; key += Bc) {
    copy_async<kThreads>(tile_K, K_head + int64_t{key} * p.d, p.d, keys - key, p.d, thread);
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, keys - key, p.d, thread);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // the tiles have arrived

    Accumulator<kWarpRows, Bc> S, dP;
    fill_rows(dP, load_rows<kWarpRows>(minus_delta_tile + warp_row));
#pragma unroll
    for (int k = 0; k < Dh; k += 16) {
      Operand<T, kWarpRows, 16> q, g;
      load(q, tile_Q, warp_row, k);
      mma_ABt(S, q, tile_K, 0, k);
      load(g, tile_dO, warp_row, k);
      mma_ABt(dP, g, tile_V, 0, k);
    }
    auto P = S;
    exp2_rows(P, c, load_rows<kWarpRows>(LSE_tile + warp_row));
    if (key + Bc > p.keys(row))
      for_each(P, [&](int i, int j, float& x) {
        if (key + j >= p.keys(row + i)) x = 0;
      });
    auto dS = dP;
    mul(dS, P);
    mma_AB(dQ_sum, as_operand<T>(dS), tile_K);
    __syncthreads();  // all warps are done with K and V
  }
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived even if there were no keys

  // dQ goes through the warp's own rows of Q's tile, so that it is written in 16-byte chunks.
  for_each(dQ_sum, [&](int, int, float& x) { x *= p.scale; });
  const Tile<T, kWarpRows, Dh> tile_dQ{tile_Q.data + warp_row * Dh};
  write(tile_dQ, dQ_sum, 0, 0);
  __syncwarp();  // all lanes have written
  copy_out<32>(dQ + (p.q_row(bh) + row) * p.d, p.d, tile_dQ, p.N - row, p.d, lane_id());
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = backward_stages(Dh)};
  choose_tile(plan, kBackwardTiles, {}, device.smem_bytes, [&](int Br, int Bc) {
    return std::max(backward_smem_bytes(Dh, Br, Bc), query_smem_bytes(Dh, Bc));
  });
  plan.warps = backward_warps(plan.block_q);
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q;
  plan.workspace = {{"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}};
  return plan;
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto minus_delta = hbm<float>(a["minus_delta"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
  const int rows = static_cast<int>(ceil_div(p.N, plan.block_q)) * plan.block_q;  // per head
  const int tiles = static_cast<int>(ceil_div(p.N_kv, plan.block_kv));            // per head
  const int64_t rows_of_all = int64_t{p.B} * p.H * rows;
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto dO = hbm<const T>(a["dO"]);
    const dim3 of_rows(ceil_div(rows_of_all * (Dh / 8), kElementwise));
    launch("preprocess", preprocess<T, Dh>, of_rows, dim3(kElementwise), 0, hbm<const T>(a["O"]),
           dO, hbm<const float>(a["LSE"]), minus_delta, LSE_log2e, rows, p);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(int64_t{tiles} * p.B * p.Hk),
           dim3(32 * backward_warps(Br)), plan.smem_bytes, Q, K, V, dO, minus_delta, LSE_log2e,
           hbm<T>(a["dK"]), hbm<T>(a["dV"]), tiles, rows, p);
    constexpr TileSize tile = query_tile(Dh, Bc);
    launch("query_gradients", query_gradients<T, Dh, tile.block_q, tile.block_kv>,
           dim3(ceil_div(p.N, tile.block_q) * p.B * p.H), dim3(kThreads), query_smem_bytes(Dh, Bc),
           Q, K, V, dO, minus_delta, LSE_log2e, hbm<T>(a["dQ"]), rows, p);
  });
}

/// Predicts the requested bytes of the backward pass. Every tile of keys reads Q and dO from the
/// first tile of Q on that attends to one of its keys. Every tile of queries reads K and V up to
/// the last key that its last row attends to.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO or dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK or dV
  const int64_t padded = heads * ceil_div(p.N, plan.block_q) * plan.block_q;  // rows in whole tiles
  int64_t queries = 0, tiles = 0;  // rows and tiles of Q that a head's tiles of keys read
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    queries += p.N - first;
    tiles += ceil_div(p.N - first, plan.block_q);
  }
  const int64_t read = heads * queries * p.d * kIoBytes;  // bytes of Q or dO
  const int64_t rows = heads * tiles * plan.block_q;      // rows of LSE or D
  const int block_q = query_tile(plan.head_dim, plan.block_kv).block_q;
  int64_t keys = 0;  // rows of K or V that a head's tiles of queries read
  for (int64_t row = 0; row < p.N; row += block_q)
    keys += p.keys(static_cast<int>(std::min<int64_t>(row + block_q, p.N) - 1));
  const int64_t k = heads * keys * p.d * kIoBytes;  // bytes of K or V that they read
  return {{"preprocess",
           {{"O", q, 0},
            {"dO", q, 0},
            {"LSE", heads * p.N * 4, 0},
            {"minus_delta", 0, padded * 4},
            {"LSE_log2e", 0, padded * 4}}},
          {"key_gradients",
           {{"Q", read, 0},
            {"K", kv, 0},
            {"V", kv, 0},
            {"dO", read, 0},
            {"minus_delta", rows * 4, 0},
            {"LSE_log2e", rows * 4, 0},
            {"dK", 0, kv},
            {"dV", 0, kv}}},
          {"query_gradients",
           {{"Q", q, 0},
            {"K", k, 0},
            {"V", k, 0},
            {"dO", q, 0},
            {"minus_delta", heads * p.N * 4, 0},
            {"LSE_log2e", heads * p.N * 4, 0},
            {"dQ", 0, q}}}};
}

const Register step{{
    .rung = "06_backward",
    .name = "deterministic",
    .after = "split_sums",
    .aside = true,
    .shown = {.idea = "no atomic adds",
              .change = {"atomics", "to 0"},
              .summary = "no atomic additions: a second kernel computes dQ",
              .colour = "#D55E00"},
    .deterministic = true,
    .forward_of = "06_backward/split_sums",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
