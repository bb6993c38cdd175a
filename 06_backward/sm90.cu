// 06 on Hopper: the forward pass of 05's last step, and the backward pass of FlashAttention-3 (Shah
// et al. 2024, §3.1 and Appendix B) on the same engines.
//
//   build/bin/06_backward --variant sm90 --seqlen 512 --causal
//
//   D = rowsum(dO∘O)
//   for each tile of Bc rows of K and V, one block each:
//     dK = 0, dV = 0
//     for each tile of Br rows of Q and dO:
//       Sᵀ = scale·K·Qᵀ,   Pᵀ = exp(Sᵀ − LSE)
//       dPᵀ = V·dOᵀ,       dSᵀ = Pᵀ∘(dPᵀ − D)
//       dV += Pᵀ·dO
//       dQ += scale·dS·K        in HBM, by the copy engine
//       dK += scale·dSᵀ·Q
//
// Since `mma`: a producer and two consumers. S and dP are computed transposed, so that Pᵀ and dSᵀ
// lie in registers as the products dV and dK want their left operand; only dS goes through shared
// memory, for dQ, in which all keys meet.

#include "machine/hopper.h"
#include "rung.h"
#include "tile/columns.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr int kRows = 64;   // rows of Q of a consumer, which is a warpgroup
constexpr int kStages = 2;  // of Q, of K and of V
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
// The warp's rows keep their m while no P is above 2^kSlack: O and LSE are the same with any m, if
// P and the sums fit their types.
constexpr float kSlack = 8;
// Named barriers: each consumer's own, and its turn at the tensor cores.
constexpr int kOwn = 1, kTurn = 4;

/// Compiled tiles: heads up to …, Br, Bc. Each consumer has kRows of the Br rows.
constexpr TileSize kTiles[] = {{64, 192, 128}, {128, 128, 128}, {256, 128, 32}};
/// Whether a consumer keeps Q in registers: then each product S = Q·Kᵀ reads K alone from shared
/// memory. Elsewhere there are not enough of them.
constexpr bool q_in_registers(int D) {
  return D == 128;
}
/// Registers of a thread of a consumer; the producer's keep 32 or 40.
constexpr int registers(int consumers) {
  return consumers == 3 ? 160 : 232;
}
int64_t smem_bytes(int D, int Br, int Bc) {
  const int columns = std::max(D, 64);  // of a tile, whose panels have 64
  const int consumers = Br / kRows;
  return shared_bytes<fp16>(kStages * Br * columns) +
         2 * shared_bytes<fp16>(kStages * Bc * columns) + shared_bytes<Work>(kStages * consumers) +
         2 * shared_bytes<Mbarrier>(kStages * consumers) + 4 * shared_bytes<Mbarrier>(kStages);
}

