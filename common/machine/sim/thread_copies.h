// The asynchronous copies that each thread starts and waits for by itself (cp.async). They end when
// they are waited for and not before, so reading their target too early is caught.
#pragma once

#include <cstdint>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/block_memory.h"

namespace ladder::sim {

class ThreadCopies {
 public:
  ThreadCopies(Block& block, BlockMemory& memory) : block_(block), memory_(memory) {}

  void start_block(int threads);

  // Called on fibers.
  /// Copies 4, 8 or 16 bytes; `source` null fills with zeros. Faults count in elements of `element`
  /// bytes.
  void start(const SharedPlace& target, const char* source, int bytes, int element);
  /// Closes the group that the thread's next copy would join.
  void commit();
  /// Ends the thread's copies but for those of its last `groups_left` groups: for this thread.
  /// Others see them after a barrier that orders memory.
  void wait(int groups_left);
  /// Faults where the thread has not waited for a copy.
  void end_thread();

 private:
  struct Copy {
    int64_t target;      // byte in shared memory
    const char* source;  // null: zeros
    int bytes;
    int group;
  };
  struct OfThread {
    std::vector<Copy> copies;  // under way
    int group = 0;             // that the next copy joins
  };
  OfThread& mine() { return threads_[static_cast<size_t>(block_.running())]; }

  Block& block_;
  BlockMemory& memory_;
  std::vector<OfThread> threads_;
};

}  // namespace ladder::sim
