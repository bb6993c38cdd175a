// 06 on Hopper, step 1: products by warpgroups (Shah et al. 2024, FlashAttention-3, §2.2).
//
//   build/bin/06_backward --step wgmma --seqlen 512 --causal
//
//   for each tile of Q and dO, each of two warpgroups:
//     S = Q·Kᵀ,  dP = dO·Vᵀ − D                   both in flight at once
//     P = exp(scale·S − LSE),  dS = P∘dP          to shared memory
//     dV += Pᵀ·dO,  dK += dSᵀ·Q,  dQ = dS·K       all three in flight at once
//
// Since `split_sums`: the four warps of a warpgroup compute a product together, 64 rows at once,
// and the tensor cores themselves read both operands of all five products from shared memory. In
// this and the following steps, the forward pass is 05's `sm90`.

#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of the backward pass: {largest head size, Br, Bc}.
constexpr TileSize kBackwardTiles[] = {{64, 128, 128}, {128, 64, 128}};

constexpr int kConsumersBackward = 2;                              // warpgroups that multiply
constexpr int kBackwardThreads = kWarpgroup * kConsumersBackward;  // their threads
constexpr int kWarpgroupKeys = 64;                                 // keys per consumer
constexpr int kStages = 2;                                         // stages of Q and of dO

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile's rows are at least 64 columns wide
  return 2 * array_bytes<fp16>(Bc * columns) + 2 * array_bytes<fp16>(kStages * Br * columns) +
         2 * array_bytes<fp16>(Br * Bc) + 2 * array_bytes<float>(kStages * Br);
}

/// The part of an R × C matrix of sums that a consumer computes, from row() and column() on: 64
/// rows if R is 128, or half of the columns if R is 64.
template <int R, int C>
struct Part {
  static_assert(R == 64 ? C % 16 == 0 : R == 64 * kConsumersBackward);
  static constexpr int kColumns = R == 64 ? C / 2 : C;
  int consumer;
  __device__ int row() const { return R == 64 ? 0 : consumer * 64; }
  __device__ int column() const { return R == 64 ? consumer * kColumns : 0; }
};

constexpr int kElementwise = 256;  // threads per block in the small kernels

