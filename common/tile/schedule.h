// Which block does what, where blocks are not all alike.
#pragma once

#include <algorithm>

#include "machine/machine.h"

namespace ladder::MACHINE {

/// A tile of one of the B·H heads.
struct WorkTile {
  int head, tile;
};

/// All the work of a grid.
struct WorkList {
  int heads, tiles;                // heads, and tiles of each
  int64_t head_bytes;              // what the tiles of a head all read: its K and V, say
  bool uneven;                     // tiles are not equally long
  int64_t group_bytes = 16 << 20;  // of L2, for heads at work together; less than half of an H100's
  int at_once = 0;                 // blocks that run at the same time, where heads may be too short
};

/// What block `index` of heads · tiles works on, where tiles are numbered longest first. Blocks
/// start in the order of their index. Heads that are at work together should find in L2 what their
/// tiles read, so where tiles are all equally long, heads come one after the other. Where they are
/// uneven, the long ones should come first, or the last block to start would end long after all
/// others. So heads then go in groups that take group_bytes, equally large ones with work for all
/// blocks at once: within a group all first tiles, then all second ones, and so on.
///
/// Example: 4 heads of 3 uneven tiles, and room in group_bytes for two heads, so a group has 2.
/// Blocks 0 … 5 are the first group: (head, tile) = (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2).
/// Blocks 6 to 11 are the same of heads 2 and 3. For block 8, first is 8 / 6 * 2 = 2 and `at` is
/// 8 - 2 * 3 = 2, so it works on head 2 + 2 % 2 = 2 and tile 2 / 2 = 1.
__device__ __forceinline__ WorkTile longest_first(int index, const WorkList& list) {
  const auto [heads, tiles, head_bytes, uneven, group_bytes, at_once] = list;
  int64_t wanted = uneven ? group_bytes / head_bytes : 1;
  const int least = uneven ? (at_once + tiles / 2) / tiles : 1;
  if (wanted < least) wanted = least;
  const int most = wanted < 1 ? 1 : wanted < heads ? static_cast<int>(wanted) : heads;
  const int groups = (heads + most - 1) / most, group = (heads + groups - 1) / groups;
  const int first = index / (group * tiles) * group;  // head of its group
  const int of_group = heads - first < group ? heads - first : group;
  const int at = index - first * tiles;
  return {first + at % of_group, at / of_group};
}

/// About how long `blocks` take on a GPU with room for `at_once`, of which the longest takes
/// `longest`, and all together `all`: uneven ones, longest first, fill each other's gaps, and equal
/// ones come in waves.
inline double time_of(double all, double longest, int64_t blocks, int64_t at_once, bool uneven) {
  const int64_t waves = ceil_div(blocks, at_once);
  return std::max(all / static_cast<double>(at_once), uneven ? longest : longest * waves);
}

}  // namespace ladder::MACHINE
