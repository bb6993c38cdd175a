// 06 on Hopper, step 5: S a tile ahead (Shah et al. 2024, FlashAttention-3, §3.1 and Appendix B).
//
//   build/bin/06_backward --step ahead --seqlen 512 --causal
//
// Since `bulk_add`: the product S of the next tile is started before this one's dQ is written out,
// and so is dK, so that the tensor cores have something to do meanwhile.

#include "backward.h"
#include "columns.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile has 64 at least
  return 2 * array_bytes<fp16>(Bc * columns) + 2 * array_bytes<fp16>(kStages * Br * columns) +
         array_bytes<fp16>(kStages * Bc * Br) + array_bytes<float>(Br * Dh) +
         2 * array_bytes<float>(kStages * Br) + 4 * array_bytes<Mbarrier>(1) +
         4 * array_bytes<Mbarrier>(kStages);
}

/// Adds a warp's sums of dQ to those in HBM, by way of shared memory. In both a tile has its sums
/// in register order, all of a warp together.
template <int N>
__device__ __forceinline__ void add_to_dQ(Hbm<float> dQ_at, Smem<float> dQ_tile,
                                          const Accumulator<16, N>& dQ, int warp) {
  const int at = warp * 16 * N;
  write_fragments(dQ_tile + at, dQ);
  fence_proxy_async();  // TMA reads what this lane has written,
  __syncwarp();         // and all others of the warp
  if (lane_id() == 0) {
    bulk_add(dQ_at + at, dQ_tile + at, 16 * N);
    tma_store_commit();
  }
}

/// The producer, one thread: fetches the block's tile of keys, and the tiles of Q and dO of its
/// heads into their rings.
template <int Br, class RingKV, class RingQ, class RingdO>
__device__ __forceinline__ void produce(RingKV K, RingKV V, RingQ Q, RingdO dO, const Maps& maps,
                                        Hbm<const float> LSE_log2e, Hbm<const float> minus_delta,
                                        int bh, int key, int first_row, int rows,
                                        const Problem& p) {
  const int group = p.H / p.Hk, batch = bh / p.Hk, head_kv = bh % p.Hk;
  K.fill(maps.K, 0, key, head_kv, batch);
  V.fill(maps.V, 0, key, head_kv, batch);
#pragma unroll 1  // or a fifth of the code would be copies of these loops, which only wait
  for (int head = bh * group; head < (bh + 1) * group; ++head)
#pragma unroll 1
    for (int row = first_row; row < p.N; row += Br) {
      const int64_t at = int64_t{head} * rows + row;
      Q.acquire();
      Q.fill(maps.Q, 0, row, head % p.H, batch, LSE_log2e + at);
      dO.acquire();
      dO.fill(maps.dO, 0, row, head % p.H, batch, minus_delta + at);
    }
}

