// 05 on Hopper: chooses one of sm90's compiled tiles, and how many blocks share each tile of Q, by
// estimated time. It also determines a block's stages and registers.
//
// The rule, with fixed limits first and the choices for each run last:
//
//   1. Heads. Each of the head sizes 64, 96, 128, 192 and 256 has separate tiles (kTimed); a head
//      uses those of the smallest size that holds it. The functions below derive a block's other
//      resources from the padded head size, Dh, and the tile, Br × Bc.
//   2. Rows. Each consumer takes 64 of the Br rows and holds O for them, Dh/2 registers per thread.
//      Up to Dh = 96 the SM's registers hold the O of three consumers, above that the O of two.
//      More rows mean fewer reads of K and V, so the tile with the most rows is the fastest if
//      there are plenty of queries.
//   3. Keys. Q, K and V have to fit in shared memory, 227 KB, and S takes Bc/2 registers per
//      thread. So the more rows and the wider the head, the fewer keys; above 128 columns only one
//      stage of Q fits (stages_of_Q).
//   4. Few rows: tiles of 64 or 128 rows make more blocks, so that no SM idles. A block with one
//      consumer is small, so two or three such blocks share an SM (blocks_of_SM), and the start and
//      end of one overlap products of another. Few keys: in a tile of fewer keys, fewer are masked.
//   5. If there are still too few tiles of Q for the SMs, `parts` blocks share the keys of each
//      tile, and `merge` (../parts.h) combines their results.
//
// Points 4 and 5 depend on the queries, keys, heads, mask and SMs. No simple threshold decides
// them, so time_of_tiles estimates each tile's time with each number of parts, from times that were
// measured once on an H200 (kTimed), and `fastest` takes the shortest.
#pragma once

#include <array>

#include "../parts.h"
#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

/// A compiled tile, {largest head size, Br, Bc}, and its times in µs on an H200 whose SMs are all
/// busy. Each consumer computes kWarpgroupRows of the Br rows. The times are kv_tile per tile of
/// keys, `ends` for a block's start and end, and `once` per SM, because an SM's first and last tile
/// of keys overlap nothing. `once` matters for heads of 97 to 128 columns alone, because their
/// tiles of few keys compete with tiles of many.
struct TimedTile {
  TileSize size;
  double kv_tile, ends, once = 0;
};
constexpr TimedTile kTimed[] = {{{64, 192, 128}, 1.5, 2},          // three consumers
                                {{64, 128, 128}, 1.2, 2},          // two consumers
                                {{64, 64, 128}, 1.1, 2},           // one consumer, few rows of Q
                                {{64, 64, 80}, 1.1, 2.2},          // one consumer, few keys
                                {{64, 64, 64}, 0.8, 2.7},          // one consumer, short sequences
                                {{96, 192, 96}, 1.5, 2},           // three consumers
                                {{96, 128, 128}, 1.4, 2},          // two consumers
                                {{128, 128, 128}, 1.7, 2, 3.4},    // two consumers
                                {{128, 128, 64}, 0.91, 1.8, 1.8},  // two consumers, few keys
                                {{128, 64, 80}, 1.15, 2, 2.3},     // one consumer, few rows of Q
                                {{192, 128, 96}, 1.9, 3},          // two consumers
                                {{256, 128, 64}, 1.6, 3}};         // two consumers
constexpr auto kTiles = [] {
  std::array<TileSize, std::size(kTimed)> tiles{};
  for (size_t i = 0; i < tiles.size(); ++i) tiles[i] = kTimed[i].size;
  return tiles;
}();
/// Returns whether blocks may share a tile's keys: the tile must be one of those with the fewest
/// rows for its head size.
constexpr bool may_split(int Dh, int Br) {
  return Br == (Dh <= 64 || Dh == 128 ? 64 : 128);
}
/// Return the number of stages of Q, and of K and V each. Heads above 128 columns leave space for
/// only one stage of Q; for other heads, tiles of at most 64 keys leave space for three or four
/// stages of K and V.
constexpr int stages_of_Q(int Dh) {
  return Dh > 128 ? 1 : 2;
}
constexpr int stages_of_KV(int Dh, int Bc) {
  return Dh > 128 || Bc > 64 ? 2 : Dh > 64 ? 4 : 3;
}
/// Returns the blocks per SM. Blocks with one consumer share an SM, so that the start and end of
/// one block overlap products of another.
constexpr int blocks_of_SM(int Dh, int Br, int Bc) {
  return Br > kWarpgroupRows ? 1 : Dh > 64 || Bc == 128 ? 2 : 3;
}
/// Return the registers per thread of the producer and of a consumer, in place of block.h's
/// numbers. The producer needs few, and the one to three consumers share the rest.
constexpr int producer_registers_of_tile(int Dh, int Br, int Bc) {
  return Br == 192 || blocks_of_SM(Dh, Br, Bc) == 3 ? 32 : 40;
}
constexpr int consumer_registers_of_tile(int Dh, int Br, int Bc) {
  return Br == 192 ? 160 : Br == 128 ? 232 : blocks_of_SM(Dh, Br, Bc) == 2 ? 216 : 128;
}

int64_t smem_bytes(int Dh, int Br, int Bc) {
  const int of_Q = stages_of_Q(Dh);
  return stages_bytes(Dh, Br, Bc, of_Q, stages_of_KV(Dh, Bc)) +
         array_bytes<WorkTile>(of_Q * Br / kWarpgroupRows);
}

// Constants of time_of_tiles and `fastest`, fitted to times on an H200.
constexpr double kEmptyTime = 0.4;    // time of a tile of Q without rows, if a full one takes 1
constexpr double kAloneTime = 0.8;    // time of a block alone on its SM, if with others it takes 1
constexpr double kMergeStart = 4;     // µs that `merge` takes besides moving its bytes
constexpr double kMergeRate = 2;      // TB/s, for writing and reading partial results
constexpr double kWorthwhile = 0.95;  // more parts must stay below this fraction of the best time

