// 06 on Hopper: the consumer's loop in `split` and `sm90`, and the formula for the extra traffic
// when several blocks share a tile of keys. The loop is that of ahead.cu, but it goes over a share
// of the tiles of Q that use the keys (QuerySplit) instead of all of them.
#pragma once

#include "query_split.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

/// Return the query head (head_of) and the row (row_of) where a share starts. Example: two query
/// heads use head 3 of K and V. In each of the two, the rows from first_row = 128 on form 5 tiles
/// of 64 rows. A share that starts with tile 7 of these 2 · 5 therefore starts at row
/// 128 + 7 % 5 · 64 = 256 of query head 3 · 2 + 7 / 5 = 7.
__device__ __forceinline__ int head_of(const QuerySplit& split, const Problem& p) {
  return split.bh * (p.H / p.Hk) + split.begin / split.tiles_of_head;
}
template <int Br>
__device__ __forceinline__ int row_of(const QuerySplit& split) {
  return split.first_row + split.begin % split.tiles_of_head * Br;
}

/// Runs a consumer, a warpgroup with kWarpgroupKeys of the block's keys: adds its part of dQ to the
/// sums in HBM, and returns the warp's rows of dK (unscaled) and dV, summed over the share's tiles
/// of Q. Q and dO hold this warp's positions in the rings. If kAheadAnew, each iteration derives
/// the next tile's position in Q's ring from Q instead of keeping it, because persistent blocks
/// (`sm90`) have no register to spare.
template <int Br, bool kAheadAnew, class T, int Dh, int Bc, class Ring>
__device__ __forceinline__ KeyGradients<Dh> accumulate(Ring& Q, Ring& dO,
                                                       const SwizzledTile<T, Bc, Dh>& tile_K,
                                                       const SwizzledTile<T, Bc, Dh>& tile_V,
                                                       Smem<T> dS_stages, Smem<float> dQ_tile,
                                                       const Kept& kept, const QuerySplit& split,
                                                       const Problem& p) {
  using TileS = SwizzledTile<T, Bc, Br>;
  KeyGradients<Dh> sums;
  auto& [dK_sum, dV_sum] = sums;
  const int consumer = warpgroup_id() - 1, warp = warp_id() % 4, warp_row = warp * 16;
  const int consumer_key = consumer * kWarpgroupKeys;  // its first key in the tile
  const Part<Br, Dh> of_dQ{consumer};
  const int key = split.tile * Bc, first_row = split.first_row;
  // Queries from first_attending + i on attend to key i of the tile; if that is negative, all do.
  const int first_attending = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;       // transposed: rows are keys, columns are queries
  auto Q_ahead = Q;                // S's position in the ring: one tile ahead of all other products
  const auto start_scores = [&] {  // Sᵀ = K·Qᵀ
    S = {};                        // so that the compiler need not keep the previous S
    Q_ahead.wait();
    wgmma_fence(S);
    wgmma_set_ABt(S, tile_K, consumer_key, Q_ahead.tile());
    wgmma_commit();
    Q_ahead.at.next();
  };
  start_scores();
  wgmma_wait<0>(S);
  int row = row_of<Br>(split);
  const int q_tiles = split.end - split.begin;
  const int head = head_of(split, p);
  auto dQ_at = kept.dQ_sum + (int64_t{head} * kept.rows + row) * Dh;
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_V, consumer_key, dO.tile());  // dPᵀ = V·dOᵀ − D
    wgmma_commit();
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
    wgmma_fence(dV_sum, P_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile());  // dV += Pᵀ·dO
    wgmma_commit();
    fence_proxy_async();                           // makes this thread's writes visible to wgmma
    if (lane_id() == 0) tma_store_wait_read<0>();  // this warp's previous dQ has left dQ_tile
    named_barrier_sync(kAll, kBackwardThreads);    // dS is complete
    // With dV still in flight, the products from here on would need more registers than there are,
    // and the compiler would make each wait for the previous one (ptxas: C7512).
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
    dO.release();  // dV has read it already; an earlier release would delay the start of dQ
    if (q_tile + 1 < q_tiles) {
      if constexpr (kAheadAnew) {
        Q_ahead = Q;
        Q_ahead.at.next();
      }
      start_scores();  // of the next tile
      start_dK();
      wgmma_wait<2>(dQ);  // S and dK may still run (ahead.cu shows the groups in flight)
      add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
      wgmma_wait<0>(S);  // S must not be in flight where branches meet (C7515)
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
  return sums;
}

/// Adjusts the requested bytes, which traffic_of() predicts for one block per tile of keys, to
/// plan.parts blocks. Each block whose share is not empty reads K and V, and adds its part of dK
/// and dV to sums in HBM, which other kernels clear and convert.
inline void add_traffic_of_parts(Traffic& all, const Problem& p, const Plan& plan) {
  if (plan.parts == 1) return;
  const int64_t kv_heads = int64_t{p.B} * p.Hk;
  int64_t keys = 0, shares = 0;  // per head: rows of K or V that are read; shares that have tiles
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    const int64_t q_tiles = p.H / p.Hk * ceil_div(p.N - first, plan.block_q);
    const int64_t of_tile = std::min<int64_t>(plan.parts, q_tiles);
    keys += of_tile * std::min<int64_t>(plan.block_kv, p.N_kv - key);
    shares += of_tile;
  }
  const int64_t tile_bytes = plan.block_kv * plan.head_dim * 4;  // of dK's or dV's sums
  const int64_t sums = kv_heads * ceil_div(p.N_kv, plan.block_kv) * tile_bytes;
  const int64_t added = kv_heads * shares * tile_bytes;
  for (ArrayTraffic& array : all[1].arrays) {
    if (array.array == "K" || array.array == "V") array.read = kv_heads * keys * p.d * kIoBytes;
    if (array.array == "dK" || array.array == "dV") array.write = 0;
  }
  for (const std::string name : {"dK", "dV"}) {
    all[0].arrays.push_back({name + "_sum", 0, sums});
    all[1].arrays.push_back({name + "_sum", added, added});
    all.push_back({"postprocess_" + name,
                   {{name + "_sum", sums, 0}, {name, 0, kv_heads * p.N_kv * p.d * kIoBytes}}});
  }
}

}  // namespace
}  // namespace ladder::MACHINE
