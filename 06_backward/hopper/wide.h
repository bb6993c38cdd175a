// Heads wider than 128, for `sm90`, which includes this file: the same kernels, padded to 256, in
// tiles of 64 × 64. A consumer has no registers for all columns of dK and dV of its own keys. So
// both have all 64 keys, each computes Sᵀ and dPᵀ anew, and of dK, dV and dQ makes half of the
// columns. And there is room for one stage of Q and of dO, so no product is started a tile ahead.
#pragma once

#include "machine/hopper.h"
#include "rung.h"
#include "tile/columns.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {
namespace wide {

constexpr float kLog2e = 1.44269504f;
constexpr TileSize kTiles[] = {{256, 64, 64}};
constexpr int Dh = 256, Br = 64, Bc = 64;

constexpr int kConsumers = 2;                      // warpgroups that multiply
constexpr int kThreads = kWarpgroup * kConsumers;  // of them
constexpr int kColumns = Dh / kConsumers;          // of dK, dV and dQ that a consumer makes
constexpr int kPieces = kColumns / 64;             // of dQ, one after the other
constexpr int kStages_dS = 2;
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kAll = 1;  // the named barrier of all consumers

int64_t smem_bytes(int, int) {
  return 2 * shared_bytes<fp16>(Bc * Dh) + 2 * shared_bytes<fp16>(Br * Dh) +
         shared_bytes<fp16>(kStages_dS * Bc * Br) + shared_bytes<float>(Br * Dh) +
         2 * shared_bytes<float>(Br) + shared_bytes<int>(1) + 8 * shared_bytes<Mbarrier>(1);
}

/// Where in a tile of dQ's sums a warp's piece is, 16 rows × 64 columns in register order.
__device__ __forceinline__ int place_in_dQ(int consumer, int warp, int piece) {
  return ((consumer * 4 + warp) * kPieces + piece) * 16 * 64;
}

constexpr int kElementwise = 256;  // threads of a block of a small kernel

/// As in sm90.cu.
template <class T>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
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

__device__ __forceinline__ Work work_of(int index, int tiles, const Problem& p) {
  return longest_first(index, {.heads = p.B * p.Hk,
                               .tiles = tiles,
                               .head_bytes = 4 * kIoBytes * p.N * p.d * (p.H / p.Hk),
                               .uneven = p.causal});
}

/// The producer, one thread: as in sm90.cu.
template <class RingKV, class Ring>
__device__ __forceinline__ void produce(RingKV K, RingKV V, Ring Q, Ring dO, Smem<int> smem_index,
                                        const TensorMap& map_K, const TensorMap& map_V,
                                        const TensorMap& map_Q, const TensorMap& map_dO,
                                        Hbm<const float> LSE_log2e, Hbm<const float> minus_delta,
                                        Hbm<int> next, int tiles, int rows, const Problem& p) {
  const int works = tiles * p.B * p.Hk, group = p.H / p.Hk;
  int index = blockIdx.x;
  while (index < works) {
    const Work w = work_of(index, tiles, p);
    const int key = w.tile * Bc, batch = w.head / p.Hk, head_kv = w.head % p.Hk;
    const int first_row = p.first_query(key) / Br * Br;
#pragma unroll 1  // unrolled, it would spill from its few registers
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
  K.signal_end();
}

/// What a consumer does: it sums up half of the columns of dK and dV of the block's keys over all
/// tiles of Q, and adds half of the columns of dQ to the sums in HBM.
template <class T, class Ring>
__device__ __forceinline__ void accumulate(Ring& Q, Ring& dO, const SwizzledTile<T, Bc, Dh>& tile_K,
                                           const SwizzledTile<T, Bc, Dh>& tile_V, Smem<T> dS_stages,
                                           Smem<float> dQ_tile, Hbm<float> dQ_at, int key,
                                           int first_row, const Problem& p,
                                           Accumulator<16, kColumns>& dK_sum,
                                           Accumulator<16, kColumns>& dV_sum) {
  using TileS = SwizzledTile<T, Bc, Br>;
  const int consumer = warpgroup_id() - 1, warp = uniform(warp_id() % 4), warp_row = warp * 16;
  const int column = consumer * kColumns;
  const bool first_lane = lane_id() == 0;
  // The first query that sees key i of the tile is first_seen + i.
  const int first_seen = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;  // their transposes: rows are keys, columns are queries
  int row = first_row;
  const int q_tiles = p.H / p.Hk * static_cast<int>(ceil_div(p.N - first_row, Br));
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    S = {};
    Q.wait();
    wgmma_fence(S);
    wgmm_ABt(S, tile_K, Q.tile());  // Sᵀ = K·Qᵀ
    wgmma_commit();
    wgmma_wait<0>(S);
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_V, dO.tile());  // dPᵀ = V·dOᵀ - D
    wgmma_commit();
    auto& P = S;
    exp2_columns(P, c, columns_of_rows<Br>(Q));
    if (row < first_seen + Bc - 1 || key + Bc > p.N_kv)
      for_each(P, [&](int i, int j, float& x) {
        i += warp_row;
        if (row + j < first_seen + i || key + i >= p.N_kv) x = 0;
      });
    auto P_operand = as_operand<T>(P);
    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    auto dS_operand = as_operand<T>(dS);
    const TileS tile_dS{dS_stages + q_tile % kStages_dS * TileS::kElements};
    if (consumer == 0) write_matrices(tile_dS, dS_operand, warp_row);
    wgmma_fence(dV_sum, P_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile(), column);  // dV += Pᵀ·dO
    wgmma_commit();
    fence_proxy_async();                       // dQ reads what threads have written
    if (first_lane) tma_store_wait_read<0>();  // the last dQ has left its place
    named_barrier_sync(kAll, kThreads);        // dS is complete
    wgmma_wait<0>(dV_sum, P_operand);  // with it under way dQ would lack registers, as in sm90.cu
    dO.release();
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      Accumulator<16, 64> dQ;
      wgmma_fence(dQ);
      wgmm_AtB(dQ, tile_dS, 0, tile_K, column + piece * 64);  // dQ = dS·K
      wgmma_commit();
      if (piece + 1 == kPieces) {
        wgmma_fence(dK_sum, dS_operand);
        wgmma_AB(dK_sum, dS_operand, Q.tile(), column);  // dK += dSᵀ·Q
        wgmma_commit();
        wgmma_wait<1>(dQ);  // dK may still run
      } else {
        wgmma_wait<0>(dQ);
      }
      const int at = place_in_dQ(consumer, warp, piece);
      write_fragments(dQ_tile + at, dQ);
      fence_proxy_async();  // TMA reads what this lane has written,
      __syncwarp();         // and all others of the warp
      if (first_lane) {
        bulk_add(dQ_at + at, dQ_tile + at, 16 * 64);
        tma_store_commit();
      }
    }
    wgmma_wait<0>(dK_sum, dS_operand);
    Q.release();
    row += Br;
    dQ_at = dQ_at + Br * Dh;
    if (row >= p.N) {  // the next head
      row = first_row;
      dQ_at = dQ_at + int64_t{first_row} * Dh;
    }
  }
}

