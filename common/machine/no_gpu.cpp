// Stands in for gpu/device.cpp and gpu/cublas.cpp where the program is built without its GPU half.
#include "machine/cublas.h"
#include "machine/device.h"

namespace ladder {
namespace {
[[noreturn]] void no_gpu() {
  throw Error(Exit::no_device, "no GPU: this program has no GPU half, because " LADDER_NO_GPU);
}
}  // namespace

std::unique_ptr<Device> open_gpu(int64_t) {
  no_gpu();
}

void open_cublas() {
  no_gpu();
}

void cublas_product(const char*, DType, bool, int64_t, int64_t, int64_t, float, const MatrixBatch&,
                    const MatrixBatch&, const MatrixBatch&, int) {
  no_gpu();
}

}  // namespace ladder
