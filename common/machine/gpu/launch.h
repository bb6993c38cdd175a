// The host half of launches and tensor maps. It is separate from gpu_machine.h and gpu_hopper.h so
// that the host compiler can build it. It avoids device.h, because nvcc parses each header four
// times.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <source_location>

#include "rung.h"

namespace ladder::gpu {

/// A kernel's name and the line that launches it, for errors.
struct KernelName {
  const char* name;
  std::source_location where;
  KernelName(const char* name, std::source_location where = std::source_location::current())
      : name(name), where(where) {}
};

/// When a kernel's blocks may start. `after`: when the previous kernel has ended. `early`
/// (programmatic dependent launch, GPUs from 9.0): as soon as each block of that kernel has called
/// let_next_kernel_start() or ended. Then a thread must call wait_for_kernel_before() before it
/// touches anything that the previous kernel writes, or writes anything that it reads.
enum class Start { after, early };

/// The type-erased half of launch(): raises the limit of shared memory, launches, checks errors and
/// tells the device's observer. Throws Error(wrong_result) if the launch fails. Defined in
/// device.cpp.
void launch_erased(const KernelName& name, const void* kernel, dim3 grid, dim3 block,
                   int64_t smem_bytes, void** arguments, Start start);

/// The description of an array for TMA: the driver's CUtensorMap. A kernel takes it as a `const
/// __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

/// Encodes the map of an array with `extents` elements, innermost first, of `element_bytes` (1 or
/// 2). Its boxes are `box_bytes` (64 or 128) of a row × `box_rows` × 1 × 1, with a swizzle of the
/// same 64 or 128 bytes, and zeros past the extents. Throws Error(wrong_result) if the driver
/// refuses. Defined in device.cpp.
TensorMap encode_tensor_map(const Array& array, int element_bytes,
                            const std::array<int64_t, 4>& extents, int box_rows, int box_bytes);

}  // namespace ladder::gpu
