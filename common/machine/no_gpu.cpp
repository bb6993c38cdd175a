// Replaces gpu/device.cpp in programs that are built without the GPU half. The build defines
// LADDER_NO_GPU, a string that says why the half was left out and how to get it.
#include "machine/device.h"

namespace ladder {

std::unique_ptr<Device> open_gpu(int64_t) {
  throw Error(Exit::no_device, "no GPU: this program has no GPU half, because " LADDER_NO_GPU);
}

}  // namespace ladder
