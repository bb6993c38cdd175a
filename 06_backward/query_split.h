// 06: a tile of keys shared by several blocks, because one block per tile would leave SMs idle, or
// would read the Q and dO of several query heads at once. What split_sums has for it, and on Hopper
// `split` and `sm90`. Not a step of its own.
#pragma once

#include "machine/machine.h"
#include "rung.h"
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

/// A block's share of the work: some of the tiles of Q that attend to a tile of keys. These are
/// those of all query heads of the head of K and V, one head after the other.
struct QuerySplit {
  int bh, tile;       // of the B·Hk heads of K and V, and of a head's tiles of keys
  int first_row;      // of Q that attends to one of the keys; in whole tiles
  int tiles_of_head;  // tiles of Q from there on
  int begin, end;     // of all heads' tiles, the share; empty if there are more parts than tiles
};
/// Share `index` of `parts` for each tile of keys. The most rows attend to the first keys, so their
/// blocks start first. at_once: blocks that are resident together.
template <int Br, int Bc>
__device__ __forceinline__ QuerySplit query_split(int index, int tiles, int parts, int at_once,
                                                  const Problem& p) {
  const int group = p.H / p.Hk;
  const auto [bh_part, tile] =
      longest_first(index, {.heads = p.B * p.Hk * parts,
                            .tiles = tiles,
                            .head_bytes = int64_t{4} * kIoBytes * p.N * p.d * group / parts,
                            .uneven = p.causal,
                            .at_once = at_once});
  const int first_row = p.first_query(tile * Bc) / Br * Br, part = bh_part % parts;
  const int tiles_of_head = static_cast<int>(ceil_div(p.N - first_row, Br));
  const int64_t all = int64_t{group} * tiles_of_head;
  return {bh_part / parts,
          tile,
          first_row,
          tiles_of_head,
          static_cast<int>(all * part / parts),
          static_cast<int>(all * (part + 1) / parts)};
}

/// The sums of dK and dV in HBM, and their chunks of 8. Where one block has all of a tile, nothing
/// is added up, and the kernels touch neither.
struct KeySums {
  Hbm<float> dK, dV;
  int64_t chunks;
};
/// Clears chunk number `chunk` of each, if it is one of them.
__device__ __forceinline__ void clear(const KeySums& sums, int64_t chunk) {
  if (chunk < sums.chunks) {
    write_chunk(sums.dK + 8 * chunk, Chunk<float>{});
    write_chunk(sums.dV + 8 * chunk, Chunk<float>{});
  }
}

}  // namespace
}  // namespace ladder::MACHINE
