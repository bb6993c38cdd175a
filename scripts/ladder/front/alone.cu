// What scripts/run --alone writes around a step, where the harness was. Python reads #ifdef and its
// like: whether the step uses that name.

#ifdef backward_plan
#pragma nv_diag_suppress 177  // a function that nobody calls: the forward pass's traffic
#endif
#ifdef e4m3
#include <cuda_fp8.h>

#include <bit>
#include <span>
#include <stdexcept>
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace ladder::gpu {
using fp16 = __half;
using bf16 = __nv_bfloat16;
enum class DType { fp16, bf16 };
constexpr int64_t kIoBytes = 2;
struct Problem {  // Q, O: (B, H, N, d); K, V: (B, Hk, N_kv, d). S = scale·QKᵀ
  int B, H, Hk, N, N_kv, d;
  bool causal;
  DType dtype;
  float scale;
  constexpr bool sees(int i, int j) const { return !causal || j - i <= N_kv - N; }
  constexpr int64_t q_row(int bh) const { return int64_t{bh} * N; }
  constexpr int64_t kv_row(int bh) const { return (int64_t{bh / H} * Hk + kv_head(bh % H)) * N_kv; }
  constexpr int kv_head(int h) const { return h / (H / Hk); }
#ifdef keys
  constexpr int keys(int i) const {
    return causal ? std::clamp(i + N_kv - N + 1, 0, N_kv) : N_kv;
  }
  constexpr int first_query(int j) const {
    return causal ? std::clamp(j - N_kv + N, 0, N) : 0;
  }
#endif
};
#ifndef device
struct DeviceInfo {};
#endif
#ifdef choose_tile
struct WorkspaceArray {
  std::string name;
  int64_t bytes;
};
#else
struct TileRequest {};
#endif
struct Plan {
  int block_q, block_kv, head_dim, warps, stages;
  int64_t smem_bytes;
#ifdef choose_tile
  std::vector<WorkspaceArray> workspace;
  std::map<std::string, std::string> settings;
  std::string note;
#else
  std::vector<std::pair<std::string, int64_t>> workspace;
#endif
};
using Traffic =  // of each kernel and array: bytes read, bytes written
    std::vector<std::pair<const char*, std::vector<std::tuple<const char*, int64_t, int64_t>>>>;
struct Arrays {
  mutable std::map<std::string, void*> by_name;
  void*& operator[](const std::string& name) const { return by_name[name]; }
};
template <class T>
T* hbm(void* array) {
  return static_cast<T*>(array);
}
template <class T>
using Hbm = T* __restrict__;
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr auto& grid_blocks = ceil_div;
template <class T>
constexpr int64_t shared_bytes(int64_t count) {
  return ceil_div(count * sizeof(T), 128) * 128;
}
#ifndef Tile
extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
struct SharedMemory {  // handed out front to back
  int64_t used = 0;
  template <class T>
  __device__ T* take(const char*, int64_t count) {
    used += shared_bytes<T>(count);
    return reinterpret_cast<T*>(dynamic_shared_memory + used - shared_bytes<T>(count));
  }
};
#endif
inline void check(cudaError_t status) {
  if (status != cudaSuccess) std::exit((std::puts(cudaGetErrorString(status)), 3));
}
template <auto start = 0, class... P, class... A>
void launch(const char*, void (*kernel)(P...), dim3 grid, dim3 block, int64_t smem, A... a) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  kernel<<<grid, block, smem>>>(a...);
  check(cudaGetLastError());
}
#include "common"
#include "step"

