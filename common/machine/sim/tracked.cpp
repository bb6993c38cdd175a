#include "machine/sim/tracked.h"

#include <cstring>

namespace ladder::sim {
namespace {

int64_t whole_cells(int64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

}  // namespace

Tracked::Tracked(const std::string& array_name, int64_t size, int workers)
    : contents_(size),
      shadow_memory_(whole_cells(size)),
      shadow_(static_cast<uint8_t*>(shadow_memory_.data())),
      touches_(size, shadow_),
      counts_(workers) {
  name = array_name;
  bytes = size;
  data = contents_.data();
  if (!data || !shadow_ || !touches_.ready())
    throw Error(Exit::no_device,
                fmt::format("the host has no {} bytes left for {} and what the sim notes of it",
                            kBytesForEach * size, name));
  std::memset(data, 0xff, size);
}

void Tracked::note(Block& block, Access access, int64_t at, int n, int element) {
  constexpr const char* kWhat[] = {"read of", "write to", "atomic addition to"};
  constexpr const char* kDoes[] = {"reads", "writes", "adds atomically to"};
  constexpr const char* kDid[] = {"read", "wrote", "added to atomically"};
  const auto i = static_cast<int>(access);
  const auto place = [&] {
    return fmt::format("{}[{}] (element of {} bytes; the array has {})", name,
                       at >= 0 ? at / element : -((-at + element - 1) / element), element,
                       bytes / element);
  };
  if (at < 0 || at + n > bytes) fault("{} {}", kWhat[i], place());
  for (int64_t b = at; b < at + n; ++b) {
    const unsigned seen = __atomic_load_n(&shadow_[b], __ATOMIC_RELAXED);
    if (access != Access::write && !(seen & kWritten)) fault("read of unwritten {}", place());
    const bool written = seen & kWrittenBefore, read = seen & kReadBefore;
    if (block.early() && (written || (read && access != Access::read)))
      fault(
          "{} {}, which the kernel before may still {}: it starts early, and this thread has not "
          "called wait_for_kernel_before()",
          kDoes[i], place(), written ? "write" : "read");
  }
  if (const auto other = touches_.note(block.number(), access, at, n))
    fault("{} {}, which block {} {} in the same kernel: in which order blocks run is not known",
          kDoes[i], place(), block.index_of(other->block), kDid[static_cast<int>(other->access)]);
}

void Tracked::mark_written() {
  std::memset(shadow_, kWritten, bytes);
}

HbmCounts Tracked::take_kernel_counts() {
  HbmCounts sum;
  for (auto& c : counts_) {
    sum.requested_read += c.read;
    sum.requested_write += c.write;
    c = {};
  }
  if (sum.requested_read == 0 && sum.requested_write == 0) return sum;
  touched_ = true;
  for (int64_t i = 0; i < bytes; ++i) {
    sum.distinct_read += (shadow_[i] & (kReadHere | kAddedHere)) != 0;
    sum.distinct_write += (shadow_[i] & (kWrittenHere | kAddedHere)) != 0;
  }
  return sum;
}

void Tracked::start_kernel(bool early) {
  if (!touched_) return;
  touched_ = early;
  for (int64_t i = 0; i < bytes; ++i) {
    const bool read = shadow_[i] & (kReadHere | kReadBefore);
    const bool written = shadow_[i] & (kWrittenHere | kAddedHere | kWrittenBefore);
    shadow_[i] =
        (shadow_[i] & kWritten) | (early ? read * kReadBefore | written * kWrittenBefore : 0);
  }
  touches_.forget();
}

// ------------------------------------------------------------------------------- who touched what

Touches::Touches(int64_t bytes, uint8_t* shadow)
    : bytes_(whole_cells(bytes)), shadow_(shadow), cells_(bytes_) {
  static_assert(sizeof(Cell) == 8);
}

void Touches::forget() {
  std::memset(cells_.data(), 0, bytes_);
  for (Part& part : parts_) part.lists.clear();
}

std::optional<Touches::Touch> Touches::note(uint32_t block, Access access, int64_t at, int n) {
  Part& part = parts_[at / 4096 % std::size(parts_)];
  const std::lock_guard lock(part);
  Cell& c = cell(at);
  auto* const shadow = reinterpret_cast<uint64_t*>(shadow_) + at / 8;
  const uint64_t seen = *shadow;
  // A one in each byte of the access: times a shadow bit, that bit in each.
  const uint64_t here = repeat<8>(1) >> 8 * (8 - n) << 8 * (at % 8);
  const auto mark = [&](uint64_t shared) {
    const uint64_t marked = seen | here * (kWritten | mark_of(access)) | shared * kShared;
    __atomic_store_n(shadow, marked, __ATOMIC_RELEASE);
  };
  const auto with = [&](unsigned bit) { return seen / bit & repeat<8>(1); };  // bytes that have it

  if (!c.first) __atomic_store_n(&c.first, block, __ATOMIC_RELAXED);
  if (c.first == block && !(with(kShared) & here)) {
    mark(0);
    return {};
  }
  // What the first block only read, another may read, and what it only added to, add to.
  const bool may_meet =
      access != Access::write &&
      (seen & here * (kReadHere | kWrittenHere | kAddedHere)) == here * mark_of(access);
  if (may_meet && c.first != kInList && (!c.second || c.second == block)) {
    c.second = block;
    mark(here);
    return {};
  }

  auto& list = part.lists[at / 8];
  const auto insert = [&](uint32_t who, Access what, uint64_t where) {
    for (Listed& known : list)
      if (known.block == who && known.access == what) {
        known.bytes |= where;
        return;
      }
    list.push_back({{who, what}, where});
  };
  if (c.first != kInList) {  // what the cell and the marks said so far
    for (const Access what : {Access::read, Access::write, Access::add}) {
      insert(c.first, what, with(mark_of(what)));
      insert(c.second, what, with(mark_of(what)) & with(kShared));
    }
    __atomic_store_n(&c.first, kInList, __ATOMIC_RELAXED);
  }
  uint64_t met = 0;
  for (const Listed& other : list) {
    if (other.block == block || !(other.bytes & here)) continue;
    if (other.access != access || access == Access::write) return other;
    met |= other.bytes;
  }
  insert(block, access, here);
  mark(met & here);
  return {};
}

}  // namespace ladder::sim
