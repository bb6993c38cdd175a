// What scripts/figures clock writes into its copies of kernels: marks of the SM's clock. Those of a
// consumer are in shared memory until the block's end, and come out in the place of its rows' LSE.
// Above the #include stand kFirst and kSteps, the steps that are marked, and a step's kMarks.
#pragma once

#include <utility>

#include "machine/hopper.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {

// On the sim they compile, and are 0.
__device__ __forceinline__ int cycles_now() {
  int now = 0;
#ifndef LADDER_SIM
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
#endif
  return now;
}
__device__ __forceinline__ int nanoseconds_now() {
  int now = 0;
#ifndef LADDER_SIM
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now)::"memory");
#endif
  return now;
}

struct Marks {
  static constexpr int kRows = 64;                 // of a consumer: a word each
  static constexpr int kCycles = kSteps * kMarks;  // of the block, after the marks
  static constexpr int kNanoseconds = kCycles + 1;
  static_assert(kNanoseconds < kRows - 2);  // the first consumer's last two are the block's begin

  Smem<int> words;

  __device__ Marks(SharedMemory& smem, int consumers)
      : words(smem.take<int>("marks", kRows * consumers)) {
    if (threadIdx.x == 0) words[kRows - 1] = cycles_now(), words[kRows - 2] = nanoseconds_now();
  }
  static int64_t bytes(int consumers) { return shared_bytes<int>(kRows * consumers); }

  __device__ __forceinline__ void add(int consumer, int step, int mark) const {
    if (threadIdx.x % kWarpgroup == 0 && step >= kFirst && step < kFirst + kSteps)
      words[kRows * consumer + kMarks * (step - kFirst) + mark] = cycles_now();
  }
  __device__ __forceinline__ void end(int consumer) const {
    if (threadIdx.x % kWarpgroup != 0) return;
    words[kRows * consumer + kCycles] = cycles_now();
    words[kRows * consumer + kNanoseconds] = nanoseconds_now();
  }
  /// All since the block began, over LSE from a row on, of which there are so many more.
  __device__ void store(Hbm<float> LSE, int64_t row, int rows, int consumer) const {
    named_barrier_sync(12 + consumer, kWarpgroup);  // after LSE itself
    const int word = static_cast<int>(threadIdx.x) % kWarpgroup;
    if (word > kNanoseconds || word >= rows) return;
    LSE[row + word] = static_cast<float>(words[kRows * consumer + word] -
                                         words[kRows - (word == kNanoseconds ? 2 : 1)]);
  }
};

/// Two seconds of launches at first, whose last is what --save keeps: the card is warm then.
inline int times_to_launch() {
  static int times = 2000;
  return std::exchange(times, 1);
}

}  // namespace ladder::MACHINE
