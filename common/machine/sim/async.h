// What runs beside the threads of a block on Hopper: barriers, TMA, the products of
// warpgroups. An asynchronous operation ends as late as it can, when no thread can go on without
// it: so a read of its result, or an overwrite of its source, that comes too early is caught. In
// reverse schedules it ends as early as it can, in random ones at either time.
#pragma once

#include "machine/sim/barriers.h"
#include "machine/sim/block.h"
#include "machine/sim/block_memory.h"
#include "machine/sim/tma.h"
#include "machine/sim/wgmma_engine.h"

namespace ladder::sim {

/// Of one block, made when the block first uses any of it.
class Async {
 public:
  Async(Block& block, BlockMemory& memory)
      : barriers(block, memory),
        copies(block, memory, barriers),
        wgmmas(block, memory),
        block_(block),
        memory_(memory) {
    memory.tell_writers_apart();
  }
  Async(const Async&) = delete;

  Barriers barriers;
  Tma copies;
  WgmmaEngine wgmmas;

  /// What the running thread wrote so far, wgmmas and TMA stores may read and loads overwrite.
  void fence_proxy() { memory_.fence_proxy(block_.running()); }

  /// Faults where the thread that ends, or the block, has not waited for something.
  void end_thread() {
    copies.end_thread();
    wgmmas.end_thread();
    if (block_.lane() == 0) block_.trace_event("exit", "", 0);
  }
  void end_block() const {
    copies.end_block();
    barriers.end_block();
  }
  /// Ends something that is under way, if there is anything. Called where no thread can run.
  bool deliver() { return copies.deliver_load() || wgmmas.deliver() || copies.deliver_stores(); }
  /// What a waiting thread waits for; empty if it is nothing here.
  std::string waits_for(int thread) const {
    const std::string barrier = barriers.waits_for(thread);
    return barrier.empty() ? wgmmas.waits_for(thread) : barrier;
  }

 private:
  Block& block_;
  BlockMemory& memory_;
};

}  // namespace ladder::sim
