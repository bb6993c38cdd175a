// Maps zeroed host memory for arrays and stacks; only pages that are touched occupy memory.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>

namespace ladder::sim {

/// Maps `bytes` zero bytes until the returned pointer is destroyed; with PROT_NONE as `access`,
/// only reserves addresses. Throws std::bad_alloc if the host's memory is used up.
inline std::shared_ptr<void> map_zeros(size_t bytes, int access = PROT_READ | PROT_WRITE) {
  void* const p = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return {p, [bytes](void* mapped) { munmap(mapped, bytes); }};
}

}  // namespace ladder::sim
