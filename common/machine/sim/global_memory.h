// Represents arrays in the simulator's HBM. Every access by a kernel is counted, and checked
// against the array's shadow (ShadowBit in shared_memory.h) and against the kernel's other blocks.
// Blocks run in no defined order, so a block must not touch bytes that another block wrote, nor
// write bytes that another block touched; but several blocks may add atomically to the same bytes.
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

/// Host bytes per byte of an array: 1 for its contents, 1 for its shadow, and 2 for the number of
/// the block that touched it first (a number takes 4 bytes and serves a pair of bytes).
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

/// A run of consecutive accesses by one lane, `stride` bytes apart and of the same width: it takes
/// less memory and time than a list. In `begin` and `next` the lower kWidth bits hold the byte
/// offset, and the bits above them the width in bytes, so that one comparison covers both.
struct AccessRun {
  int64_t begin = 0, stride = 0;
  int64_t next = 0;   // where the next access is expected; 0: unknown
  int64_t count = 0;  // number of accesses; valid if the stride is 0, or once the run has ended
  static constexpr int kWidth = 56;
};
using AccessRuns = std::vector<AccessRun>;

/// An array with its shadow and its counts. An access through `data` ends the program with a
/// message, as host code cannot touch a GPU's memory. Kernels use Hbm, which checks and counts.
class TrackedArray : public Array {
 public:
  /// Allocates `bytes` poisoned bytes, for kernels that `workers` OS threads run. Throws
  /// Error(no_device) if the host's memory runs out.
  TrackedArray(const std::string& name, int64_t bytes, int workers);
  TrackedArray(const TrackedArray&) = delete;
  ~TrackedArray();

  /// Faults if the block's running thread must not access n bytes at byte offset `at`. An atomic
  /// addition is a read and a write. Messages give the index in elements of `element` bytes.
  template <Access access, int n>
  void check_access(Block& block, int64_t at, int element = n);
  /// Records an access by the running lane, which count_recorded() combines with other lanes'.
  template <Access access, int n>
  void record_access(Block& block, int64_t at);
  /// Counts the accesses of a warp's lanes that were recorded since the last call for that warp.
  void count_recorded(Block& block, int warp);
  /// Adds to the counts of bytes and sectors, as written if `writes`, else as read.
  void count(Block& block, bool writes, int64_t bytes, int64_t sectors);

  /// Returns the contents, for callers that count the access themselves and for the host's copies.
  void* contents() const { return contents_.get(); }
  void mark_written();             // marks all bytes as written by the host
  HbmCounts take_kernel_counts();  // returns the counts since the last call
  /// Prepares for the next kernel: forgets which bytes the previous kernel touched, or, if the next
  /// one starts early, remembers them as the previous kernel's.
  void start_kernel(bool early);

 private:
  template <Access access, int n>
  void check(Block& block, int64_t at, int element);
  /// Handles an access that check()'s fast path does not let pass: marks it, or faults.
  void check_slow(Block& block, Access access, int64_t at, int n, int element);

  /// Returns the running thread's current run of reads or writes.
  AccessRun& run_of(const Block& block, bool writes) {
    return static_cast<AccessRun*>(runs_.get())[block.slot() + writes * kMaxThreads];
  }
  /// Handles an access that begins or ends a run. `place` is its offset and width, as in `begin`.
  void start_run(Block& block, bool writes, int64_t place);

  struct alignas(64) Counted {
    int64_t bytes = 0, sectors = 0;
    std::vector<AccessRuns> before;  // per thread: completed runs
  };
  std::shared_ptr<void> addresses_, contents_, shadow_memory_, first_memory_, runs_;
  uint8_t* shadow_;
  /// For each pair of bytes, the Block::number() of the first block that touched it in this kernel,
  /// or 0. (Two blocks never share a pair, because 1-byte elements are accessed 8 at a time.)
  uint32_t* first_;
  std::vector<std::array<Counted, 2>> counts_;  // per worker: reads, writes
  bool touched_ = false;  // by the previous kernel, or by an earlier one that may still run
};

template <Access access, int n>
inline void TrackedArray::check(Block& block, int64_t at, int element) {
  if constexpr (n == 16) {
    check<access, 8>(block, at, element);
    check<access, 8>(block, at + 8, element);
  } else if (at < 0 || at + n > bytes) [[unlikely]] {
    check_slow(block, access, at, n, element);
  } else {
    // The fast path: the access passes if no previous kernel is involved and the same kind of
    // access was made before, either (a) by this block, which was the first to touch the bytes, or
    // (b) by several blocks, whose accesses of this kind do not conflict.
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