/// As in sm90.cu: dK and dV, and what each tile of keys adds to dQ. grid: as many blocks as SMs.
template <class T>
__global__ void __launch_bounds__(kWarpgroup + kThreads, 1)
    key_gradients(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
                  const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_dO,
                  const __grid_constant__ TensorMap map_dK,
                  const __grid_constant__ TensorMap map_dV, Hbm<const float> minus_delta,
                  Hbm<const float> LSE_log2e, Hbm<float> dQ_sum, Hbm<int> next, int tiles, int rows,
                  Problem p) {
  using TileKV = SwizzledTile<T, Bc, Dh>;
  using TileQ = SwizzledTile<T, Br, Dh>;
  using TileS = SwizzledTile<T, Bc, Br>;

  SharedMemory smem;
  Stages<TileKV, 1> K{smem, "K"}, V{smem, "V"};
  StagesWithRows<TileQ, 1, Br> Q{smem, "Q"}, dO{smem, "dO"};
  const auto dS_stages = smem.tiles<TileS>("dS", kStages_dS);
  const auto dQ_tile = smem.take<float>("dQ", Br * Dh);
  Q.init(smem, "LSE_log2e", "Q_full", "Q_free", 4 * kConsumers);  // a release by each warp
  dO.init(smem, "minus_delta", "dO_full", "dO_free", 4 * kConsumers);
  const auto smem_index = smem.take<int>("index", 1);  // which tile of K and V it is
  K.init(smem, "K_full", "K_free", 1);
  V.init(smem, "V_full", "V_free", 1);
  if (threadIdx.x == 0) fence_mbarrier_init();  // before TMA counts bytes at the barriers,
  __syncthreads();                              // and before anybody waits there

  if (warpgroup_id() == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x != 0) return;
    produce(K, V, Q, dO, smem_index, map_K, map_V, map_Q, map_dO, LSE_log2e, minus_delta, next,
            tiles, rows, p);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  for (;; K.at.next(), V.at.next()) {
    K.wait();
    const int index = uniform(smem_index[0]);
    if (index >= tiles * p.B * p.Hk) break;
    V.wait();
    const Work w = work_of(index, tiles, p);
    const int key = w.tile * Bc, first_row = p.first_query(key) / Br * Br;
    Accumulator<16, kColumns> dK_sum, dV_sum;
    accumulate(Q, dO, K.tile(), V.tile(), dS_stages, dQ_tile,
               dQ_sum + (int64_t{w.head} * (p.H / p.Hk) * rows + first_row) * Dh, key, first_row, p,
               dK_sum, dV_sum);
    named_barrier_sync(kAll, kThreads);  // all warps are done with K and V

    // Through the tiles of K and V, from where TMA takes them.
    const int warp_row = warp_id() % 4 * 16, column = (warpgroup_id() - 1) * kColumns;
    for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
    write_matrices(K.tile(), as_operand<T>(dK_sum), warp_row, column);
    write_matrices(V.tile(), as_operand<T>(dV_sum), warp_row, column);
    fence_proxy_async();                 // TMA reads what threads have written
    named_barrier_sync(kAll, kThreads);  // all rows are written
    if (threadIdx.x == kWarpgroup) {
      tma_store(map_dK, K.tile(), 0, key, w.head % p.Hk, w.head / p.Hk);
      tma_store(map_dV, V.tile(), 0, key, w.head % p.Hk, w.head / p.Hk);
      tma_store_commit();
      tma_store_wait_read<0>();
      K.set_free();
      V.set_free();
    }
  }
  if (lane_id() == 0) tma_store_wait_read<0>();  // shared memory must live until then
}

