// 06 on Hopper, step 1: products by warpgroups (Shah et al. 2024, FlashAttention-3, §2.2).
//
//   build/bin/06_backward --step wgmma --seqlen 512 --causal
//
// Since `mma`: the products. A warpgroup multiplies 64 rows at once, and the tensor cores read both
// operands of all five products from shared memory themselves. The forward pass, from here on, is
// 05's `sm90`.

#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of the backward pass: heads up to …, Br, Bc.
constexpr TileSize kBackwardTiles[] = {{64, 128, 128}, {128, 64, 128}, {256, 64, 64}};

constexpr int kConsumersBackward = 2;  // warpgroups that multiply
constexpr int kBackwardThreads = kWarpgroup * kConsumersBackward;
constexpr int kWarpgroupKeys = 64;  // of a consumer
/// Stages of copies of Q and dO; at d = 256 there is room for one.
constexpr int backward_stages(int Dh) {
  return Dh == 256 ? 1 : 2;
}
int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64), stages = backward_stages(Dh);
  return 2 * shared_bytes<fp16>(Bc * columns) + 2 * shared_bytes<fp16>(stages * Br * columns) +
         2 * shared_bytes<fp16>(Br * Bc) + 2 * shared_bytes<float>(stages * Br);
}

/// A piece of a tile of dQ, 64 × kColumns, that a consumer makes at once: rows of the tile or,
/// where it has but 64, columns.
template <int Br, int Dh>
struct PieceOf_dQ {
  static constexpr int kColumns = Br == 64 ? 64 : Dh;
  static constexpr int kCount = Br * Dh / (64 * kColumns), kOfConsumer = kCount / 2;
  int number;
  __device__ int row() const { return Br == 64 ? 0 : number * 64; }
  __device__ int column() const { return Br == 64 ? number * 64 : 0; }
};

constexpr int kElementwise = 256;  // threads of a block of a small kernel

/// −delta = −rowsum(dO∘O), with which the sums dP begin, so that they give dP − delta; LSE in units
/// of ln 2; and dQ's sums, 0 to begin with. A row that sees no key has LSE = −∞: +∞ in its place
/// makes its P 0, as the mask does once more; without it exp would first give ∞. Dh/8 lanes
/// per row.
template <class T, int Dh>
__global__ void prepare(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                        Hbm<float> minus_delta, Hbm<float> LSE_log2e, Hbm<float> dQ_sum,
                        Problem p) {
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
    minus_delta[row] = -sum;
    LSE_log2e[row] = lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
}

