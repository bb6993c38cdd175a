// Arrays in the sim's HBM. Every access by a kernel is checked against the array's shadow and
// counted; and against what other blocks of the same kernel did there. In what order blocks run is
// not known, so where one touches what another wrote, or writes what another touched, the result is
// up to chance. Atomic additions may meet each other, and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/mapped.h"
#include "machine/sim/shadow.h"

namespace ladder::sim {

enum class Access : uint8_t { read, write, add };

/// What an access leaves in the shadow of a byte, beside kWritten.
constexpr unsigned mark_of(Access access) {
  return access == Access::read ? kReadHere : access == Access::write ? kWrittenHere : kAddedHere;
}

/// Which blocks of the kernel under way touched which bytes of an array, in cells of 8 bytes. The
/// cell and the shadow's bits hold the common cases: one block, or only readers; others go to a
/// list.
class Touches {
 public:
  /// A block, by Block::number(), and what it did.
  struct Touch {
    uint32_t block;
    Access access;
  };

  /// For an array of that many bytes. Its shadow is zero to begin with, and whole cells long.
  Touches(int64_t bytes, uint8_t* shadow);

  /// Whether the host had the memory for it.
  bool ready() const { return cells_.data(); }
  /// Whether the block alone has touched the cell of byte `at`.
  bool only(uint32_t block, int64_t at) const {
    return __atomic_load_n(&cell(at).first, __ATOMIC_RELAXED) == block;
  }
  /// Notes an access to n bytes of one cell, in the shadow too. Returns what another block did to
  /// them that must not meet it.
  std::optional<Touch> note(uint32_t block, Access access, int64_t at, int n);
  /// For the next kernel. The shadow is the caller's to clear.
  void forget();

 private:
  struct Cell {
    uint32_t first;   // the first block to touch it; 0: none; kInList: see there
    uint32_t second;  // the other one to touch bytes that are marked as shared
  };
  static constexpr uint32_t kInList = 0xffffffff;
  struct Listed : Touch {
    uint64_t bytes;  // of the cell: a one in each
  };
  /// What one OS thread at a time may change: every 64th page has the same.
  struct Part {
    std::atomic_flag taken = {};
    void lock() {  // for so short a time that a mutex would cost more
      while (taken.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    void unlock() { taken.clear(std::memory_order_release); }
    std::unordered_map<int64_t, std::vector<Listed>> lists;  // by cell
  };

  Cell& cell(int64_t at) const { return static_cast<Cell*>(cells_.data())[at / 8]; }

  const int64_t bytes_;
  uint8_t* const shadow_;
  Mapped cells_;
  Part parts_[64];
};

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

  void mark_written();             // by the host
  HbmCounts take_kernel_counts();  // since the last call
  /// For the next kernel: what the last one touched is forgotten, or, where that starts early,
  /// remembered as the kernel before's.
  void start_kernel(bool early);

 private:
  template <Access access, int n>
  void check(Block& block, int64_t at, int element);
  /// An access of which the shadow does not say at a glance that nothing is new and nothing wrong:
  /// notes it, or faults.
  void note(Block& block, Access access, int64_t at, int n, int element);

  struct alignas(64) WorkerCounts {
    int64_t read = 0, write = 0;
  };
  Mapped contents_, shadow_memory_;
  uint8_t* shadow_;
  Touches touches_;
  std::vector<WorkerCounts> counts_;
  bool touched_ = false;  // by the last kernel, or those before it that it did not wait for
};

template <Access access, int n>
inline void Tracked::check(Block& block, int64_t at, int element) {
  if constexpr (n == 16) {
    check<access, 8>(block, at, element);
    check<access, 8>(block, at + 8, element);
  } else if (at < 0 || at + n > bytes) [[unlikely]] {
    note(block, access, at, n, element);
  } else {
    // All is well where the block did the same before and was here alone, or several did that
    // may meet; and no kernel before. (The shadow is read first: who else comes to a cell says so
    // there last.)
    constexpr auto done = repeat<n>(kWritten | mark_of(access)), shared = repeat<n>(kShared);
    constexpr auto before = repeat<n>(kReadBefore | kWrittenBefore);
    const auto seen = __atomic_load_n(reinterpret_cast<Word<n>*>(shadow_ + at), __ATOMIC_ACQUIRE);
    if ((seen & (done | before)) != done ||
        ((seen & shared) != shared && !touches_.only(block.number(), at))) [[unlikely]]
      note(block, access, at, n, element);
  }
}

template <Access access, int n>
inline void Tracked::touch(Block& block, int64_t at, int element) {
  check<access, n>(block, at, element);
  WorkerCounts& counts = counts_[block.worker()];
  if (access != Access::write) counts.read += n;
  if (access != Access::read) counts.write += n;
  if (Recorder* const r = block.recorder()) [[unlikely]] {
    if (access != Access::write) r->access(EventKind::read, *this, at, at + n);
    if (access != Access::read) r->access(EventKind::write, *this, at, at + n);
  }
}

}  // namespace ladder::sim
