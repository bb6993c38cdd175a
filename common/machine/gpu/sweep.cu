// Defines the harness's only kernel, which empties L2.
#include "machine/gpu/counters.h"

namespace ladder::gpu {
namespace {

__global__ void sweep(uint4* data, int64_t count) {
  unsigned seen = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 x = data[i];
    seen ^= x.x ^ x.y ^ x.z ^ x.w;
  }
  // The condition never holds for poisoned memory, but keeps the compiler from dropping the reads.
  if (seen == 1) data[0].x = seen;
}

}  // namespace

void queue_sweep(void* data, int64_t bytes) {
  sweep<<<1024, 256>>>(static_cast<uint4*>(data), bytes / 16);
}

int compiled_capability() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, sweep) ? 0 : attributes.ptxVersion;
}

}  // namespace ladder::gpu
