// Memory of the host that is zero, and taken only where it is touched.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace ladder::sim {

class Mapped {
 public:
  explicit Mapped(int64_t bytes) : bytes_(static_cast<size_t>(std::max<int64_t>(bytes, 1))) {
    void* const p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) data_ = p;
  }
  ~Mapped() {
    if (data_) munmap(data_, bytes_);
  }
  Mapped(const Mapped&) = delete;

  /// Null where the host has no more.
  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace ladder::sim
