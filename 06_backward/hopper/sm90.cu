// 06 on Hopper, step 7: persistent blocks. This project's own way.
//
//   build/bin/06_backward --step sm90 --seqlen 512 --causal
//
// Since `ahead`: there are as many blocks as SMs, and a block takes one tile of keys after another,
// by a counter in HBM, as in 05's `counter`. So the first tiles of Q and dO of the next come while
// dK and dV of the last are written out.

#include "machine/hopper.h"
#include "rung.h"
#include "tile/columns.h"
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
/// Stages of copies of dO and of Q; at d = 256 there is room for one. Of Q one more where dK, its
/// last use, ends in the next iteration.
constexpr int backward_stages(int Dh) {
  return Dh == 256 ? 1 : 2;
}
constexpr int backward_stages_Q(int Dh) {
  return Dh == 128 ? 3 : backward_stages(Dh);
}
constexpr int kStages_dS = 2;
/// Registers of a thread of a consumer, and of the producer.
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kAll = 1;  // the named barrier of all consumers

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile has 64 at least
  int64_t bytes = 2 * shared_bytes<fp16>(Bc * columns) + shared_bytes<fp16>(kStages_dS * Bc * Br) +
                  shared_bytes<float>(Br * Dh) + shared_bytes<int>(1) +
                  4 * shared_bytes<Mbarrier>(1);
  for (const int stages : {backward_stages_Q(Dh), backward_stages(Dh)})
    bytes += shared_bytes<fp16>(stages * Br * columns) + shared_bytes<float>(stages * Br) +
             2 * shared_bytes<Mbarrier>(stages);
  return bytes;
}

/// A piece of a tile of dQ, 64 × kColumns, that a consumer makes at once: rows of the tile or,
/// where it has but 64, columns. In dQ_sum the tile is kept as the sums lie in registers, all of a
/// warp together.
template <int Br, int Dh>
struct PieceOf_dQ {
  static constexpr int kColumns = Br == 64 ? 64 : Dh, kOfWarp = 16 * kColumns;  // elements
  static constexpr int kCount = Br * Dh / (64 * kColumns), kOfConsumer = kCount / 2;
  int number;
  __device__ int row() const { return Br == 64 ? 0 : number * 64; }
  __device__ int column() const { return Br == 64 ? number * 64 : 0; }
  /// Where a warp's share of it starts in the tile.
  __device__ int at(int warp) const {
    return ((number / kOfConsumer * 4 + warp) * kOfConsumer + number % kOfConsumer) * kOfWarp;
  }
};

constexpr int kElementwise = 256;  // threads of a block of a small kernel

