#include "machine/sim/tracked.h"

#include <cstring>

namespace ladder::sim {

Tracked::Tracked(const std::string& array_name, int64_t size, int workers)
    : contents_(size),
      shadow_memory_(size + 1),  // even where the last byte has no fellow
      first_memory_(2 * (size + 1)),
      shadow_(static_cast<uint8_t*>(shadow_memory_.data())),
      first_(static_cast<uint32_t*>(first_memory_.data())),
      counts_(workers) {
  name = array_name;
  bytes = size;
  data = contents_.data();
  if (!data || !shadow_ || !first_)
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
  // Each marks what it does, then who came first: so of two that must not meet the second to do so
  // finds both.
  const uint16_t here = n > 1 ? 0xffff : at % 2 ? 0xff00 : 0xff;
  for (int64_t two = at / 2; 2 * two < at + n; ++two) {
    auto* const shadow = reinterpret_cast<uint16_t*>(shadow_) + two;
    const auto mark = [&](unsigned bits) {
      return __atomic_fetch_or(shadow, repeat<2>(bits) & here, __ATOMIC_ACQ_REL) & here;
    };
    unsigned seen = mark(kWritten | mark_of(access));
    uint32_t first = 0;
    const bool alone = __atomic_compare_exchange_n(&first_[two], &first, block.number(), false,
                                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
                       first == block.number();
    if (!alone) seen = mark(kShared);
    if (alone && !(seen & repeat<2>(kShared))) continue;
    for (const Access did : {Access::read, Access::add, Access::write})
      if (seen & repeat<2>(mark_of(did)) && (did != access || access == Access::write))
        fault("{} {}, which {} {} in the same kernel: in which order blocks run is not known",
              kDoes[i], place(), alone ? "another block" : "block " + block.index_of(first),
              kDid[static_cast<int>(did)]);
  }
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
  std::memset(first_, 0, 2 * bytes + 2);
}

}  // namespace ladder::sim
