// Fibers: many stacks, one OS thread. A CUDA thread of the sim is a fiber; it runs until it has to
// wait for others and then switches back to the block's scheduler. A fiber never changes OS thread.
#pragma once

#include <cstddef>

namespace ladder::sim {

/// One stack and the place where it stopped. Reused block after block.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the fiber start over: the next resume() calls entry(argument) on its stack.
  void start(void (*entry)(void*), void* argument);
  /// Runs the fiber until it calls yield() or finish(). Called by the scheduler.
  void resume();
  /// Back to the scheduler; returns at the next resume(). Called on the fiber.
  void yield();
  /// Back to the scheduler for good. Called on the fiber, at the end of its entry function.
  [[noreturn]] void finish();
  /// Whether the stack was ever used past its end, as far as its last bytes tell.
  bool overflowed() const;

  struct Impl;

 private:
  Impl* impl_;
};

}  // namespace ladder::sim
