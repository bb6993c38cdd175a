// 05 on Hopper: blocks that take their work from a counter, as `counter` shows them, and what the
// steps from `lazy` on share of that. This header is not a step of its own.
#pragma once

#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

/// No block has asked for a further tile of Q yet. Nor will one before this is done, so the blocks
/// may start.
__global__ void clear(Hbm<int> next) {
  let_next_kernel_start();
  next[0] = 0;
}
/// The number of the next tile of Q that nobody has, by the counter.
__device__ __forceinline__ int take_next(Hbm<int> next) {
  wait_for_kernel_before();  // which makes next 0
  return gridDim.x + atomicAdd(next, 1);
}

/// Numbers begin to end − 1 of the tiles of K and V that a tile of Q needs: one at least, because
/// `produce` asks for the next tile of Q at the last of them.
struct KeyTiles {
  int begin, end;
};
__device__ __forceinline__ KeyTiles all_key_tiles(int kv_tiles) {
  return {0, kv_tiles};
}

/// A tile's first row, as in `own_keys`. Tiles are laid from the last row up, since the last rows
/// attend to the most keys: so the one that some consumers find empty, with rows before row 0, has
/// the fewest.
template <int Br>
__device__ __forceinline__ int row_from_end(const WorkTile& work, const Problem& p) {
  const int end = static_cast<int>(ceil_div(p.N, kWarpgroupRows)) * kWarpgroupRows;
  return end - (work.tile + 1) * Br;
}

/// The tensor maps that a producer needs.
struct InputMaps {
  const TensorMap &Q, &K, &V;
};

/// The producer, one thread: has the block's tiles of Q fetched, and for each its tiles of K and V,
/// those that key_tiles_of(their number) names. A tile of Q starts at row_of(tile, p); after tile
/// number i comes next_after(i).
template <int Br, int Bc, auto row_of, auto key_tiles_of = all_key_tiles, class StagesQ,
          class StagesKV, class NextAfter>
__device__ __forceinline__ void produce(StagesQ Q, StagesKV K, StagesKV V, const InputMaps& maps,
                                        Smem<WorkTile> smem_work, NextAfter next_after,
                                        const Problem& p) {
  // A tile of Q comes with its tile and head, so that consumers need not divide; after the last
  // one the head is negative.
  const auto send = [&](const WorkTile& work) {
    for (int row = 0; row < Br; row += kWarpgroupRows) {
      Q.acquire_freed();  // each consumer frees its own, the first one too
      smem_work[Q.number()] = work;
      if (work.head >= 0)
        Q.fill(maps.Q, 0, row_of(work, p) + row, work.head % p.H, work.head / p.H);
      else
        Q.signal_end();
    }
  };
  // A block of 128 or 192 rows has the SM to itself, so half as many work at once as in
  // `large_tiles`. So half as many heads make a group, which requests smaller bursts of HBM at its
  // start. (sm90's tiles of 64 rows have groups as small, though more blocks.)
  const WorkList all{.heads = p.B * p.H,
                     .tiles = static_cast<int>(ceil_div(p.N, Br)),
                     .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                     .uneven = p.causal,
                     .group_bytes = 8 << 20};
  for (int index = blockIdx.x; index < all.heads * all.tiles;) {
    const WorkTile work = longest_first(index, all);
    send(work);
    const int batch = work.head / p.H, head_kv = p.kv_head(work.head % p.H);
    const auto [begin, end] = key_tiles_of(kv_tiles_of<Bc>(row_of(work, p) + Br, p));
    for (int kv_tile = begin; kv_tile < end; ++kv_tile) {
      K.acquire();
      K.fill(maps.K, 0, kv_tile * Bc, head_kv, batch);
      // Asked for late for balance, but before the next wait, which hides the latency.
      if (kv_tile == end - 1) index = next_after(index);
      V.acquire();
      V.fill(maps.V, 0, kv_tile * Bc, head_kv, batch);
    }
  }
  send({-1, -1});
}

/// The plan with one of `tiles`, and a counter.
template <class Tiles>
Plan plan_with_counter(const Problem& p, const DeviceInfo& device, const TileRequest& request,
                       const Tiles& tiles, int stages) {
  Plan plan = plan_of(p, device, request, tiles, stages, [&](int Dh, int Br, int Bc) {
    return stages_bytes(Dh, Br, Bc, stages, stages) +
           array_bytes<WorkTile>(stages * Br / kWarpgroupRows);
  });
  plan.workspace = {{"next", 4}};
  return plan;
}
/// Launches `clear`, and blocks with `kernel`, as many as run at once, right behind it.
template <class T, class Kernel>
void launch_with_counter(Kernel kernel, const Problem& p, const Plan& plan, const Arrays& a) {
  const auto [map_Q, map_K, map_V, map_O] = maps_of<T>(p, a, plan.block_kv);
  const int64_t works = ceil_div(p.N, plan.block_q) * p.B * p.H;
  const auto next = hbm<int>(a["next"]);
  launch("clear", clear, dim3(1), dim3(1), 0, next);
  launch<Start::early>("attention", kernel, dim3(std::min<int64_t>(works, resident_blocks())),
                       dim3(threads(plan.block_q)), plan.smem_bytes, map_Q, map_K, map_V, map_O,
                       hbm<float>(a["LSE"]), next, p);
}
/// A block asks for another tile of Q after each that it has had, the last time in vain.
inline Traffic traffic_with_counter(const Problem& p, const Plan& plan,
                                    std::vector<ArrayTraffic> arrays) {
  const int64_t asked = int64_t{4} * p.B * p.H * ceil_div(p.N, plan.block_q);
  arrays.push_back({"next", asked, asked});
  return {{"clear", {{"next", 0, 4}}}, {"attention", arrays}};
}

}  // namespace
}  // namespace ladder::MACHINE
