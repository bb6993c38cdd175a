// Arrays in the simulator's HBM. Every access by a kernel is counted, and checked against the
// array's shadow and against the accesses of other blocks of the kernel. Blocks run in no defined
// order, so a block must not touch what another wrote, nor write what another touched. Only atomic
// additions may meet each other.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/mapped.h"

namespace ladder::sim {

enum class Access : uint8_t { read, write, add };

/// Returns the bit that an access sets in a byte's shadow, in addition to kWritten.
constexpr unsigned mark_of(Access access) {
  return access == Access::read ? kReadHere : access == Access::write ? kWrittenHere : kAddedHere;
}

/// Host bytes per byte of an array: 1, its shadow 1, and 2 for half of the first block's number.
inline constexpr int kBytesForEach = 4;

/// Adds x atomically and returns the old value. (libc++ has std::atomic_ref only since version 19.)
template <class T>
[[gnu::always_inline]] inline T add_atomically(T& target, T x) {
  T before, sum;
  __atomic_load(&target, &before, __ATOMIC_RELAXED);
  do sum = before + x;
  while (
      !__atomic_compare_exchange(&target, &before, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

/// Consecutive accesses of a lane at equal distances, all of the same width. A place holds the
/// offset, and above bit kWidth the width in bytes, so that one comparison covers both.
struct AccessRun {
  int64_t begin = 0, stride = 0;
  int64_t next = 0;   // the expected next place; 0: not known
  int64_t count = 0;  // valid if the stride is 0, or once the run has ended
  static constexpr int kWidth = 56;
};
using AccessRuns = std::vector<AccessRun>;

/// An array with its shadow and its counts. Its `data` cannot be read or written, just as host code
/// cannot touch a GPU's memory: an attempt ends the program with a message. Kernels reach the
/// contents through Hbm, which checks and counts each access.
class TrackedArray : public Array {
 public:
  TrackedArray(const std::string& name, int64_t bytes, int workers);
  TrackedArray(const TrackedArray&) = delete;
  ~TrackedArray();

  /// Checks an access of n bytes at byte offset `at` by the running thread of a block. An atomic
  /// addition, or several neighbouring ones, is a read and a write. Faults name the index in
  /// elements of `element` bytes.
  template <Access access, int n>
  void check_access(Block& block, int64_t at, int element = n);
  /// Records an access by a lane, which count_recorded() will join with those of the other lanes.
  template <Access access, int n>
  void record_access(Block& block, int64_t at);
  /// Counts the recorded accesses of a warp's lanes since the last call for that warp.
  void count_recorded(Block& block, int warp);
  /// Counts bytes and sectors, as written or as read.
  void count(Block& block, bool writes, int64_t bytes, int64_t sectors);

  /// For callers that count the access themselves, and for copies from and to the host.
  void* contents() const { return contents_.get(); }
  void mark_written();             // by the host
  HbmCounts take_kernel_counts();  // since the last call
  /// Prepares for the next kernel: forgets what the last one touched, or, if the next starts early,
  /// remembers it as the previous kernel's.
  void start_kernel(bool early);

 private:
  template <Access access, int n>
  void check(Block& block, int64_t at, int element);
  /// Marks an access that check() cannot pass at a glance, or faults.
  void check_slow(Block& block, Access access, int64_t at, int n, int element);

  /// Returns the running thread's run of reads or writes.
  AccessRun& run_of(const Block& block, bool writes) {
    return static_cast<AccessRun*>(runs_.get())[block.slot() + writes * kMaxThreads];
  }
  /// Handles an access that begins or ends a run.
  void start_run(Block& block, bool writes, int64_t place);

  struct alignas(64) Counted {
    int64_t bytes = 0, sectors = 0;
    std::vector<AccessRuns> before;  // per thread, without its current run
  };
  std::shared_ptr<void> addresses_, contents_, shadow_memory_, first_memory_, runs_;
  uint8_t* shadow_;
  /// For every two bytes the Block::number() of the first block that touched them in this kernel;
  /// 0: none yet. (Two blocks never share such a pair, because single bytes are accessed 8 at a
  /// time.)
  uint32_t* first_;
  std::vector<std::array<Counted, 2>> counts_;  // per worker: reads, writes
  bool touched_ = false;  // by the last kernel, or by earlier ones that it did not wait for
};

template <Access access, int n>
inline void TrackedArray::check(Block& block, int64_t at, int element) {
  if constexpr (n == 16) {
    check<access, 8>(block, at, element);
    check<access, 8>(block, at + 8, element);
  } else if (at < 0 || at + n > bytes) [[unlikely]] {
    check_slow(block, access, at, n, element);
  } else {
    // The access passes if this block did the same before and came first, or if several blocks did
    // the same and may meet, and if no previous kernel is involved.
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
