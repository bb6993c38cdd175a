// 06 on Hopper, step 3: warp specialisation (Shah et al. 2024, FlashAttention-3, §3.1).
//
//   build/bin/06_backward --step producer --seqlen 512 --causal
//
// Since `tma`: a warpgroup of its own has a thread that keeps copies under way, and hands its
// registers to the two that multiply. None of their warps waits for a stage to be free any more.

#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of the backward pass: heads up to …, Br, Bc.
constexpr TileSize kBackwardTiles[] = {{64, 128, 128}, {128, 64, 128}, {256, 64, 64}};

constexpr int kConsumersBackward = 2;  // warpgroups that multiply
constexpr int kWarpgroupKeys = 64;     // of a consumer
/// Stages of copies of Q and dO; at d = 256 there is room for one.
constexpr int backward_stages(int Dh) {
  return Dh == 256 ? 1 : 2;
}
/// Registers of a thread of a consumer, and of the producer.
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kAll = 1;  // the named barrier of all consumers

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64), stages = backward_stages(Dh);
  return 2 * shared_bytes<fp16>(Bc * columns) + 2 * shared_bytes<fp16>(stages * Br * columns) +
         2 * shared_bytes<fp16>(Br * Bc) + 2 * shared_bytes<float>(stages * Br) +
         shared_bytes<Mbarrier>(1) + 4 * shared_bytes<Mbarrier>(stages);
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
/// of ln 2; and dQ's sums, 0 to begin with. All three for whole tiles: heads have `rows` rows
/// there, of which those past p.N have LSE = +∞, which makes their P 0. So has a row that sees no
/// key, whose LSE is −∞. Dh/8 lanes per row: those of a tile fill whole blocks.
template <class T, int Dh>
__global__ void prepare(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                        Hbm<float> minus_delta, Hbm<float> LSE_log2e, Hbm<float> dQ_sum, int rows,
                        Problem p) {
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

/// dK and dV of one tile of keys, and what it adds to dQ. grid: (tiles of K · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup*(1 + kConsumersBackward), 1)
    key_gradients(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
                  const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_dO,
                  const __grid_constant__ TensorMap map_dK,
                  const __grid_constant__ TensorMap map_dV, Hbm<const float> minus_delta,
                  Hbm<const float> LSE_log2e, Hbm<float> dQ_sum, Problem p) {
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
  const int key = tile * Bc, batch = bh / p.Hk, head_kv = bh % p.Hk;
  // The query heads of this head of K and V, one after the other; of each, the tiles of Q from the
  // first row that sees a key of this tile.
  const int group = p.H / p.Hk;
  const int first_row = p.first_query(key) / Br * Br;
  const int rows = static_cast<int>(ceil_div(p.N, Br)) * Br;  // of a head, in whole tiles

  SharedMemory smem;
  const TileKV tile_K{smem.tiles<TileKV>("K")};
  const TileKV tile_V{smem.tiles<TileKV>("V")};
  StagesWithRows<TileQ, kStages, Br> Q{smem, "Q"}, dO{smem, "dO"};
  const TileS tile_P{smem.tiles<TileS>("P")};
  const TileS tile_dS{smem.tiles<TileS>("dS")};
  Q.init(smem, "LSE_log2e", "Q_full", "Q_free", 4 * kConsumersBackward);  // a release by each warp
  dO.init(smem, "minus_delta", "dO_full", "dO_free", 4 * kConsumersBackward);
  const auto KV_full = smem.take<Mbarrier>("KV_full", 1);
  if (threadIdx.x == 0) {
    KV_full[0].init(1);
    fence_mbarrier_init();
  }
  __syncthreads();

  if (warpgroup_id() == 0) {  // the producer
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x != 0) return;
    KV_full[0].arrive_expect_tx(2 * TileKV::kBytes);
    tma_load(map_K, KV_full[0], tile_K, 0, key, head_kv, batch);
    tma_load(map_V, KV_full[0], tile_V, 0, key, head_kv, batch);
#pragma unroll 1
    for (int head = bh * group; head < (bh + 1) * group; ++head)
#pragma unroll 1
      for (int row = first_row; row < p.N; row += Br) {
        const int64_t at = int64_t{head} * rows + row;
        Q.acquire();
        Q.fill(map_Q, 0, row, head % p.H, batch, LSE_log2e + at);
        dO.acquire();
        dO.fill(map_dO, 0, row, head % p.H, batch, minus_delta + at);
      }
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();  // a consumer
  const int consumer = warpgroup_id() - 1, warp_row = warp_id() % 4 * 16;
  const int row_S = Br == 64 ? 0 : consumer * 64;
  const int consumer_key = Bc / kWarpgroupKeys == 1 ? 0 : consumer * kWarpgroupKeys;  // its first
  const int key_S = Br == 64 ? consumer_key : 0;
  const int column_dK = Dh > kColumns_dK ? consumer * kColumns_dK : 0;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, kColumns_S> S, dP;
  Accumulator<16, kColumns_dK> dK_sum, dV_sum;
  const int q_tiles = group * static_cast<int>(ceil_div(p.N - first_row, Br));
  int row = first_row;
  auto dQ_at = dQ_sum + (int64_t{bh} * group * rows + row) * Dh;
  KV_full[0].wait(0);
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    Q.wait();
    wgmma_fence(S);
    wgmma_ABt(S, Q.tile(), row_S, tile_K, 0, key_S);  // S = Q·Kᵀ
    wgmma_commit();
    wgmma_wait<0>(S);
    dO.wait();
    fill_rows(dP,
              make_rows<16>([&](int i) -> float { return dO.of_rows()[row_S + warp_row + i]; }));
    wgmma_fence(dP);
    wgmma_ABt(dP, dO.tile(), row_S, tile_V, 1, key_S);  // dP = dO·Vᵀ - D
    wgmma_commit();
    auto& P = S;
    exp2_rows(P, c,
              make_rows<16>([&](int i) -> float { return Q.of_rows()[row_S + warp_row + i]; }));
    if (key + Bc > p.keys(row))
      for_each(P, [&](int i, int j, float& x) {
        if (j >= p.keys(row + row_S + warp_row + i) - key - key_S) x = 0;
      });
    named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);  // both are done with the last ones
    if (Bc / kWarpgroupKeys > 1 || consumer == 0) write(tile_P, P, row_S + warp_row, key_S);
    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    if (Bc / kWarpgroupKeys > 1 || consumer == 0) write(tile_dS, dS, row_S + warp_row, key_S);
    fence_proxy_async();
    named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);  // P and dS are complete
    wgmma_fence(dV_sum);
    wgmma_AtB(dV_sum, tile_P, consumer_key, dO.tile(), 1, column_dK);  // dV += Pᵀ·dO
    wgmma_commit();
    wgmma_fence(dK_sum);
    wgmma_AtB(dK_sum, tile_dS, consumer_key, Q.tile(), 1, column_dK);  // dK += dSᵀ·Q
    wgmma_commit();
    wgmma_wait<1>(dV_sum);
    dO.release();

