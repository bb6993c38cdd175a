// Replaces gpu/device.cpp in programs that are built without the GPU half.
#include "machine/device.h"

namespace ladder {

std::unique_ptr<Device> open_gpu(int64_t) {
  throw Error(Exit::no_device, "no GPU: this program has no GPU half, because " LADDER_NO_GPU);
}

}  // namespace ladder
