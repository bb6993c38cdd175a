// A launch of any work, for libraries whose kernels the harness reports as the ladder's own.
#pragma once

#include <functional>

#include "machine/device.h"

namespace ladder::gpu {

/// Calls `queue`, which queues work on the default stream, and reports it to the device's observer
/// as one kernel of that name.
void launch_as(const char* name, const std::function<void()>& queue,
               const std::function<Occupancy()>& occupancy = {});

}  // namespace ladder::gpu
