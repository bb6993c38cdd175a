// Declares the names that kernels use. The same source is compiled twice: by nvcc for the GPU,
// where these names are CUDA's own or thin aliases, and by the host compiler for the simulator,
// where they check and count. MACHINE is the namespace `gpu` or `sim`; both are linked into one
// program. gpu/gpu_machine.h documents each name, sim/sim_machine.h and sim/sim_memory.h what it
// counts.
//
//   Hbm<T>              global memory: Q[i] reads, S[i] = x writes, Q + n points n elements on
//   hbm<T>(array)       passes an array of the harness to a kernel
//   HbmWrittenBefore<T> an Hbm<T> that the previous kernel may still write after an early start
//   Smem<T>             named shared memory: SharedMemory smem; then smem.take<T>("K", n)
//   array_bytes<T>(n)   the bytes that a Smem<T> of n elements adds to a launch
//   launch(...)         kernel<<<grid, block, shared>>>(...) with every error checked;
//                       launch<Start::early> for a kernel whose blocks may start before the
//                       previous kernel has ended: let_next_kernel_start, wait_for_kernel_before
//   cp_async(...)       copies 4, 8 or 16 bytes from global to shared memory, asynchronously; see
//                       cp_async_commit and cp_async_wait<n>
//   fp16, bf16, e4m3    __half, __nv_bfloat16 and __nv_fp8_e4m3, or their equivalents
//   with_type           calls a template with the problem's type; with_type_and_head_dim adds
//                       the padded head size (the simulator passes IoFloat, which is either type)
//   Register            registers a step; kDevice is the machine that it is compiled for
//
//   atomic_add_pair, atomic_add_4   add to two or four neighbours in global memory
//   Chunk<T>            8 elements; read_chunk and write_chunk move them as 16 bytes
//   exp2_fast           2^x as the special function unit (SFU) computes it
//   count_flops         adds to the simulator's count of FLOPs outside matrix products
//   opaque              hides from the compiler how an int was computed, to save registers
//   mma_m16n8k16, pack, read_pair, store_pair, ldmatrix_x4, ldmatrix_x4_trans, store_16_bytes,
//   read_4, store_4     operands of tensor cores; 01/fragment and common/tile build on these
//
// and CUDA's own: __global__, __device__, __forceinline__, __launch_bounds__, dim3, threadIdx,
// blockIdx, blockDim, gridDim, __syncthreads, __syncwarp, __shfl_sync, __shfl_xor_sync, __any_sync,
// atomicAdd on global memory, min, max, fmaf, expf, exp2f, and from <cmath> fmaxf, fabsf and logf,
// which need no counts, because they are neither products nor exponentials.
#pragma once

#include "choose_tile.h"
#include "rung.h"

#ifdef LADDER_SIM
#include "machine/sim/sim_machine.h"
#else
#include "machine/gpu/gpu_machine.h"
#endif

namespace ladder::MACHINE {

/// Calls f<T>() with the problem's I/O type T, fp16 or bf16.
template <class F>
void with_type(const Problem& p, F f) {
  p.dtype == DType::fp16 ? f.template operator()<fp16>() : f.template operator()<bf16>();
}

/// Returns the bytes of shared memory that `count` elements of T take, rounded up to 128.
template <class T>
constexpr int64_t array_bytes(int64_t count) {
  return ceil_div(count * static_cast<int64_t>(sizeof(T)), 128) * 128;
}

/// Calls f<T, Dh>() with the problem's I/O type and padded head size, padded_head_dim<sizes>(d).
template <const auto& sizes = kHeadDims, class F>
void with_type_and_head_dim(const Problem& p, F f) {
#ifdef LADDER_ONE_KERNEL
  // CI without a GPU compiles one kernel of each step, which never runs (see cmake/ladder.cmake).
  if (p.dtype == DType::bf16 && p.d == 128) f.template operator()<bf16, 128>();
#else
  const auto with_size = [&]<int Dh>() {
    if (padded_head_dim<sizes>(p.d) != Dh) return;
    with_io_type(p.dtype, [&]<class T>() { f.template operator()<T, Dh>(); });
  };
  [&]<size_t... i>(std::index_sequence<i...>) {
    (with_size.template operator()<sizes[i]>(), ...);
  }
  (std::make_index_sequence<std::size(sizes)>());
#endif
}

/// Calls f<T, Dh, Br, Bc>() with the problem's I/O type, its padded head size and the plan's tile.
/// Compiles f for every entry of `tiles`, a constexpr array of TileSize.
template <const auto& tiles, const auto& sizes = kHeadDims, class F>
void with_tile(const Problem& p, const Plan& plan, F f) {
  with_type_and_head_dim<sizes>(p, [&]<class T, int Dh>() {
    const auto with_entry = [&]<size_t i>() {
      constexpr TileSize tile = tiles[i];
      if constexpr (tile.max_d == tiles_for(tiles, Dh))
        if (plan.block_q == tile.block_q && plan.block_kv == tile.block_kv)
          f.template operator()<T, Dh, tile.block_q, tile.block_kv>();
    };
    [&]<size_t... i>(std::index_sequence<i...>) {
      (with_entry.template operator()<i>(), ...);
    }
    (std::make_index_sequence<std::size(tiles)>());
  });
}

/// Registers a step, so that the harness can choose it. A step's file defines a global variable of
/// this type, whose constructor runs when the program starts.
struct Register {
  explicit Register(Step&& step, const char* file = __builtin_FILE()) {
    add_step(std::move(step), kDevice, file);
  }
};

}  // namespace ladder::MACHINE
