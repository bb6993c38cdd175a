// Memory of the host that is zero, and taken only where it is touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>

namespace ladder::sim {

/// Throws std::bad_alloc where the host has no more. `access` PROT_NONE gives addresses alone.
inline std::shared_ptr<void> map_zeros(size_t bytes, int access = PROT_READ | PROT_WRITE) {
  void* const p = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return {p, [bytes](void* mapped) { munmap(mapped, bytes); }};
}

}  // namespace ladder::sim