/// dK and dV of one tile of keys, and what it adds to dQ. grid: (tiles of K · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup* kConsumersBackward, 1)
    key_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                  Hbm<const float> minus_delta, Hbm<const float> LSE_log2e, Hbm<float> dQ_sum,
                  Hbm<T> dK, Hbm<T> dV, Problem p) {
  using TileKV = SwizzledTile<T, Bc, Dh>;
  using TileQ = SwizzledTile<T, Br, Dh>;
  using TileS = SwizzledTile<T, Br, Bc>;
  constexpr int kStages = backward_stages(Dh);
  // Of S and dP a consumer makes its 64 rows of all keys or, where a tile has but 64 rows, 64 keys.
  constexpr int kColumns_S = Br == 64 ? 64 : Bc;
  // Of dK and dV a consumer makes the rows of its keys, or at d = 256, where it has no registers
  // for that, half the columns of all keys.
  constexpr int kColumns_dK = Dh / (Bc / kWarpgroupKeys == 1 ? 2 : 1);
  using Piece = PieceOf_dQ<Br, Dh>;
  // bh: of the B·Hk heads of K and V. The first keys are seen by the most rows.
  const auto [bh, tile] =
      longest_first(blockIdx.x, {.heads = p.B * p.Hk,
                                 .tiles = static_cast<int>(ceil_div(p.N_kv, Bc)),
                                 .head_bytes = 4 * kIoBytes * p.N * p.d * (p.H / p.Hk),
                                 .uneven = p.causal});
  const int key = tile * Bc;
  const int thread = threadIdx.x;
  const int64_t kv_first = (int64_t{bh} * p.N_kv + key) * p.d;

  SharedMemory smem;
  const TileKV tile_K{smem.tiles<TileKV>("K")};
  const TileKV tile_V{smem.tiles<TileKV>("V")};
  const auto Q_stages = smem.tiles<TileQ>("Q", kStages);
  const auto dO_stages = smem.tiles<TileQ>("dO", kStages);
  const TileS tile_P{smem.tiles<TileS>("P")};
  const TileS tile_dS{smem.tiles<TileS>("dS")};
  const auto LSE_stages = smem.take<float>("LSE_log2e", kStages * Br);
  const auto delta_stages = smem.take<float>("minus_delta", kStages * Br);

  // The query heads of this head of K and V, one after the other; of each, the tiles of Q from the
  // first row that sees a key of this tile.
  struct Place {
    int head, row;
  };
  const int group = p.H / p.Hk, heads_end = (bh + 1) * group;
  const int first_row = p.first_query(key) / Br * Br;
  const auto after = [&](Place last) {
    return last.row + Br < p.N ? Place{last.head, last.row + Br} : Place{last.head + 1, first_row};
  };
  const auto start_copies = [&](Place from, int stage) {
    if (from.head < heads_end) {
      const int rows = p.N - from.row;
      const int64_t at = p.q_row(from.head) + from.row;
      const TileQ tile_Q{Q_stages + stage * TileQ::kElements};
      const TileQ tile_dO{dO_stages + stage * TileQ::kElements};
      copy_async<kBackwardThreads>(tile_Q, Q + at * p.d, p.d, rows, p.d, thread);
      copy_async<kBackwardThreads>(tile_dO, dO + at * p.d, p.d, rows, p.d, thread);
      copy_async<kBackwardThreads, Br>(delta_stages + stage * Br, minus_delta + at, rows, thread);
      copy_async<kBackwardThreads, Br>(LSE_stages + stage * Br, LSE_log2e + at, rows, thread);
    }
    cp_async_commit();
  };
  copy_async<kBackwardThreads>(tile_K, K + kv_first, p.d, p.N_kv - key, p.d, thread);
  copy_async<kBackwardThreads>(tile_V, V + kv_first, p.d, p.N_kv - key, p.d, thread);
  Place next{bh * group, first_row};
  int stage = 0;
  start_copies(next, stage);

  const int consumer = warpgroup_id(), warp_row = warp_id() % 4 * 16;
  const int row_S = Br == 64 ? 0 : consumer * 64;
  const int consumer_key = Bc / kWarpgroupKeys == 1 ? 0 : consumer * kWarpgroupKeys;  // its first
  const int key_S = Br == 64 ? consumer_key : 0;
  const int column_dK = Dh > kColumns_dK ? consumer * kColumns_dK : 0;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, kColumns_S> S, dP;
  Accumulator<16, kColumns_dK> dK_sum, dV_sum;
  while (next.head < heads_end) {
    const auto [head, row] = next;
    next = after(next);
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();  // these tiles are complete, and all warps are done with the ones before
    if (kStages == 2) start_copies(next, 1 - stage);
    const TileQ tile_Q{Q_stages + stage * TileQ::kElements};
    const TileQ tile_dO{dO_stages + stage * TileQ::kElements};
    const auto delta_tile = delta_stages + stage * Br, LSE_tile = LSE_stages + stage * Br;

    wgmma_fence(S);
    wgmma_ABt(S, tile_Q, row_S, tile_K, 0, key_S);  // S = Q·Kᵀ
    wgmma_commit();
    wgmma_wait<0>(S);
    fill_rows(dP, make_rows<16>([&](int i) -> float { return delta_tile[row_S + warp_row + i]; }));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_dO, row_S, tile_V, 1, key_S);  // dP = dO·Vᵀ - D
    wgmma_commit();
    auto& P = S;
    exp2_rows(P, c, make_rows<16>([&](int i) -> float { return LSE_tile[row_S + warp_row + i]; }));
    if (key + Bc > p.keys(row))
      for_each(P, [&](int i, int j, float& x) {
        if (j >= p.keys(row + row_S + warp_row + i) - key - key_S) x = 0;
      });
    if (Bc / kWarpgroupKeys > 1 || consumer == 0) write(tile_P, P, row_S + warp_row, key_S);
    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    if (Bc / kWarpgroupKeys > 1 || consumer == 0) write(tile_dS, dS, row_S + warp_row, key_S);
    fence_proxy_async();
    __syncthreads();  // P and dS are complete
    wgmma_fence(dV_sum);
    wgmma_AtB(dV_sum, tile_P, consumer_key, tile_dO, 1, column_dK);  // dV += Pᵀ·dO
    wgmma_commit();
    wgmma_fence(dK_sum);
    wgmma_AtB(dK_sum, tile_dS, consumer_key, tile_Q, 1, column_dK);  // dK += dSᵀ·Q
    wgmma_commit();

    const auto dQ_at = dQ_sum + (p.q_row(head) + row) * p.d;
#pragma unroll 1  // both at once want more registers than there are
    for (int n = 0; n < Piece::kOfConsumer; ++n) {
      const Piece piece{consumer * Piece::kOfConsumer + n};
      Accumulator<16, Piece::kColumns> dQ;
      wgmma_fence(dQ);
      wgmma_AB(dQ, tile_dS, piece.row(), tile_K, 0, piece.column());  // dQ = dS·K
      wgmma_commit();
      wgmma_wait<0>(dQ, dK_sum, dV_sum);
      for_each_pair(dQ, [&](int i, int j, float a, float b) {
        i += piece.row() + warp_row, j += piece.column();
        if (row + i < p.N && j < p.d) atomic_add_pair(dQ_at + (i * p.d + j), a, b);
      });
    }
    if (kStages == 1) {
      __syncthreads();  // all warps are done with Q and dO
      start_copies(next, stage);
    }
    stage = kStages - 1 - stage;  // where there are two, the other one
  }
  __syncthreads();  // all warps are done with K and V

  // Through the tiles of K and V, so that dK and dV are written in whole 16-byte pieces.
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write(tile_K, dK_sum, consumer_key + warp_row, column_dK);
  write(tile_V, dV_sum, consumer_key + warp_row, column_dK);
  __syncthreads();
  copy_out<kBackwardThreads>(dK + kv_first, p.d, tile_K, p.N_kv - key, p.d, thread);
  copy_out<kBackwardThreads>(dV + kv_first, p.d, tile_V, p.N_kv - key, p.d, thread);
}