/// −delta = −rowsum(dO∘O), with which the sums dP begin, so that they give dP − delta; LSE in units
/// of ln 2; and dQ's sums, 0 to begin with. All three for whole tiles: heads have `rows` rows
/// there, of which those past p.N have LSE = +∞, which makes their P 0. So has a row that sees no
/// key, whose LSE is −∞. Dh/8 lanes per row: those of a tile fill whole blocks. And no block has
/// asked for a further tile of keys yet.
template <class T, int Dh>
__global__ void prepare(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                        Hbm<float> minus_delta, Hbm<float> LSE_log2e, Hbm<float> dQ_sum,
                        Hbm<int> next, int rows, Problem p) {
  constexpr int kLanes = Dh / 8;
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  const bool real = row < p.N;
  const float lse = real && column == 0 ? LSE[head * p.N + row] : -INFINITY;
  float sum = 0;
  write_chunk(dQ_sum + (at * Dh + column), Chunk<float>{});
  if (blockIdx.x == 0 && threadIdx.x == 0) next[0] = 0;
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

/// dK and dV, and what each tile of keys adds to dQ. grid: as many blocks as there are SMs; each
/// takes a tile of keys, and whenever it is done with one, the next that nobody has. There are
/// `tiles` of a head of K and V, and `rows` of a head of Q in whole tiles.
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup*(1 + kConsumersBackward), 1)
    key_gradients(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
                  const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_dO,
                  const __grid_constant__ TensorMap map_dK,
                  const __grid_constant__ TensorMap map_dV, Hbm<const float> minus_delta,
                  Hbm<const float> LSE_log2e, Hbm<float> dQ_sum, Hbm<int> next, int tiles, int rows,
                  Problem p) {
  using TileKV = SwizzledTile<T, Bc, Dh>;
  using TileQ = SwizzledTile<T, Br, Dh>;
  using TileS = SwizzledTile<T, Bc, Br>;
  constexpr int kStages = backward_stages(Dh);
  // Of dK and dV a consumer makes the rows of its keys, or at d = 256, where it has no registers
  // for that, half the columns of all keys.
  constexpr int kColumns_dK = Dh / (Bc / kWarpgroupKeys == 1 ? 2 : 1);
  using Piece = PieceOf_dQ<Br, Dh>;
  // dK of a tile runs under the next one's exponentials, where there are registers for its
  // operand.
  constexpr bool kLate = Dh == 128;
  // Of the B·Hk heads of K and V. The first keys are seen by the most rows.
  const int works = tiles * p.B * p.Hk;
  const auto work = [&](int index) {
    return longest_first(index, {.heads = p.B * p.Hk,
                                 .tiles = tiles,
                                 .head_bytes = 4 * kIoBytes * p.N * p.d * (p.H / p.Hk),
                                 .uneven = p.causal});
  };
  // The query heads of a head of K and V, one after the other; of each, the tiles of Q from the
  // first row that sees a key of this tile.
  const int group = p.H / p.Hk;
  const auto first_row_of = [&](int key) { return p.first_query(key) / Br * Br; };

  SharedMemory smem;
  Stages<TileKV, 1> K{smem, "K"}, V{smem, "V"};
  StagesWithRows<TileQ, backward_stages_Q(Dh), Br> Q{smem, "Q"};
  StagesWithRows<TileQ, kStages, Br> dO{smem, "dO"};
  const auto dS_stages = smem.tiles<TileS>("dS", kStages_dS);
  const auto dQ_tile = smem.take<float>("dQ", Br * Dh);
  Q.init(smem, "LSE_log2e", "Q_full", "Q_free", 4 * kConsumersBackward);  // a release by each warp
  dO.init(smem, "minus_delta", "dO_full", "dO_free", 4 * kConsumersBackward);
  const auto smem_index = smem.take<int>("index", 1);  // which tile of K and V it is
  K.init(smem, "K_full", "K_free", 1);
  V.init(smem, "V_full", "V_free", 1);
  if (threadIdx.x == 0) fence_mbarrier_init();
  __syncthreads();

  if (warpgroup_id() == 0) {  // the producer
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x != 0) return;
    int index = blockIdx.x;
    while (index < works) {
      const Work w = work(index);
      const int key = w.tile * Bc, batch = w.head / p.Hk, head_kv = w.head % p.Hk;
      const int first_row = first_row_of(key);
#pragma unroll 1
      for (int head = w.head * group; head < (w.head + 1) * group; ++head)
#pragma unroll 1
        for (int row = first_row; row < p.N; row += Br) {
          const int64_t at = int64_t{head} * rows + row;
          Q.acquire();
          Q.fill(map_Q, 0, row, head % p.H, batch, LSE_log2e + at);
          if (row == first_row && head == w.head * group) {
            K.acquire();  // once the last dK and dV have left
            smem_index[0] = index;
            K.fill(map_K, 0, key, head_kv, batch);
            V.acquire();
            V.fill(map_V, 0, key, head_kv, batch);
          }
          dO.acquire();
          dO.fill(map_dO, 0, row, head % p.H, batch, minus_delta + at);
        }
      index = uniform(gridDim.x + atomicAdd(next, 1), 1);
    }
    K.acquire();
    smem_index[0] = index;
    K.fill_with_nothing();
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();  // a consumer
  const int consumer = warpgroup_id() - 1, warp = uniform(warp_id() % 4), warp_row = warp * 16;
  const bool first_lane = lane_id() == 0;
  const int consumer_key = Bc / kWarpgroupKeys == 1 ? 0 : consumer * kWarpgroupKeys;  // its first
  const int column_dK = Dh > kColumns_dK ? consumer * kColumns_dK : 0;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;  // their transposes: rows are keys, columns are queries
  Accumulator<16, kColumns_dK> dK_sum, dV_sum;
  Operand<T, 16, Br> dS_operand;
  auto Q_ahead = Q;                // where S is computed, a tile before the rest
  auto Q_behind = Q;               // where dK is, which may end in the next iteration
  const auto start_scores = [&] {  // Sᵀ = K·Qᵀ
    S = {};
    Q_ahead.wait();
    wgmma_fence(S);
    wgmma_ABt(S, K.tile(), consumer_key, Q_ahead.tile(), 0);
    wgmma_commit();
    Q_ahead.at.next();
  };
  for (;; K.at.next(), V.at.next()) {
    K.wait();
    const int index = uniform(smem_index[0]);
    if (index >= works) break;
    V.wait();
    const Work w = work(index);
    const int key = w.tile * Bc, first_row = first_row_of(key);
    // The first query that sees key i of the tile is first_seen + i.
    const int first_seen = p.causal ? key - p.N_kv + p.N : -Bc;
    dK_sum = {};
    dV_sum = {};
    const int q_tiles = group * static_cast<int>(ceil_div(p.N - first_row, Br));
    int row = first_row;
    auto dQ_at = dQ_sum + (int64_t{w.head} * group * rows + row) * Dh;
    if (kLate) Q_ahead = Q;
    if (kStages > 1) {
      start_scores();
      wgmma_wait<0>(S);
    }
    for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
      if (kStages == 1) {
        start_scores();
        wgmma_wait<0>(S);
      }
      dO.wait();
      fill_columns(dP, make_columns<Br>([&](int j) -> float { return dO.of_rows()[j]; }));
      wgmma_fence(dP);
      wgmma_ABt(dP, V.tile(), consumer_key, dO.tile());  // dPᵀ = V·dOᵀ - D
      wgmma_commit();
      auto& P = S;
      exp2_columns(P, c, make_columns<Br>([&](int j) -> float { return Q.of_rows()[j]; }));
      if (row < first_seen + Bc - 1 || key + Bc > p.N_kv)
        for_each(P, [&](int i, int j, float& x) {
          i += consumer_key + warp_row;
          if (row + j < first_seen + i || key + i >= p.N_kv) x = 0;
        });
      auto P_operand = as_operand<T>(P);
      if (kLate) {
        wgmma_wait<1>(dK_sum, dS_operand);  // the tile before's
        if (q_tile > 0) Q_behind.release();
      }
      wgmma_wait<0>(dP);
      auto& dS = dP;
      mul(dS, P);
      dS_operand = as_operand<T>(dS);
      const TileS tile_dS{dS_stages + q_tile % kStages_dS * TileS::kElements};
      if (Bc / kWarpgroupKeys > 1 || consumer == 0)
        write_matrices(tile_dS, dS_operand, consumer_key + warp_row);
      wgmma_fence(dV_sum, P_operand);
      wgmma_AB(dV_sum, P_operand, dO.tile(), 1, column_dK);  // dV += Pᵀ·dO
      wgmma_commit();
      fence_proxy_async();
      if (first_lane) tma_store_wait_read<0>();                   // the tile before's dQ
      named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);  // dS is complete
      wgmma_wait<0>(dV_sum, P_operand);
      const auto add = [&](const auto& dQ, int at) {  // dQ's sums += dQ
        write_fragments(dQ_tile + at, dQ);
        fence_proxy_async();
        __syncwarp();
        if (first_lane) {
          bulk_add(dQ_at + at, dQ_tile + at, Piece::kOfWarp);
          tma_store_commit();
        }
      };
      const auto start_dK = [&] {  // dK += dSᵀ·Q
        wgmma_fence(dK_sum, dS_operand);
        wgmma_AB(dK_sum, dS_operand, Q.tile(), 1, column_dK);
        wgmma_commit();
      };

#pragma unroll
      for (int n = 0; n < Piece::kOfConsumer; ++n) {
        const Piece piece{consumer * Piece::kOfConsumer + n};
        Accumulator<16, Piece::kColumns> dQ;
        wgmma_fence(dQ);
        wgmma_AtB(dQ, tile_dS, piece.row(), K.tile(), 0, piece.column());  // dQ = dS·K
        wgmma_commit();
        if (n == 0) {
          wgmma_wait<1>(dV_sum, P_operand);
          dO.release();
        }
        if (n + 1 < Piece::kOfConsumer) {
          wgmma_wait<0>(dQ);
          add(dQ, piece.at(warp));
        } else if (kStages > 1 && q_tile + 1 < q_tiles) {
          if (kLate) {  // worked out anew: kept, it would take registers that are scarce here
            Q_ahead = Q;
            Q_ahead.at.next();
          }
          start_scores();  // of the next tile
          start_dK();
          wgmma_wait<2>(dQ);
          add(dQ, piece.at(warp));
          wgmma_wait<kLate ? 1 : 0>(S);
          if (!kLate) wgmma_wait<0>(dK_sum, dS_operand);
        } else {
          start_dK();
          wgmma_wait<1>(dQ);
          add(dQ, piece.at(warp));
          if (!kLate) wgmma_wait<0>(dK_sum, dS_operand);
        }
      }
      if (!kLate) Q_behind.release();
      Q.at.next();
      row += Br;
      dQ_at = dQ_at + Br * Dh;
      if (row >= p.N) {  // the next head
        row = first_row;
        dQ_at = dQ_at + int64_t{first_row} * Dh;
      }
    }
    wgmma_wait<0>(dK_sum, dS_operand);
    if (kLate) Q_behind.release();

    // Through the tiles of K and V, from where TMA takes them.
    named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);  // both are done with them
    for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
    write_matrices(K.tile(), as_operand<T>(dK_sum), consumer_key + warp_row, column_dK);
    write_matrices(V.tile(), as_operand<T>(dV_sum), consumer_key + warp_row, column_dK);
    fence_proxy_async();
    named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);
    if (threadIdx.x == kWarpgroup) {
      tma_store(map_dK, K.tile(), 0, key, w.head % p.Hk, w.head / p.Hk);
      tma_store(map_dV, V.tile(), 0, key, w.head % p.Hk, w.head / p.Hk);
      tma_store_commit();
      tma_store_wait_read<0>();
      K.free[0].arrive();
      V.free[0].arrive();
    }
  }
  if (first_lane) tma_store_wait_read<0>();  // shared memory must live until then
}

