#include "machine/sim/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef LADDER_SANITIZE
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace ladder::sim {
namespace {

#ifdef LADDER_SANITIZE
constexpr size_t kStackBytes = 256 * 1024;  // the sanitizer's redzones make frames larger
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif
constexpr uint64_t kCanary = 0x6c61646465722121;

}  // namespace

// void ladder_switch(void** save, void* load): pushes what the ABI says a callee must keep, stores
// the stack pointer in *save, takes `load` as the stack pointer and pops the same from there.
void ladder_switch(void** save,
                   void* load) asm("ladder_switch");  // the name as it is, on macOS too
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl ladder_switch
ladder_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl ladder_switch
ladder_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "the sim switches stacks in assembly: of this processor there is none here"
#endif

namespace {

thread_local Fiber* starting = nullptr;  // the fiber whose first resume() is under way

}  // namespace

Fiber::Fiber() : stack_(kStackBytes) {
  if (!stack()) throw std::bad_alloc();
  std::memcpy(stack(), &kCanary, sizeof kCanary);
}

Fiber::~Fiber() {
#ifdef LADDER_SANITIZE
  __asan_unpoison_memory_region(stack(), kStackBytes);
#endif
}

void Fiber::start(void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
#ifdef LADDER_SANITIZE
  // A fiber abandoned by a fault leaves its frames' redzones behind.
  __asan_unpoison_memory_region(stack(), kStackBytes);
  fake_stack_ = nullptr;
#endif
  // What ladder_switch pops: zeros for the kept registers, then first_frame as return address.
  auto top = reinterpret_cast<uintptr_t*>(stack() + kStackBytes);
#if defined(__x86_64__)
  *--top = 0;  // first_frame's own return address, and the alignment that the ABI wants of it
  *--top = reinterpret_cast<uintptr_t>(&first_frame);
  for (int i = 0; i < 6; ++i) *--top = 0;
#else
  top -= 20;
  std::memset(top, 0, 160);
  top[11] = reinterpret_cast<uintptr_t>(&first_frame);  // x30, the link register
#endif
  here_ = top;
}

void Fiber::first_frame() {
  Fiber* const self = starting;
  self->arrived();
  self->entry_(self->argument_);
  std::abort();  // entry must end in finish()
}

void Fiber::resume() {
  starting = this;
#ifdef LADDER_SANITIZE
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, stack(), kStackBytes);
#endif
  ladder_switch(&scheduler_, here_);
#ifdef LADDER_SANITIZE
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::to_scheduler([[maybe_unused]] bool for_good) {
#ifdef LADDER_SANITIZE
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, scheduler_stack_,
                                 scheduler_stack_bytes_);
#endif
  ladder_switch(&here_, scheduler_);
  arrived();
}

void Fiber::arrived() {
#ifdef LADDER_SANITIZE
  __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

void Fiber::finish() {
  to_scheduler(true);
  std::abort();  // a finished fiber is never resumed
}

bool Fiber::overflowed() const {
  return std::memcmp(stack(), &kCanary, sizeof kCanary) != 0;
}

}  // namespace ladder::sim
