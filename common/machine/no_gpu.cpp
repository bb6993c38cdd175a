// Stands in for gpu/device.cpp where the program is built without the CUDA Toolkit.
#include "machine/device.h"

namespace ladder {

std::unique_ptr<Device> open_gpu() {
  throw Error(
      Exit::no_device,
      "no GPU: this program was built without the CUDA Toolkit; install it and build again, or run "
      "with --device sim");
}

}  // namespace ladder
