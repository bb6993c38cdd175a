// 05 on Hopper: predicts the bytes that the attention kernels request, for traffic() of the steps
// from `tma` on.
#pragma once

#include "machine/machine.h"
#include "rung.h"

namespace ladder::MACHINE {
namespace {

/// Adds up f(n) over a head's tiles of Q, where n is the number of tiles of K and V that a tile of
/// Q reads: those that its last row attends to, and at least one. The last tile of Q ends at N,
/// rounded up to a multiple of `unit`: of plan.block_q if the first tile starts at row 0, and of
/// kWarpgroupRows if tiles are laid out from the last row up (`own_keys` and later steps).
template <class F>
int64_t sum_over_tiles(const Problem& p, const Plan& plan, int64_t unit, F f) {
  int64_t sum = 0;
  for (int64_t end = ceil_div(p.N, unit) * unit; end > 0; end -= plan.block_q) {
    const int keys = p.keys(static_cast<int>(std::min<int64_t>(end, p.N) - 1));
    sum += f(std::max<int64_t>(1, ceil_div(keys, plan.block_kv)));
  }
  return sum;
}
/// Returns the bytes that the forward pass requests, {array, read, written}: every tile of Q reads
/// whole tiles of K and V. `unit` is as in sum_over_tiles.
inline std::vector<ArrayTraffic> tiles_traffic(const Problem& p, const Plan& plan, int64_t unit) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q or O
  const int64_t rows = sum_over_tiles(p, plan, unit, [&](int64_t kv_tiles) {
    return std::min<int64_t>(kv_tiles * plan.block_kv, p.N_kv);
  });
  const int64_t k = heads * rows * p.d * kIoBytes;
  return {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}, {"LSE", 0, heads * p.N * 4}};
}

}  // namespace
}  // namespace ladder::MACHINE