/// Estimates the time in µs that all tiles of one size take, each shared by `parts` blocks. A tile
/// of Q takes less time if some of its consumers get no rows: of 256 queries, a tile of 192 leaves
/// only 64 for the other block. A block takes less time, too, if it runs alone on an SM that could
/// hold another. Each part adds the time to start and end a block. Merging takes kMergeStart plus
/// the time to write and read the partial results at kMergeRate.
double time_of_tiles(const Problem& p, const TimedTile& timed, int parts, int64_t multiprocessors) {
  const auto [max_d, Br, Bc] = timed.size;
  const int64_t heads = int64_t{p.B} * p.H, blocks = heads * ceil_div(p.N, Br) * parts;
  double all = 0, longest = 0;
  for (int64_t row = ceil_div(p.N, kWarpgroupRows) * kWarpgroupRows; row > 0; row -= Br) {
    const int keys = p.keys(static_cast<int>(std::min<int64_t>(row, p.N) - 1));
    const int64_t kv_tiles = std::max<int64_t>(1, ceil_div(keys, Bc));
    const double share =
        kEmptyTime + (1 - kEmptyTime) * static_cast<double>(std::min<int64_t>(row, Br)) / Br;
    all += share * (timed.kv_tile * static_cast<double>(kv_tiles) + timed.ends * parts);
    const int64_t of_part = ceil_div(kv_tiles, parts);
    longest =
        std::max(longest, share * (timed.kv_tile * static_cast<double>(of_part) + timed.ends));
  }
  const int64_t of_SM = blocks_of_SM(max_d, Br, Bc), at_once = of_SM * multiprocessors;
  const double time = std::min(time_of(heads * all, longest, blocks, at_once, p.causal),
                               heads * all / at_once + longest);  // no schedule takes longer
  const double megabytes = 8e-6 * parts * static_cast<double>(heads * p.N * p.d);
  return (of_SM > 1 && blocks <= multiprocessors ? kAloneTime : 1) * (time + timed.once) +
         (parts > 1 ? kMergeStart + megabytes / kMergeRate : 0);
}

/// Returns the compiled tile and the number of parts with the lowest estimated time, among the
/// tiles that fit in shared memory and match the request. asked_parts = 0 allows any number of
/// parts. Returns the request if no tile fits.
Choice fastest(const Problem& p, int Dh, const DeviceInfo& device, const TileRequest& asked,
               int asked_parts) {
  Choice best{.tile = asked};
  double least = 0;
  for (const TimedTile& timed : kTimed) {
    const auto [max_d, Br, Bc] = timed.size;
    const bool split = asked_parts != 1 && may_split(Dh, Br);
    if (max_d != tiles_for(kTiles, Dh) || smem_bytes(Dh, Br, Bc) > device.smem_bytes ||
        !asked.matches(timed.size) || (asked_parts > 1 && !split))
      continue;
    const int first = split && asked_parts > 0 ? asked_parts : 1;
    for (int parts = first; parts <= (asked_parts > 0 || !split ? first : kMostParts); ++parts) {
      const double time = time_of_tiles(p, timed, parts, device.multiprocessors);
      if (least != 0 && time >= (parts > 1 ? kWorthwhile : 1) * least) continue;
      least = time;
      best = {{Br, Bc}, parts};
    }
  }
  return best;
}

/// Returns whether blocks can take tiles of Q in turn, without a counter: either no block gets a
/// second tile, or all tiles take equally long and no two blocks share an SM, where they would
/// delay each other.
bool in_turn(const Problem& p, const Plan& plan, const DeviceInfo& device) {
  const int of_SM = blocks_of_SM(plan.head_dim, plan.block_q, plan.block_kv);
  return ceil_div(p.N, plan.block_q) * p.B * p.H <= of_SM * device.multiprocessors ||
         (of_SM == 1 && !p.causal && p.N % plan.block_q == 0);
}

/// Returns the plan, except for its workspace. Throws Error(bad_usage) if blocks cannot share the
/// requested tile, or if there would be more than 2³⁰ parts of tiles.
Plan plan_by_time(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim<kAllHeadDims>(p.d);
  Plan plan{.head_dim = Dh, .settings = choose_settings(kSettings, request.settings)};
  const std::string& asked = plan.settings.at("parts");
  const Choice choice = fastest(p, Dh, device, request, asked == "auto" ? 0 : std::stoi(asked));
  choose_tile(plan, kTiles, choice.tile, device.smem_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  plan.stages = stages_of_KV(Dh, plan.block_kv);
  plan.warps = threads(plan.block_q) / 32;
  plan.parts = choice.parts;
  if (asked != "auto" && plan.parts != std::stoi(asked))
    throw Error(Exit::bad_usage, "--set parts=" + asked + ": blocks cannot share a tile of " +
                                     std::to_string(plan.block_q) +
                                     " rows; leave --block-q to the plan");
  const int64_t tiles = ceil_div(p.N, plan.block_q) * p.B * p.H;
  if (plan.parts > 1 && tiles * plan.parts > 1 << 30)  // indices of parts · heads are ints
    throw Error(Exit::bad_usage, "--set parts=" + asked + ": over 2³⁰ parts of tiles; set fewer");
  plan.note += (plan.note.empty() ? "" : "; ") + std::to_string(tiles) + " tiles of Q, " +
               std::to_string(plan.parts) + (plan.parts == 1 ? " block" : " blocks") +
               " for each, on " + std::to_string(device.multiprocessors) + " SMs";
  return plan;
}

}  // namespace
}  // namespace ladder::MACHINE
