// Which blocks of the kernel under way touched which bytes of an array. In what order blocks run is
// not known, so where one touches what another wrote in the same kernel, or writes what another
// touched, the result is up to chance. Atomic additions may meet each other, and nothing else.
//
// Arrays are looked at in cells of 8 bytes. Nearly always a cell is one block's, or several blocks
// read it and none writes: then its first two visitors and the shadow's bits tell all. Where blocks
// share a cell in other ways, a table says of each of its bytes who did what.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "machine/sim/mapped.h"

namespace ladder::sim {

enum class Access : uint8_t { read, write, add };

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
    uint32_t first;   // the first block to touch it; 0: none; kInTable: the table has it
    uint32_t second;  // the first other one to touch bytes that are marked as shared
  };
  /// Of a byte: two blocks for each kind of access, 0 for none. Two are enough to tell, whoever
  /// comes next, whether another one was there.
  using ByteRecord = std::array<std::array<uint32_t, 2>, 3>;

  Cell& cell(int64_t at) const { return static_cast<Cell*>(cells_.data())[at / 8]; }
  bool note_own(uint64_t* shadow, uint64_t here, Access access);
  bool note_shared(Cell& cell, uint64_t* shadow, uint64_t here, uint32_t block, Access access);
  std::optional<Touch> note_in_table(uint32_t block, Access access, int64_t at, int n);

  const int64_t bytes_;
  uint8_t* const shadow_;
  Mapped cells_;
  std::mutex mutex_;  // of the table
  std::unordered_map<int64_t, std::array<ByteRecord, 8>> table_;
};

}  // namespace ladder::sim
