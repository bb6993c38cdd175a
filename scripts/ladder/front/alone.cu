// What scripts/run --alone writes around a step, where the harness was. Python reads #ifdef and its
// like: whether the step uses that name.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ladder::gpu {
struct DeviceInfo {
  int64_t sram_bytes;  // shared memory that one block can have
  int multiprocessors;
};
struct WorkspaceArray {
  std::string name;
  int64_t bytes;
};
struct Plan {
  int block_q, block_kv, head_dim, warps, stages;
  int64_t smem_bytes;
  std::vector<WorkspaceArray> workspace;
  std::map<std::string, std::string> settings;
  std::string note;
};
using Traffic =  // of each kernel and array: bytes read, bytes written
    std::vector<std::pair<const char*, std::vector<std::tuple<const char*, int64_t, int64_t>>>>;
#ifndef choose_tile
struct TileRequest {};
#endif
#ifndef Tile
extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
struct SharedMemory {  // handed out front to back
  int64_t used = 0;
  template <class T>
  __device__ T* take(const char*, int64_t count) {
    T* piece = reinterpret_cast<T*>(dynamic_shared_memory + used);
    used += (count * sizeof(T) + 127) / 128 * 128;
    return piece;
  }
};
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
  const DeviceInfo device{.sram_bytes = static_cast<int64_t>(gpu.sharedMemPerBlockOptin),
                          .multiprocessors = gpu.multiProcessorCount};
  const Plan chosen = plan(p, device, {});
  const int heads = p.B * p.H;
  const int64_t q = p.q_row(heads) * p.d, k = p.kv_row(heads) * p.d;  // elements
  std::map<std::string, int64_t> bytes{
      {"Q", 2 * q}, {"K", 2 * k}, {"V", 2 * k}, {"O", 2 * q}, {"LSE", p.q_row(heads) * 4}};
  for (const auto& [name, size] : chosen.workspace) bytes[name] = size;
#ifdef backward_plan
  const Plan back = backward_plan(p, device, {});
  for (const auto& [name, size] : back.workspace) bytes[name] = size;
  bytes.insert({{"dO", 2 * q}, {"dQ", 2 * q}, {"dK", 2 * k}, {"dV", 2 * k}});
#endif
  Arrays a;
  std::mt19937 seed(1);
  std::normal_distribution<float> normal;
  for (const auto& [name, size] : bytes) {
    check(cudaMallocManaged(&a[name], size));
    std::generate_n(hbm<fp16>(a[name]), size / 2, [&] { return fp16(normal(seed)); });
  }

  forward(p, chosen, a);
#ifdef backward_plan
  const auto run = [&] { backward(p, back, a); };
  const Traffic requests = backward_traffic(p, back);
  static_cast<void>(traffic);  // of the forward pass, which is not timed
#else
  const auto run = [&] { forward(p, chosen, a); };
  const Traffic requests = traffic(p, chosen);
#endif
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start)), check(cudaEventCreate(&stop));
  run();  // the first time kernels are loaded
  cudaEventRecord(start);
  for (int i = 0; i < 20; ++i) run();
  cudaEventRecord(stop);
  check(cudaEventSynchronize(stop));
  float ms;  // of all of them
  cudaEventElapsedTime(&ms, start, stop);
  int64_t requested = 0;
  for (const auto& [kernel, arrays] : requests)
    for (const auto& [name, read, written] : arrays) requested += read + written;

  // The last head of K and V, and the queries that it serves, against float64.
  const int64_t key = p.kv_row(heads - 1) * p.d;
  const fp16 *Q = hbm<fp16>(a["Q"]), *O = hbm<fp16>(a["O"]);
  const fp16 *K = hbm<fp16>(a["K"]) + key, *V = hbm<fp16>(a["V"]) + key;
#ifdef backward_plan
  const fp16 *dO = hbm<fp16>(a["dO"]), *dQ = hbm<fp16>(a["dQ"]);
  const fp16 *dK = hbm<fp16>(a["dK"]) + key, *dV = hbm<fp16>(a["dV"]) + key;
  std::vector<double> dK_sum(p.N_kv * p.d), dV_sum(p.N_kv * p.d), dP(p.N_kv);
#endif
  const auto dot = [&](const fp16* x, const fp16* y) {
    double sum = 0;
    for (int c = 0; c < p.d; ++c) sum += float(x[c]) * float(y[c]);
    return sum;
  };
  int wrong = 0;
  const auto judge = [&](double x, float y) { wrong += !(fabs(x - y) < 1e-3 + 4e-3 * fabs(x)); };
  for (int64_t i = p.q_row(heads - p.H / p.Hk); i < p.q_row(heads); ++i) {
    std::vector<double> P(p.N_kv);
    double sum = 1e-300;  // a row may see no key
    for (int j = 0; j < p.N_kv && p.sees(i % p.N, j); ++j)
      sum += P[j] = std::exp(p.scale * dot(Q + i * p.d, K + j * p.d));
    for (double& x : P) x /= sum;
    for (int c = 0; c < p.d; ++c) {
      double o = 0;
      for (int j = 0; j < p.N_kv; ++j) o += P[j] * float(V[j * p.d + c]);
      judge(o, O[i * p.d + c]);
    }
#ifdef backward_plan
    double D = 0;
    for (int j = 0; j < p.N_kv; ++j) D += P[j] * (dP[j] = dot(dO + i * p.d, V + j * p.d));
    for (int c = 0; c < p.d; ++c) {
      double dq = 0;
      for (int j = 0; j < p.N_kv; ++j) {
        const double dS = p.scale * P[j] * (dP[j] - D);
        dq += dS * float(K[j * p.d + c]);
        dK_sum[j * p.d + c] += dS * float(Q[i * p.d + c]);
        dV_sum[j * p.d + c] += P[j] * float(dO[i * p.d + c]);
      }
      judge(dq, dQ[i * p.d + c]);
    }
#endif
  }
#ifdef backward_plan
  for (int e = 0; e < p.N_kv * p.d; ++e) judge(dK_sum[e], dK[e]), judge(dV_sum[e], dV[e]);
#endif
  std::printf("%.3f ms, %.1f MB requested of HBM, %d wrong\n", ms / 20, requested / 1e6, wrong);
  return wrong > 0;
}