int main() {
  using namespace ladder::gpu;
  const Problem p{.B = 1, .H = 8, .Hk = 8, .N = 1000, .N_kv = 1000, .d = 64, .scale = 0.125f};
#ifdef device
  cudaDeviceProp gpu;
  check(cudaGetDeviceProperties(&gpu, 0));
  const DeviceInfo device{.sram_bytes = static_cast<int64_t>(gpu.sharedMemPerBlockOptin),
                          .multiprocessors = gpu.multiProcessorCount};
#else
  const DeviceInfo device{};
#endif
  const Plan chosen = plan(p, device, {});
  const int heads = p.B * p.H;
  const int64_t q = p.q_row(heads) * p.d, k = p.kv_row(heads) * p.d;  // elements
  std::map<std::string, int64_t> bytes{{"Q", 2 * q}, {"K", 2 * k}, {"V", 2 * k}, {"O", 2 * q}};
  for (const auto& [name, size] : chosen.workspace) bytes[name] = size;
#ifdef LSE
  bytes["LSE"] = p.q_row(heads) * 4;
#endif
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

  cudaEvent_t start, stop;
  check(cudaEventCreate(&start)), check(cudaEventCreate(&stop));
  std::vector<float> ms(21);
#ifdef backward_plan
  forward(p, chosen, a);
#endif
  for (float& sample : ms) {
    cudaEventRecord(start);
#ifdef backward_plan
    backward(p, back, a);
#else
    forward(p, chosen, a);
#endif
    cudaEventRecord(stop);
    check(cudaEventSynchronize(stop));
    cudaEventElapsedTime(&sample, start, stop);
  }
  std::sort(ms.begin(), ms.end());
  int64_t requested = 0;
#ifdef backward_plan
  for (const auto& [kernel, arrays] : backward_traffic(p, back))
#else
  for (const auto& [kernel, arrays] : traffic(p, chosen))
#endif
    for (const auto& [name, read, written] : arrays) requested += read + written;

  // The last head of K and V, and the queries that it serves, against float64.
  const int64_t key = p.kv_row(heads - 1) * p.d;
  const fp16 *Q = hbm<fp16>(a["Q"]), *O = hbm<fp16>(a["O"]);
  const fp16 *K = hbm<fp16>(a["K"]) + key, *V = hbm<fp16>(a["V"]) + key;
#ifdef backward_plan
  const fp16 *dO = hbm<fp16>(a["dO"]), *dQ = hbm<fp16>(a["dQ"]);
  const fp16 *dK = hbm<fp16>(a["dK"]) + key, *dV = hbm<fp16>(a["dV"]) + key;
  std::vector<double> dK_sum(p.N_kv * p.d), dV_sum(p.N_kv * p.d);
#endif
  int wrong = 0;
  const auto judge = [&](double x, float y) { wrong += !(fabs(x - y) < 1e-3 + 4e-3 * fabs(x)); };
  for (int64_t i = p.q_row(heads - p.H / p.Hk); i < p.q_row(heads); ++i) {
    std::vector<double> P(p.N_kv);
    double sum = 1e-300;  // a row may see no key
    for (int j = 0; j < p.N_kv && p.sees(i % p.N, j); ++j) {
      for (int c = 0; c < p.d; ++c) P[j] += float(Q[i * p.d + c]) * float(K[j * p.d + c]);
      sum += P[j] = std::exp(p.scale * P[j]);
    }
    for (int c = 0; c < p.d; ++c) {
      double o = 0;
      for (int j = 0; j < p.N_kv; ++j) o += P[j] / sum * float(V[j * p.d + c]);
      judge(o, O[i * p.d + c]);
    }
#ifdef backward_plan
    std::vector<double> dP(p.N_kv), dQ_sum(p.d);
    double D = 0;
    for (int j = 0; j < p.N_kv; ++j) {
      for (int c = 0; c < p.d; ++c) dP[j] += float(dO[i * p.d + c]) * float(V[j * p.d + c]);
      D += P[j] / sum * dP[j];
    }
    for (int j = 0; j < p.N_kv; ++j)
      for (int c = 0; c < p.d; ++c) {
        const double dS = p.scale * P[j] / sum * (dP[j] - D);
        dQ_sum[c] += dS * float(K[j * p.d + c]);
        dK_sum[j * p.d + c] += dS * float(Q[i * p.d + c]);
        dV_sum[j * p.d + c] += P[j] / sum * float(dO[i * p.d + c]);
      }
    for (int c = 0; c < p.d; ++c) judge(dQ_sum[c], dQ[i * p.d + c]);
#endif
  }
#ifdef backward_plan
  for (int e = 0; e < p.N_kv * p.d; ++e) judge(dK_sum[e], dK[e]), judge(dV_sum[e], dV[e]);
#endif
  std::printf("%.3f ms, %.1f MB requested of HBM, %d wrong\n", ms[10], requested / 1e6, wrong);
  return wrong > 0;
}