/// No block has asked for a further tile of Q yet.
__global__ void clear(Hbm<int> next) {
  next[0] = 0;
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: as many blocks as there are SMs; each takes a tile of
/// Q, and whenever it is done with one, the next that nobody has.
template <class T, int D, int kConsumers, int Bc>
__global__ void __launch_bounds__(kWarpgroup*(1 + kConsumers), 1)
    attention(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
              const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_O,
              Hbm<float> LSE, Hbm<int> next, Problem p) {
  using TileQ = SwizzledTile<T, kRows, D>;
  using TileKV = SwizzledTile<T, Bc, D>;
  constexpr int Br = kConsumers * kRows;
  const int tiles = ceil_div(p.N, Br), works = tiles * p.B * p.H;
  // Half as many blocks at once as in mma, so half as many heads: what a group requests from HBM at
  // its start comes in smaller bursts.
  const auto work = [&](int index) {
    return longest_first(index, {.heads = p.B * p.H,
                                 .tiles = tiles,
                                 .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                                 .uneven = p.causal,
                                 .group_bytes = 8 << 20});
  };
  // Tiles are laid from the last row up, since the last rows see the most keys. So a tile that some
  // consumers find empty, with rows before row 0, is the one with the fewest steps.
  const int end = static_cast<int>(ceil_div(p.N, kRows)) * kRows;
  const auto row_of = [&](const Work& w) { return end - (w.tile + 1) * Br; };
  // Tiles of K and V that rows [row, row + rows) see; one at least, all masked if need be.
  const auto steps_of = [&](int row, int rows) {
    const int last = min(row + rows, p.N) - 1, keys = last >= 0 ? p.keys(last) : 0;
    return keys > 0 ? static_cast<int>(ceil_div(keys, Bc)) : 1;
  };

  SharedMemory smem;
  Stages<TileQ, kStages, kConsumers> Q{smem, "Q"};  // a tile of its own for each consumer
  Stages<TileKV, kStages> K{smem, "K"}, V{smem, "V"};
  const auto smem_work = smem.take<Work>("work", kStages * kConsumers);  // which tile of Q it is
  Q.init(smem, "Q_full", "Q_free", 1);
  K.init(smem, "K_full", "K_free", 4 * kConsumers);  // a release by each warp
  V.init(smem, "V_full", "V_free", 4 * kConsumers);
  if (threadIdx.x == 0) fence_mbarrier_init();
  __syncthreads();

  if (warpgroup_id() == 0) {  // the producer
    setmaxnreg_dec<kConsumers == 3 ? 32 : 40>();
    if (threadIdx.x != 0) return;
    // A tile of Q comes with its tile and head, so that consumers need not divide; after the last
    // one the head is negative.
    const auto send = [&](const Work& w) {
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        Q.free[Q.number()].wait(Q.at.round);  // from the start, not before its consumer says so
        smem_work[Q.number()] = w;
        if (w.head >= 0)
          Q.fill(map_Q, 0, row_of(w) + consumer * kRows, w.head % p.H, w.head / p.H);
        else
          Q.fill_with_nothing();
      }
    };
    for (int index = blockIdx.x; index < works;) {
      const Work w = work(index);
      send(w);
      const int batch = w.head / p.H, head_kv = w.head % p.H * p.Hk / p.H;
      const int steps = steps_of(row_of(w), Br);
      for (int step = 0; step < steps; ++step) {
        K.acquire();
        K.fill(map_K, 0, step * Bc, head_kv, batch);
        // Asked late, so that blocks end together, but before waiting for the others once more.
        if (step == steps - 1) index = gridDim.x + atomicAdd(next, 1);
        V.acquire();
        V.fill(map_V, 0, step * Bc, head_kv, batch);
      }
    }
    send({-1, -1});
    return;
  }

  setmaxnreg_inc<registers(kConsumers)>();  // a consumer
  const int consumer = warpgroup_id() - 1, warp_row = warp_id() % 4 * 16;
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)
  // Consumers take turns to issue products, so that one's softmax runs under another's products.
  const auto begin_turn = [&] { named_barrier_sync(kTurn + consumer, 2 * kWarpgroup); };
  const auto end_turn = [&] {
    named_barrier_arrive(kTurn + (consumer + 1) % kConsumers, 2 * kWarpgroup);
  };
  if (consumer == kConsumers - 1) end_turn();  // the first one's turn
  Q.share = consumer;
  if (first_thread) Q.free[Q.number()].arrive();  // the first stage of Q; the other one follows

  Accumulator<16, Bc> S;
  Operand<T, 16, Bc> P;
  Accumulator<16, D> O_sum;
  Operand<T, 16, D> Q_rows;        // if it is kept in registers
  const auto start_scores = [&] {  // S = Q·Kᵀ
    if constexpr (q_in_registers(D)) {
      wgmma_fence(S, Q_rows);
      wgmma_ABt(S, Q_rows, K.tile(), 0);
    } else {
      wgmma_fence(S);
      wgmma_ABt(S, Q.tile(), 0, K.tile(), 0);
    }
    wgmma_commit();
  };
  const auto start_output = [&] {  // O += P·V
    V.wait();
    wgmma_fence(O_sum, P);
    wgmma_AB(O_sum, P, V.tile());
    wgmma_commit();
  };
  for (;; Q.at.next()) {
    Q.wait();
    const Work w = smem_work[Q.number()];
    if (w.head < 0) break;
    const int batch = w.head / p.H, head = w.head % p.H;
    const int tile_row = row_of(w) + consumer * kRows, row = tile_row + warp_row;
    const int my_steps = steps_of(tile_row, kRows), steps = steps_of(row_of(w), Br);

    // m is kept in units of ln 2, like the exponents of 2^(c·s).
    auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0), alpha = m;
    O_sum = {};
    // S becomes P, by the rows' maxima when m was last raised. Whether it was raised now: then O
    // has to be scaled by alpha.
    const auto softmax = [&](int key) {
      if (key + Bc > p.keys(row))
        for_each(S, [&](int i, int j, float& s) {
          if (key + j >= p.keys(row + i)) s = -INFINITY;
        });
      const auto largest = c * row_max_in_lane(S);
      const bool raised = any_above(largest - m, kSlack);
      if (raised) {
        const auto m_new = max(m, max_over_lanes(largest));
        alpha = exp2(m - finite_or_zero(m_new));
        l = alpha * l;
        m = m_new;
      }
      exp2_rows(S, c, finite_or_zero(m));
      l = l + row_sum_in_lane(S);
      return raised;
    };

    if constexpr (q_in_registers(D)) load(Q_rows, Q.tile(), warp_row);
    K.wait();
    begin_turn();
    start_scores();
    end_turn();
    wgmma_wait<0>(S);
    K.release();
    softmax(0);
    P = as_operand<T>(S);
    if (first_thread) {
      tma_store_wait_read<0>();  // of the last piece of work, whose stage of Q this frees
      Q.free[Q.number(1 - Q.at.stage)].arrive();
    }
    for (int step = 1; step < my_steps; ++step) {
      // From here on the softmax of one step runs under the product P·V of the step before.
      K.wait();
      begin_turn();
      start_scores();
      start_output();
      end_turn();
      wgmma_wait<1>(S);
      K.release();
      const bool raised = softmax(step * Bc);
      wgmma_wait<0>(O_sum, P);
      V.release();
      if (raised) mul_rows(O_sum, alpha);
      P = as_operand<T>(S);
    }
    start_output();
    wgmma_wait<0>(O_sum, P);
    V.release();
    for (int step = my_steps; step < steps; ++step) {  // keys for the other consumers alone
      K.wait();  // the turns keep consumers together too; without them this would have to
      begin_turn();
      end_turn();
      K.release();
      V.wait();
      V.release();
    }

    l = sum_over_lanes(l);
    mul_rows(O_sum, inverse_or_zero(l));
    // Through this stage of Q, from where the copy engine takes it.
    write(Q.tile(), O_sum, warp_row);
    fence_proxy_async();
    named_barrier_sync(kOwn + consumer, kWarpgroup);
    if (first_thread && tile_row >= 0) {  // else there is nothing to store
      tma_store(map_O, Q.tile(), 0, tile_row, head, batch);
      tma_store_commit();
    }
    for_each_row(m, l, [&](int i, float max, float sum) {
      if (row + i >= 0 && row + i < p.N)
        LSE[p.q_row(w.head) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
    });
  }
  if (first_thread) tma_store_wait_read<0>();
  if (consumer == 0) begin_turn();  // receives the last consumer's last hand-over
}

