// Declares the host half of launches and tensor maps, which device.cpp defines. The file is
// separate from gpu_machine.h and gpu_hopper.h so that the host compiler can build that half. It
// does not include device.h, because nvcc parses each header four times.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <source_location>

#include "rung.h"

namespace ladder::gpu {

/// A kernel's name and the source line that launches it, for error messages.
struct KernelName {
  const char* name;
  std::source_location where;
  KernelName(const char* name, std::source_location where = std::source_location::current())
      : name(name), where(where) {}
};

/// When a kernel's blocks may start. `after`: when the previous kernel has ended. `early`
/// (programmatic dependent launch, GPUs from 9.0): as soon as each block of the previous kernel has
/// called let_next_kernel_start() or ended. With `early` a thread must call
/// wait_for_kernel_before() before it touches anything that the previous kernel writes, or writes
/// anything that the previous kernel reads.
enum class Start { after, early };

/// The type-erased half of launch(): raises the kernel's limit of shared memory, checks for errors,
/// and launches it, through the device's observer if there is one. `arguments` points to one
/// pointer per parameter of the kernel, and `smem_bytes` is the dynamic shared memory per block.
/// Throws Error(wrong_result) if the launch fails.
void launch_erased(const KernelName& name, const void* kernel, dim3 grid, dim3 block,
                   int64_t smem_bytes, void** arguments, Start start);

/// Describes an array to TMA: the driver's CUtensorMap. Kernels take it as const __grid_constant__.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

/// Encodes the map of a four-dimensional array. `extents` are in elements of `element_bytes` bytes
/// (1 or 2), innermost dimension first. Boxes have `box_rows` rows of `box_bytes` bytes (64 or 128)
/// and extent 1 in the two outer dimensions, a swizzle as wide as their rows, and zeros past the
/// extents. Throws Error(wrong_result) if the driver refuses.
TensorMap encode_tensor_map(const Array& array, int element_bytes,
                            const std::array<int64_t, 4>& extents, int box_rows, int box_bytes);

}  // namespace ladder::gpu
