// Chooses the tile of a run from the list of tiles that a step is compiled for, which is best first
// for each head size. A step writes the list once: its plan (choose_tile() below), its launch
// (with_tile() in machine/machine.h), its registration and --help all use it.
#pragma once

#include <algorithm>
#include <string>

#include "rung.h"

namespace ladder {

/// Returns the max_d of the tiles that serve heads padded to Dh elements: the smallest max_d in
/// `tiles` that is at least Dh, or 0 if there is none.
template <class Tiles>
constexpr int tiles_for(const Tiles& tiles, int Dh) {
  int best = 0;
  for (const TileSize& tile : tiles)
    if (tile.max_d >= Dh && (best == 0 || tile.max_d < best)) best = tile.max_d;
  return best;
}

/// Chooses the first (best) tile that is compiled for plan.head_dim, matches the request, and whose
/// smem_bytes(Br, Bc) bytes of shared memory per block fit into `available` bytes. Sets block_q,
/// block_kv and smem_bytes of the plan, and `note` if a better tile did not fit. If `blocks` is 2
/// and nothing is requested, tiles that fit twice into `available` have precedence: an SM has
/// hardly more shared memory than one block may use, so only these let two blocks share an SM.
/// Throws Error(bad_usage) if no compiled tile matches and fits; the message names those that fit.
template <class Tiles, class SmemBytes>
void choose_tile(Plan& plan, const Tiles& tiles, const TileRequest& request, int64_t available,
                 SmemBytes smem_bytes, int blocks = 1) {
  const auto name = [](const TileSize& t) {
    return std::to_string(t.block_q) + "×" + std::to_string(t.block_kv);
  };
  const int max_d = tiles_for(tiles, plan.head_dim);
  const bool several =
      blocks > 1 && request.is_empty() && std::ranges::any_of(tiles, [&](const TileSize& tile) {
        return tile.max_d == max_d && blocks * smem_bytes(tile.block_q, tile.block_kv) <= available;
      });
  const int64_t most = available / (several ? blocks : 1);
  std::string fitting, too_large;
  for (const TileSize& tile : tiles) {
    if (tile.max_d != max_d) continue;
    const int64_t bytes = smem_bytes(tile.block_q, tile.block_kv);
    if (bytes > most) {
      if (request.matches(tile))
        too_large += name(tile) + " needs " + std::to_string(bytes) + " bytes; ";
      continue;
    }
    fitting += (fitting.empty() ? "" : ", ") + name(tile);
    if (!request.matches(tile)) continue;
    if (!too_large.empty())
      plan.note = "tile " + name(tile) + ": " + too_large +
                  "available: " + std::to_string(available) +
                  (several ? " for " + std::to_string(blocks) + " blocks" : "");
    plan.block_q = tile.block_q;
    plan.block_kv = tile.block_kv;
    plan.smem_bytes = bytes;
    return;
  }
  const std::string asked = request.is_empty()
                                ? ""
                                : "--block-q " + std::to_string(request.block_q) + " --block-kv " +
                                      std::to_string(request.block_kv) + " (0: any): ";
  throw Error(Exit::bad_usage,
              asked +
                  (too_large.empty() ? "not compiled for this head size"
                                     : "shared memory: " + too_large +
                                           "available: " + std::to_string(available)) +
                  "; sizes that fit: " +
                  (fitting.empty() ? "none; try a smaller --head-dim, or another rung" : fitting));
}

}  // namespace ladder
