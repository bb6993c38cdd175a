// What scripts/run --alone writes around a step, in place of the harness. alone.py resolves each
// #ifdef by whether the step uses that name, and turns run(p, a) into a call of the step's pass.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common"
#ifdef SharedMemory
extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
/// The block's shared memory, handed out front to back in whole pieces of 128 bytes.
struct SharedMemory {
  unsigned used = 0;
  template <class T>
  __device__ T* take(const char*, int64_t count) {
    T* piece = reinterpret_cast<T*>(dynamic_shared_memory + used);
    used += (count * sizeof(T) + 127) / 128 * 128;
    return piece;
  }
};

#endif
thread_local cudaStream_t stream;             // for all kernels
using Arrays = std::map<std::string, void*>;  // keyed by name
template <class T>
T* hbm(void* array) {
  return static_cast<T*>(array);
}
/// Launches a kernel. More than 48 KB of shared memory must be requested first.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, int smem, A... a) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  kernel<<<grid, block, smem, stream>>>(a...);
}
void check(cudaError_t status) {
  if (status != cudaSuccess) std::exit((std::puts(cudaGetErrorString(status)), 3));
}

#include "step"
#ifdef kHeadSizes
/// Computes O and LSE for programs in other languages. The arrays are contiguous: Q and O (B, H, N,
/// d), K and V (B, Hk, N_kv, d) in bf16 or, if is_bf16 is 0, fp16, and LSE (B, H, N) in fp32.
/// Returns a cudaError_t: cudaErrorInvalidValue for a null pointer or unsupported sizes.
extern "C" int attention_forward(void* Q, void* K, void* V, void* O, void* LSE, int B, int H,
                                 int Hk, int N, int N_kv, int d, float scale, int causal,
                                 int is_bf16, cudaStream_t stream) {
  const bool fits = std::min({B, H, Hk, N, N_kv, d}) > 0 && H % Hk == 0 && d % 8 == 0 && d <= 128;
  if (!Q || !K || !V || !O || !LSE || !fits) return cudaErrorInvalidValue;
  const Problem p{B, H, Hk, N, N_kv, d, causal != 0, scale};
  Arrays a{{"Q", Q}, {"K", K}, {"V", V}, {"O", O}, {"LSE", LSE}};
  ::stream = stream;
  const auto run = [&]<class T>() { d <= 64 ? forward<T, 64>(p, a) : forward<T, 128>(p, a); };
  is_bf16 ? run.template operator()<bf16>() : run.template operator()<fp16>();
  return cudaGetLastError();
}

#endif
int main() {
  using T = __half;  // or __nv_bfloat16
  const Problem p{.B = 1, .H = 8, .Hk = 8, .N = 1000, .N_kv = 1000, .d = 64, .scale = 0.125f};
  const int q = p.q_row(p.B * p.H) * p.d, k = p.kv_row(p.B * p.H) * p.d;  // elements
  Arrays a;
  std::mt19937 seed(1);
  const auto allocate = [&](const char* name, int64_t bytes) {
    check(cudaMallocManaged(&a[name], bytes));
    std::normal_distribution<float> normal;
    std::generate_n(hbm<T>(a[name]), bytes / 2, [&] { return T(normal(seed)); });
  };
  allocate("Q", 2 * q), allocate("K", 2 * k), allocate("V", 2 * k), allocate("O", 2 * q);
#ifdef LSE
  allocate("LSE", q / p.d * 4);
#endif
#ifdef backward
  allocate("dO", 2 * q), allocate("dQ", 2 * q), allocate("dK", 2 * k), allocate("dV", 2 * k);
#endif
#ifdef launch_backward
  allocate("P", 2 * p.B * p.H * p.N * pitch(p));
#endif
#include "workspace"

  // Attention in float64.
  const auto wide = [](void* x, int n) { return std::vector<double>(hbm<T>(x), hbm<T>(x) + n); };
  const auto dot = [&](auto* x, auto* y) { return std::inner_product(x, x + p.d, y, 0.0); };
  const auto Q = wide(a["Q"], q), K = wide(a["K"], k), V = wide(a["V"], k);
  std::vector<double> O(q);
#ifdef backward
  std::vector<double> LSE(q / p.d);
#endif
  for (int i = 0; i < q / p.d; ++i) {
    const int first = p.kv_row(i / p.N) * p.d;  // element of K and V
    double l = 1e-300;                          // a row may attend to no key
    for (int j = 0; j < p.N_kv; ++j) {
      if (!p.attends(i % p.N, j)) continue;
      const double e = std::exp(p.scale * dot(&Q[i * p.d], &K[first + j * p.d]));
      for (int c = 0; c < p.d; ++c) O[i * p.d + c] += e * V[first + j * p.d + c];
      l += e;
    }
    for (int c = 0; c < p.d; ++c) O[i * p.d + c] /= l;
#ifdef backward
    hbm<float>(a["LSE"])[i] = LSE[i] = std::log(l);
#endif
#ifdef launch_backward
    for (int j = 0; j < p.N_kv; ++j)
      hbm<T>(a["P"])[i * pitch(p) + j] = std::exp(
          p.attends(i % p.N, j) ? p.scale * dot(&Q[i * p.d], &K[first + j * p.d]) - LSE[i] : -99);
#endif
  }
#ifdef backward
  std::copy_n(O.begin(), q, hbm<T>(a["O"]));

  // The gradients of the first head of K and V, and of the queries that it serves.
  const auto dO = wide(a["dO"], q);
  std::vector<double> dQ(p.q_row(p.H / p.Hk) * p.d), dK(p.N_kv * p.d), dV(dK);
  for (size_t i = 0; i < dQ.size() / p.d; ++i) {
    const double D = dot(&dO[i * p.d], &O[i * p.d]);
    for (int j = 0; j < p.N_kv; ++j) {
      if (!p.attends(i % p.N, j)) continue;
      const double P = std::exp(p.scale * dot(&Q[i * p.d], &K[j * p.d]) - LSE[i]);
      const double dS = p.scale * P * (dot(&dO[i * p.d], &V[j * p.d]) - D);
      for (int c = 0; c < p.d; ++c) {
        dQ[i * p.d + c] += dS * K[j * p.d + c];
        dK[j * p.d + c] += dS * Q[i * p.d + c];
        dV[j * p.d + c] += P * dO[i * p.d + c];
      }
    }
  }
#endif

  run(p, a), check(cudaDeviceSynchronize());  // loads the kernels
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) run(p, a);
  check(cudaGetLastError()), check(cudaDeviceSynchronize());
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;

  int wrong = 0;
#ifdef backward
  for (const auto& [name, right] : {std::pair{"dQ", dQ}, {"dK", dK}, {"dV", dV}}) {
    const T* got = hbm<T>(a[name]);
    for (double x : right) wrong += !(std::abs(x - double(*got++)) < 1e-3 + 4e-3 * std::abs(x));
  }
#else
  const T* got = hbm<T>(a["O"]);
  for (double x : O) wrong += !(std::abs(x - double(*got++)) < 1e-3 + 4e-3 * std::abs(x));
#endif
  std::printf("%.3f ms, %d wrong\n", time.count() / 20, wrong);
  return wrong > 0;
}
