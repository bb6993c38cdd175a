// 06 on Hopper, step 4: TMA writes the gradients (Shah et al. 2024, FlashAttention-3, Appendix B).
//
//   build/bin/06_backward --step bulk_add --seqlen 512 --causal
//
//       dQ += scale·dS·K        in HBM, by TMA
//
// Since `transposed`: a block writes dQ to shared memory, and TMA adds it from there to HBM, up to
// 1,024 floats per instruction. TMA adds one contiguous run of floats to another, so in HBM the
// floats stay in the order of the registers (fragment order), and `postprocess` moves each to its
// row and column. TMA also stores dK and dV. TMA's additions are atomic, but blocks still add in
// arbitrary order, so the last bits of dQ may differ from run to run.

#include "columns.h"
#include "produce.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile's rows are at least 64 columns wide
  return 2 * array_bytes<fp16>(Bc * columns) + 2 * array_bytes<fp16>(kStages * Br * columns) +
         array_bytes<fp16>(kStages * Bc * Br) + array_bytes<float>(Br * Dh) +
         2 * array_bytes<float>(kStages * Br) + 4 * array_bytes<Mbarrier>(1) +
         4 * array_bytes<Mbarrier>(kStages);
}

/// Writes a warp's part of a tile's dQ to dQ_tile and lets TMA add it to the sums at dQ_at, both in
/// fragment order, warp by warp. Before the next call, lane 0 must wait: tma_store_wait_read<0>().
template <int N>
__device__ __forceinline__ void add_to_dQ(Hbm<float> dQ_at, Smem<float> dQ_tile,
                                          const Accumulator<16, N>& dQ, int warp) {
  const int at = warp * 16 * N;
  write_fragments(dQ_tile + at, dQ);
  fence_proxy_async();  // makes this lane's writes visible to TMA
  __syncwarp();         // all lanes have passed the fence before lane 0 goes on
  if (lane_id() == 0) {
    bulk_add(dQ_at + at, dQ_tile + at, 16 * N);
    tma_store_commit();
  }
}

/// Runs a consumer, a warpgroup with kWarpgroupKeys of the block's keys: adds its part of dQ to the
/// sums in HBM, and returns the warp's rows of dK (unscaled) and dV, summed over all tiles of Q.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ KeyGradients<Dh> accumulate(const Rings<T, Dh, Br, Bc>& rings,
                                                       Smem<T> dS_stages, Smem<float> dQ_tile,
                                                       const Kept& kept, const KeyTile& keys,
                                                       const Problem& p) {
  using TileS = SwizzledTile<T, Bc, Br>;
  const auto tile_K = rings.K.tile(), tile_V = rings.V.tile();
  auto Q = rings.Q;  // a copy, which holds this warp's position in the ring
  auto dO = rings.dO;
  const auto [bh, key, first_row] = keys;
  KeyGradients<Dh> sums;
  auto& [dK_sum, dV_sum] = sums;
  const int group = p.H / p.Hk;
  auto dQ_at = kept.dQ_sum + (int64_t{bh} * group * kept.rows + first_row) * Dh;
  const int consumer = warpgroup_id() - 1, warp = warp_id() % 4, warp_row = warp * 16;
  const int consumer_key = consumer * kWarpgroupKeys;  // its first key in the tile
  const Part<Br, Dh> of_dQ{consumer};
  // Queries from first_attending + i on attend to key i of the tile; if that is negative, all do.
  const int first_attending = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;  // transposed: rows are keys, columns are queries
  int row = first_row;
  const int q_tiles = group * static_cast<int>(ceil_div(p.N - first_row, Br));
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    Q.wait();
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(S, dP);
    wgmma_set_ABt(S, tile_K, consumer_key, Q.tile());  // Sᵀ = K·Qᵀ
    wgmma_commit();
    wgmma_ABt(dP, tile_V, consumer_key, dO.tile());  // dPᵀ = V·dOᵀ − D
    wgmma_commit();
    wgmma_wait<1>(S);  // dP, committed last, may still run
    auto& P = S;
    exp2_columns(P, c, columns_of_rows<Br>(Q));
    // Keys past N_kv get P = 0, too: exp(0 − LSE) may be ∞, and ∞·0 would be NaN in dQ.
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
    // This overwrites the dS of two tiles ago, which the other consumer finished reading before the
    // latest barrier. It may still read the previous tile's dS, which is in the other stage.
    const TileS tile_dS{dS_stages + q_tile % kStages * TileS::kElements};
    write_matrices(tile_dS, dS_operand, consumer_key + warp_row);
    wgmma_fence(dV_sum, dK_sum, P_operand, dS_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile());  // dV += Pᵀ·dO
    wgmma_commit();
    wgmma_AB(dK_sum, dS_operand, Q.tile());  // dK += dSᵀ·Q
    wgmma_commit();
    fence_proxy_async();                           // makes this thread's writes visible to wgmma
    if (lane_id() == 0) tma_store_wait_read<0>();  // this warp's previous dQ has left dQ_tile
    named_barrier_sync(kAll, kBackwardThreads);    // dS is complete
    wgmma_wait<1>(dV_sum, P_operand);              // dK, committed last, may still run
    dO.release();

    Accumulator<16, of_dQ.kColumns> dQ;
    wgmma_fence(dQ);
    wgmma_set_AtB(dQ, tile_dS, of_dQ.row(), tile_K, of_dQ.column());  // dQ = dS·K
    wgmma_commit();
    wgmma_wait<0>(dQ, dK_sum, dS_operand);
    Q.release();
    add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
    row += Br;
    dQ_at = dQ_at + Br * Dh;
    if (row >= p.N) {  // the next head
      row = first_row;
      dQ_at = dQ_at + int64_t{first_row} * Dh;
    }
  }
  return sums;
}

