// 05 on Hopper: code that `counter` introduces and that `lazy` and later steps share: blocks take
// their tiles of Q from a counter in HBM. It holds `clear`, the producer, plan and launch.
#pragma once

#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

/// Sets the counter to 0. The attention kernel may start at once, because its blocks wait for the
/// end of this kernel before they ask for a second tile of Q.
__global__ void clear(Hbm<int> next) {
  let_next_kernel_start();
  next[0] = 0;
}
/// Returns the index of the next tile of Q that no block has taken, and advances the counter. If no
/// tile is left, the index is at least the number of tiles.
__device__ __forceinline__ int take_next(Hbm<int> next) {
  wait_for_kernel_before();  // that kernel sets the counter to 0
  return gridDim.x + atomicAdd(next, 1);
}

/// The tiles [begin, end) of K and V that a block needs for a tile of Q. The range is never empty,
/// because `produce` asks for the next tile of Q at the last of these tiles.
struct KeyTiles {
  int begin, end;
};
__device__ __forceinline__ KeyTiles all_key_tiles(int kv_tiles) {
  return {0, kv_tiles};
}

/// Returns a tile's first row, as in `own_keys`. Tiles are laid out from the last row up, because
/// the last rows attend to the most keys. A tile that extends before row 0, and so leaves some
/// consumers idle, is therefore the one with the fewest keys.
template <int Br>
__device__ __forceinline__ int row_from_end(const WorkTile& work, const Problem& p) {
  const int end = static_cast<int>(ceil_div(p.N, kWarpgroupRows)) * kWarpgroupRows;
  return end - (work.tile + 1) * Br;
}

/// The tensor maps that a producer needs.
struct InputMaps {
  const TensorMap &Q, &K, &V;
};

/// Runs the producer thread: starts the copies of the block's tiles of Q and, for each of these, of
/// its tiles of K and V. A tile of Q starts at row_of(work, p). Of the n tiles of K and V that this
/// tile attends to, the block copies the range key_tiles_of(n). The block's first tile of Q has
/// index blockIdx.x, and next_after(i) is the index of its next tile after tile i.
template <int Br, int Bc, auto row_of, auto key_tiles_of = all_key_tiles, class StagesQ,
          class StagesKV, class NextAfter>
__device__ __forceinline__ void produce(StagesQ Q, StagesKV K, StagesKV V, const InputMaps& maps,
                                        Smem<WorkTile> smem_work, NextAfter next_after,
                                        const Problem& p) {
  // Sends a tile of Q with its number and head, so that the consumers need no divisions. A negative
  // head, sent after the last tile, ends the consumers' loops.
  const auto send = [&](const WorkTile& work) {
    for (int row = 0; row < Br; row += kWarpgroupRows) {
      Q.acquire_freed();  // waits until the slot's consumer frees it, even in the first round
      smem_work[Q.number()] = work;
      if (work.head >= 0)
        Q.fill(maps.Q, 0, row_of(work, p) + row, work.head % p.H, work.head / p.H);
      else
        Q.signal_end();
    }
  };
  // A block of 128 or 192 rows has the SM to itself. So, compared with `large_tiles`, half the
  // blocks run at once, groups of heads (longest_first) need only half the default bytes, and
  // requests to HBM at a group's start come in smaller bursts. (sm90's tiles of 64 rows have groups
  // of the same size, although more of their blocks run at once.)
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
      // The next tile is requested late, to balance the load, but before the next wait, which hides
      // the request's latency.
      if (kv_tile == end - 1) index = next_after(index);
      V.acquire();
      V.fill(maps.V, 0, kv_tile * Bc, head_kv, batch);
    }
  }
  send({-1, -1});
}

/// Returns a plan with one of `tiles`, a counter (`next`) in its workspace, and `stages` stages of
/// Q, of K and of V.
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
/// Launches `clear` and, without waiting for its end, as many blocks of `kernel` as can run at
/// once, but no more than there are tiles of Q.
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
/// Predicts the requested bytes. For each tile of Q that a block computes, it reads and writes the
/// counter's 4 bytes once; its last request finds no tile left.
inline Traffic traffic_with_counter(const Problem& p, const Plan& plan,
                                    std::vector<ArrayTraffic> arrays) {
  const int64_t asked = int64_t{4} * p.B * p.H * ceil_div(p.N, plan.block_q);
  arrays.push_back({"next", asked, asked});
  return {{"clear", {{"next", 0, 4}}}, {"attention", arrays}};
}

}  // namespace
}  // namespace ladder::MACHINE