#pragma unroll 1  // both at once want more registers than there are
    for (int n = 0; n < Piece::kOfConsumer; ++n) {
      const Piece piece{consumer * Piece::kOfConsumer + n};
      Accumulator<16, Piece::kColumns> dQ;
      wgmma_fence(dQ);
      wgmma_AB(dQ, tile_dS, piece.row(), tile_K, 0, piece.column());  // dQ = dS·K
      wgmma_commit();
      wgmma_wait<0>(dQ, dK_sum);
      for_each_pair(dQ, [&](int i, int j, float a, float b) {
        atomic_add_pair(dQ_at + ((piece.row() + warp_row + i) * Dh + piece.column() + j), a, b);
      });
    }
    Q.release();
    row += Br;
    dQ_at = dQ_at + Br * Dh;
    if (row >= p.N) {  // the next head
      row = first_row;
      dQ_at = dQ_at + int64_t{first_row} * Dh;
    }
  }

  // Through the tiles of K and V, from where TMA takes them.
  named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);  // both are done with them
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write(tile_K, dK_sum, consumer_key + warp_row, column_dK);
  write(tile_V, dV_sum, consumer_key + warp_row, column_dK);
  fence_proxy_async();
  named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);
  if (threadIdx.x == kWarpgroup) {
    tma_store(map_dK, tile_K, 0, key, head_kv, batch);
    tma_store(map_dV, tile_V, 0, key, head_kv, batch);
    tma_store_commit();
    tma_store_wait_read<0>();  // shared memory must live until then
  }
}

