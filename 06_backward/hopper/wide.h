// 06 on Hopper: the kernel key_gradients for heads with d > 128, which sm90.cu launches. At d = 256
// a consumer's sums, dK and dV of 64 keys, would take 256 registers per thread, but CUDA allows
// only 255. So each of three consumers computes some of the five products of a tile of keys. No
// product is computed twice. P and dS go from one consumer to the next through shared memory (→):
//
//   consumer 0: Sᵀ = K·Qᵀ,  Pᵀ = exp(Sᵀ − LSE)  →  consumer 1;    dV += Pᵀ·dO
//   consumer 1: dPᵀ = V·dOᵀ − D,  dSᵀ = Pᵀ∘dPᵀ  →  consumer 2;    dK += dSᵀ·Q
//   consumer 2: dQ = dS·K, added to HBM from registers
//
// The consumers may work on different tiles of Q, so that one consumer's products can run while
// another computes P or dS.
#pragma once

#include "query_split.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {
namespace wide {

constexpr TileSize kTiles[] = {{256, 64, 64}};
constexpr int Br = 64, Bc = 64;

constexpr int kConsumers = 3;                            // warpgroups that multiply
constexpr int kThreads = kWarpgroup * (1 + kConsumers);  // threads per block
constexpr int kPair = 2 * kWarpgroup;                    // threads of two consumers
constexpr int kPiece = 64;                               // columns of dQ per product
/// The warpgroups by number. Consumer 0 above is kdVWarpgroup, consumer 1 kdKWarpgroup, and
/// consumer 2 kdQWarpgroup.
enum Warpgroup { kProducerWarpgroup, kdQWarpgroup, kdVWarpgroup, kdKWarpgroup };
/// Registers per thread in each consumer. With the producer's kProducerRegisters (backward.h) they
/// add up to 512, because the threads of all four warpgroups start with 128. The two consumers that
/// keep sums need the most.
constexpr int kdVRegisters = 208, kdKRegisters = 216, kdQRegisters = 64;

/// Named barriers. The consumer that arrives goes on at once; the one that waits stops until the
/// other has arrived. At the last two barriers, the warps of one consumer wait for each other. The
/// first four are used once per tile of Q, except that the `free` barriers are not used after a
/// share's last tile, where the `done` barriers imply them:
///
///   barrier       arrives     waits       what it protects
///   kP_full       consumer 0  consumer 1  P is written before it is read
///   kP_free       consumer 1  consumer 0  P is read before the next tile's P overwrites it
///   kdS_full      consumer 1  consumer 2  dS is written before it is read
///   kdS_free      consumer 2  consumer 1  dS is read before the next tile's dS overwrites it
///
/// The others are used once per share. dK leaves through K's tile and dV through V's, before new
/// tiles are copied there:
///
///   kdQ_done      consumer 2  consumer 1  K is read before dK overwrites it, dS before the next dS
///   kdV_done      consumer 0  consumer 1  K is read before dK overwrites it
///   kdK_done      consumer 1  consumer 0  V is read before dV overwrites it, P before the next P
///   kdV_written   consumer 0  itself      dV is complete before TMA stores it (with one block per
///                                         tile; several add their sums in HBM instead)
///   kdK_written   consumer 1  itself      the same for dK
enum Named {
  kP_full = 1,
  kP_free,
  kdS_full,
  kdS_free,
  kdQ_done,
  kdV_done,
  kdK_done,
  kdV_written,
  kdK_written
};

/// A share of the tiles of Q that attend to a tile of keys, like QuerySplit in query_split.h,
/// except that the head and the row of its first tile are already worked out.
struct WideSplit {
  int bh, tile;   // which of the B·Hk heads of K and V, and which of its tiles of keys
  int first_row;  // first row, in each head, of the first tile of Q that attends to the keys
  int head, row;  // the share's first query head and first row
  int q_tiles;    // the share's number of tiles, which may be 0 if parts exceed tiles
};

inline int64_t smem_bytes(int Dh, int, int) {  // per block of key_gradients
  return 2 * array_bytes<fp16>(Bc * Dh) + 2 * array_bytes<fp16>(kStages * Br * Dh) +
         array_bytes<fp16>(Bc * Br) + array_bytes<float>(Bc * Br) +
         2 * array_bytes<float>(kStages * Br) + array_bytes<WideSplit>(1) +
         4 * array_bytes<Mbarrier>(1) + 4 * array_bytes<Mbarrier>(kStages);
}

/// Returns where a warp's 16 rows of a piece of N columns begin in a tile of sums, in floats.
template <int N>
__device__ __forceinline__ int place(int piece, int warp) {
  return (piece * 4 + warp) * 16 * N;
}

/// Returns share `index`, like query_split() in query_split.h; each tile of keys has `parts`
/// shares. Also works out the head and the row, because only the producer, which calls it, has
/// registers left for these divisions.
__device__ __forceinline__ WideSplit wide_split(int index, int tiles, int parts, int at_once,
                                                const Problem& p) {
  const int group = p.H / p.Hk;
  const auto [bh_part, tile] =
      longest_first(index, {.heads = p.B * p.Hk * parts,
                            .tiles = tiles,
                            .head_bytes = int64_t{4} * kIoBytes * p.N * p.d * group / parts,
                            .uneven = p.causal,
                            .at_once = at_once});
  const int first_row = p.first_query(tile * Bc) / Br * Br;
  const int of_head = static_cast<int>(ceil_div(p.N - first_row, Br));
  const int bh = bh_part / parts, part = bh_part % parts;
  const int64_t all = int64_t{group} * of_head;
  const int begin = static_cast<int>(all * part / parts);
  return {bh,
          tile,
          first_row,
          bh * group + begin / of_head,
          first_row + begin % of_head * Br,
          static_cast<int>(all * (part + 1) / parts) - begin};
}

/// Like Rings in backward.h, but also holds the share of the work that K and V belong to.
template <class T, int Dh>
struct WideRings {
  Stages<SwizzledTile<T, Bc, Dh>, 1> K, V;
  StagesWithRows<SwizzledTile<T, Br, Dh>, kStages, Br> Q, dO;
  Smem<WideSplit> split;