// ---- the backward pass

/// Compiled tiles of the backward pass, in the same form.
constexpr TileSize kBackwardTiles[] = {{64, 128, 128}, {128, 64, 128}, {256, 64, 64}};

constexpr int kConsumersBackward = 2;
constexpr int kKeys = 64;  // of a consumer, which is a warpgroup
/// Stages of copies of Q and dO; at d = 256 there is room for one.
constexpr int backward_stages(int D) {
  return D == 256 ? 1 : 2;
}
constexpr int kStages_dS = 2;
/// Registers of a thread of a consumer, and of the producer.
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kAll = 1;  // the named barrier of all consumers

int64_t backward_smem_bytes(int D, int Br, int Bc) {
  const int columns = std::max(D, 64), stages = backward_stages(D);
  return 2 * shared_bytes<fp16>(Bc * columns) + 2 * shared_bytes<fp16>(stages * Br * columns) +
         shared_bytes<fp16>(kStages_dS * Bc * Br) + shared_bytes<float>(Br * D) +
         2 * shared_bytes<float>(stages * Br) + shared_bytes<Mbarrier>(1) +
         4 * shared_bytes<Mbarrier>(stages);
}

/// A piece of a tile of dQ, 64 × kColumns, that a consumer makes at once: rows of the tile or,
/// where it has but 64, columns. In dQ_sum the tile is kept as the sums lie in registers, all of a
/// warp together.
template <int Br, int D>
struct PieceOf_dQ {
  static constexpr int kColumns = Br == 64 ? 64 : D, kOfWarp = 16 * kColumns;  // elements
  static constexpr int kCount = Br * D / (64 * kColumns), kOfConsumer = kCount / 2;
  int number;
  __device__ int row() const { return Br == 64 ? 0 : number * 64; }
  __device__ int column() const { return Br == 64 ? number * 64 : 0; }
  /// Where a warp's share of it starts in the tile.
  __device__ int at(int warp) const {
    return ((number / kOfConsumer * 4 + warp) * kOfConsumer + number % kOfConsumer) * kOfWarp;
  }
};

