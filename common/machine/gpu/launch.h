// The host half of launches and of tensor maps, apart from gpu_machine.h and gpu_hopper.h so that
// the host compiler can build it. Without device.h: nvcc parses each header four times.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <source_location>

#include "rung.h"

namespace ladder::gpu {

/// A kernel's name and, for errors, the line that launches it.
struct KernelName {
  const char* name;
  std::source_location where;
  KernelName(const char* name, std::source_location where = std::source_location::current())
      : name(name), where(where) {}
};

/// When a kernel's blocks may start: once the kernel before it has ended, or on GPUs from 9.0 as
/// soon as each block of that one has called let_next_kernel_start() or ended (programmatic
/// dependent launch). Then a thread calls wait_for_kernel_before() before it touches anything that
/// the kernel before writes, or writes what that one reads.
enum class Start { after, early };

/// Type-erased half of launch(): raises the shared-memory limit, launches, checks, reports to the
/// device's observer. Defined in device.cpp.
void launch_erased(const KernelName& name, const void* kernel, dim3 grid, dim3 block,
                   int64_t smem_bytes, void** arguments, Start start);

/// What a bulk tensor copy reads or writes: the driver's CUtensorMap. A kernel takes it as a
/// `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

/// The map of an array of elements of `element_bytes` (1 or 2) with these extents, the innermost
/// first, in boxes of `box_bytes` (64 or 128) of a row × `box_rows` × 1 × 1, swizzled by as many
/// bytes, filled with zeros past the extents. Defined in device.cpp.
TensorMap encode_tensor_map(const Array& array, int element_bytes,
                            const std::array<int64_t, 4>& extents, int box_rows, int box_bytes);

}  // namespace ladder::gpu
