// TMA: bulk copies between an array in HBM and shared memory, of boxes or of
// floats in a row, which it adds to what the array holds. They are started by one thread. A load
// reports to an mbarrier, a store or an addition is waited for by its thread. They end as late as
// the schedule lets them, so reading or overwriting their bytes too early is caught.
#pragma once

#include <cstdint>
#include <deque>
#include <source_location>
#include <variant>
#include <vector>

#include "machine/sim/barriers.h"
#include "machine/sim/block.h"
#include "machine/sim/block_memory.h"
#include "machine/sim/tracked.h"

namespace ladder::sim {

/// An array as bulk tensor copies see it: extents, innermost first, of elements of so many bytes,
/// in boxes of box_rows rows × box_bytes, swizzled by box_bytes: 128, 64 or 32.
struct TensorMap {
  Tracked* array = nullptr;
  int64_t extents[4] = {};
  int box_rows = 0, box_bytes = 128, element = 2;
};

class Tma {
 public:
  Tma(Block& block, BlockMemory& memory, Barriers& barriers);

  // Called on fibers. `at`: the box's first element in the map.
  void load(const TensorMap& map, const MbarrierPlace& barrier, const SharedPlace& target,
            const int (&at)[4]);
  void store(const TensorMap& map, const SharedPlace& source, const int (&at)[4]);
  // `at`: the first float's byte in the array.
  void bulk_load(Tracked& array, int64_t at, const MbarrierPlace& barrier,
                 const SharedPlace& target, int n);
  void bulk_add(Tracked& array, int64_t at, const SharedPlace& source, int n);
  void commit_stores();
  void wait_stores(int groups_left, std::source_location where);
  /// Faults where the thread has not waited for a store.
  void end_thread() const;

  /// Faults where a load is under way.
  void end_block() const;
  /// Ends a load that is under way. False if there is none.
  bool deliver_load();
  /// Ends the stores that a thread waits for. False if none does.
  bool deliver_stores();

 private:
  struct Box {
    TensorMap map;
    int at[4];
    int64_t shared;  // first byte in shared memory
    int element() const { return map.element; }
    Tracked& array() const { return *map.array; }
    int64_t bytes() const { return int64_t{map.box_rows} * map.box_bytes; }
    /// Where byte `i` of a row of the box stands in shared memory, for 16 bytes that begin there.
    int64_t place(int row, int64_t i) const {
      return swizzled(shared + int64_t{row} * map.box_bytes + i, map.box_bytes);
    }
  };
  struct Floats {  // in a row
    Tracked* of;
    int64_t at;      // first byte in the array
    int64_t shared;  // first byte in shared memory
    int64_t n;
    static int element() { return 4; }
    Tracked& array() const { return *of; }
    int64_t bytes() const { return n * 4; }
  };
  /// The part of a box's row that lies within the array: byte offsets in the array and in the row,
  /// bytes. None where the row is past the end.
  struct Piece {
    int64_t at, begin, bytes;
  };
  struct Load {
    std::variant<Box, Floats> what;
    Barriers::Barrier* barrier;
    int thread;  // that issued it
  };
  struct Store {  // of a box, or an addition of floats
    std::variant<Box, Floats> what;
    int group;
  };
  struct Stores {  // of one thread
    std::vector<Store> under_way;
    int group = 0;
    int done = -1;  // while it waits: groups below this number must have ended
  };

  static Piece piece_of(const Box& box, int row);
  /// Calls f(at in the array, at in shared memory) for each 16 bytes that are copied.
  template <class F>
  static void for_each_piece(const Box& box, F f);
  template <class F>
  static void for_each_piece(const Floats& floats, F f);
  static void check(const char* what, const TensorMap& map, const SharedPlace& place);
  static void check(const char* what, const Floats& floats, const SharedPlace& place);
  void copy_in(const Box& box);
  void copy_in(const Floats& floats);
  void copy_out(const Box& box);
  void add(const Floats& floats);
  /// `what` is its name in faults, `event` in traces.
  template <class What>
  void start_load(const char* what, const char* event, const What& copy, Barriers::Barrier& barrier,
                  const SharedPlace& target);
  template <class What, class Access>
  void start_store(const char* what, const char* event, const What& copy, const SharedPlace& source,
                   Access access);
  void end_load(const Load& load);
  void end_stores(int thread);
  Stores& mine() { return stores_[static_cast<size_t>(block_.running())]; }

  Block& block_;
  BlockMemory& memory_;
  Barriers& barriers_;
  std::deque<Load> loads_;      // under way
  std::vector<Stores> stores_;  // of each thread
};

}  // namespace ladder::sim
