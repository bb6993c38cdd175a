// Fibers: many stacks, one OS thread. A CUDA thread of the sim is a fiber; it runs until it has to
// wait for others and then switches back to the block's scheduler. A fiber never changes OS thread.
#pragma once

#include <cstddef>

#include "machine/sim/mapped.h"

namespace ladder::sim {

/// One stack and the place where it stopped. Reused block after block.
class Fiber {
 public:
  Fiber();
  ~Fiber();

  /// Makes the fiber start over: the next resume() calls entry(argument) on its stack.
  void start(void (*entry)(void*), void* argument);
  /// Runs the fiber until it calls yield() or finish(). Called by the scheduler.
  void resume();
  /// Back to the scheduler; returns at the next resume(). Called on the fiber.
  void yield() { to_scheduler(false); }
  /// Back to the scheduler for good. Called on the fiber, at the end of its entry function.
  [[noreturn]] void finish();
  /// Whether the stack was ever used past its end, as far as its last bytes tell.
  bool overflowed() const;

 private:
  static void first_frame();
  void to_scheduler(bool for_good);
  void arrived();  // first thing on the fiber's stack after every switch to it
  char* stack() const { return static_cast<char*>(stack_.data()); }

  Mapped stack_;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* here_ = nullptr;       // the fiber's stack pointer while it waits
  void* scheduler_ = nullptr;  // the scheduler's while the fiber runs
#ifdef LADDER_SANITIZE
  void *fake_stack_ = nullptr, *scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
#endif
};

}  // namespace ladder::sim
