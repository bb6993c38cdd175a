// The host half of a launch, apart from gpu_machine.h so that the host compiler can build
// device.cpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <source_location>

namespace ladder::gpu {

/// A kernel's name and, for errors, the line that launches it.
struct KernelName {
  const char* name;
  std::source_location where;
  KernelName(const char* name, std::source_location where = std::source_location::current())
      : name(name), where(where) {}
};

/// When a kernel's blocks may start: once the kernel before it has ended, or on GPUs from 9.0 as
/// soon as that one's blocks have all begun (programmatic dependent launch). A kernel that starts
/// early calls wait_for_kernel_before() before it reads anything.
enum class Start { after, early };

/// Type-erased half of launch(): raises the shared-memory limit, launches, checks, reports to the
/// device's observers. Defined in device.cpp.
void launch_erased(const KernelName& name, const void* kernel, dim3 grid, dim3 block,
                   int64_t shared_bytes, void** arguments, Start start);

/// Calls `queue`, which queues work on the default stream, and reports it to the device's observers
/// as one kernel of that name.
void launch_as(const char* name, const std::function<void()>& queue);

}  // namespace ladder::gpu
