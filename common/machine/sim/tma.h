// TMA: bulk copies between an array in HBM and shared memory, of boxes or of floats in a row, which
// it adds to what the array holds. They are started by one thread. A load reports to an mbarrier, a
// store or an addition is waited for by its thread. They end as late as the schedule lets them, so
// reading or overwriting their bytes too early is caught.
#pragma once

#include <cstdint>
#include <deque>
#include <source_location>
#include <vector>

#include "machine/sim/barriers.h"
#include "machine/sim/block.h"
#include "machine/sim/block_memory.h"
#include "machine/sim/tracked.h"

namespace ladder::sim {

/// An array as bulk tensor copies see it: extents, innermost first, of elements of so many bytes,
/// in boxes of box_rows rows × box_bytes, swizzled by box_bytes: 128 or 64.
struct TensorMap {
  Tracked* array = nullptr;
  int64_t extents[4] = {};
  int box_rows = 0, box_bytes = 128, element = 2;
};

class Tma {
 public:
  Tma(Block& block, BlockMemory& memory, Barriers& barriers);

  // Called on fibers. `at`: the box's first element in the map.
  void load(const TensorMap& map, const SharedPlace& barrier, const SharedPlace& target,
            const int (&at)[4]);
  void store(const TensorMap& map, const SharedPlace& source, const int (&at)[4]);
  // `at`: the first float's byte in the array.
  void bulk_load(Tracked& array, int64_t at, const SharedPlace& barrier, const SharedPlace& target,
                 int n);
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
  struct Copy {
    const char* what;  // its name in faults
    Tracked* array;
    int element;            // bytes
    int64_t shared, bytes;  // where it begins in shared memory, and what it takes there
    struct Piece {          // 16 bytes that lie within the array
      int64_t at, shared;
    };
    std::vector<Piece> pieces = {};
  };
  struct Load : Copy {
    Barriers::Barrier* barrier;
    int thread;  // that issued it
  };
  struct Store : Copy {
    bool adds;  // floats to what the array holds
    int group;
  };
  struct Stores {  // of one thread
    std::vector<Store> under_way;
    int group = 0;
    int done = -1;  // while it waits: groups below this number must have ended
  };

  // Both fault where the copy is not allowed.
  static Copy box(const char* what, const TensorMap& map, const SharedPlace& place,
                  const int (&at)[4]);
  static Copy floats(const char* what, Tracked& array, int64_t at, const SharedPlace& place, int n);
  /// `event` is its name in traces.
  void start_load(const char* event, Load load, const SharedPlace& target);
  void start_store(const char* event, Store store, const SharedPlace& source);
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
