// The code that scripts/run --alone writes around a step, in the place of the harness. alone.py
// decides #ifdef and #ifndef: a name is defined if the step uses it.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ladder::gpu {
using WorkspaceArray = std::pair<std::string, int64_t>;  // its bytes
struct Plan {
  int block_q, block_kv, head_dim, warps, stages, parts = 1;
  int64_t smem_bytes;
  std::vector<WorkspaceArray> workspace;
  std::map<std::string, std::string> settings;
  std::string note;
};
struct KernelTraffic {
  const char* kernel;
  std::vector<std::tuple<const char*, int64_t, int64_t>> arrays;  // bytes read, bytes written
};
using Traffic = std::vector<KernelTraffic>;
#ifndef choose_tile
struct TileRequest {};
#endif
#include "common"

struct Arrays {
  mutable std::map<std::string, void*> by_name;
  void*& operator[](const std::string& name) const { return by_name[name]; }
};
template <class T>
T* hbm(void* array) {
  return static_cast<T*>(array);
}
constexpr auto& grid_blocks = ceil_div;
inline void check(cudaError_t status) {
  if (status != cudaSuccess) std::exit((std::puts(cudaGetErrorString(status)), 3));
}
template <auto start = 0, class... P, class... A>
void launch(const char*, void (*kernel)(P...), dim3 grid, dim3 block, int64_t smem, A... a) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  kernel<<<grid, block, smem>>>(a...);
  check(cudaGetLastError());
}
#include "step"

int main() {
  using namespace ladder::gpu;
  const Problem p{.B = 1, .H = 8, .Hk = 8, .N = 1000, .N_kv = 1000, .d = 64, .scale = 0.125f};
  cudaDeviceProp gpu;
  check(cudaGetDeviceProperties(&gpu, 0));
  const DeviceInfo device{.kind = DeviceKind::gpu,
                          .smem_bytes = static_cast<int64_t>(gpu.sharedMemPerBlockOptin),
                          .multiprocessors = gpu.multiProcessorCount};
  const Plan chosen = plan(p, device, {});
  const int64_t q = p.q_row(p.B * p.H) * p.d, k = p.kv_row(p.B * p.H) * p.d;  // elements
  std::map<std::string, int64_t> bytes{
      {"Q", 2 * q}, {"K", 2 * k}, {"V", 2 * k}, {"O", 2 * q}, {"LSE", 4 * q / p.d}};
  for (const auto& [name, size] : chosen.workspace) bytes[name] = size;
  Arrays a;
#ifdef backward_plan
  const Plan back = backward_plan(p, device, {});
  for (const auto& [name, size] : back.workspace) bytes[name] = size;
  bytes.insert({{"dO", 2 * q}, {"dQ", 2 * q}, {"dK", 2 * k}, {"dV", 2 * k}});
  const auto run = [&] { backward(p, back, a); };
  const Traffic requests = backward_traffic(p, back);
  static_cast<void>(traffic);  // unused: the forward pass is not timed
#else
  const auto run = [&] { forward(p, chosen, a); };
  const Traffic requests = traffic(p, chosen);
#endif
  std::mt19937 seed(1);
  std::normal_distribution<float> normal;
  for (const auto& [name, size] : bytes) {
    check(cudaMallocManaged(&a[name], size));
    std::generate_n(hbm<fp16>(a[name]), size / 2, [&] { return fp16(normal(seed)); });
  }

  forward(p, chosen, a);
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start)), check(cudaEventCreate(&stop));
  run();  // not timed, because it also loads the kernels
  cudaEventRecord(start);
  for (int i = 0; i < 20; ++i) run();
  cudaEventRecord(stop);
  check(cudaEventSynchronize(stop));
  float ms;  // of all 20 runs
  cudaEventElapsedTime(&ms, start, stop);
  int64_t requested = 0;
  for (const auto& [kernel, arrays] : requests)
    for (const auto& [name, read, written] : arrays) requested += read + written;

  // The last head of K and V, and the queries that it serves, against float64.
  const int rows = p.H / p.Hk * p.N, keys = p.N_kv, d = p.d;
  const auto last = [&](const char* name, int n) {  // rows of an array; 0 where there is none
    std::vector<double> x(n * d);
    if (bytes.contains(name))
      std::copy_n(hbm<fp16>(a[name]) + bytes[name] / 2 - x.size(), x.size(), x.begin());
    return x;
  };
  const auto Q = last("Q", rows), K = last("K", keys), V = last("V", keys), dO = last("dO", rows);
  std::vector<double> O(rows * d), dQ(O), dK(keys * d), dV(dK), P(keys), dP(keys);
  const auto dot = [d](auto* x, auto* y) { return std::inner_product(x, x + d, y, 0.0); };
  for (int i = 0; i < rows; ++i) {
    double sum = 1e-300, D = 0;  // not 0, because a row may attend to no key
    for (int j = 0; j < keys; ++j)
      sum += P[j] = p.attends(i % p.N, j) ? std::exp(p.scale * dot(&Q[i * d], &K[j * d])) : 0;
    for (int j = 0; j < keys; ++j) D += (P[j] /= sum) * (dP[j] = dot(&dO[i * d], &V[j * d]));
    for (int j = 0; j < keys; ++j)
      for (int c = 0; c < d; ++c) {
        const double dS = p.scale * P[j] * (dP[j] - D);
        O[i * d + c] += P[j] * V[j * d + c];
        dQ[i * d + c] += dS * K[j * d + c];
        dK[j * d + c] += dS * Q[i * d + c];
        dV[j * d + c] += P[j] * dO[i * d + c];
      }
  }
  int wrong = 0;
  for (const auto& [name, x] : {std::pair{"O", O}, {"dQ", dQ}, {"dK", dK}, {"dV", dV}}) {
    const auto got = last(name, x.size() / d);
    for (size_t e = 0; bytes.contains(name) && e < x.size(); ++e)
      wrong += !(std::abs(x[e] - got[e]) < 1e-3 + 4e-3 * std::abs(x[e]));
  }
  std::printf("%.3f ms, %.1f MB requested, %d wrong\n", ms / 20, requested / 1e6, wrong);
  return wrong > 0;
}
