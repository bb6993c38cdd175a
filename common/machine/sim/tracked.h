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

  /// Checks and counts an access of n bytes at byte offset `at` by the thread of a block that runs:
  /// an atomic addition, or several next to each other, is a read and a write. Faults count in
  /// elements of `element` bytes.
  template <Access access, int n>
  void touch(Block& block, int64_t at, int element = n);

  void forget();                   // contents become poison that nobody wrote
  void mark_written();             // by the host
  HbmCounts take_kernel_counts();  // since the last call; forgets what the kernel touched

 private:
  std::string element_at(int64_t at, int64_t element) const;
  [[noreturn]] void fail(const char* what, int64_t at, int64_t element) const;
  /// Notes an access of which the shadow does not say at a glance that all is well. Faults where
  /// another block was at these bytes and must not have been.
  void note(Block& block, Access access, int64_t at, int n, int element);
  /// And notes what a kernel touches for the first time.
  template <Access access, int n>
  void check(Block& block, int64_t at, int element);

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

template <Access access, int n>
inline void Tracked::check(Block& block, int64_t at, int element) {
  if constexpr (n == 16) {
    check<access, 8>(block, at, element);
    check<access, 8>(block, at + 8, element);
    return;
  }
  constexpr const char* kWhat[] = {"read of", "write to", "atomic addition to"};
  if (at < 0 || at + n > bytes) [[unlikely]]
    fail(kWhat[static_cast<int>(access)], at, element);
  using W = Word<n == 16 ? 8 : n>;
  constexpr bool adds = access == Access::add;
  constexpr W same = repeat<sizeof(W)>(kWritten | (adds                     ? kAddedHere | kShared
                                                   : access == Access::read ? kReadHere
                                                                            : kWrittenHere));
  constexpr W all = same | repeat<sizeof(W)>(kAddedHere);
  // The mark that another block may have been here too; of writes one that `all` rules out.
  constexpr W shared = repeat<sizeof(W)>(adds ? 0 : access == Access::read ? kShared : kAddedHere);
  const W seen = __atomic_load_n(reinterpret_cast<W*>(shadow_ + at), __ATOMIC_RELAXED);
  if ((seen & all) != same || ((seen & shared) != shared && !touches_.only(block.number(), at)))
      [[unlikely]] {
    constexpr W written = repeat<sizeof(W)>(kWritten);
    if (access != Access::write && (seen & written) != written)
      fail("read of unwritten", at, element);
    note(block, access, at, n, element);
  }
}

template <Access access, int n>
inline void Tracked::touch(Block& block, int64_t at, int element) {
  check<access, n>(block, at, element);
  WorkerCounts& counts = counts_[static_cast<size_t>(block.worker())];
  if (access != Access::write) counts.read += n;
  if (access != Access::read) counts.write += n;
  if (Recorder* const r = block.recorder()) [[unlikely]] {
    // Two calls: the recorder tells events apart by where they are reported.
    if (access != Access::write) r->access(this, false, at, at + n);
    if (access != Access::read) r->access(this, true, at, at + n);
  }
}

}  // namespace ladder::sim
