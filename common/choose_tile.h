// Chooses a tile for a run. A step lists its tiles once, best first for each head size. This
// choice, the dispatch (with_tile in machine/machine.h), --help and registration all use that list.
#pragma once

#include <algorithm>
#include <string>

#include "rung.h"

namespace ladder {

/// Returns the max_d of the tiles that serve heads padded to Dh elements: the smallest that is at
/// least Dh, or 0 if there is none.
template <class Tiles>
constexpr int tiles_for(const Tiles& tiles, int Dh) {
  int best = 0;
  for (const TileSize& tile : tiles)
    if (tile.max_d >= Dh && (best == 0 || tile.max_d < best)) best = tile.max_d;
  return best;
}

/// Sets block_q, block_kv and smem_bytes of a plan. Chooses the first (best) tile that is compiled
/// for plan.head_dim, matches the request, and whose shared memory, smem_bytes(Br, Bc) bytes per
/// block, fits into `available` bytes. With `blocks` = 2 and no request it prefers the first tile
/// that fits twice into `available`, because an SM has hardly more shared memory than one block may
/// use. If a better tile does not fit, the plan's note says so. Throws Error(bad_usage) if no
/// compiled tile matches and fits; the message names the tiles that do fit.
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
