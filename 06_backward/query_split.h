// 06: lets several blocks share a tile of keys, because one block per tile would leave SMs idle, or
// blocks that run together would read the Q and dO of different query heads. `split_sums` uses it,
// and on Hopper `split` and `sm90`. It is not a step of its own.
#pragma once

#include "machine/machine.h"
#include "rung.h"
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

/// A block's share of the work for one tile of keys. The tiles of Q that attend to it, of all query
/// heads that share its head of K and V, are numbered one head after the other. The block works on
/// numbers begin to end − 1.
struct QuerySplit {
  int bh, tile;       // which of the B·Hk heads of K and V, and which tile of keys of this head
  int first_row;      // where the first tile of Q begins that attends to one of the keys
  int tiles_of_head;  // tiles of Q per query head, from first_row on
  int begin, end;     // equal, so that the share is empty, if there are more parts than tiles
};
/// Returns the share of block `index`. A head has `tiles` tiles of keys, and `parts` blocks share
/// each of them. Under the mask the most rows attend to the first keys, so their blocks start
/// first. `at_once` is the number of blocks that run at once, for longest_first().
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

/// The fp32 sums of dK and dV in HBM, each of `chunks` chunks of 8. If parts is 1 there are none,
/// and kernels access neither.
struct KeySums {
  Hbm<float> dK, dV;
  int64_t chunks;
};
/// Sets chunk number `chunk` of both sums to 0, if they have such a chunk.
__device__ __forceinline__ void clear(const KeySums& sums, int64_t chunk) {
  if (chunk < sums.chunks) {
    write_chunk(sums.dK + 8 * chunk, Chunk<float>{});
    write_chunk(sums.dV + 8 * chunk, Chunk<float>{});
  }
}

}  // namespace
}  // namespace ladder::MACHINE
