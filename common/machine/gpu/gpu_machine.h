// Implements machine.h for the GPU: names for CUDA's constructs, and a launch that checks errors.
#pragma once

#define MACHINE gpu

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cmath>
#include <tuple>
#include <type_traits>

#include "machine/gpu/launch.h"
#include "rung.h"

namespace ladder::gpu {

inline constexpr DeviceKind kDevice = DeviceKind::gpu;
using fp16 = __half;
using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;

/// A pointer to global memory: restricted, so that the compiler may use read-only ld.global.nc.
template <class T>
using Hbm = T* __restrict__;
/// A pointer to memory that the previous kernel may still write (Start::early). It is not
/// restricted, because the compiler may move read-only loads, even before wait_for_kernel_before().
template <class T>
using HbmWrittenBefore = T*;

template <class T>
using Smem = T*;

/// Returns the pointer to an array of the harness, for a kernel's argument.
template <class T>
T* hbm(Array& array) {
  return static_cast<T*>(array.data);
}

/// Calls f<T>() with the I/O type T.
template <class F>
void with_io_type(DType dtype, const F& f) {
  dtype == DType::fp16 ? f.template operator()<fp16>() : f.template operator()<bf16>();
}

extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];

/// Converts a pointer into the 32-bit address that asm instructions take.
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Hands out the block's dynamic shared memory front to back, aligned to 128 bytes or more. Traps
/// if the block's memory itself is not aligned to a requested alignment above 128.
class SharedMemory {
 public:
  /// Returns `count` elements of T. (The name of the array is for the simulator.)
  template <class T>
  __device__ __forceinline__ T* take(const char*, int64_t count, unsigned alignment = 128) {
    used_ = (used_ + alignment - 1) / alignment * alignment;
    T* piece = reinterpret_cast<T*>(dynamic_shared_memory + used_);
    if (alignment > 128 && !checked_) {  // once per kernel: six checks cost 06/sm90 1 to 2%
      unsigned address = shared_address(dynamic_shared_memory);
      asm volatile("" : "+r"(address));  // otherwise the compiler would trust __align__
      if (address % alignment != 0) __trap();
      checked_ = true;
    }
    used_ += static_cast<unsigned>((count * static_cast<int64_t>(sizeof(T)) + 127) / 128 * 128);
    return piece;
  }
  /// Hands out n consecutive tiles with the alignment that Tile requires.
  template <class Tile>
  __device__ __forceinline__ auto tiles(const char* name, int n = 1) {
    return take<typename Tile::Element>(name, int64_t{n} * Tile::kElements, Tile::kAlignment);
  }

 private:
  unsigned used_ = 0;
  bool checked_ = false;
};

/// Starts copying 16 bytes (or 4 or 8) from global to shared memory (PTX: cp.async; .cg bypasses L1
/// and supports only 16). If `valid` is false, it writes zeros and does not touch the source.
#if __CUDA_ARCH__ >= 800
template <int bytes = 16, class T>
__device__ __forceinline__ void cp_async(T* target, const T* source, bool valid = true) {
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
                 "l"(source), "r"(valid ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(target)),
                 "l"(source), "n"(bytes), "r"(valid ? bytes : 0)
                 : "memory");
}
/// Closes the group of copies that this thread has started since the last commit.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most the last `groups` of this thread's groups are still in flight.
template <int groups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
#else  // before 8.0 the thread itself loads and stores, so there is nothing to wait for
template <int bytes = 16, class T>
__device__ __forceinline__ void cp_async(T* target, const T* source, bool valid = true) {
  using Words =
      std::conditional_t<bytes == 16, uint4, std::conditional_t<bytes == 8, uint2, unsigned> >;
  Words words{};
  if (valid) words = *reinterpret_cast<const Words*>(source);
  *reinterpret_cast<Words*>(target) = words;
}
__device__ __forceinline__ void cp_async_commit() {}
template <int groups>
__device__ __forceinline__ void cp_async_wait() {}
#endif

// ---------------------------------------------------------------- tensor cores and their operands

/// Loads four 8×8 matrices of 16-bit elements from shared memory (PTX: ldmatrix.x4). Each lane
/// passes the address of one row of 16 bytes: lanes 0–7 pass the rows of the first matrix, and so
/// on. From each matrix, lane l receives elements 2·(l%4) and 2·(l%4)+1 of row l/4.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
/// Does the same as ldmatrix_x4(), but transposes every matrix (PTX: ldmatrix.x4.trans).
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

/// Computes C += A·B on the tensor cores, 16×8 += 16×16 · 16×8, with fp32 sums (mma.m16n8k16). GPUs
/// before 8.0 use two m16n8k8 instead and lack bf16, which the harness refuses there.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
#if __CUDA_ARCH__ < 800
  if constexpr (std::is_same_v<T, fp16>) {
    const auto half = [&](unsigned a0, unsigned a1, unsigned b) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a0), "r"(a1), "r"(b));
    };
    half(a[0], a[1], b0);
    half(a[2], a[3], b1);
  } else {
    __trap();
  }