  __device__ __forceinline__ explicit WideRings(SharedMemory& smem)
      : K{smem, "K"}, V{smem, "V"}, Q{smem, "Q"}, dO{smem, "dO"} {}
  __device__ __forceinline__ void init(SharedMemory& smem) {
    constexpr int kReleases = 2 * 4;  // one arrival per warp of the two consumers that use the tile
    Q.init(smem, "LSE_log2e", "Q_full", "Q_free", kReleases);
    dO.init(smem, "minus_delta", "dO_full", "dO_free", kReleases);
    split = smem.take<WideSplit>("split", 1);
    K.init(smem, "K_full", "K_free", 1);
    V.init(smem, "V_full", "V_free", 1);
    if (threadIdx.x == 0) fence_mbarrier_init();  // makes the initialised barriers visible to TMA
    __syncthreads();                              // all threads see them initialised
  }
  /// Returns the share in the warp's uniform registers, like of_warp() in sm90.cu.
  __device__ __forceinline__ WideSplit current() const {
    const WideSplit s = split[0];
    return {uniform(s.bh),   uniform(s.tile), uniform(s.first_row),
            uniform(s.head), uniform(s.row),  uniform(s.q_tiles)};
  }
};

/// Runs the producer thread, as produce() in sm90.cu does.
template <class T, int Dh>
__device__ __forceinline__ void produce(WideRings<T, Dh> rings, const Maps& maps, const Kept& kept,
                                        Hbm<int> next, int parts, const Problem& p) {
  auto& [K, V, Q, dO, smem_split] = rings;
  int index = blockIdx.x;
  while (index < kept.tiles * p.B * p.Hk * parts) {
    const WideSplit split = wide_split(index, kept.tiles, parts, gridDim.x, p);
    const int key = split.tile * Bc, batch = split.bh / p.Hk, head_kv = split.bh % p.Hk;
    int head = split.head, row = split.row;
#pragma unroll 1  // unrolled, the loop would spill, because the producer has few registers
    for (int q_tile = 0; q_tile < split.q_tiles; ++q_tile) {
      const int64_t at = int64_t{head} * kept.rows + row;
      Q.acquire();
      Q.fill(maps.Q, 0, row, head % p.H, batch, kept.LSE_log2e + at);
      if (q_tile == 0) {
        K.acquire();  // dK has left K's tile, and all consumers have read the stage's share
        smem_split[0] = split;
        K.fill(maps.K, 0, key, head_kv, batch);
        V.acquire();
        V.fill(maps.V, 0, key, head_kv, batch);
      }
      dO.acquire();
      dO.fill(maps.dO, 0, row, head % p.H, batch, kept.minus_delta + at);
      row += Br;
      if (row >= p.N) ++head, row = split.first_row;
    }
    index = uniform(gridDim.x + atomicAdd(next, 1), kFirstLane);
  }
  K.acquire();
  smem_split[0] = WideSplit{.bh = -1};  // tells the consumers to stop
  K.signal_end();
}

/// A warp's sums, 16 rows of dK or of dV, in kProducts accumulators of at most 128 columns each.
template <int Dh>
struct Sums {
  static constexpr int kColumns = Dh % 128 == 0 ? 128 : 64, kProducts = Dh / kColumns;
  Accumulator<16, kColumns> of[kProducts];
};
/// Starts sums += A·B as one group of products.
template <int Dh, class T, int K>
__device__ __forceinline__ void start_AB(Sums<Dh>& sums, Operand<T, 16, K>& A,
                                         const SwizzledTile<T, K, Dh>& B) {
#pragma unroll
  for (int i = 0; i < sums.kProducts; ++i) wgmma_fence(sums.of[i], A);
#pragma unroll
  for (int i = 0; i < sums.kProducts; ++i) wgmma_AB(sums.of[i], A, B, i * sums.kColumns);
  wgmma_commit();
}
/// Waits until the sums are complete; up to `groups` later groups may still be in flight.
template <int groups, int Dh, class T, int K>
__device__ __forceinline__ void wait_AB(Sums<Dh>& sums, Operand<T, 16, K>& A) {
#pragma unroll
  for (int i = 0; i < sums.kProducts; ++i) wgmma_wait<groups>(sums.of[i], A);
}

/// Multiplies every element by its counterpart in `by`, which write_fragments() of a warp wrote.
template <int N>
__device__ __forceinline__ void mul_fragments(Accumulator<16, N>& acc, Smem<float> by) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    float x[4];
    read_4(x, by + 4 * (32 * j + lane_id()));
#pragma unroll
    for (int e = 0; e < 4; ++e) acc.r[0][j][e] *= x[e];
  }
  count_flops(16 * N / 32);
}

