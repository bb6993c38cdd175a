// Which block does what, where blocks are not all alike.
#pragma once

#include "machine/machine.h"

namespace ladder::MACHINE {

/// A tile of one of the B·H heads.
struct Work {
  int head, tile;
};

/// All the work of a grid.
struct WorkList {
  int heads, tiles;                // heads, and tiles of each
  int64_t head_bytes;              // what the tiles of a head all read: its K and V, say
  bool uneven;                     // tiles are not equally long
  int64_t group_bytes = 16 << 20;  // of L2, for heads at work together; less than half of an H100's
};

/// What block `index` of heads · tiles works on, where tiles are numbered longest first. Blocks
/// start in the order of their index. Heads that are at work together should find in L2 what their
/// tiles read, so where tiles are all equally long, heads come one after the other. Where they are
/// uneven, the long ones should come first, or the last block to start would end long after all
/// others. So heads then go in groups that take group_bytes: within a group all first tiles, then
/// all second ones, and so on.
__device__ __forceinline__ Work longest_first(int index, const WorkList& list) {
  const auto [heads, tiles, head_bytes, uneven, group_bytes] = list;
  const int64_t fitting = uneven ? group_bytes / head_bytes : 1;
  const int group = fitting < 1 ? 1 : fitting < heads ? static_cast<int>(fitting) : heads;
  const int first = index / (group * tiles) * group;  // head of its group
  const int of_group = heads - first < group ? heads - first : group;
  const int at = index - first * tiles;
  return {first + at % of_group, at / of_group};
}

}  // namespace ladder::MACHINE
