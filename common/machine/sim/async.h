// What runs beside the threads of a block on Hopper: barriers that some of its threads wait at,
// TMA, and the products of warpgroups. An asynchronous operation ends as late as it can, when no
// thread can go on without it: so a read of its result, or an overwrite of its source, that comes
// too early is caught. In reverse schedules it ends as early as it can, in random ones at either
// time.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/global_memory.h"
#include "machine/sim/wgmma.h"

namespace ladder::sim {

struct Mbarrier {
  uint64_t state;
};

/// An array as bulk tensor copies see it: extents, innermost first, of elements of
/// `element` bytes, in boxes of box_rows rows × box_bytes, swizzled by box_bytes: 128 or 64.
struct TensorMap {
  TrackedArray* array = nullptr;
  int64_t extents[4] = {};
  int box_rows = 0, box_bytes = 128, element = 2;
};

class Async {
 public:
  explicit Async(Block& block);

  /// That of the running thread; a fault, of `what`, where it has none.
  Warpgroup& warpgroup(const char* what = "wgmma");
  void set_registers(int n);
  /// The thread says that its warp is done with a place in shared memory: faults where a product of
  /// its warpgroup that was not waited for still reads there, or a lane may. That the place is
  /// overwritten in time to be noticed may depend on what else its next owner waits for.
  void done_with(const SharedPlace& place, int64_t bytes);

  // Called on fibers. Mbarriers stand in shared memory and also wait for bulk copies.
  void init(const SharedPlace& barrier, int count);
  void fence_init();
  void arrive(const SharedPlace& barrier, int64_t bytes);
  void wait(const SharedPlace& barrier, int parity, Where where);
  void named_barrier(int id, int threads, bool waits, Where where);

  /// A bulk copy between an array in HBM and shared memory, started by one thread.
  struct Copy {
    /// Faults where the place in shared memory is not aligned, or its array ends too early.
    Copy(const char* what, TrackedArray* array, const SharedPlace& place, int64_t bytes,
         int alignment);

    const char* what;  // its name in faults
    TrackedArray* array;
    SharedPlace place;
    int64_t bytes;  // of shared memory
    struct Piece {  // 16 bytes that lie within the array
      int64_t at, shared;
    };
    std::vector<Piece> pieces;
  };
  // Both fault where the copy is not allowed. `at`: a box's first element in the map; of floats in
  // a row the first one's byte in the array.
  static Copy box(const char* what, const TensorMap& map, const SharedPlace& place,
                  const int (&at)[4]);
  static Copy floats(const char* what, TrackedArray& array, int64_t at, const SharedPlace& place,
                     int n);
  void load(EventKind kind, const Copy& copy, const SharedPlace& barrier);
  void store(EventKind kind, const Copy& copy, bool adds);
  void commit_stores() { ++mine().group; }
  void wait_stores(int groups_left, Where where);

  /// What the running thread wrote so far, wgmmas and TMA stores may read and loads overwrite.
  void fence_proxy() { memory_.fence_proxy(block_.running()); }

  /// Faults where the thread that ends, or the block, has not waited for something.
  void end_thread();
  void end_block() const;
  /// Ends something that is in flight, if there is anything. Called where no thread can run.
  bool deliver();

 private:
  struct Barrier {  // an mbarrier
    int64_t at;
    std::string name;
    int count, pending;  // arrivals
    int initialised_by;
    int64_t bytes = 0;  // promised less copied
    int64_t phase = 0;
    bool fenced = false;
    std::vector<int> waiters = {};  // threads, all for the end of this phase
  };
  struct NamedBarrier {  // of some of the block's warps
    int expected = 0, arrived = 0;
    int64_t completed = 0;  // how often, so far
    std::bitset<1024> who;
    std::vector<int> waiters;
  };
  /// Its bytes may be touched once a wait has seen the end of the phase that they count for.
  struct Load : Copy {
    Barrier* barrier;
    int thread;          // that issued it
    int64_t phase = -1;  // of the barrier in which it has ended
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

  bool has_warpgroup() const { return block_.running() / 128 < std::ssize(warpgroups_); }
  Barrier& find(const SharedPlace& place);
  void end_phase_if_complete(Barrier& barrier);
  void make_readable(const Barrier& barrier);

  /// Checks and counts the copy's accesses to HBM.
  template <Access access>
  void touch_hbm(const Copy& copy);
  void end_load(Load& load);
  void end_stores(int thread);
  Stores& mine() { return stores_[block_.running()]; }

  Block& block_;
  SharedBytes& memory_;
  std::deque<Warpgroup> warpgroups_;  // those with 128 threads
  std::deque<Barrier> barriers_;
  NamedBarrier named_[16];
  std::deque<Load> loads_;      // that nobody has waited for, in the order issued
  std::vector<Stores> stores_;  // of each thread
};

}  // namespace ladder::sim
