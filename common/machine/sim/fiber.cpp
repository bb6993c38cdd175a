#include "machine/sim/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef LADDER_SANITIZE
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__) || defined(__aarch64__)
#define LADDER_SWITCH_IN_ASSEMBLY 1
#else
#include <ucontext.h>
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

#ifdef LADDER_SWITCH_IN_ASSEMBLY
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
#else
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
#endif
#endif

struct Fiber::Impl {
  char* stack = nullptr;
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;
#ifdef LADDER_SWITCH_IN_ASSEMBLY
  void* here = nullptr;       // the fiber's stack pointer while it waits
  void* scheduler = nullptr;  // the scheduler's while the fiber runs
#else
  ucontext_t here;
  ucontext_t scheduler;
#endif
#ifdef LADDER_SANITIZE
  void* fake_stack = nullptr;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
#endif

  void to_fiber() {
#ifdef LADDER_SANITIZE
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, stack, kStackBytes);
#endif
#ifdef LADDER_SWITCH_IN_ASSEMBLY
    ladder_switch(&scheduler, here);
#else
    swapcontext(&scheduler, &here);
#endif
#ifdef LADDER_SANITIZE
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
  }

  void to_scheduler([[maybe_unused]] bool for_good) {
#ifdef LADDER_SANITIZE
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack, scheduler_stack,
                                   scheduler_stack_bytes);
#endif
#ifdef LADDER_SWITCH_IN_ASSEMBLY
    ladder_switch(&here, scheduler);
#else
    swapcontext(&here, &scheduler);
#endif
    arrived();
  }

  // First thing on the fiber's stack after every switch to it.
  void arrived() {
#ifdef LADDER_SANITIZE
    __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
  }
};

namespace {

thread_local Fiber::Impl* starting = nullptr;  // the fiber whose first resume() is under way

void first_frame() {
  Fiber::Impl* self = starting;
  self->arrived();
  self->entry(self->argument);
  std::abort();  // entry must end in finish()
}

}  // namespace

Fiber::Fiber() : impl_(new Impl) {
  void* p = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    delete impl_;
    throw std::bad_alloc();
  }
  impl_->stack = static_cast<char*>(p);
  std::memcpy(impl_->stack, &kCanary, sizeof kCanary);
}

Fiber::~Fiber() {
#ifdef LADDER_SANITIZE
  __asan_unpoison_memory_region(impl_->stack, kStackBytes);
#endif
  munmap(impl_->stack, kStackBytes);
  delete impl_;
}

void Fiber::start(void (*entry)(void*), void* argument) {
  impl_->entry = entry;
  impl_->argument = argument;
#ifdef LADDER_SANITIZE
  // A fiber abandoned by a fault leaves its frames' redzones behind.
  __asan_unpoison_memory_region(impl_->stack, kStackBytes);
  impl_->fake_stack = nullptr;
#endif
#ifdef LADDER_SWITCH_IN_ASSEMBLY
  // What ladder_switch pops: zeros for the kept registers, then first_frame as return address.
  auto top = reinterpret_cast<uintptr_t*>(impl_->stack + kStackBytes);
#if defined(__x86_64__)
  *--top = 0;  // first_frame's own return address, and the alignment that the ABI wants of it
  *--top = reinterpret_cast<uintptr_t>(&first_frame);
  for (int i = 0; i < 6; ++i) *--top = 0;
#else
  top -= 20;
  std::memset(top, 0, 160);
  top[11] = reinterpret_cast<uintptr_t>(&first_frame);  // x30, the link register
#endif
  impl_->here = top;
#else
  getcontext(&impl_->here);
  impl_->here.uc_stack.ss_sp = impl_->stack;
  impl_->here.uc_stack.ss_size = kStackBytes;
  impl_->here.uc_link = nullptr;
  makecontext(&impl_->here, first_frame, 0);
#endif
}

void Fiber::resume() {
  starting = impl_;
  impl_->to_fiber();
}

void Fiber::yield() {
  impl_->to_scheduler(false);
}

void Fiber::finish() {
  impl_->to_scheduler(true);
  std::abort();  // a finished fiber is never resumed
}

bool Fiber::overflowed() const {
  return std::memcmp(impl_->stack, &kCanary, sizeof kCanary) != 0;
}

}  // namespace ladder::sim
