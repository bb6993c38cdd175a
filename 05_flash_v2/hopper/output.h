// 05 on Hopper: the end of a tile of Q, which stays as it is from `ping_pong` on. This header is
// not a step of its own.
#pragma once

#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

/// A consumer's rows of O, divided by l, and of LSE to HBM: O through its tile of Q, from where TMA
/// takes it.
template <class T, bool kStmatrix = true, class StagesQ, int Dh>
__device__ __forceinline__ void store_output(StagesQ& Q, Accumulator<16, Dh>& O_sum,
                                             const Rows<16>& m, Rows<16> l, const TensorMap& map_O,
                                             Hbm<float> LSE, int bh, int tile_row,
                                             const Problem& p) {
  const int warp_row = warp_id() % 4 * 16, row = tile_row + warp_row;
  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  if constexpr (kStmatrix)
    write_matrices(Q.tile(), as_operand<T>(O_sum), warp_row);
  else
    write(Q.tile(), O_sum, warp_row);
  fence_proxy_async();  // what this thread wrote, before TMA reads it
  named_barrier_sync(kWarpgroupBarrier + warpgroup_id(), kWarpgroup);  // all of the tile is there
  if (threadIdx.x % kWarpgroup == 0) {
    tma_store(map_O, Q.tile(), 0, tile_row, bh % p.H, bh / p.H);
    tma_store_commit();
  }
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

}  // namespace
}  // namespace ladder::MACHINE
