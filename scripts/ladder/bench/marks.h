// What scripts/figures clock writes into its copies of kernels: marks of the SM's clock. Those of a
// consumer are in shared memory until the block's end, and in HBM then; of the last launch they
// come out as a file. Above the #include stand kFirst and kSteps, the steps that are marked, and a
// step's kMarks.
#pragma once

#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "machine/hopper.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {

// On the sim they compile, and are 0.
__device__ __forceinline__ unsigned cycles_now() {
  unsigned now = 0;
#ifndef LADDER_SIM
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
#endif
  return now;
}
__device__ __forceinline__ unsigned nanoseconds_now() {
  unsigned now = 0;
#ifndef LADDER_SIM
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now)::"memory");
#endif
  return now;
}

constexpr int kBlocksMarked = 4096, kConsumersMarked = 3;  // room for
/// Of a consumer: the steps' marks; cycles and nanoseconds when it began, and when it ended.
constexpr int kWords = kSteps * kMarks + 4;
static __device__ unsigned marks_of_blocks[kBlocksMarked * kConsumersMarked * kWords];

struct Marks {
  static constexpr int64_t kBytes = shared_bytes<int>(kConsumersMarked * kWords);
  Smem<int> words;
  int warp = uniform(warp_id());  // in a register of the warp: kernels have few of a thread's left

  __device__ explicit Marks(SharedMemory& smem)
      : words(smem.take<int>("marks", kConsumersMarked * kWords)) {
    stamp(kWords - 4);
  }
  /// A consumer's first warp marks, all lanes the same.
  __device__ __forceinline__ bool marks() const { return warp >= 4 && warp % 4 == 0; }
  __device__ __forceinline__ int at(int word) const { return (warp / 4 - 1) * kWords + word; }
  __device__ __forceinline__ void stamp(int word) const {
    if (!marks()) return;
    words[at(word)] = static_cast<int>(cycles_now());
    words[at(word + 1)] = static_cast<int>(nanoseconds_now());
  }
  __device__ __forceinline__ void add(int step, int mark) const {
    if (marks() && step >= kFirst && step < kFirst + kSteps)
      words[at(kMarks * (step - kFirst) + mark)] = static_cast<int>(cycles_now());
  }
  __device__ void end() const {
    stamp(kWords - 2);
    if (marks() && blockIdx.x < kBlocksMarked)
      for (int word = 0; word < kWords; ++word)
        marks_of_blocks[blockIdx.x * kConsumersMarked * kWords + at(word)] =
            static_cast<unsigned>(words[at(word)]);
  }
};

/// Launches: the first time for two seconds or so, since the card is warm then, and the marks of
/// the last launch go into the file that MARKS names.
template <class Launch>
void marked(Launch launch) {
  static int times = 2000;
  for (int n = times; n > 0; --n) launch();
  if (std::exchange(times, 1) == 1) return;
  std::vector<unsigned> words(std::size(marks_of_blocks));
#ifndef LADDER_SIM
  if (cudaMemcpyFromSymbol(words.data(), marks_of_blocks, sizeof marks_of_blocks) != cudaSuccess)
    return;
#endif
  if (const char* path = std::getenv("MARKS"))
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(words.data()), sizeof marks_of_blocks);
}

}  // namespace ladder::MACHINE