constexpr int kElementwise = 256;  // threads of a block of a small kernel

/// −D = −rowsum(dO∘O), with which the sums dP begin, so that they give dP − D; LSE in units of ln
/// 2; and dQ's sums, 0 to begin with. All three for whole tiles: heads have `rows` rows there, of
/// which those past p.N have LSE = +∞, which makes their P 0. So has a row that sees no key, whose
/// LSE is −∞. D/8 lanes per row.
template <class T, int D>
__global__ void prepare(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE, Hbm<float> minus_D,
                        Hbm<float> LSE_log2e, Hbm<float> dQ_sum, int rows, Problem p) {
  constexpr int kLanes = D / 8;
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  const bool inside = head < int64_t{p.B} * p.H, real = inside && row < p.N;
  const float lse = real && column == 0 ? LSE[head * p.N + row] : -INFINITY;
  float sum = 0;
  if (inside) write_chunk(dQ_sum + (at * D + column), Chunk<float>{});
  if (real && column < p.d) {
    const int64_t from = (head * p.N + row) * p.d + column;
    const auto o = read_chunk(O + from), g = read_chunk(dO + from);
    for (int e = 0; e < 8; ++e) sum += float(o[e]) * float(g[e]);
  }
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (inside && column == 0) {
    minus_D[at] = -sum;
    LSE_log2e[at] = lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
}

/// dK and dV of one tile of keys, and what it adds to dQ. grid: (tiles of K · B·Hk).
template <class T, int D, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup*(1 + kConsumersBackward), 1)
    key_gradients(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
                  const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_dO,
                  const __grid_constant__ TensorMap map_dK,
                  const __grid_constant__ TensorMap map_dV, Hbm<const float> minus_D,
                  Hbm<const float> LSE_log2e, Hbm<float> dQ_sum, Problem p) {
  using TileKV = SwizzledTile<T, Bc, D>;
  using TileQ = SwizzledTile<T, Br, D>;
  using TileS = SwizzledTile<T, Bc, Br>;
  constexpr int kStages = backward_stages(D);
  // Of dK and dV a consumer makes the rows of its keys, or at d = 256, where it has no registers
  // for that, half the columns of all keys.
  constexpr int kColumns_dK = D / (Bc / kKeys == 1 ? 2 : 1);
  using Piece = PieceOf_dQ<Br, D>;
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
  const TileKV tile_K{smem.take<T>("K", TileKV::kElements)};
  const TileKV tile_V{smem.take<T>("V", TileKV::kElements)};
  StagesWithRows<TileQ, kStages, Br> Q{smem, "Q"}, dO{smem, "dO"};
  const auto dS_stages = smem.take<T>("dS", kStages_dS * TileS::kElements);
  const auto dQ_tile = smem.take<float>("dQ", Br * D);
  Q.init(smem, "LSE_log2e", "Q_full", "Q_free", 4 * kConsumersBackward);  // a release by each warp
  dO.init(smem, "minus_D", "dO_full", "dO_free", 4 * kConsumersBackward);
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
        dO.fill(map_dO, 0, row, head % p.H, batch, minus_D + at);
      }
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();  // a consumer
  const int consumer = warpgroup_id() - 1, warp = warp_id() % 4, warp_row = warp * 16;
  const bool first_lane = lane_id() == 0;
  const int consumer_key = Bc / kKeys == 1 ? 0 : consumer * kKeys;  // its first in the tile
  const int column_dK = D - kColumns_dK ? consumer * kColumns_dK : 0;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)
  // The first query that sees key i of the tile is first_seen + i.
  const int first_seen = p.causal ? key + p.N - p.N_kv : -Bc;

  Accumulator<16, Br> S, dP;  // their transposes: rows are keys, columns are queries
  Accumulator<16, kColumns_dK> dK_sum, dV_sum;
  auto Q_ahead = Q;                // where S is computed, a step before the rest
  const auto start_scores = [&] {  // Sᵀ = K·Qᵀ
    Q_ahead.wait();
    wgmma_fence(S);
    wgmma_ABt(S, tile_K, consumer_key, Q_ahead.tile(), 0);
    wgmma_commit();
    Q_ahead.at.next();
  };
  const int steps = group * static_cast<int>(ceil_div(p.N - first_row, Br));
  int row = first_row;
  auto dQ_at = dQ_sum + (int64_t{bh} * group * rows + row) * D;
  KV_full[0].wait(0);
  if (kStages > 1) {
    start_scores();
    wgmma_wait<0>(S);
  }
  for (int step = 0; step < steps; ++step) {
    if (kStages == 1) {
      start_scores();
      wgmma_wait<0>(S);
    }
    dO.wait();
    fill_columns(dP, make_columns<Br>([&](int j) -> float { return dO.of_rows()[j]; }));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_V, consumer_key, dO.tile());  // dPᵀ = V·dOᵀ - D
    wgmma_commit();
    auto& P = S;
    exp2_columns(P, c, make_columns<Br>([&](int j) -> float { return Q.of_rows()[j]; }));
    if (row < first_seen + Bc - 1 || key + Bc > p.N_kv)
      for_each(P, [&](int i, int j, float& x) {
        i += consumer_key + warp_row;
        if (row + j < first_seen + i || key + i >= p.N_kv) x = 0;
      });
    auto P_operand = as_operand<T>(P);
    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    auto dS_operand = as_operand<T>(dS);
    const TileS tile_dS{dS_stages + step % kStages_dS * TileS::kElements};
    if (Bc / kKeys > 1 || consumer == 0) write(tile_dS, dS_operand, consumer_key + warp_row);
    wgmma_fence(dV_sum, P_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile(), 1, column_dK);  // dV += Pᵀ·dO
    wgmma_commit();
    wgmma_fence(dK_sum, dS_operand);
    wgmma_AB(dK_sum, dS_operand, Q.tile(), 1, column_dK);  // dK += dSᵀ·Q
    wgmma_commit();
    fence_proxy_async();
    if (first_lane) tma_store_wait_read<0>();                   // the last step's dQ
    named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);  // dS is complete
    wgmma_wait<1>(dV_sum, P_operand);
    dO.release();