/// Computes dK and dV for one tile of keys, and adds the tile's part of dQ to the sums in HBM.
/// grid: (tiles of K · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup + kBackwardThreads, 1)
    key_gradients(const __grid_constant__ Maps maps, const __grid_constant__ KeyMaps gradients,
                  Kept kept, Problem p) {
  const auto [bh, tile] = work_of(blockIdx.x, kept.tiles, p);
  const int key = tile * Bc, batch = bh / p.Hk, head_kv = bh % p.Hk;

  SharedMemory smem;
  Rings<T, Dh, Br, Bc> rings{smem};
  const auto dS_stages = smem.tiles<SwizzledTile<T, Bc, Br>>("dS", kStages);
  const auto dQ_tile = smem.take<float>("dQ", Br * Dh);
  rings.init(smem);

  const KeyTile keys{bh, key, p.first_query(key) / Br * Br};
  if (warpgroup_id() == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) produce(rings, maps, kept, keys, p);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  rings.K.wait();
  rings.V.wait();
  auto [dK_sum, dV_sum] = accumulate(rings, dS_stages, dQ_tile, kept, keys, p);
  named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K and V

  // dK and dV go through the tiles of K and V, from where TMA stores them.
  const auto tile_K = rings.K.tile(), tile_V = rings.V.tile();
  const int warp_row = (warp_id() - 4) * 16;  // in the tiles of K and V
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write_matrices(tile_K, as_operand<T>(dK_sum), warp_row);
  write_matrices(tile_V, as_operand<T>(dV_sum), warp_row);
  fence_proxy_async();                         // makes this thread's writes visible to TMA
  named_barrier_sync(kAll, kBackwardThreads);  // all rows are written
  if (threadIdx.x == kWarpgroup) {
    tma_store(gradients.dK, tile_K, 0, key, head_kv, batch);
    tma_store(gradients.dV, tile_V, 0, key, head_kv, batch);
    tma_store_commit();
  }
  if (lane_id() == 0) tma_store_wait_read<0>();  // stay until TMA has read shared memory
}

/// Writes dQ: its sums (`rows` rows per head) times the scale, rounded to the I/O type. A block
/// converts one consumer's part of a tile. grid: (consumers · tiles of Q · B·H).
template <class T, int Dh, int Br>
__global__ void __launch_bounds__(kWarpgroup)
    postprocess_tiles(Hbm<const float> dQ_sum, Hbm<T> dQ, int rows, Problem p) {
  using Part = Part<Br, Dh>;
  const Part part{static_cast<int>(blockIdx.x) % kConsumersBackward};
  const int64_t at = int64_t{blockIdx.x} / kConsumersBackward * Br;  // the tile's row in dQ_sum
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
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(key_tiles(p, kept)),
           dim3(kWarpgroup + kBackwardThreads), plan.smem_bytes, maps_of<T, Br, Bc>(p, a),
           key_maps_of<T, Bc>(p, a), kept, p);
    launch("postprocess", postprocess_tiles<T, Dh, Br>,
           dim3(int64_t{p.B} * p.H * kept.rows / Br * kConsumersBackward), dim3(kWarpgroup),
           array_bytes<T>(64 * 64), kept.dQ_sum, hbm<T>(a["dQ"]), kept.rows, p);
  });
}

/// Predicts the requested bytes; postprocess reads whole tiles of dQ's sums, padding included.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  return traffic_of(p, plan, bytes_of_tiles(p, plan));
}

const Register step{{
    .rung = "06_backward",
    .name = "bulk_add",
    .after = "transposed",
    .shown = {.idea = "dQ by TMA",
              .change = {"atomics", "to 0"},
              .summary = "and dQ added to HBM by TMA",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
