// Arrays in the sim's HBM. Every access by a kernel is checked against the array's shadow and
// counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/mapped.h"
#include "machine/sim/shadow.h"
#include "machine/sim/touches.h"

namespace ladder::sim {

/// Bytes of the host's memory for each byte of an array: itself, its shadow, its part of a cell of
/// Touches.
inline constexpr int kBytesForEach = 3;

/// Returns what was there before. (std::atomic_ref came to libc++ with version 19.)
template <class T>
T add_atomically(T& target, T x) {
  T before, sum;
  __atomic_load(&target, &before, __ATOMIC_RELAXED);
  do sum = before + x;
  while (
      !__atomic_compare_exchange(&target, &before, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

/// An array with its shadow and its counts.
class Tracked : public Array {
 public:
  Tracked(const std::string& name, int64_t bytes, int workers);
  Tracked(const Tracked&) = delete;

  /// Checks and counts an access of n bytes at byte offset `at` by the thread of a block that runs.
  /// Faults count in elements of `element` bytes.
  template <int n>
  void read(Block& block, int64_t at, int element = n);
  template <int n>
  void write(Block& block, int64_t at, int element = n);
  /// Of an atomic addition, or of several next to each other: a read and a write.
  template <int n>
  void add(Block& block, int64_t at, int element = n);

  void forget();                   // contents become poison that nobody wrote
  void mark_written();             // by the host
  HbmCounts take_kernel_counts();  // since the last call; forgets what the kernel touched

 private:
  std::string element_at(int64_t at, int64_t element) const;
  [[noreturn]] void fail(const char* what, int64_t at, int64_t element) const;
  /// Notes an access of which the shadow does not say at a glance that all is well. Faults where
  /// another block was at these bytes and must not have been.
  void note(Block& block, Access access, int64_t at, int n, int element);
  void check(int64_t at, int64_t n, int element, const char* what) const {
    if (at < 0 || at + n > bytes) [[unlikely]]
      fail(what, at, element);
  }

  // And note what a kernel reads or writes for the first time.
  template <int n>
  void check_read(Block& block, int64_t at, int element);
  template <int n>
  void check_write(Block& block, int64_t at, int element);
  template <int n>
  void check_add(Block& block, int64_t at, int element);

  struct alignas(64) WorkerCounts {
    int64_t read = 0, write = 0;
  };
  Mapped contents_, shadow_memory_;
  uint8_t* shadow_;
  Touches touches_;
  std::vector<WorkerCounts> counts_;
};

// Of most accesses the shadow says at a glance that nothing is new and nothing wrong: the block
// alone was here and did the same before, or several blocks were and all did the same.

template <int n>
inline void Tracked::check_read(Block& block, int64_t at, int element) {
  if constexpr (n == 16) {
    check_read<8>(block, at, element);
    check_read<8>(block, at + 8, element);
  } else {
    check(at, n, element, "read of");
    using W = typename Word<n>::type;
    const W seen = __atomic_load_n(reinterpret_cast<W*>(shadow_ + at), __ATOMIC_RELAXED);
    constexpr W same = repeat<n>(kWritten | kReadHere), all = same | repeat<n>(kAddedHere);
    if ((seen & all) != same || ((seen & repeat<n>(kShared)) != repeat<n>(kShared) &&
                                 !touches_.only(block.number(), at))) [[unlikely]] {
      if ((seen & repeat<n>(kWritten)) != repeat<n>(kWritten))
        fail("read of unwritten", at, element);
      note(block, Access::read, at, n, element);
    }
  }
}

template <int n>
inline void Tracked::check_write(Block& block, int64_t at, int element) {
  if constexpr (n == 16) {
    check_write<8>(block, at, element);
    check_write<8>(block, at + 8, element);
  } else {
    check(at, n, element, "write to");
    using W = typename Word<n>::type;
    const W seen = __atomic_load_n(reinterpret_cast<W*>(shadow_ + at), __ATOMIC_RELAXED);
    constexpr W same = repeat<n>(kWritten | kWrittenHere), all = same | repeat<n>(kAddedHere);
    if ((seen & all) != same || !touches_.only(block.number(), at)) [[unlikely]]
      note(block, Access::write, at, n, element);
  }
}

template <int n>
inline void Tracked::check_add(Block& block, int64_t at, int element) {
  if constexpr (n == 16) {
    check_add<8>(block, at, element);
    check_add<8>(block, at + 8, element);
  } else {
    check(at, n, element, "atomic addition to");
    using W = typename Word<n>::type;
    const W seen = __atomic_load_n(reinterpret_cast<W*>(shadow_ + at), __ATOMIC_RELAXED);
    constexpr W same = repeat<n>(kWritten | kAddedHere | kShared);
    if ((seen & same) != same) [[unlikely]] {
      if ((seen & repeat<n>(kWritten)) != repeat<n>(kWritten))
        fail("read of unwritten", at, element);
      note(block, Access::add, at, n, element);
    }
  }
}

template <int n>
inline void Tracked::read(Block& block, int64_t at, int element) {
  check_read<n>(block, at, element);
  counts_[static_cast<size_t>(block.worker())].read += n;
  if (block.tracing()) [[unlikely]]
    block.recorder()->access(this, false, at, at + n);
}

template <int n>
inline void Tracked::write(Block& block, int64_t at, int element) {
  check_write<n>(block, at, element);
  counts_[static_cast<size_t>(block.worker())].write += n;
  if (block.tracing()) [[unlikely]]
    block.recorder()->access(this, true, at, at + n);
}

template <int n>
inline void Tracked::add(Block& block, int64_t at, int element) {
  check_add<n>(block, at, element);
  WorkerCounts& counts = counts_[static_cast<size_t>(block.worker())];
  counts.read += n;
  counts.write += n;
  if (block.tracing()) [[unlikely]] {
    block.recorder()->access(this, false, at, at + n);
    block.recorder()->access(this, true, at, at + n);
  }
}

}  // namespace ladder::sim