/// Runs consumer 0: computes P, hands it to consumer 1 at P_of_warp, and sums up dV in dV_sum.
template <class T, int Dh, class Ring>
__device__ __forceinline__ void sum_dV(Ring& Q, Ring& dO, const SwizzledTile<T, Bc, Dh>& tile_K,
                                       Smem<float> P_of_warp, const WideSplit& split,
                                       const Problem& p, Sums<Dh>& dV_sum) {
  const int warp_row = warp_id() % 4 * 16, key = split.tile * Bc;
  // The first query that attends to key i of the tile is first_attending + i (as in transposed.cu).
  const int first_attending = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)
  Accumulator<16, Br> S;             // transposed: rows are keys, columns are queries
  const auto start_scores = [&] {    // Sᵀ = K·Qᵀ
    S = {};
    Q.wait();
    wgmma_fence(S);
    wgmma_set_ABt(S, tile_K, Q.tile());
    wgmma_commit();
  };
  start_scores();
  wgmma_wait<0>(S);
  int row = split.row;
  for (int q_tile = 0; q_tile < split.q_tiles; ++q_tile) {
    auto& P = S;
    exp2_columns(P, c, columns_of_rows<Br>(Q));
    Q.release();
    // Keys past N_kv get P = 0, too: exp(0 − LSE) may be ∞, and ∞·0 would be NaN in dQ.
    if (row < first_attending + Bc - 1 || key + Bc > p.N_kv)
      for_each(P, [&](int i, int j, float& x) {
        i += warp_row;
        if (row + j < first_attending + i || key + i >= p.N_kv) x = 0;
      });
    if (q_tile > 0) named_barrier_sync(kP_free, kPair);
    write_fragments(P_of_warp, P);
    named_barrier_arrive(kP_full, kPair);
    auto P_operand = as_operand<T>(P);
    dO.wait();
    start_AB(dV_sum, P_operand, dO.tile());  // dV += Pᵀ·dO
    if (q_tile + 1 < split.q_tiles) {
      start_scores();  // of the next tile
      wait_AB<1>(dV_sum, P_operand);
      dO.release();
      wgmma_wait<0>(S);
    } else {
      wait_AB<0>(dV_sum, P_operand);
      dO.release();
    }
    row += Br;
    if (row >= p.N) row = split.first_row;  // the next head
  }
}