#else
  if constexpr (std::is_same_v<T, fp16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// Rounds two floats to T and returns them in one register, `low` in the lower half.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  if constexpr (std::is_same_v<T, fp16>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const unsigned&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const unsigned&>(pair);
  }
}

/// Rounds four floats to e4m3 and returns them in one register, the first in the lowest byte.
template <class T>
__device__ __forceinline__ unsigned pack(float x0, float x1, float x2, float x3) {
  static_assert(std::is_same_v<T, e4m3>);
  const auto pair = [](float low, float high) -> unsigned {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
  };
  return pair(x0, x1) | pair(x2, x3) << 16;
}

/// Reads two 16-bit neighbours from global memory into one register; returns 0 if not `valid`.
template <class T>
__device__ __forceinline__ unsigned read_pair(const T* source, bool valid) {
  return valid ? *reinterpret_cast<const unsigned*>(source) : 0;
}
/// Stores a pair of neighbours to global or shared memory in one access, aligned to its size.
template <class T>
__device__ __forceinline__ void store_pair(T* target, unsigned pair) {
  *reinterpret_cast<unsigned*>(target) = pair;
}
__device__ __forceinline__ void store_pair(float* target, float low, float high) {
  *reinterpret_cast<float2*>(target) = make_float2(low, high);
}
/// Read four floats from global memory, or store them to shared memory, as 16 aligned bytes.
__device__ __forceinline__ void read_4(float (&x)[4], const float* source) {
  const float4 four = *reinterpret_cast<const float4*>(source);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}
__device__ __forceinline__ void store_4(float* target, const float (&x)[4]) {
  *reinterpret_cast<float4*>(target) = make_float4(x[0], x[1], x[2], x[3]);
}
/// Eight neighbouring elements, which one access of 16 aligned bytes (8 for e4m3) reads from or
/// writes to global memory. They can also be written to shared memory.
template <class T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Chunk {
  T x[8];
  __device__ __forceinline__ T& operator[](int i) { return x[i]; }
  __device__ __forceinline__ T operator[](int i) const { return x[i]; }
};
/// e4m3 elements are kept in words, because the compiler would unpack and repack single bytes.
template <>
struct alignas(8) Chunk<e4m3> {
  unsigned words[2];
};
template <class T>
__device__ __forceinline__ Chunk<T> read_chunk(const T* source) {
  return *reinterpret_cast<const Chunk<T>*>(source);
}
/// Reads a chunk of a 16-bit type; if not `valid`, returns zeros and does not touch the source.
template <class T>
__device__ __forceinline__ Chunk<T> read_chunk(const T* source, bool valid) {
  static_assert(sizeof(T) == 2);
  uint4 words{};
  if (valid) words = *reinterpret_cast<const uint4*>(source);
  return reinterpret_cast<const Chunk<T>&>(words);
}
template <class T>
__device__ __forceinline__ void write_chunk(T* target, const Chunk<T>& chunk) {
  *reinterpret_cast<Chunk<T>*>(target) = chunk;
}

/// Copies 16 bytes from shared to global memory. Both must be aligned to 16 bytes.
template <class T>
__device__ __forceinline__ void store_16_bytes(T* target, const T* source) {
  *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
}
/// Returns 2^x as the special function unit computes it (PTX: ex2.approx.ftz.f32), with an error of
/// at most 2 units in the last place. Only the simulator uses the second argument.
__device__ __forceinline__ float exp2_fast(float x, bool = true) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Atomically adds a and b to two neighbouring floats in global memory, the first aligned to 8
/// bytes. It is one instruction since sm_90 (PTX: red.global.add.v2.f32).
__device__ __forceinline__ void atomic_add_pair(float* target, float a, float b) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(target), "f"(a), "f"(b)
               : "memory");
#else
  atomicAdd(target, a);
  atomicAdd(target + 1, b);
#endif
}
/// Like atomic_add_pair, but for four floats, aligned to 16 bytes (PTX: red.global.add.v4.f32).
__device__ __forceinline__ void atomic_add_4(float* target, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(target), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i) atomicAdd(target + i, x[i]);
#endif
}
/// Hides from the compiler how x was computed, so that it neither specialises code for x nor
/// computes values that depend on x early and keeps them in registers.
__device__ __forceinline__ void opaque(int& x) {
  asm volatile("" : "+r"(x));
}
/// Does nothing here; on the simulator it counts FLOPs outside matrix products.
__device__ __forceinline__ void count_flops(int) {}

/// Lets a kernel with Start::early start once every block of this one has called this or ended.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits until the previous kernel has ended and its writes are visible to this thread.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Launches a kernel on the default stream and checks for errors; does not wait. `smem_bytes` is
/// the dynamic shared memory per block.
template <Start start = Start::after, class... P, class... A>
void launch(KernelName name, void (*kernel)(P...), dim3 grid, dim3 block, int64_t smem_bytes,
            A&&... arguments) {
  std::tuple<std::remove_cvref_t<P>...> parameters(std::forward<A>(arguments)...);
  std::apply(
      [&](auto&... parameter) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameter))...};
        launch_erased(name, reinterpret_cast<const void*>(kernel), grid, block, smem_bytes,
                      pointers, start);
      },
      parameters);
}

}  // namespace ladder::gpu
