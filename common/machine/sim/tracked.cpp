#include "machine/sim/tracked.h"

#include <fmt/format.h>

#include <cstring>

#include "machine/sim/fault.h"

namespace ladder::sim {
namespace {

constexpr const char* kDoes[] = {"reads", "writes", "adds atomically to"};
constexpr const char* kDid[] = {"read", "wrote", "added to atomically"};

}  // namespace

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

}  // namespace ladder::sim