/// Runs consumer 1: computes dS from P, hands it to consumer 2, and sums up dK, without the scale.
template <class T, int Dh, class Ring>
__device__ __forceinline__ void sum_dK(Ring& Q, Ring& dO, const SwizzledTile<T, Bc, Dh>& tile_V,
                                       Smem<float> P_of_warp,
                                       const SwizzledTile<T, Bc, Br>& tile_dS, int q_tiles,
                                       Sums<Dh>& dK_sum) {
  const int warp_row = warp_id() % 4 * 16;
  Accumulator<16, Br> dP;      // also transposed
  const auto start_dP = [&] {  // dPᵀ = V·dOᵀ − D
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_V, dO.tile());
    wgmma_commit();
  };
  start_dP();
  wgmma_wait<0>(dP);
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    const bool last = q_tile + 1 == q_tiles;
    dO.release();
    named_barrier_sync(kP_full, kPair);
    auto& dS = dP;
    mul_fragments(dS, P_of_warp);
    if (!last) named_barrier_arrive(kP_free, kPair);
    auto dS_operand = as_operand<T>(dS);
    if (q_tile > 0) named_barrier_sync(kdS_free, kPair);
    write_matrices(tile_dS, dS_operand, warp_row);
    fence_proxy_async();  // makes this thread's writes visible to wgmma
    named_barrier_arrive(kdS_full, kPair);
    Q.wait();
    start_AB(dK_sum, dS_operand, Q.tile());  // dK += dSᵀ·Q
    if (!last) {
      start_dP();  // of the next tile
      wait_AB<1>(dK_sum, dS_operand);
      Q.release();
      wgmma_wait<0>(dP);
    } else {
      wait_AB<0>(dK_sum, dS_operand);
      Q.release();
    }
  }
}

/// Runs consumer 2: computes dQ and adds it to the sums in HBM. `dQ_at` points to the sums of the
/// share's first tile.
template <class T, int Dh>
__device__ __forceinline__ void add_dQ(const SwizzledTile<T, Bc, Dh>& tile_K,
                                       const SwizzledTile<T, Bc, Br>& tile_dS, Hbm<float> dQ_at,
                                       const WideSplit& split, const Problem& p) {
  const int warp = uniform(warp_id() % 4);
  int row = split.row;
  for (int q_tile = 0; q_tile < split.q_tiles; ++q_tile) {
    named_barrier_sync(kdS_full, kPair);
#pragma unroll 1
    for (int piece = 0; piece < Dh / kPiece; ++piece) {
      Accumulator<16, kPiece> dQ;
      wgmma_fence(dQ);
      wgmma_set_AtB(dQ, tile_dS, 0, tile_K, piece * kPiece);  // dQ = dS·K
      wgmma_commit();
      wgmma_wait<0>(dQ);
      if (piece + 1 == Dh / kPiece && q_tile + 1 < split.q_tiles)
        named_barrier_arrive(kdS_free, kPair);
      add_fragments(dQ_at + place<kPiece>(piece, warp), dQ);
    }
    row += Br;
    dQ_at = dQ_at + Br * Dh;
    if (row >= p.N) {  // the next head
      row = split.first_row;
      dQ_at = dQ_at + int64_t{split.first_row} * Dh;
    }
  }
}

