// Arrays in the sim's HBM. Every access by a kernel is checked against the array's shadow and
// counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/shadow.h"

namespace ladder::sim {

/// An array with its shadow and its counts.
class Tracked : public Array {
 public:
  Tracked(const std::string& name, int64_t bytes, int workers);
  ~Tracked();
  Tracked(const Tracked&) = delete;

  /// Checks and counts an access of n bytes at byte offset `at` by the thread of a block that runs.
  /// Faults count in elements of `element` bytes.
  template <int n>
  void read(Block& block, int64_t at, int element = n);
  template <int n>
  void write(Block& block, int64_t at, int element = n);

  void forget();                   // contents become poison that nobody wrote
  void mark_written();             // by the host
  HbmCounts take_kernel_counts();  // since the last call; clears the kernel's shadow bits

 private:
  [[noreturn]] void fail(const char* what, int64_t at, int64_t element) const;
  void check(int64_t at, int64_t n, int element, const char* what) const {
    if (at < 0 || at + n > bytes) [[unlikely]]
      fail(what, at, element);
  }

  // And note what a kernel reads or writes for the first time.
  template <int n>
  void check_read(int64_t at, int element);
  template <int n>
  void check_write(int64_t at, int element);

  struct alignas(64) WorkerCounts {
    int64_t read = 0, write = 0;
  };
  uint8_t* shadow_;
  std::vector<WorkerCounts> counts_;
};

template <int n>
inline void Tracked::check_read(int64_t at, int element) {
  if constexpr (n == 16) {
    check_read<8>(at, element);
    check_read<8>(at + 8, element);
  } else {
    check(at, n, element, "read of");
    using W = typename Word<n>::type;
    W* const s = reinterpret_cast<W*>(shadow_ + at);
    const W seen = __atomic_load_n(s, __ATOMIC_RELAXED);
    constexpr W want = repeat<n>(kWritten | kReadHere);
    if ((seen & want) != want) [[unlikely]] {
      if ((seen & repeat<n>(kWritten)) != repeat<n>(kWritten))
        fail("read of unwritten", at, element);
      __atomic_fetch_or(s, repeat<n>(kReadHere), __ATOMIC_RELAXED);
    }
  }
}

template <int n>
inline void Tracked::check_write(int64_t at, int element) {
  if constexpr (n == 16) {
    check_write<8>(at, element);
    check_write<8>(at + 8, element);
  } else {
    check(at, n, element, "write to");
    using W = typename Word<n>::type;
    W* const s = reinterpret_cast<W*>(shadow_ + at);
    constexpr W want = repeat<n>(kWritten | kWrittenHere);
    if ((__atomic_load_n(s, __ATOMIC_RELAXED) & want) != want)
      __atomic_fetch_or(s, want, __ATOMIC_RELAXED);
  }
}

template <int n>
inline void Tracked::read(Block& block, int64_t at, int element) {
  check_read<n>(at, element);
  counts_[static_cast<size_t>(block.worker())].read += n;
  if (block.tracing()) [[unlikely]]
    block.trace_access(this, false, at, at + n);
}

template <int n>
inline void Tracked::write(Block& block, int64_t at, int element) {
  check_write<n>(at, element);
  counts_[static_cast<size_t>(block.worker())].write += n;
  if (block.tracing()) [[unlikely]]
    block.trace_access(this, true, at, at + n);
}

}  // namespace ladder::sim