/// dQ in the I/O type. grid: (pieces of tiles of dQ · B·H).
template <class T>
__global__ void __launch_bounds__(kWarpgroup)
    postprocess(Hbm<const float> dQ_sum, Hbm<T> dQ, int rows, Problem p) {
  constexpr int kOfTile = kConsumers * kPieces;
  const int number = static_cast<int>(blockIdx.x) % kOfTile, column = number * 64;
  const int64_t at = int64_t{blockIdx.x} / kOfTile * Br;  // its tile's first row of all
  const int row = static_cast<int>(at % rows);
  Accumulator<16, 64> sum;
  read_fragments(sum,
                 dQ_sum + (at * Dh + place_in_dQ(number / kPieces, warp_id(), number % kPieces)));
  for_each(sum, [&](int, int, float& x) { x *= p.scale; });
  SharedMemory smem;
  using Tile = SwizzledTile<T, 64, 64>;
  const Tile tile{smem.tiles<Tile>("dQ")};
  write(tile, sum, warp_id() * 16);
  __syncthreads();
  copy_out<kWarpgroup>(dQ + ((at / rows * p.N + row) * p.d + column), p.d, tile, p.N - row,
                       p.d - column, threadIdx.x);
}

Plan plan(const Problem& p, const DeviceInfo& device) {
  Plan plan{.head_dim = Dh, .warps = 4 * (1 + kConsumers), .stages = 1};
  choose_tile(plan, kTiles, {}, device.sram_bytes, smem_bytes);
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, Br) * Br;
  plan.workspace = {
      {"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * Dh * 4}, {"next", 4}};
  return plan;
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto minus_delta = hbm<float>(a["minus_delta"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
  const auto dQ_sum = hbm<float>(a["dQ_sum"]);
  const auto next = hbm<int>(a["next"]);
  const int rows = static_cast<int>(ceil_div(p.N, Br)) * Br;
  const int tiles = static_cast<int>(ceil_div(p.N_kv, Bc));
  const int64_t rows_of_all = int64_t{p.B} * p.H * rows;
  with_type_and_head_dim(p, [&]<class T, int padded>() {
    if constexpr (padded == Dh) {
      const auto map = [&](const char* name, int length, int heads) {
        return tensor_map<T>(a[name], p.d, length, heads, p.B, 64);
      };
      launch("preprocess", preprocess<T>, dim3(ceil_div(rows_of_all * (Dh / 8), kElementwise)),
             dim3(kElementwise), 0, hbm<const T>(a["O"]), hbm<const T>(a["dO"]),
             hbm<const float>(a["LSE"]), minus_delta, LSE_log2e, dQ_sum, next, rows, p);
      launch("key_gradients", key_gradients<T>,
             dim3(std::min<int64_t>(int64_t{tiles} * p.B * p.Hk, multiprocessors())),
             dim3(kWarpgroup + kThreads), plan.smem_bytes, map("Q", p.N, p.H),
             map("K", p.N_kv, p.Hk), map("V", p.N_kv, p.Hk), map("dO", p.N, p.H),
             map("dK", p.N_kv, p.Hk), map("dV", p.N_kv, p.Hk), minus_delta, LSE_log2e, dQ_sum, next,
             tiles, rows, p);
      launch("postprocess", postprocess<T>, dim3(rows_of_all / Br * kConsumers * kPieces),
             dim3(kWarpgroup), shared_bytes<T>(64 * 64), dQ_sum, hbm<T>(a["dQ"]), rows, p);
    }
  });
}

}  // namespace wide
}  // namespace
}  // namespace ladder::MACHINE