/// dQ in the I/O type. Dh/8 lanes per row.
template <class T, int Dh>
__global__ void convert(Hbm<const float> dQ_sum, Hbm<T> dQ, int rows, Problem p) {
  const int64_t i = 8 * (int64_t{blockIdx.x} * kElementwise + threadIdx.x), head = i / Dh / rows;
  const int row = static_cast<int>(i / Dh % rows), column = static_cast<int>(i % Dh);
  if (row >= p.N || column >= p.d) return;
  const auto sum = read_chunk(dQ_sum + i);
  Chunk<T> out;
  for (int e = 0; e < 8; ++e) out[e] = T(p.scale * sum[e]);
  write_chunk(dQ + ((head * p.N + row) * p.d + column), out);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = backward_stages(Dh)};
  choose_tile(plan, kBackwardTiles, {}, device.sram_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(Dh, Br, Bc); });
  plan.warps = 4 * (1 + kConsumersBackward);
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q;
  plan.workspace = {{"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * Dh * 4}};
  return plan;
}

template <class T, int Dh, int Br, int Bc>
void launch_backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto O = hbm<const T>(a["O"]), dO = hbm<const T>(a["dO"]);
  const auto LSE = hbm<const float>(a["LSE"]);
  const auto minus_delta = hbm<float>(a["minus_delta"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
  const auto dQ_sum = hbm<float>(a["dQ_sum"]);
  const auto map = [&](const char* name, int rows, int heads, int box_rows) {
    return tensor_map<T>(a[name], p.d, rows, heads, p.B, box_rows);
  };
  const int rows = static_cast<int>(ceil_div(p.N, Br)) * Br;  // of a head, in whole tiles
  const int64_t heads = int64_t{p.B} * p.H;

  launch("prepare", prepare<T, Dh>, dim3(ceil_div(heads * rows * (Dh / 8), kElementwise)),
         dim3(kElementwise), 0, O, dO, LSE, minus_delta, LSE_log2e, dQ_sum, rows, p);
  launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(ceil_div(p.N_kv, Bc) * p.B * p.Hk),
         dim3(kWarpgroup * (1 + kConsumersBackward)), plan.smem_bytes, map("Q", p.N, p.H, Br),
         map("K", p.N_kv, p.Hk, Bc), map("V", p.N_kv, p.Hk, Bc), map("dO", p.N, p.H, Br),
         map("dK", p.N_kv, p.Hk, Bc), map("dV", p.N_kv, p.Hk, Bc), minus_delta, LSE_log2e, dQ_sum,
         p);
  launch("convert", convert<T, Dh>, dim3(ceil_div(heads * rows * (Dh / 8), kElementwise)),
         dim3(kElementwise), 0, dQ_sum, hbm<T>(a["dQ"]), rows, p);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch_backward<T, Dh, Br, Bc>(p, plan, a);
  });
}

/// Requested bytes of the backward pass: every tile of keys reads Q and dO from the first row that
/// sees one of its keys, and adds to dQ there. What is kept between the kernels has whole tiles.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO and dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK and dV
  const int64_t padded = heads * ceil_div(p.N, plan.block_q) * plan.block_q;  // rows
  const int64_t sums = padded * plan.head_dim * 4;                            // bytes of dQ_sum
  int64_t queries = 0, tiles = 0;  // rows, and tiles of Q, that the tiles of keys of a head read
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    if (first < p.N) {
      queries += p.N - first;
      tiles += ceil_div(p.N - first, plan.block_q);
    }
  }
  const int64_t read = heads * queries * p.d * kIoBytes;  // bytes of Q, and of dO
  const int64_t rows = heads * tiles * plan.block_q;      // of LSE, D and dQ's sums
  return {{"prepare",
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
          {"convert", {{"dQ_sum", 2 * q, 0}, {"dQ", 0, q}}}};
}

const Register step{{
    .rung = "06_backward",
    .name = "producer",
    .after = "tma",
    .shown = {.idea = "a copying warpgroup",
              .change = {"consumer_copies", "to 0"},
              .summary = "and a producer of copies, consumers of tiles",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
