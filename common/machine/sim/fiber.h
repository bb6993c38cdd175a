// Fibers: many stacks on one OS thread. Each simulated CUDA thread is a fiber, which runs until it
// must wait for others, then switches to the block's scheduler. It never changes its OS thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "machine/sim/mapped.h"

#ifdef LADDER_SANITIZE
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace ladder::sim {

#ifdef LADDER_SANITIZE
constexpr size_t kStackBytes = 256 * 1024;  // larger, because the sanitizer adds redzones to frames
#else
constexpr size_t kStackBytes = 64 * 1024;
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
inline void __asan_unpoison_memory_region(void const volatile*, size_t) {}
#endif

/// Where code stopped: stack pointer, registers that asm cannot declare as lost, next instruction.
struct Context {
  void* registers[4];
  void (*next)();
};

/// Saves the current context in `from` and continues at `to`. All other registers are lost, so the
/// compiler saves those that it needs on the stack. The function is inline, because the processor
/// would mispredict a return on a stack other than the call's.
[[gnu::always_inline]] inline void switch_stacks(Context* from, Context* to) {
#if defined(__x86_64__)
  asm volatile(R"(
    leaq 1f(%%rip), %%rax
    movq %%rsp, (%0)
    movq %%rbp, 8(%0)
    movq %%rbx, 16(%0)
    movq %%rax, 32(%0)
    movq (%1), %%rsp
    movq 8(%1), %%rbp
    movq 16(%1), %%rbx
    jmpq *32(%1)
  1:)"
               : "+D"(from), "+S"(to)
               :
               : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc",
                 "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                 "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#elif defined(__aarch64__)
  register Context* x0 asm("x0") = from;
  register Context* x1 asm("x1") = to;
  asm volatile(R"(
    adr x3, 1f
    mov x2, sp
    stp x2, x29, [x0]
    stp x18, x19, [x0, #16]
    str x3, [x0, #32]
    ldp x2, x29, [x1]
    ldp x18, x19, [x1, #16]
    ldr x3, [x1, #32]
    mov sp, x2
    br x3
  1:)"
               : "+r"(x0), "+r"(x1)
               :
               : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
                 "x15", "x16", "x17", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28",
                 "x30", "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",
                 "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21",
                 "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#else
#error "the simulator switches stacks in assembly, which fiber.h lacks for this processor"
#endif
}

/// A stack and the place where its code stopped. Later blocks reuse the stack.
class Fiber {
 public:
  Fiber() { std::memcpy(stack(), &kCanary, sizeof kCanary); }
  ~Fiber() { __asan_unpoison_memory_region(stack(), kStackBytes); }

  /// Makes the next resume() call `entry`, which must begin with arrived() and end with finish().
  void start(void (*entry)()) {
    // After a fault the sanitizer's redzones of the fiber's old frames are still poisoned.
    __asan_unpoison_memory_region(stack(), kStackBytes);
    fake_stack_ = nullptr;
    // Stacks start at different offsets, so that their tops do not compete for one cache line.
    char* top =
        stack() + kStackBytes - reinterpret_cast<uintptr_t>(stack()) / kStackBytes % 32 * 128;
#ifdef __x86_64__
    top -= 8;  // the alignment that a function expects after a call
    std::memset(top, 0, 8);
#endif
    here_ = {{top}, entry};
  }
  /// Runs the fiber until it calls yield() or finish(). The scheduler calls this.
  void resume() {
    __sanitizer_start_switch_fiber(&scheduler_fake_stack_, stack(), kStackBytes);
    switch_stacks(&scheduler_, &here_);
    __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
  }
  /// Completes a switch to the fiber. Code on its stack must call this first after every switch.
  void arrived() {
    __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_stack_, &scheduler_stack_bytes_);
  }
  /// Switches to the scheduler and returns at the next resume(). The fiber calls this.
  void yield() {
    __sanitizer_start_switch_fiber(&fake_stack_, scheduler_stack_, scheduler_stack_bytes_);
    switch_stacks(&here_, &scheduler_);
    arrived();
  }
  /// Switches to the scheduler and never returns. The fiber calls this.
  [[noreturn]] void finish() {
    __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_);
    switch_stacks(&here_, &scheduler_);
    std::abort();  // a finished fiber is never resumed
  }
  /// Whether the stack has overflowed, judging by its last bytes.
  bool overflowed() const {
    return std::memcmp(stack(), &kCanary, sizeof kCanary) != 0;
  }

 private:
  static constexpr uint64_t kCanary = 0x6c61646465722121;  // last bytes of an intact stack
  char* stack() const {
    return static_cast<char*>(memory_.get());
  }

  std::shared_ptr<void> memory_ = map_zeros(kStackBytes);
  Context here_ = {}, scheduler_ = {};  // where each of the two stopped, while the other runs
  void *fake_stack_ = nullptr, *scheduler_fake_stack_ = nullptr;  // for the sanitizer
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

}  // namespace ladder::sim
