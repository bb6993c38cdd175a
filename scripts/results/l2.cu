// Measures the rates of a GPU's L2 and HBM, and the latency of one access. Compiles by itself:
//
//   nvcc -O3 -arch=native -std=c++17 -o l2 scripts/results/l2.cu && ./l2

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

namespace {

constexpr int kThreads = 512, kAtOnce = 4;

void require(cudaError_t error) {
  if (!error) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// Every block reads the whole buffer, starting at a different place, as attention's blocks read K
/// and V. The reads bypass L1, like cp.async.cg.
__global__ void __launch_bounds__(kThreads)
    read_all(const uint4* data, int64_t count, int passes, unsigned* out) {
  unsigned seen = 0;
  const int64_t start = count / gridDim.x * blockIdx.x;
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t i = threadIdx.x; i < count; i += kAtOnce * kThreads) {
      uint4 x[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int64_t at = start + i + u * kThreads;
        x[u] = __ldcg(data + (at < count ? at : at - count));
      }
#pragma unroll
      for (const uint4& chunk : x) seen ^= chunk.x ^ chunk.y ^ chunk.z ^ chunk.w;
    }
  if (seen == 12345) *out = seen;  // keeps the compiler from removing the reads
}

/// The blocks divide the buffer among them, so that each byte is read once.
__global__ void __launch_bounds__(kThreads)
    read_once(const uint4* data, int64_t count, unsigned* out) {
  unsigned seen = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kAtOnce - 1) * stride < count; i += kAtOnce * stride) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) x[u] = __ldcg(data + i + u * stride);
#pragma unroll
    for (const uint4& chunk : x) seen ^= chunk.x ^ chunk.y ^ chunk.z ^ chunk.w;
  }
  if (seen == 12345) *out = seen;
}

/// Follows a chain in one thread: each read returns the index of the next. Writes its cycles.
__global__ void chase(const unsigned* next, int reads, unsigned* out, int64_t* cycles) {
  unsigned at = 0;
  const int64_t begin = clock64();
  for (int i = 0; i < reads; ++i) at = __ldcg(next + at);
  *cycles = clock64() - begin;
  *out = at;
}

template <class F>
double median_ms(F launch) {
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  std::vector<float> times(9);
  for (float& ms : times) {
    require(cudaEventRecord(begin));
    launch();
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    require(cudaEventElapsedTime(&ms, begin, end));
  }
  std::sort(times.begin(), times.end());
  return times[4];
}

}  // namespace

int main() {
  cudaDeviceProp gpu;
  require(cudaGetDeviceProperties(&gpu, 0));
  std::printf("%s, %d SMs, L2 %d MiB\n", gpu.name, gpu.multiProcessorCount, gpu.l2CacheSize >> 20);
  constexpr int64_t kBytes = int64_t{1} << 30;
  char* data;
  unsigned* out;
  int64_t* cycles;
  require(cudaMalloc(&data, kBytes));
  require(cudaMemset(data, 1, kBytes));
  require(cudaMalloc(&out, sizeof(unsigned)));
  require(cudaMallocManaged(&cycles, sizeof(int64_t)));
  const int blocks = 4 * gpu.multiProcessorCount;
  const auto chunks = reinterpret_cast<uint4*>(data);

  for (const int mib : {4, 16, 32}) {
    const int64_t bytes = int64_t{mib} << 20;
    const int passes = std::max(1, 16 / mib);
    const double ms =
        median_ms([&] { read_all<<<blocks, kThreads>>>(chunks, bytes / 16, passes, out); });
    std::printf("L2, %d MiB read by every block: %.2f TB/s\n", mib,
                1e-9 * blocks * passes * static_cast<double>(bytes) / ms);
  }
  const double ms = median_ms([&] { read_once<<<blocks, kThreads>>>(chunks, kBytes / 16, out); });
  std::printf("HBM, 1 GiB read once: %.2f TB/s\n", 1e-9 * kBytes / ms);

  for (const int mib : {4, 512}) {
    // Links all 128-byte lines into one random cycle.
    constexpr int kLine = 128, kReads = 20000;
    const int64_t bytes = int64_t{mib} << 20;
    std::vector<int64_t> order(bytes / kLine);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin() + 1, order.end(), std::mt19937(1));
    std::vector<unsigned> next(bytes / sizeof(unsigned));
    for (size_t i = 0; i < order.size(); ++i)
      next[order[i] * kLine / 4] = static_cast<unsigned>(order[(i + 1) % order.size()] * kLine / 4);
    require(cudaMemcpy(data, next.data(), bytes, cudaMemcpyHostToDevice));
    // After the first run, a buffer that fits into L2 resides there, so only the last run counts.
    for (int time = 0; time < (mib > gpu.l2CacheSize >> 20 ? 1 : 3); ++time)
      chase<<<1, 1>>>(reinterpret_cast<unsigned*>(data), kReads, out, cycles);
    require(cudaDeviceSynchronize());
    std::printf("one access, %d MiB: %.0f cycles\n", mib, static_cast<double>(*cycles) / kReads);
  }
}
