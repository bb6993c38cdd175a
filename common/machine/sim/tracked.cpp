#include "machine/sim/tracked.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "machine/sim/fault.h"

namespace ladder::sim {
namespace {

void* map_memory(int64_t bytes) {
  void* p = mmap(nullptr, static_cast<size_t>(std::max<int64_t>(bytes, 1)), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

void unmap_memory(void* p, int64_t bytes) {
  if (p) munmap(p, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
}

}  // namespace

Tracked::Tracked(const std::string& array_name, int64_t size, int workers)
    : shadow_(nullptr), counts_(static_cast<size_t>(workers)) {
  name = array_name;
  bytes = size;
  data = map_memory(size);
  shadow_ = static_cast<uint8_t*>(map_memory(size));
  if (!data || !shadow_) {
    unmap_memory(data, bytes);
    unmap_memory(shadow_, bytes);
    throw Error(Exit::no_device,
                fmt::format("the host has no {} bytes left for {} and its shadow", size, name));
  }
  std::memset(data, 0xff, static_cast<size_t>(bytes));
}

Tracked::~Tracked() {
  unmap_memory(data, bytes);
  unmap_memory(shadow_, bytes);
}

void Tracked::fail(const char* what, int64_t at, int64_t element) const {
  fault(fmt::format("{} {}[{}] (element of {} bytes; the array has {})", what, name,
                    at >= 0 ? at / element : -((-at + element - 1) / element), element,
                    bytes / element));
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
  return sum;
}

}  // namespace ladder::sim