/// dQ in the I/O type.
template <class T>
__global__ void convert(Hbm<const float> dQ_sum, Hbm<T> dQ, Problem p) {
  const int64_t i = 8 * (int64_t{blockIdx.x} * kElementwise + threadIdx.x);
  if (i >= int64_t{p.B} * p.H * p.N * p.d) return;
  const auto sum = read_chunk(dQ_sum + i);
  Chunk<T> out;
  for (int e = 0; e < 8; ++e) out[e] = T(p.scale * sum[e]);
  write_chunk(dQ + i, out);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = backward_stages(Dh)};
  choose_tile(plan, kBackwardTiles, {}, device.sram_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(Dh, Br, Bc); });
  plan.warps = 4 * kConsumersBackward;
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  plan.workspace = {{"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * p.d * 4}};
  return plan;
}

template <class T, int Dh, int Br, int Bc>
void launch_backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
  const auto O = hbm<const T>(a["O"]), dO = hbm<const T>(a["dO"]);
  const auto LSE = hbm<const float>(a["LSE"]);
  const auto minus_delta = hbm<float>(a["minus_delta"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
  const auto dQ_sum = hbm<float>(a["dQ_sum"]);
  const int64_t heads = int64_t{p.B} * p.H;

  launch("prepare", prepare<T, Dh>, dim3(ceil_div(heads * p.N * (Dh / 8), kElementwise)),
         dim3(kElementwise), 0, O, dO, LSE, minus_delta, LSE_log2e, dQ_sum, p);
  launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(ceil_div(p.N_kv, Bc) * p.B * p.Hk),
         dim3(kBackwardThreads), plan.smem_bytes, Q, K, V, dO, minus_delta, LSE_log2e, dQ_sum,
         hbm<T>(a["dK"]), hbm<T>(a["dV"]), p);
  launch("convert", convert<T>, dim3(ceil_div(heads * p.N * p.d / 8, kElementwise)),
         dim3(kElementwise), 0, dQ_sum, hbm<T>(a["dQ"]), p);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch_backward<T, Dh, Br, Bc>(p, plan, a);
  });
}

/// Requested bytes of the backward pass: every tile of keys reads Q and dO from the first row that
/// sees one of its keys, and adds to dQ there.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO and dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK and dV
  int64_t queries = 0;  // rows of Q that the tiles of keys of a head read
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    if (first < p.N) queries += p.N - first;
  }
  const int64_t read = heads * queries * p.d * kIoBytes;  // bytes of Q, and of dO
  return {{"prepare",
           {{"O", q, 0},
            {"dO", q, 0},
            {"LSE", heads * p.N * 4, 0},
            {"minus_delta", 0, heads * p.N * 4},
            {"LSE_log2e", 0, heads * p.N * 4},
            {"dQ_sum", 0, 2 * q}}},
          {"key_gradients",
           {{"Q", read, 0},
            {"K", kv, 0},
            {"V", kv, 0},
            {"dO", read, 0},
            {"minus_delta", heads * queries * 4, 0},
            {"LSE_log2e", heads * queries * 4, 0},
            {"dQ_sum", 2 * read, 2 * read},
            {"dK", 0, kv},
            {"dV", 0, kv}}},
          {"convert", {{"dQ_sum", 2 * q, 0}, {"dQ", 0, q}}}};
}

const Register step{{
    .rung = "06_backward",
    .name = "wgmma",
    .after = "mma",
    .shown = {.idea = "gradients by warpgroups",
              .change = {"products", "less"},
              .summary = "mma's backward pass, its five products by warpgroups",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
