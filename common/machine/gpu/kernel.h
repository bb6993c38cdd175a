// The gpu's side of machine.h: names for what CUDA has, and a launch that checks.
#pragma once

#define MACHINE gpu

#include <cuda_bf16.h>
#include <cuda_fp16.h>
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

/// Global memory. An alias of a restricted pointer and no struct: only so does the compiler know
/// that what a kernel only reads may go through the read-only path (ld.global.nc).
template <class T>
using Hbm = T* __restrict__;

/// Shared memory.
template <class T>
using Smem = T*;

template <class T>
T* hbm(Array& array) {
  return static_cast<T*>(array.data);
}

extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];

/// The block's dynamic shared memory, handed out front to back in pieces aligned to 128 bytes.
class SharedMemory {
 public:
  template <class T>
  __device__ __forceinline__ T* take(const char*, int64_t count) {
    T* piece = reinterpret_cast<T*>(dynamic_shared_memory + used_);
    used_ += static_cast<unsigned>((count * static_cast<int64_t>(sizeof(T)) + 127) / 128 * 128);
    return piece;
  }

 private:
  unsigned used_ = 0;
};

/// The address of shared memory as the asm instructions want it.
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Starts a copy of 16 bytes from global to shared memory (PTX: cp.async.cg). Where `valid` is
/// false zeros are written and the source is not touched.
template <class T>
__device__ __forceinline__ void cp_async(T* target, const T* source, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
               "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}
/// Closes the group that this thread's copies since the last commit belong to.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `groups` of this thread's groups are still under way.
template <int groups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

/// Launches a kernel on the default stream and checks every error; does not wait.
template <class... P, class... A>
void launch(KernelName name, void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared_bytes,
            A&&... arguments) {
  std::tuple<std::remove_cvref_t<P>...> parameters(std::forward<A>(arguments)...);
  std::apply(
      [&](auto&... parameter) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameter))...};
        launch_erased(name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes,
                      pointers);
      },
      parameters);
}

}  // namespace ladder::gpu
