// Tests two properties of common/tile that no result shows: tiles without bank conflicts, and the
// order of work. (The rungs' suites test the functions' results, and results_test their counts.)

#include <algorithm>
#include <utility>

#include "tests/sim/sim_test.h"
#include "tile/grouped.h"
#include "tile/schedule.h"
#include "tile/warp.h"

namespace ladder::sim {
namespace {

// Tiles of every width C must be read without bank conflicts: as the left operand, also transposed,
// and as the right operand of A·B and A·Bᵀ.
TEST_F(SimTest, TilesCauseNoBankConflicts) {
  const auto zeros = hbm<fp16>(array("zeros", std::vector<float>(32 * 256 / 2)).array());
  const auto conflicts = [&]<int C>() {
    return run(1, 32,
               [&] {
                 const Tile<fp16, 32, C> tile{SharedMemory().take<fp16>("tile", 32 * C)};
                 copy_in<32>(tile, zeros, C, 32, C, thread());
                 __syncthreads();
                 Operand<fp16, 16, 32> a;
                 Accumulator<16, 32> acc;
                 for (int column = 0; column < C; column += 32) {
                   load_transposed(a, tile, 0, column);
                   load(a, tile, 16, column);
                   mma_ABt(acc, a, tile, 0, column);
                   mma_AB(acc, a, tile, 0, column);
                 }
               })
        .bank_conflicts;
  };
  EXPECT_EQ(conflicts.operator()<32>(), 0);
  EXPECT_EQ(conflicts.operator()<64>(), 0);
  EXPECT_EQ(conflicts.operator()<128>(), 0);
  EXPECT_EQ(conflicts.operator()<256>(), 0);
  const auto grouped = [&]<int C>() {
    return run(1, 32,
               [&] {
                 const GroupedTile<fp16, 32, C> tile{SharedMemory().take<fp16>("tile", 32 * C)};
                 copy_async<32>(tile, zeros, C, 32, C, thread());
                 cp_async_commit();
                 cp_async_wait<0>();
                 __syncthreads();
                 Accumulator<16, 32> acc;
                 mma_ABt(acc, tile, 16, tile);
                 for (int column = 0; column < C; column += 32)
                   mma_AtB(acc, tile, column, tile, column);
                 write(tile, acc, 0, 0);
               })
        .bank_conflicts;
  };
  EXPECT_EQ(grouped.operator()<32>(), 0);
  EXPECT_EQ(grouped.operator()<96>(), 0);
  EXPECT_EQ(grouped.operator()<192>(), 0);
  EXPECT_EQ(grouped.operator()<256>(), 0);
}

TEST(LongestFirst, OrdersTilesByGroupAndLength) {
  // Expects groups of `group` heads: the first tiles of a group's heads, then their second ones, …
  const auto check = [&](const WorkList& list, int group) {
    SCOPED_TRACE(testing::Message() << list.heads << " heads of " << list.tiles << " tiles");
    int index = 0;
    for (int first = 0; first < list.heads; first += group)
      for (int tile = 0; tile < list.tiles; ++tile)
        for (int head = first; head < std::min(first + group, list.heads); ++head) {
          const WorkTile w = longest_first(index++, list);
          EXPECT_EQ(std::pair(w.head, w.tile), std::pair(head, tile));
        }
  };
  // Heads with even tiles follow one another. Heads with uneven tiles form groups of about equal
  // size, which fit in group_bytes, or exceed it if at_once blocks would not have work otherwise.
  check({.heads = 3, .tiles = 4, .head_bytes = 1, .uneven = false}, 1);
  check({.heads = 7, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 30}, 3);
  check({.heads = 6, .tiles = 5, .head_bytes = 10, .uneven = true, .group_bytes = 29}, 2);
  check({.heads = 5, .tiles = 2, .head_bytes = 10, .uneven = true, .group_bytes = 9}, 1);
  check({.heads = 4, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 40}, 4);
  check({.heads = 4, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 1000}, 4);
  check({.heads = 1, .tiles = 1, .head_bytes = int64_t{1} << 40, .uneven = true}, 1);
  check({.heads = 7, .tiles = 3, .head_bytes = 10, .uneven = true, .group_bytes = 50}, 4);
  check({.heads = 8, .tiles = 2, .head_bytes = 9, .uneven = true, .group_bytes = 9, .at_once = 7},
        4);
}
}  // namespace
}  // namespace ladder::sim