/// dQ in the I/O type. grid: (pieces of tiles of dQ · B·H).
template <class T, int Dh, int Br>
__global__ void __launch_bounds__(kWarpgroup)
    convert(Hbm<const float> dQ_sum, Hbm<T> dQ, int rows, Problem p) {
  using Piece = PieceOf_dQ<Br, Dh>;
  const Piece piece{static_cast<int>(blockIdx.x) % Piece::kCount};
  const int64_t at =
      int64_t{blockIdx.x} / Piece::kCount * Br;  // its tile's first row of all heads'
  const int row = static_cast<int>(at % rows) + piece.row(), column = piece.column();
  Accumulator<16, Piece::kColumns> sum;
  read_fragments(sum, dQ_sum + (at * Dh + piece.at(warp_id())));
  for_each(sum, [&](int, int, float& x) { x *= p.scale; });
  SharedMemory smem;
  const SwizzledTile<T, 64, Piece::kColumns> tile{smem.take<T>("dQ", 64 * 64)};
  write(tile, sum, warp_id() * 16);
  __syncthreads();
  copy_out<kWarpgroup>(dQ + ((at / rows * p.N + row) * p.d + column), p.d, tile, p.N - row,
                       p.d - column, threadIdx.x);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = backward_stages(Dh)};
  choose_tile(plan, kBackwardTiles, {}, device.sram_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(Dh, Br, Bc); });
  plan.warps = 4 * (1 + kConsumersBackward);
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q;
  plan.workspace = {
      {"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * Dh * 4}, {"next", 4}};
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
  const auto next = hbm<int>(a["next"]);
  const int tiles = static_cast<int>(ceil_div(p.N, Br)), rows = tiles * Br;
  const int64_t heads = int64_t{p.B} * p.H;

  launch("prepare", prepare<T, Dh>, dim3(ceil_div(heads * rows * (Dh / 8), kElementwise)),
         dim3(kElementwise), 0, O, dO, LSE, minus_delta, LSE_log2e, dQ_sum, next, rows, p);
  launch("key_gradients", key_gradients<T, Dh, Br, Bc>,
         dim3(std::min<int64_t>(ceil_div(p.N_kv, Bc) * p.B * p.Hk, multiprocessors())),
         dim3(kWarpgroup * (1 + kConsumersBackward)), plan.smem_bytes, map("Q", p.N, p.H, Br),
         map("K", p.N_kv, p.Hk, Bc), map("V", p.N_kv, p.Hk, Bc), map("dO", p.N, p.H, Br),
         map("dK", p.N_kv, p.Hk, Bc), map("dV", p.N_kv, p.Hk, Bc), minus_delta, LSE_log2e, dQ_sum,
         next, static_cast<int>(ceil_div(p.N_kv, Bc)), rows, p);
  launch("convert", convert<T, Dh, Br>, dim3(heads * tiles * PieceOf_dQ<Br, Dh>::kCount),
         dim3(kWarpgroup), shared_bytes<T>(64 * 64), dQ_sum, hbm<T>(a["dQ"]), rows, p);
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
  // A block asks for another tile of keys after each that it has had, the last time in vain.
  const int64_t asked = 4 * kv_heads * ceil_div(p.N_kv, plan.block_kv);
  return {{"prepare",
           {{"O", q, 0},
            {"dO", q, 0},
            {"LSE", heads * p.N * 4, 0},
            {"minus_delta", 0, padded * 4},
            {"LSE_log2e", 0, padded * 4},
            {"dQ_sum", 0, sums},
            {"next", 0, 4}}},
          {"key_gradients",
           {{"Q", read, 0},
            {"K", kv, 0},
            {"V", kv, 0},
            {"dO", read, 0},
            {"minus_delta", rows * 4, 0},
            {"LSE_log2e", rows * 4, 0},
            {"dQ_sum", rows * plan.head_dim * 4, rows * plan.head_dim * 4},
            {"dK", 0, kv},
            {"dV", 0, kv},
            {"next", asked, asked}}},
          {"convert", {{"dQ_sum", sums, 0}, {"dQ", 0, q}}}};
}

const Register step{{
    .rung = "06_backward",
    .name = "sm90",
    .after = "ahead",
    .is_default = kDevice == DeviceKind::gpu,
    .shown = {.idea = "persistent backward",
              .change = {"blocks", "less"},
              .summary = "and blocks that stay for further tiles of keys",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
