// Arrays in the simulator's HBM. Every access by a kernel is checked against the array's shadow and
// counted; and against what other blocks of the same kernel did there. In what order blocks run is
// not known, so where one touches what another wrote, or writes what another touched, the result is
// up to chance. Atomic additions may meet each other, and nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/mapped.h"

namespace ladder::sim {

enum class Access : uint8_t { read, write, add };

/// What an access leaves in the shadow of a byte, beside kWritten.
constexpr unsigned mark_of(Access access) {
  return access == Access::read ? kReadHere : access == Access::write ? kWrittenHere : kAddedHere;
}

/// Host bytes for each byte of an array: itself, its shadow, and half of the first block's number.
inline constexpr int kBytesForEach = 4;

/// Returns what was there before. (std::atomic_ref came to libc++ with version 19.)
template <class T>
[[gnu::always_inline]] inline T add_atomically(T& target, T x) {
  T before, sum;
  __atomic_load(&target, &before, __ATOMIC_RELAXED);
  do sum = before + x;
  while (
      !__atomic_compare_exchange(&target, &before, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

/// Accesses of a lane that follow each other at equal distances, all of as many bytes. A place is
/// kept with that number above kWidth, so that both are compared at once.
struct AccessRun {
  int64_t begin = 0, stride = 0;
  int64_t next = 0;   // where it goes on; 0: not known
  int64_t count = 0;  // where the stride is 0; of others once they have ended
  static constexpr int kWidth = 56;
};
using AccessRuns = std::vector<AccessRun>;

/// An array with its shadow and its counts. `data`, the address that host code sees, cannot be
/// read or written, as a GPU's host cannot touch the GPU's memory: what does so ends the program
/// with a message. Kernels reach the contents through Hbm, which checks and counts each access.
class TrackedArray : public Array {
 public:
  TrackedArray(const std::string& name, int64_t bytes, int workers);
  TrackedArray(const TrackedArray&) = delete;
  ~TrackedArray();

  /// Checks an access of n bytes at byte offset `at` by the thread of a block that runs: an atomic
  /// addition, or several next to each other, is a read and a write. Faults count in elements of
  /// `element` bytes.
  template <Access access, int n>
  void check_access(Block& block, int64_t at, int element = n);
  /// Counts an access by a lane, with which those of the warp's other lanes go.
  template <Access access, int n>
  void record_access(Block& block, int64_t at);
  /// Counts what the lanes of a warp asked for since this was last called for it.
  void count_recorded(Block& block, int warp);
  /// Counts bytes and sectors that are read, or written.
  void count(Block& block, bool writes, int64_t bytes, int64_t sectors);

  /// Only for what counts the access, and for copies from and to the host.
  void* contents() const { return contents_.get(); }
  void mark_written();             // by the host
  HbmCounts take_kernel_counts();  // since the last call
  /// For the next kernel: what the last one touched is forgotten, or, where that starts early,
  /// remembered as the kernel before's.
  void start_kernel(bool early);

 private:
  template <Access access, int n>
  void check(Block& block, int64_t at, int element);
  /// Notes an access that the shadow does not show at a glance to be as those before, or faults.
  void check_slow(Block& block, Access access, int64_t at, int n, int element);

  /// That of the running thread.
  AccessRun& run_of(const Block& block, bool writes) {
    return static_cast<AccessRun*>(runs_.get())[block.slot() + writes * kMaxThreads];
  }
  /// The access begins or ends a run.
  void start_run(Block& block, bool writes, int64_t place);

  struct alignas(64) Counted {
    int64_t bytes = 0, sectors = 0;
    std::vector<AccessRuns> before;  // of each thread, but for the run that it is in
  };
  std::shared_ptr<void> addresses_, contents_, shadow_memory_, first_memory_, runs_;
  uint8_t* shadow_;
  /// Of each two bytes the block, by Block::number(), that came first in this kernel; 0: none yet.
  /// (Two blocks must not have a byte each of them: single bytes are read and written 8 at a time.)
  uint32_t* first_;
  std::vector<std::array<Counted, 2>> counts_;  // of each worker: reads, writes
  bool touched_ = false;  // by the last kernel, or those before it that it did not wait for
};

template <Access access, int n>
inline void TrackedArray::check(Block& block, int64_t at, int element) {
  if constexpr (n == 16) {
    check<access, 8>(block, at, element);
    check<access, 8>(block, at + 8, element);
  } else if (at < 0 || at + n > bytes) [[unlikely]] {
    check_slow(block, access, at, n, element);
  } else {
    // All is well where the block did the same before and was the first here, or several did that
    // may meet; and no kernel before. (Whoever comes second finds what it was that the first did.)
    constexpr auto done = repeat<n>(kWritten | mark_of(access)), shared = repeat<n>(kShared);
    constexpr auto before = repeat<n>(kReadBefore | kWrittenBefore);
    const auto seen = __atomic_load_n(reinterpret_cast<Word<n>*>(shadow_ + at), __ATOMIC_RELAXED);
    const auto came_first = [&] {
      bool alone = true;
      for (int64_t two = at / 2; 2 * two < at + n; ++two)
        alone &= __atomic_load_n(&first_[two], __ATOMIC_RELAXED) == block.number();
      return alone;
    };
    if ((seen & (done | before)) != done || ((seen & shared) != shared && !came_first()))
        [[unlikely]]
      check_slow(block, access, at, n, element);
  }
}

template <Access access, int n>
inline void TrackedArray::check_access(Block& block, int64_t at, int element) {
  check<access, n>(block, at, element);
  if (Recorder* const r = block.recorder()) [[unlikely]] {
    if (access != Access::write) r->access(EventKind::read, *this, at, at + n);
    if (access != Access::read) r->access(EventKind::write, *this, at, at + n);
  }
}

template <Access access, int n>
inline void TrackedArray::record_access(Block& block, int64_t at) {
  const int64_t place = at + (int64_t{n} << AccessRun::kWidth);
  const auto add = [&](bool writes) {
    AccessRun& run = run_of(block, writes);
    if (place == run.next) [[likely]]
      run.next += run.stride;
    else
      start_run(block, writes, place);
  };
  if (access != Access::write) add(false);
  if (access != Access::read) add(true);
}

}  // namespace ladder::sim
