// Which block does what, where blocks are not all alike.
#pragma once

#include "machine/machine.h"

namespace ladder::MACHINE {

/// A tile of one of the B·H heads.
struct Work {
  int head, tile;
};

/// What block `index` of heads · tiles works on, where tiles are numbered longest first. Blocks
/// start in the order of their index. Heads that are at work together should find their K and V
/// (`head_bytes` a head) in L2, so where tiles are all equally long, heads come one after the
/// other. Where they are `uneven`, the long ones should come first, lest the last to start be the
/// last to end by far. Therefore heads then go in groups that take `group_bytes`, by default less
/// than half of an A100's or H100's L2: within a group all first tiles, then all second ones, and
/// so on.
__device__ __forceinline__ Work longest_first(int index, int heads, int tiles, int64_t head_bytes,
                                              bool uneven, int64_t group_bytes = 16 << 20) {
  const int64_t fitting = uneven ? group_bytes / head_bytes : 1;
  const int group = fitting < 1 ? 1 : fitting < heads ? static_cast<int>(fitting) : heads;
  const int first = index / (group * tiles) * group;  // head of its group
  const int of_group = heads - first < group ? heads - first : group;
  const int at = index - first * tiles;
  return {first + at % of_group, at / of_group};
}

}  // namespace ladder::MACHINE