#pragma unroll
    for (int i = 0; i < Piece::kOfConsumer; ++i) {
      const Piece piece{consumer * Piece::kOfConsumer + i};
      Accumulator<16, Piece::kColumns> dQ;
      wgmma_fence(dQ);
      wgmma_AtB(dQ, tile_dS, piece.row(), tile_K, 0, piece.column());  // dQ = dS·K
      wgmma_commit();
      if (kStages > 1 && step + 1 < steps) {
        start_scores();  // of the next step
        wgmma_wait<1>(dQ, dK_sum, dS_operand);
        write_as_they_lie(dQ_tile + piece.at(warp), dQ);
        wgmma_wait<0>(S);
      } else {
        wgmma_wait<0>(dQ, dK_sum, dS_operand);
        write_as_they_lie(dQ_tile + piece.at(warp), dQ);
      }
    }
    Q.release();
    fence_proxy_async();
    __syncwarp();
    if (first_lane) {
      const int at = Piece{consumer * Piece::kOfConsumer}.at(warp);
      bulk_add(dQ_at + at, dQ_tile + at, Piece::kOfConsumer * Piece::kOfWarp);
      tma_store_commit();
    }
    row += Br;
    dQ_at = dQ_at + Br * D;
    if (row >= p.N) {  // the next head
      row = first_row;
      dQ_at = dQ_at + first_row * D;
    }
  }

  // Through the tiles of K and V, from where the copy engine takes them.
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
  }
  if (first_lane) tma_store_wait_read<0>();  // shared memory must live until then
}