/// What a consumer, a warpgroup with kWarpgroupKeys of the block's keys, does: it sums up its rows
/// of dK and dV over all tiles of Q, and adds its part of dQ to the sums in HBM. dQ_at: those of
/// row first_row of the first head.
template <int Br, class T, int Bc, int Dh, class RingQ, class RingdO>
__device__ __forceinline__ void accumulate(RingQ& Q, RingdO& dO,
                                           const SwizzledTile<T, Bc, Dh>& tile_K,
                                           const SwizzledTile<T, Bc, Dh>& tile_V, Smem<T> dS_stages,
                                           Smem<float> dQ_tile, Hbm<float> dQ_at, int key,
                                           int first_row, const Problem& p,
                                           Accumulator<16, Dh>& dK_sum,
                                           Accumulator<16, Dh>& dV_sum) {
  using TileS = SwizzledTile<T, Bc, Br>;
  const int consumer = warpgroup_id() - 1, warp = warp_id() % 4, warp_row = warp * 16;
  const int consumer_key = consumer * kWarpgroupKeys;  // the first of its keys
  const Part<Br, Dh> of_dQ{consumer};
  // The first query that attends to key i of the tile is first_attending + i.
  const int first_attending = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;       // their transposes: rows are keys, columns are queries
  auto Q_ahead = Q;                // where S is computed, a tile before the rest
  const auto start_scores = [&] {  // Sᵀ = K·Qᵀ
    S = {};                        // or the compiler would keep the last tile's
    Q_ahead.wait();
    wgmma_fence(S);
    wgmma_set_ABt(S, tile_K, consumer_key, Q_ahead.tile());
    wgmma_commit();
    Q_ahead.at.next();
  };
  start_scores();
  wgmma_wait<0>(S);
  int row = first_row;
  const int q_tiles = p.H / p.Hk * static_cast<int>(ceil_div(p.N - first_row, Br));
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_V, consumer_key, dO.tile());  // dPᵀ = V·dOᵀ - D
    wgmma_commit();
    auto& P = S;
    exp2_columns(P, c, columns_of_rows<Br>(Q));
    // Of keys past N_kv too: exp(0 − LSE) may be ∞, and ∞·0 is NaN in dQ.
    if (row < first_attending + Bc - 1 || key + Bc > p.N_kv)
      for_each(P, [&](int i, int j, float& x) {
        i += consumer_key + warp_row;
        if (row + j < first_attending + i || key + i >= p.N_kv) x = 0;
      });
    auto P_operand = as_operand<T>(P);
    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    auto dS_operand = as_operand<T>(dS);
    // Two stages do: the other consumer's dQ may still read the last dS, but since the last barrier
    // not the one before.
    const TileS tile_dS{dS_stages + q_tile % kStages * TileS::kElements};
    write_matrices(tile_dS, dS_operand, consumer_key + warp_row);
    wgmma_fence(dV_sum, P_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile());  // dV += Pᵀ·dO
    wgmma_commit();
    fence_proxy_async();                           // dQ reads what threads have written
    if (lane_id() == 0) tma_store_wait_read<0>();  // this warp's last dQ has left dQ_tile
    named_barrier_sync(kAll, kBackwardThreads);    // dS is complete
    // With dV still in flight, the products from here on would want more registers than there are,
    // and the compiler would have each of them wait for the one before (C7512).
    wgmma_wait<0>(dV_sum, P_operand);
    const auto start_dK = [&] {  // dK += dSᵀ·Q
      wgmma_fence(dK_sum, dS_operand);
      wgmma_AB(dK_sum, dS_operand, Q.tile());
      wgmma_commit();
    };

    Accumulator<16, of_dQ.kColumns> dQ;
    wgmma_fence(dQ);
    wgmma_set_AtB(dQ, tile_dS, of_dQ.row(), tile_K, of_dQ.column());  // dQ = dS·K
    wgmma_commit();
    dO.release();  // dV has read it; before dQ, this would only hold dQ up
    if (q_tile + 1 < q_tiles) {
      start_scores();  // of the next tile
      start_dK();
      wgmma_wait<2>(dQ);  // S and dK may still run
      add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
      wgmma_wait<0>(S);  // S cannot be in flight where branches meet (C7515)
    } else {
      start_dK();
      wgmma_wait<1>(dQ);  // dK may still run
      add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
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

/// dK and dV of one tile of keys, and what it adds to dQ. There are `tiles` of a head of K and V,
/// and `rows` of a head of Q in whole tiles. grid: (tiles · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup + kBackwardThreads, 1)
    key_gradients(const __grid_constant__ Maps maps, const __grid_constant__ TensorMap map_dK,
                  const __grid_constant__ TensorMap map_dV, Hbm<const float> minus_delta,
                  Hbm<const float> LSE_log2e, Hbm<float> dQ_sum, int tiles, int rows, Problem p) {
  using TileKV = SwizzledTile<T, Bc, Dh>;
  using TileQ = SwizzledTile<T, Br, Dh>;
  using TileS = SwizzledTile<T, Bc, Br>;
  const auto [bh, tile] = work_of(blockIdx.x, tiles, p);
  const int key = tile * Bc, batch = bh / p.Hk, head_kv = bh % p.Hk;

  SharedMemory smem;
  Stages<TileKV, 1> K{smem, "K"}, V{smem, "V"};  // filled once
  StagesWithRows<TileQ, kStages, Br> Q{smem, "Q"}, dO{smem, "dO"};
  const auto dS_stages = smem.tiles<TileS>("dS", kStages);
  const auto dQ_tile = smem.take<float>("dQ", Br * Dh);
  Q.init(smem, "LSE_log2e", "Q_full", "Q_free", 4 * kConsumersBackward);  // a release by each warp
  dO.init(smem, "minus_delta", "dO_full", "dO_free", 4 * kConsumersBackward);
  K.init(smem, "K_full", "K_free", 1);
  V.init(smem, "V_full", "V_free", 1);
  if (threadIdx.x == 0) fence_mbarrier_init();  // before TMA counts bytes at the barriers,
  __syncthreads();                              // and before anybody waits there

  // The query heads of this head of K and V, one after the other; of each, the tiles of Q
  // from the first row that attends to a key of this tile.
  const int group = p.H / p.Hk;
  const int first_row = p.first_query(key) / Br * Br;
  if (warpgroup_id() == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x != 0) return;
    produce<Br>(K, V, Q, dO, maps, LSE_log2e, minus_delta, bh, key, first_row, rows, p);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  Accumulator<16, Dh> dK_sum, dV_sum;
  K.wait();
  V.wait();
  const auto dQ_at = dQ_sum + (int64_t{bh} * group * rows + first_row) * Dh;
  accumulate<Br>(Q, dO, K.tile(), V.tile(), dS_stages, dQ_tile, dQ_at, key, first_row, p, dK_sum,
                 dV_sum);
  named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K and V

  // Through the tiles of K and V, from where TMA takes them.
  const int warp_row = (warp_id() - 4) * 16;  // of the tiles of K and V
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write_matrices(K.tile(), as_operand<T>(dK_sum), warp_row);
  write_matrices(V.tile(), as_operand<T>(dV_sum), warp_row);
  fence_proxy_async();                         // TMA reads what threads have written
  named_barrier_sync(kAll, kBackwardThreads);  // all rows are written
  if (threadIdx.x == kWarpgroup) {
    tma_store(map_dK, K.tile(), 0, key, head_kv, batch);
    tma_store(map_dV, V.tile(), 0, key, head_kv, batch);
    tma_store_commit();
  }
  if (lane_id() == 0) tma_store_wait_read<0>();  // shared memory must live until then
}

/// dQ in the I/O type. grid: (consumers' parts of tiles of dQ · B·H).
template <class T, int Dh, int Br>
__global__ void __launch_bounds__(kWarpgroup)
    postprocess(Hbm<const float> dQ_sum, Hbm<T> dQ, int rows, Problem p) {
  using Part = Part<Br, Dh>;
  const Part part{static_cast<int>(blockIdx.x) % kConsumersBackward};
  const int64_t at = int64_t{blockIdx.x} / kConsumersBackward * Br;  // its tile's first row of all
  const int row = static_cast<int>(at % rows) + part.row(), column = part.column();
  Accumulator<16, Part::kColumns> sum;
  read_fragments(sum, dQ_sum + (at * Dh + (part.consumer * 4 + warp_id()) * 16 * Part::kColumns));
  for_each(sum, [&](int, int, float& x) { x *= p.scale; });
  SharedMemory smem;
  using Tile = SwizzledTile<T, 64, Part::kColumns>;
  const Tile tile{smem.tiles<Tile>("dQ")};
  write(tile, sum, warp_id() * 16);
  __syncthreads();
  copy_out<kWarpgroup>(dQ + ((at / rows * p.N + row) * p.d + column), p.d, tile, p.N - row,
                       p.d - column, threadIdx.x);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  return plan_of(p, device, backward_smem_bytes);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const Kept kept = kept_of(p, plan, a);
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch_preprocess<T, Dh>(p, kept, a);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(kept.tiles_of_all),
           dim3(kWarpgroup + kBackwardThreads), plan.smem_bytes, maps_of<T, Br, Bc>(p, a),
           map_of_keys<T, Bc>(p, a["dK"]), map_of_keys<T, Bc>(p, a["dV"]), kept.minus_delta,
           kept.LSE_log2e, kept.dQ_sum, kept.tiles, kept.rows, p);
    launch("postprocess", postprocess<T, Dh, Br>, dim3(kept.rows_of_all / Br * kConsumersBackward),
           dim3(kWarpgroup), array_bytes<T>(64 * 64), kept.dQ_sum, hbm<T>(a["dQ"]), kept.rows, p);
  });
}

/// As before, but that postprocess reads whole tiles of sums.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  return traffic_of(p, plan, true);
}

const Register step{{
    .rung = "06_backward",
    .name = "ahead",
    .after = "bulk_add",
    .shown = {.idea = "S ahead",
              .change = {"stores_under_products", "from 0"},
              .summary = "and S computed a tile ahead",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
