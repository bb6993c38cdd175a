#include "machine/sim/tracked.h"

#include <fmt/format.h>

#include <cstring>

namespace ladder::sim {
namespace {

constexpr const char* kDoes[] = {"reads", "writes", "adds atomically to"};
constexpr const char* kDid[] = {"read", "wrote", "added to atomically"};

constexpr uint32_t kInTable = 0xffffffff;

constexpr bool may_meet(Access a, Access b) {
  return a == b && a != Access::write;
}

/// What an access leaves in the shadow of a byte.
constexpr unsigned mark_of(Access access) {
  switch (access) {
    case Access::read:
      return kReadHere;
    case Access::write:
      return kWritten | kWrittenHere;
    default:
      return kReadHere | kWritten | kWrittenHere | kAddedHere;
  }
}

int64_t cells_bytes(int64_t bytes, size_t cell) {
  return (bytes + 7) / 8 * static_cast<int64_t>(cell);
}

}  // namespace

// ---------------------------------------------------------------------------------------- an array

Tracked::Tracked(const std::string& array_name, int64_t size, int workers)
    : contents_(size),
      shadow_memory_((size + 7) / 8 * 8),  // Touches has cells of 8 bytes
      shadow_(static_cast<uint8_t*>(shadow_memory_.data())),
      touches_(size, shadow_),
      counts_(static_cast<size_t>(workers)) {
  name = array_name;
  bytes = size;
  data = contents_.data();
  if (!data || !shadow_ || !touches_.ready())
    throw Error(Exit::no_device,
                fmt::format("the host has no {} bytes left for {} and what the sim notes of it",
                            kBytesForEach * size, name));
  std::memset(data, 0xff, static_cast<size_t>(bytes));
}

std::string Tracked::element_at(int64_t at, int64_t element) const {
  return fmt::format("{}[{}] (element of {} bytes; the array has {})", name,
                     at >= 0 ? at / element : -((-at + element - 1) / element), element,
                     bytes / element);
}

void Tracked::fail(const char* what, int64_t at, int64_t element) const {
  fault(fmt::format("{} {}", what, element_at(at, element)));
}

void Tracked::note(Block& block, Access access, int64_t at, int n, int element) {
  if (const auto other = touches_.note(block.number(), access, at, n))
    fault(
        fmt::format("{} {}, which block {} {} in the same kernel: in which order blocks run is "
                    "not known",
                    kDoes[static_cast<size_t>(access)], element_at(at, element),
                    block.index_of(other->block), kDid[static_cast<size_t>(other->access)]));
}

void Tracked::forget() {
  std::memset(data, 0xff, static_cast<size_t>(bytes));
  std::memset(shadow_, 0, static_cast<size_t>(bytes));
}

void Tracked::mark_written() {
  std::memset(shadow_, kWritten, static_cast<size_t>(bytes));
}

HbmCounts Tracked::take_kernel_counts() {
  HbmCounts sum;
  for (auto& c : counts_) {
    sum.requested_read += c.read;
    sum.requested_write += c.write;
    c = {};
  }
  if (sum.requested_read == 0 && sum.requested_write == 0) return sum;
  for (int64_t i = 0; i < bytes; ++i) {
    sum.distinct_read += shadow_[i] >> 1 & 1;
    sum.distinct_write += shadow_[i] >> 2 & 1;
    shadow_[i] &= kWritten;
  }
  touches_.forget();
  return sum;
}

// ------------------------------------------------------------------------------- who touched what

Touches::Touches(int64_t bytes, uint8_t* shadow)
    : bytes_(bytes), shadow_(shadow), cells_(cells_bytes(bytes, sizeof(Cell))) {}

void Touches::forget() {
  std::memset(cells_.data(), 0, static_cast<size_t>(cells_bytes(bytes_, sizeof(Cell))));
  table_.clear();
}

// Blocks on other OS threads may be at the same cell. Who notes something there marks the shadow
// first and then looks whether the cell is still in the state in which the mark says all; who moves
// a cell to the table does that first and then reads the shadow. So one of the two sees the other.

std::optional<Touches::Touch> Touches::note(uint32_t block, Access access, int64_t at, int n) {
  Cell& c = cell(at);
  auto* const shadow = reinterpret_cast<uint64_t*>(shadow_) + at / 8;
  // A one in each byte of the access: times a shadow bit, that bit in each.
  const uint64_t here = repeat<8>(1) >> 8 * (8 - n) << 8 * (at % 8);
  uint32_t first = __atomic_load_n(&c.first, __ATOMIC_SEQ_CST);
  if (!first && __atomic_compare_exchange_n(&c.first, &first, block, false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST))
    first = block;
  const bool noted = first == block
                         ? note_own(shadow, here, access)
                         : first != kInTable && note_shared(c, shadow, here, block, access);
  if (noted && __atomic_load_n(&c.first, __ATOMIC_SEQ_CST) == first) return {};
  return note_in_table(block, access, at, n);
}

/// In a cell where the marks are all the block's own, but for what is shared. A byte is either
/// added to or touched in other ways.
bool Touches::note_own(uint64_t* shadow, uint64_t here, Access access) {
  const uint64_t seen = __atomic_load_n(shadow, __ATOMIC_SEQ_CST);
  const uint64_t added = seen & here * kAddedHere;
  const bool touched = seen & here * (kReadHere | kWrittenHere);
  if (access == Access::add ? touched && added != here * kAddedHere : added != 0) return false;
  const uint64_t before = __atomic_fetch_or(shadow, here * mark_of(access), __ATOMIC_SEQ_CST);
  return access != Access::write || !(before & here * kShared);
}

/// In a cell where the marks are another block's: what that one only read, this one may read, and
/// what it only added to, this one may add to.
bool Touches::note_shared(Cell& cell, uint64_t* shadow, uint64_t here, uint32_t block,
                          Access access) {
  const uint64_t wanted = here * (access == Access::read ? kReadHere : kAddedHere);
  if (access == Access::write || (__atomic_load_n(shadow, __ATOMIC_SEQ_CST) & wanted) != wanted)
    return false;
  uint32_t second = __atomic_load_n(&cell.second, __ATOMIC_SEQ_CST);
  if (!second && __atomic_compare_exchange_n(&cell.second, &second, block, false, __ATOMIC_SEQ_CST,
                                             __ATOMIC_SEQ_CST))
    second = block;
  if (second != block) return false;
  const uint64_t before = __atomic_fetch_or(shadow, here * kShared, __ATOMIC_SEQ_CST);
  return access == Access::add || !(before & here * kWrittenHere);
}

std::optional<Touches::Touch> Touches::note_in_table(uint32_t block, Access access, int64_t at,
                                                     int n) {
  const std::lock_guard lock(mutex_);
  Cell& c = cell(at);
  auto& bytes = table_[at / 8];
  uint8_t* const shadow = shadow_ + at / 8 * 8;
  const auto insert = [](ByteRecord& byte, Access what, uint32_t who) {
    auto& [one, other] = byte[static_cast<size_t>(what)];
    if (!one) one = who;
    if (one != who && !other) other = who;
  };

  const uint32_t first = __atomic_exchange_n(&c.first, kInTable, __ATOMIC_SEQ_CST);
  if (first != kInTable) {  // what the cell and the marks said so far
    const uint32_t second = __atomic_load_n(&c.second, __ATOMIC_SEQ_CST);
    for (size_t i = 0; i < 8; ++i) {
      const uint8_t marks = __atomic_load_n(shadow + i, __ATOMIC_SEQ_CST);
      const bool added = marks & kAddedHere;
      if (added) insert(bytes[i], Access::add, first);
      if (!added && marks & kReadHere) insert(bytes[i], Access::read, first);
      if (!added && marks & kWrittenHere) insert(bytes[i], Access::write, first);
      if (marks & kShared) insert(bytes[i], added ? Access::add : Access::read, second);
    }
  }

  for (auto i = static_cast<size_t>(at % 8); i < static_cast<size_t>(at % 8 + n); ++i) {
    for (const Access other : {Access::write, Access::add, Access::read}) {
      if (may_meet(access, other)) continue;
      for (const uint32_t who : bytes[i][static_cast<size_t>(other)])
        if (who && who != block) return Touch{who, other};
    }
    insert(bytes[i], access, block);
    // Two blocks in one kind of access: none was there in another way.
    const bool shared = bytes[i][static_cast<size_t>(access)][1];
    __atomic_fetch_or(shadow + i,
                      static_cast<uint8_t>(mark_of(access) | (shared ? unsigned{kShared} : 0)),
                      __ATOMIC_SEQ_CST);
  }
  return {};
}

}  // namespace ladder::sim