/// For each row, writes minus_delta = −D = −rowsum(dO∘O) and LSE in units of ln 2, and sets dQ's
/// sums to 0. In key_gradients dP's sums start at minus_delta, and so end as dP − D. The arrays
/// written hold whole tiles, with `rows` rows per head. Rows past p.N, and rows that attend to no
/// key (LSE = −∞), get LSE = +∞, which makes their P 0. grid: Dh/8 lanes for each of B·H·rows rows.
/// A tile's rows fill whole blocks, so no lane is left without a row.
template <class T, int Dh>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                           Hbm<float> minus_delta, Hbm<float> LSE_log2e, Hbm<float> dQ_sum,
                           int rows, Problem p) {
  constexpr int kLanes = Dh / 8;
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
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

/// Adds a warp's part of dQ, whose first element is at (row, column) of a tile, to the tile's sums
/// in HBM, which start at dQ_at. The sums are stored as 8 × 8 matrices, as in `split_sums`: lane l
/// adds two neighbouring sums, floats 2·l and 2·l + 1 of each matrix.
template <int Dh, int N>
__device__ __forceinline__ void add_to_dQ(Hbm<float> dQ_at, const Accumulator<16, N>& dQ, int row,
                                          int column) {
  const auto block = dQ_at + (row * Dh + 8 * column + 2 * lane_id());
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      atomic_add_pair(block + (8 * half * Dh + 64 * j), dQ.r[0][j][2 * half],
                      dQ.r[0][j][2 * half + 1]);
}

/// Computes dK and dV for one tile of keys, and adds the tile's part of dQ to the sums in HBM. A
/// head of K and V has `tiles` tiles. In minus_delta, LSE_log2e and dQ_sum a head of Q has `rows`
/// rows, in whole tiles. grid: (tiles · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    key_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                  Hbm<const float> minus_delta, Hbm<const float> LSE_log2e, Hbm<float> dQ_sum,
                  Hbm<T> dK, Hbm<T> dV, int tiles, int rows, Problem p) {
  using TileKV = SwizzledTile<T, Bc, Dh>;
  using TileQ = SwizzledTile<T, Br, Dh>;
  using TileS = SwizzledTile<T, Br, Bc>;
  const int consumer = warpgroup_id(), warp_row = warp_id() % 4 * 16;
  const int consumer_key = consumer * kWarpgroupKeys;  // its first key in the tile
  const Part<Br, Bc> of_S{consumer};                   // its part of S, P, dP and dS
  const Part<Br, Dh> of_dQ{consumer};
  const int S_row = of_S.row() + warp_row;
  const auto [bh, tile] = work_of(blockIdx.x, tiles, p);
  const int key = tile * Bc;
  const int thread = threadIdx.x;
  const int64_t kv_first = (int64_t{bh} * p.N_kv + key) * p.d;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const TileKV tile_K{smem.tiles<TileKV>("K")};
  const TileKV tile_V{smem.tiles<TileKV>("V")};
  const auto Q_stages = smem.tiles<TileQ>("Q", kStages);
  const auto dO_stages = smem.tiles<TileQ>("dO", kStages);
  const TileS tile_P{smem.tiles<TileS>("P")};
  const TileS tile_dS{smem.tiles<TileS>("dS")};
  const auto LSE_stages = smem.take<float>("LSE_log2e", kStages * Br);
  const auto minus_delta_stages = smem.take<float>("minus_delta", kStages * Br);

  // The block works on the query heads that share its head of K and V one after the other. In each
  // it begins with the first tile of Q that has a row attending to one of the block's keys.
  const int group = p.H / p.Hk, first_row = p.first_query(key) / Br * Br;
  const int q_tiles = group * static_cast<int>(ceil_div(p.N - first_row, Br));
  // The tile of Q and dO whose copies start next, and the stage that they go to.
  int next_head = bh * group, next_row = first_row, next_stage = 0;
  const auto start_copies = [&] {
    if (next_head < (bh + 1) * group) {
      const int64_t at = int64_t{next_head} * rows + next_row;
      const int64_t from = p.q_row(next_head) + next_row;
      const TileQ tile_Q{Q_stages + next_stage * TileQ::kElements},
          tile_dO{dO_stages + next_stage * TileQ::kElements};
      copy_async<kBackwardThreads>(tile_Q, Q + from * p.d, p.d, p.N - next_row, p.d, thread);
      copy_async<kBackwardThreads>(tile_dO, dO + from * p.d, p.d, p.N - next_row, p.d, thread);
      copy_async<kBackwardThreads, Br>(minus_delta_stages + next_stage * Br, minus_delta + at, Br,
                                       thread);
      copy_async<kBackwardThreads, Br>(LSE_stages + next_stage * Br, LSE_log2e + at, Br, thread);
    }
    cp_async_commit();
    next_stage = 1 - next_stage;
    next_row += Br;
    if (next_row >= p.N) next_row = first_row, ++next_head;
  };
  copy_async<kBackwardThreads>(tile_K, K + kv_first, p.d, p.N_kv - key, p.d, thread);
  copy_async<kBackwardThreads>(tile_V, V + kv_first, p.d, p.N_kv - key, p.d, thread);
  start_copies();

  Accumulator<16, of_S.kColumns> S, dP;
  Accumulator<16, Dh> dK_sum, dV_sum;
  int row = first_row;
  auto dQ_tile = dQ_sum + (int64_t{bh} * group * rows + first_row) * Dh;
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    const int stage = q_tile % kStages;
    cp_async_wait<0>();
    fence_proxy_async();  // makes this thread's copies visible to wgmma
    __syncthreads();      // the tiles have arrived; all warps are done with the old ones, P and dS
    start_copies();
    const TileQ tile_Q{Q_stages + stage * TileQ::kElements};
    const TileQ tile_dO{dO_stages + stage * TileQ::kElements};
    const auto minus_delta_tile = minus_delta_stages + stage * Br,
               LSE_tile = LSE_stages + stage * Br;

    fill_rows(dP, load_rows<16>(minus_delta_tile + S_row));
    wgmma_fence(S, dP);
    wgmma_set_ABt(S, tile_Q, of_S.row(), tile_K, of_S.column());  // S = Q·Kᵀ
    wgmma_commit();
    wgmma_ABt(dP, tile_dO, of_S.row(), tile_V, of_S.column());  // dP = dO·Vᵀ - D
    wgmma_commit();
    wgmma_wait<1>(S);  // dP, committed last, may still run
    auto& P = S;
    exp2_rows(P, c, load_rows<16>(LSE_tile + S_row));
    // Keys past N_kv get P = 0, too: exp(0 − LSE) may be ∞, and ∞·0 would be NaN in dQ.
    if (key + Bc > p.keys(row))
      for_each(P, [&](int i, int j, float& x) {
        if (j >= p.keys(row + S_row + i) - key - of_S.column()) x = 0;
      });
    write(tile_P, P, S_row, of_S.column());

    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    write(tile_dS, dS, S_row, of_S.column());
    fence_proxy_async();  // makes this thread's writes visible to wgmma
    __syncthreads();      // P and dS are complete

    wgmma_fence(dV_sum, dK_sum);
    wgmma_AtB(dV_sum, tile_P, consumer_key, tile_dO);  // dV += Pᵀ·dO
    wgmma_commit();
    wgmma_AtB(dK_sum, tile_dS, consumer_key, tile_Q);  // dK += dSᵀ·Q
    wgmma_commit();
    Accumulator<16, of_dQ.kColumns> dQ;
    wgmma_fence(dQ);
    wgmma_set_AB(dQ, tile_dS, of_dQ.row(), tile_K, of_dQ.column());  // dQ = dS·K
    wgmma_commit();
    wgmma_wait<0>(dQ, dK_sum, dV_sum);
    add_to_dQ<Dh>(dQ_tile, dQ, of_dQ.row() + warp_row, of_dQ.column());
    // Stepping to the next tile takes fewer instructions than computing its place again.
    row += Br;
    dQ_tile = dQ_tile + Br * Dh;
    if (row >= p.N) {  // the next head
      row = first_row;
      dQ_tile = dQ_tile + int64_t{first_row} * Dh;
    }
  }
  __syncthreads();  // all warps are done with K and V, which arrived with the first tiles

  // dK and dV go through the tiles of K and V, so that they are written in 16-byte chunks.
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write(tile_K, dK_sum, consumer_key + warp_row);
  write(tile_V, dV_sum, consumer_key + warp_row);
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
  if (row >= p.N || column >= p.d) return;
  const auto sum = read_chunk(dQ_sum + (at / 8 * 8 * Dh + 8 * column + row % 8 * 8));
  Chunk<T> out;
  for (int e = 0; e < 8; ++e) out[e] = T(p.scale * sum[e]);
  write_chunk(dQ + ((head * p.N + row) * p.d + column), out);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .warps = 4 * kConsumersBackward, .stages = kStages};
  choose_tile(plan, kBackwardTiles, {}, device.smem_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(Dh, Br, Bc); });
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
           dim3(kBackwardThreads), plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]),
           hbm<const T>(a["V"]), hbm<const T>(a["dO"]), minus_delta, LSE_log2e, dQ_sum,
           hbm<T>(a["dK"]), hbm<T>(a["dV"]), tiles, rows, p);
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
            {"dQ_sum", rows * plan.head_dim * 4, rows * plan.head_dim * 4},
            {"dK", 0, kv},
            {"dV", 0, kv}}},
          {"postprocess", {{"dQ_sum", 2 * q, 0}, {"dQ", 0, q}}}};  // the sums are fp32
}

const Register step{{
    .rung = "06_backward",
    .name = "wgmma",
    .after = "split_sums",
    .shown = {.idea = "gradients by warpgroups",
              .change = {"products", "less"},
              .summary = "split_sums' backward pass with WGMMA for its five products",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