/// dQ in the I/O type. grid: (pieces of tiles of dQ · B·H).
template <class T, int D, int Br>
__global__ void __launch_bounds__(kWarpgroup)
    convert(Hbm<const float> dQ_sum, Hbm<T> dQ, int rows, Problem p) {
  using Piece = PieceOf_dQ<Br, D>;
  const Piece piece{static_cast<int>(blockIdx.x) % Piece::kCount};
  const int64_t at =
      int64_t{blockIdx.x} / Piece::kCount * Br;  // its tile's first row of all heads'
  const int row = static_cast<int>(at % rows) + piece.row(), column = piece.column();
  Accumulator<16, Piece::kColumns> sum;
  read_as_they_lie(sum, dQ_sum + (at * D + piece.at(warp_id())));
  for_each(sum, [&](int, int, float& x) { x *= p.scale; });
  SharedMemory smem;
  const SwizzledTile<T, 64, Piece::kColumns> tile{smem.take<T>("dQ", 64 * 64)};
  write(tile, sum, warp_id() * 16);
  __syncthreads();
  copy_out<kWarpgroup>(dQ + ((at / rows * p.N + row) * p.d + column), p.d, tile, p.N - row,
                       p.d - column, threadIdx.x);
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int D = padded_head_dim(p.d);
  Plan plan{.head_dim = D, .stages = kStages};
  choose_tile(plan, kTiles, request, device.sram_bytes,
              [&](int Br, int Bc) { return smem_bytes(D, Br, Bc); });
  plan.warps = 4 * (1 + plan.block_q / kRows);
  plan.workspace = {{"next", 4}};
  return plan;
}

Plan backward_plan(const Problem& p, const DeviceInfo& device) {
  const int D = padded_head_dim(p.d);
  Plan plan{.head_dim = D, .stages = backward_stages(D)};
  choose_tile(plan, kBackwardTiles, {}, device.sram_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(D, Br, Bc); });
  plan.warps = 4 * (1 + kConsumersBackward);
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q;
  plan.workspace = {{"minus_D", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * D * 4}};
  return plan;
}

template <class T, int D, int Br, int Bc>
void launch_forward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto map = [&](const char* name, int rows, int heads, int box_rows) {
    return tensor_map<T>(a[name], p.d, rows, heads, p.B, box_rows);
  };
  constexpr int kConsumers = Br / kRows;
  const int64_t works = ceil_div(p.N, Br) * p.B * p.H;
  const auto next = hbm<int>(a["next"]);
  launch("clear", clear, dim3(1), dim3(1), 0, next);
  launch("attention", attention<T, D, kConsumers, Bc>,
         dim3(std::min<int64_t>(works, multiprocessors())), dim3(kWarpgroup * (1 + kConsumers)),
         plan.smem_bytes, map("Q", p.N, p.H, kRows), map("K", p.N_kv, p.Hk, Bc),
         map("V", p.N_kv, p.Hk, Bc), map("O", p.N, p.H, kRows), hbm<float>(a["LSE"]), next, p);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(
      p, plan, [&]<class T, int D, int Br, int Bc>() { launch_forward<T, D, Br, Bc>(p, plan, a); });
}

