// The barriers that Hopper's kernels wait at beside __syncthreads: mbarriers, which stand in shared
// memory and also wait for bulk copies, and named barriers of some of the block's warps.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <source_location>
#include <string>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/block_memory.h"

namespace ladder::sim {

struct Mbarrier {
  uint64_t state;
};

class Barriers {
 public:
  Barriers(Block& block, BlockMemory& memory) : block_(block), memory_(memory) {}

  struct Barrier {  // an mbarrier
    int64_t at;
    std::string name;
    int count, pending;  // arrivals
    int64_t bytes = 0;   // promised less copied
    int64_t phase = 0;
    int initialised_by;
    bool fenced = false;
    std::vector<int> waiters;  // threads, all for the end of this phase
    struct Landed {            // copied in a phase that nobody has waited for
      int64_t phase, begin, bytes;
      int thread;   // that issued it
      bool floats;  // in a row, not a box
    };
    std::vector<Landed> landed;
  };

  // Called on fibers.
  void init(const SharedPlace& place, int count);
  void fence_init();
  void arrive(const SharedPlace& place, int64_t bytes);
  void wait(const SharedPlace& place, int parity, std::source_location where);
  void named_barrier(int id, int threads, bool waits, std::source_location where);

  /// The barrier that a load is to report to; `what` names the load in faults. Called on a fiber.
  /// It stays where it is.
  Barrier& for_load(const char* what, const SharedPlace& place);
  /// A load that a thread issued has ended, and its bytes stand at [begin, begin + bytes) of shared
  /// memory. They may be touched once a wait has seen the end of the phase that they count for.
  void load_ended(Barrier& barrier, int64_t begin, int64_t bytes, int thread, bool floats);
  [[noreturn]] void fault_of_load(const Barrier& barrier, int thread) const;

  /// Faults where a load has ended that nobody waited for, or threads have arrived at a named
  /// barrier for others that never came.
  void end_block() const;
  /// What a waiting thread waits for; empty if it is nothing here.
  std::string waits_for(int thread) const;

 private:
  struct NamedBarrier {
    int expected = 0, arrived = 0;
    int64_t completed = 0;  // how often, so far
    std::bitset<1024> who;
    std::vector<int> waiters;
  };

  Barrier& find(const SharedPlace& place);
  void settle(Barrier& barrier);  // ends the phase if nothing is missing
  void make_readable(Barrier& barrier);

  Block& block_;
  BlockMemory& memory_;
  std::deque<Barrier> barriers_;
  NamedBarrier named_[16];
};

}  // namespace ladder::sim