/// Writes out a consumer's sums of dK or dV, and then frees the tile in `ring`, which is K's or
/// V's. Call it once all consumers are done with that tile. With one block per tile of keys, TMA
/// stores the sums from the ring's tile to the array of `map`; with several, each block adds its
/// sums to those in HBM.
template <int kWritten, class T, int Dh, class RingKV>
__device__ __forceinline__ void write_out(RingKV& ring, const Sums<Dh>& sums, const TensorMap& map,
                                          Hbm<float> sums_of_parts, int tiles, int parts,
                                          const WideSplit& split, const Problem& p) {
  const int warp = warp_id() % 4;
  if (parts > 1) {
    if (threadIdx.x % kWarpgroup == 0) ring.set_free();
    const auto at = sums_of_parts + (int64_t{split.bh} * tiles + split.tile) * Bc * Dh;
#pragma unroll
    for (int i = 0; i < sums.kProducts; ++i)
      add_fragments(at + place<Sums<Dh>::kColumns>(i, warp), sums.of[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < sums.kProducts; ++i)
    write_matrices(ring.tile(), as_operand<T>(sums.of[i]), warp * 16, i * sums.kColumns);
  fence_proxy_async();                       // makes this thread's writes visible to TMA
  named_barrier_sync(kWritten, kWarpgroup);  // all rows are written
  if (threadIdx.x % kWarpgroup == 0) {
    tma_store(map, ring.tile(), 0, split.tile * Bc, split.bh % p.Hk, split.bh / p.Hk);
    tma_store_commit();
    tma_store_wait_read<0>();
    ring.set_free();
  }
}

/// Computes dK and dV, and adds each share's part of dQ to the sums in HBM, as in sm90.cu. grid:
/// one block per SM; each takes shares of the work until none is left.
template <class T, int Dh>
__global__ void __launch_bounds__(kThreads, 1)
    key_gradients(const __grid_constant__ Maps maps, const __grid_constant__ KeyMaps gradients,
                  const __grid_constant__ Kept kept, const __grid_constant__ KeySums sums,
                  Hbm<int> next, int parts, Problem p) {
  using TileS = SwizzledTile<T, Bc, Br>;
  SharedMemory smem;
  WideRings<T, Dh> rings{smem};
  const TileS tile_dS{smem.tiles<TileS>("dS")};
  const auto tile_P = smem.take<float>("P", Bc * Br);  // in register order
  rings.init(smem);

  auto K = rings.K, V = rings.V;  // copies, with each thread's positions in the rings
  auto Q = rings.Q, dO = rings.dO;
  const Smem<float> P_of_warp = tile_P + warp_id() % 4 * 16 * Br;
  const auto each_split = [&](auto work) {
    for (;; K.at.next(), V.at.next()) {
      K.wait();
      const WideSplit split = rings.current();
      if (split.bh < 0) break;
      work(split);
    }
  };
  if (warpgroup_id() == kProducerWarpgroup) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) produce(rings, maps, kept, next, parts, p);
    return;
  }
  if (warpgroup_id() == kdQWarpgroup) {
    setmaxnreg_dec<kdQRegisters>();
    each_split([&](const WideSplit& split) {
      const int64_t first = int64_t{split.head} * kept.rows + split.row;
      add_dQ(K.tile(), tile_dS, kept.dQ_sum + first * Dh, split, p);
      named_barrier_arrive(kdQ_done, kPair);
    });
    return;
  }
  if (warpgroup_id() == kdVWarpgroup) {
    setmaxnreg_inc<kdVRegisters>();
    each_split([&](const WideSplit& split) {
      Sums<Dh> dV_sum;
      sum_dV(Q, dO, K.tile(), P_of_warp, split, p, dV_sum);
      const WideSplit of = rings.current();  // read again: keeping it would take registers
      named_barrier_arrive(kdV_done, kPair);
      named_barrier_sync(kdK_done, kPair);  // V may be overwritten
      write_out<kdV_written, T>(V, dV_sum, gradients.dV, sums.dV, kept.tiles, parts, of, p);
    });
  } else {  // kdKWarpgroup
    setmaxnreg_inc<kdKRegisters>();
    each_split([&](const WideSplit& split) {
      V.wait();
      Sums<Dh> dK_sum;
      sum_dK(Q, dO, V.tile(), P_of_warp, tile_dS, split.q_tiles, dK_sum);
      const WideSplit of = rings.current();
      named_barrier_arrive(kdK_done, kPair);
      named_barrier_sync(kdV_done, kPair);
      named_barrier_sync(kdQ_done, kPair);  // K may be overwritten
      for (auto& sum : dK_sum.of) for_each(sum, [&](int, int, float& x) { x *= p.scale; });
      write_out<kdK_written, T>(K, dK_sum, gradients.dK, sums.dK, kept.tiles, parts, of, p);
    });
  }
}

}  // namespace wide
}  // namespace
}  // namespace ladder::MACHINE