template <class T, int D, int Br, int Bc>
void launch_backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto O = hbm<const T>(a["O"]), dO = hbm<const T>(a["dO"]);
  const auto LSE = hbm<const float>(a["LSE"]);
  const auto minus_D = hbm<float>(a["minus_D"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
  const auto dQ_sum = hbm<float>(a["dQ_sum"]);
  const auto map = [&](const char* name, int rows, int heads, int box_rows) {
    return tensor_map<T>(a[name], p.d, rows, heads, p.B, box_rows);
  };
  const int tiles = static_cast<int>(ceil_div(p.N, Br)), rows = tiles * Br;
  const int64_t heads = int64_t{p.B} * p.H;

  launch("prepare", prepare<T, D>, dim3(ceil_div(heads * rows * (D / 8), kElementwise)),
         dim3(kElementwise), 0, O, dO, LSE, minus_D, LSE_log2e, dQ_sum, rows, p);
  launch("key_gradients", key_gradients<T, D, Br, Bc>, dim3(ceil_div(p.N_kv, Bc) * p.B * p.Hk),
         dim3(kWarpgroup * (1 + kConsumersBackward)), plan.smem_bytes, map("Q", p.N, p.H, Br),
         map("K", p.N_kv, p.Hk, Bc), map("V", p.N_kv, p.Hk, Bc), map("dO", p.N, p.H, Br),
         map("dK", p.N_kv, p.Hk, Bc), map("dV", p.N_kv, p.Hk, Bc), minus_D, LSE_log2e, dQ_sum, p);
  launch("convert", convert<T, D, Br>, dim3(heads * tiles * PieceOf_dQ<Br, D>::kCount),
         dim3(kWarpgroup), shared_bytes<T>(64 * 64), dQ_sum, hbm<T>(a["dQ"]), rows, p);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int D, int Br, int Bc>() {
    launch_backward<T, D, Br, Bc>(p, plan, a);
  });
}

/// Requested bytes: every tile of Q reads whole tiles of K and V as far as its last row sees,
/// and one at least.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q, and of O
  int64_t rows = 0;                                // of K, and of V, that the tiles of a head read
  for (int64_t row = ceil_div(p.N, kRows) * kRows; row > 0; row -= plan.block_q) {
    const int keys = p.keys(static_cast<int>(std::min<int64_t>(row, p.N) - 1));
    const int64_t steps = std::max<int64_t>(1, ceil_div(keys, plan.block_kv));
    rows += std::min<int64_t>(steps * plan.block_kv, p.N_kv);
  }
  const int64_t k = heads * rows * p.d * kIoBytes;
  // A block asks for another tile of Q after each that it has had, the last time in vain.
  const int64_t asked = 4 * heads * ceil_div(p.N, plan.block_q);
  return {{"clear", {{"next", 0, 4}}},
          {"attention",
           {{"Q", q, 0},
            {"K", k, 0},
            {"V", k, 0},
            {"O", 0, q},
            {"LSE", 0, heads * p.N * 4},
            {"next", asked, asked}}}};
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
            {"minus_D", 0, padded * 4},
            {"LSE_log2e", 0, padded * 4},
            {"dQ_sum", 0, sums}}},
          {"key_gradients",
           {{"Q", read, 0},
            {"K", kv, 0},
            {"V", kv, 0},
            {"dO", read, 0},
            {"minus_D", rows * 4, 0},
            {"LSE_log2e", rows * 4, 0},
            {"dQ_sum", rows * plan.head_dim * 4, rows * plan.head_dim * 4},
            {"dK", 0, kv},
            {"dV", 0, kv}}},
          {"convert", {{"dQ_sum", sums, 0}, {"dQ", 0, q}}}};
}

const Register step{{.rung = "06_backward",
                     .name = "sm90",
                     .idea = "Hopper's pipeline",
                     .summary = "a producer, consumers, and only dS through shared memory",
                     .colour = "#D55E00",
                     .after = "mma",
                     .is_default = kDevice == DeviceKind::gpu,
                     .has_lse = true,
                     .min_compute_capability = 90,
                     .exact_architecture = true,
                     .tiles = kTiles,
                     .plan = plan,
                     .forward = forward,
                     .traffic = traffic,
                     .backward_plan = backward_plan,
                     .backward = backward,
                     .backward_traffic = backward_traffic}};

}  // namespace
}  // namespace ladder::MACHINE
