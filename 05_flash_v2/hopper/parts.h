// 05 on Hopper: which tiles of keys each block computes, and the bytes that it requests, if `parts`
// blocks share the keys of one tile of Q (../parts.h). tiles.h chooses the number of parts.
#pragma once

#include "../parts.h"
#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "work.h"

namespace ladder::MACHINE {
namespace {

/// Returns the tiles of K and V that this block computes, out of the kv_tiles that its tile of Q
/// attends to: all or, if kSplit, part blockIdx.y of gridDim.y. If there are fewer tiles than
/// parts, each of the last blocks gets one tile that no row attends to.
template <bool kSplit>
__device__ __forceinline__ KeyTiles key_tiles_of_split(int kv_tiles) {
  if constexpr (!kSplit) return {0, kv_tiles};
  const int part = blockIdx.y, parts = min(static_cast<int>(gridDim.y), kv_tiles);
  if (part >= parts) return {kv_tiles, kv_tiles + 1};
  return {kv_tiles * part / parts, kv_tiles * (part + 1) / parts};
}

/// Predicts the requested bytes if plan.parts blocks share each tile of Q. `whole` is the result of
/// tiles_traffic, the bytes without sharing; whole[1] is K's entry. A part that gets no tile of
/// keys reads one tile that it does not need.
inline Traffic traffic_of_parts(const Problem& p, const Plan& plan,
                                const std::vector<ArrayTraffic>& whole) {
  const int64_t vain = sum_over_tiles(p, plan, kWarpgroupRows, [&](int64_t kv_tiles) {
    return std::max<int64_t>(0, plan.parts - kv_tiles) *
           std::clamp<int64_t>(p.N_kv - kv_tiles * plan.block_kv, 0, plan.block_kv);
  });
  return traffic_of_parts(p, plan.parts, whole[1].read + vain * p.B * p.H * p.d * kIoBytes);
}

}  // namespace
}  // namespace ladder::MACHINE
