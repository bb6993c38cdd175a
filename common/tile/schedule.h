// Assigns tiles to blocks, the longest first if tiles differ, and estimates the time of a grid.
#pragma once

#include <algorithm>

#include "machine/machine.h"

namespace ladder::MACHINE {

/// A head's number among the B·H heads, and the number of one of its tiles; both count from 0.
struct WorkTile {
  int head, tile;
};

/// All tiles that a grid works on.
struct WorkList {
  int heads, tiles;                // number of heads, and of tiles per head
  int64_t head_bytes;              // bytes that every tile of a head reads, such as its K and V
  bool uneven;                     // whether some tiles take longer than others
  int64_t group_bytes = 16 << 20;  // L2 for a group of heads; less than half of an H100's 50 MB
  int at_once = 0;                 // concurrent blocks; a group should have about as many tiles
};

/// Returns the tile of block `index`, in [0, heads · tiles). A head's tiles are numbered from the
/// longest to the shortest. Blocks start in the order of their index. Blocks that run together
/// should read the same bytes from L2, so heads follow one another if all tiles take equally long.
/// But a long tile that starts last would end long after all others. If tiles are uneven, heads
/// therefore form groups of about equal size, whose bytes fit in group_bytes and which have at
/// least about at_once tiles. A group starts with the first tile of each of its heads; the second
/// tiles follow, and so on.
///
/// Example: there are 4 heads with 3 uneven tiles each, and group_bytes holds 2 heads, so there are
/// 2 groups. Blocks 0 to 5 form the first group: (head, tile) = (0, 0), (1, 0), (0, 1), (1, 1), (0,
/// 2) and (1, 2). Blocks 6 to 11 take the same tiles of heads 2 and 3. For block 8, `first` is 8 /
/// 6 * 2 = 2 and `at` is 8 - 2 * 3 = 2, so it works on head 2 + 2 % 2 = 2 and tile 2 / 2 = 1.
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

/// Estimates how long `blocks` blocks take on a GPU that runs `at_once` of them at a time, in the
/// unit of `longest`, the time of the longest block, and `all`, the sum of all blocks' times.
/// Uneven blocks, longest first, fill each other's gaps; equal blocks run in waves.
inline double time_of(double all, double longest, int64_t blocks, int64_t at_once, bool uneven) {
  const int64_t waves = ceil_div(blocks, at_once);
  return std::max(all / static_cast<double>(at_once), uneven ? longest : longest * waves);
}

}  // namespace ladder::MACHINE
