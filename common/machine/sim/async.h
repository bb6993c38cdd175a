// Simulates what works concurrently with a block's threads on Hopper, for sim_hopper.h: mbarriers,
// named barriers, TMA, and warpgroups' products. Under forward schedules an asynchronous operation
// ends as late as possible, when no thread can continue without it, which reveals a premature read
// of its result or overwrite of its source. Under reverse schedules it ends as early as possible,
// and under random ones at either time.
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

/// Takes an mbarrier's 8 bytes of shared memory; the mbarrier's state is in Async::Barrier.
struct Mbarrier {
  uint64_t state;
};

/// Describes an array to TMA. `extents` counts elements of `element` bytes, innermost dimension
/// first. A box has box_rows rows of box_bytes bytes (128 or 64) and a swizzle as wide as a row.
struct TensorMap {
  TrackedArray* array = nullptr;
  int64_t extents[4] = {};
  int box_rows = 0, box_bytes = 128, element = 2;
};

/// A block's asynchronous units. All but end_block() and deliver() concern the running thread.
class Async {
 public:
  explicit Async(Block& block);

  /// Returns the running thread's warpgroup. Faults, naming `what`, if the thread is in none.
  Warpgroup& warpgroup(const char* what = "wgmma");
  /// Implements setmaxnreg with n registers per thread. Faults if the warpgroups ask for more
  /// registers than the block started with.
  void set_registers(int n);
  /// Declares that the running thread's warp is done reading `bytes` bytes of shared memory from
  /// `place` on. Faults if a product of its warpgroup still reads them because nobody has waited
  /// for it, or if another lane's read is not ordered before this call. (The mistake would
  /// otherwise show only if the next owner happened to overwrite the bytes early.)
  void done_with(const SharedPlace& place, int64_t bytes);

  // Operations on barriers, which fault for wrong arguments. `barrier` is an mbarrier's place.
  /// Initialises the mbarrier for `count` arrivals per phase.
  void init(const SharedPlace& barrier, int count);
  /// Lets loads use the mbarriers that the running thread has initialised.
  void fence_init();
  /// Arrives, and promises that loads will bring `bytes` bytes (0: none) in this phase.
  void arrive(const SharedPlace& barrier, int64_t bytes);
  /// Waits for the end of the phase with this parity.
  void wait(const SharedPlace& barrier, int parity, Where where);
  /// Arrives at named barrier `id`, which expects `threads` threads, and if `waits` waits for them.
  void named_barrier(int id, int threads, bool waits, Where where);

  /// A bulk copy between an array in HBM and shared memory. One thread starts it.
  struct Copy {
    /// Faults if the place in shared memory is not aligned to `alignment` bytes, or if its array
    /// ends before `bytes` bytes.
    Copy(const char* what, TrackedArray* array, const SharedPlace& place, int64_t bytes,
         int alignment);

    const char* what;  // the copy's name in faults
    TrackedArray* array;
    SharedPlace place;
    int64_t bytes;  // in shared memory, zeros included
    struct Piece {  // 16 bytes inside the array; byte offsets in the array and in shared memory
      int64_t at, shared;
    };
    std::vector<Piece> pieces;
  };
  // Return a copy, or fault if it is not allowed. `at` is the box's first element in the map or,
  // for floats(), the byte offset in the array of the first of n consecutive floats.
  static Copy box(const char* what, const TensorMap& map, const SharedPlace& place,
                  const int (&at)[4]);
  static Copy floats(const char* what, TrackedArray& array, int64_t at, const SharedPlace& place,
                     int n);
  /// Start a copy. load() copies to shared memory, and its bytes count towards the phase of
  /// `barrier`; store() copies from shared memory, or adds to the array if `adds` is true.
  void load(EventKind kind, const Copy& copy, const SharedPlace& barrier);
  void store(EventKind kind, const Copy& copy, bool adds);
  void commit_stores() { ++mine().group; }
  /// Waits until at most `groups_left` of the thread's groups of stores are still in flight.
  void wait_stores(int groups_left, Where where);

  /// Lets wgmmas and TMA stores read, and TMA loads overwrite, what the running thread has written.
  void fence_proxy() { memory_.fence_proxy(block_.running()); }

  /// Fault if the ending thread or block has started an operation that was never waited for.
  void end_thread();
  void end_block() const;
  /// Ends one operation in flight, if any, when no thread can run. Returns whether there was one.
  bool deliver();

 private:
  struct Barrier {                  // an mbarrier
    int64_t at;                     // byte offset in shared memory
    std::string name;               // "full[1]"
    int count, pending;             // arrivals per phase, and those that this phase still lacks
    int initialised_by;             // the thread that called init()
    int64_t bytes = 0;              // bytes promised for this phase minus bytes copied
    int64_t phase = 0;              // number of the current phase
    bool fenced = false;            // whether its initialiser has called fence_init() since init()
    std::vector<int> waiters = {};  // threads that wait for the end of this phase
  };
  struct NamedBarrier {             // for some of the block's warps
    int expected = 0, arrived = 0;  // threads
    int64_t completed = 0;          // how often all expected threads have arrived
    std::bitset<1024> who;          // the threads that have arrived
    std::vector<int> waiters;       // those among them that wait
  };
  /// A load. Threads may touch its bytes after waiting for the phase that counts them.
  struct Load : Copy {
    Barrier* barrier;
    int thread;          // the thread that issued it
    int64_t phase = -1;  // the barrier's phase when it ended; -1: in flight
  };
  struct Store : Copy {
    bool adds;  // whether it adds floats to the array
    int group;  // number of its thread's group of stores
  };
  struct Stores {  // one thread's stores
    std::vector<Store> under_way;
    int group = 0;  // the group that the next store joins
    int done = -1;  // while the thread waits: groups below this number must end
  };

  bool has_warpgroup() const { return block_.running() / 128 < std::ssize(warpgroups_); }
  Barrier& find(const SharedPlace& place);
  void end_phase_if_complete(Barrier& barrier);
  /// Lets threads touch the bytes of all loads that ended in phases of `barrier` that are over.
  void make_readable(const Barrier& barrier);

  /// Checks and counts a copy's accesses to global memory.
  template <Access access>
  void touch_hbm(const Copy& copy);
  void end_load(Load& load);
  void end_stores(int thread);
  Stores& mine() { return stores_[block_.running()]; }

  Block& block_;
  SharedBytes& memory_;
  std::deque<Warpgroup> warpgroups_;  // only complete ones, of 128 threads
  std::deque<Barrier> barriers_;
  NamedBarrier named_[16];
  std::deque<Load> loads_;      // loads not waited for, in the order of issue
  std::vector<Stores> stores_;  // per thread
};

}  // namespace ladder::sim
