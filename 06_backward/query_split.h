// 06: code that lets several blocks share a tile of keys, by dividing its queries among them. With
// one block per tile, SMs might be idle, or blocks that run together might read the Q and dO of
// different query heads. `split_sums` and, on Hopper, `split` and `sm90` use this header.
#pragma once

#include "machine/machine.h"
#include "rung.h"
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

/// A block's share of the work for one tile of keys. The tiles of Q that attend to these keys, in
/// all query heads that share their head of K and V, are numbered head by head. The block works on
/// tiles [begin, end).
struct QuerySplit {
  int bh, tile;       // which of the B·Hk heads of K and V, and which of its tiles of keys
  int first_row;      // first row of the first tile of Q that attends to one of the keys
  int tiles_of_head;  // tiles of Q per query head, from first_row on
  int begin, end;     // equal (an empty share) only if there are more parts than tiles of Q
};
/// Returns the share of block `index` of tiles·B·Hk·parts blocks. A head has `tiles` tiles of keys,
/// and `parts` blocks share each. Under the mask the most rows attend to the first keys, so their
/// blocks start first. `at_once`, for longest_first(), is how many blocks run at once; 0: unknown.
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

/// The fp32 sums of dK and of dV in HBM, `chunks` chunks of 8 floats in each array. If one block
/// works on each tile of keys, there are no sums: chunks is 0, and kernels access neither array.
struct KeySums {
  Hbm<float> dK, dV;
  int64_t chunks;
};
/// Sets chunk `chunk`, counted from 0, of both arrays to 0; does nothing if there is no such chunk.
__device__ __forceinline__ void clear(const KeySums& sums, int64_t chunk) {
  if (chunk < sums.chunks) {
    write_chunk(sums.dK + 8 * chunk, Chunk<float>{});
    write_chunk(sums.dV + 8 * chunk, Chunk<float>{});
  }
}

}  // namespace
}  // namespace ladder::MACHINE
