// Implements machine/hopper.h for the GPU: a function for each of Hopper's instructions, in inline
// PTX. The comments name the sections of the PTX ISA manual. sim/sim_hopper.h simulates them.
//
// wgmma exists only for sm_90a, and setmaxnreg only for sm_90a and later architectures with an "a"
// (sm_100a, sm_120a); mbarriers, TMA's copies, stmatrix and the fences exist on every GPU since
// 9.0. The ladder uses all of them together. Compiled for any architecture but sm_90a, they trap;
// the harness offers a kernel that uses them only on GPUs that run code for sm_90a.
#pragma once

#include "machine/gpu/gpu_machine.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define LADDER_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define LADDER_SM90A(...) __trap()
#endif

namespace ladder::gpu {

/// Returns, on the host, the map of a (batch, heads, rows, d) array of T. Rows are a multiple of 16
/// bytes. A box is `box_rows` rows × `box_bytes` bytes (64 or 128) within one head. A load fills
/// the part of a box past the head's last row or past column d with zeros; a store skips that part.
template <class T>
TensorMap tensor_map(const Array& array, int d, int64_t rows, int64_t heads, int64_t batch,
                     int box_rows, int box_bytes = 128) {
  return encode_tensor_map(array, sizeof(T), {d, rows, heads, batch}, box_rows, box_bytes);
}

/// Returns the number of blocks for a persistent kernel: one per SM of the device.
inline int resident_blocks() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// ------------------------------------------------------------------------------------- barriers

/// A barrier in shared memory (PTX ISA: “Parallel Synchronization and Communication Instructions:
/// mbarrier”), taken as smem.take<Mbarrier>("name", n). A phase ends when as many arrivals as
/// init() set have happened and all bytes that they promised have been copied; then the next phase
/// begins. A wait specifies a phase by its parity; the first phase has parity 0.
struct Mbarrier {
  uint64_t state;

  /// Initialises the barrier for `count` arrivals per phase. One thread calls it;
  /// fence_mbarrier_init() and a __syncthreads() must follow.
  __device__ __forceinline__ void init(int count) {
    LADDER_SM90A("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(count)
                 : "memory");
  }
  /// Arrives without promising bytes.
  __device__ __forceinline__ void arrive() {
    LADDER_SM90A("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  /// Arrives and promises that tma_load() and bulk_load() will copy `bytes` bytes in this phase.
  __device__ __forceinline__ void arrive_expect_tx(int bytes) {
    LADDER_SM90A(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  /// Waits for the end of the phase with this parity, which is the current phase or the previous
  /// one. The instruction's time hint lets the thread sleep for up to 10 ms instead of polling.
  __device__ __forceinline__ void wait(int parity) {
    LADDER_SM90A(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 10000000;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};
using MbarrierRef = Mbarrier&;

/// Makes this thread's init()s visible to async copies (PTX ISA: “membar/fence”, mbarrier_init).
__device__ __forceinline__ void fence_mbarrier_init() {
  LADDER_SM90A("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Orders this thread's ordinary accesses to shared memory before later accesses through the async
/// proxy, that is, by TMA and wgmma (PTX ISA: “Async proxy”).
__device__ __forceinline__ void fence_proxy_async() {
  LADDER_SM90A("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Waits at named barrier `id`, 1 to 15, until `threads` threads have arrived. These form whole
/// warps and include threads that only arrive (PTX ISA: “bar”). Barrier 0 is __syncthreads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Arrives at the named barrier without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Set the number of registers per thread of the calling warpgroup to n, a multiple of 8 from 24 to
/// 256 (PTX ISA: “setmaxnreg”). setmaxnreg_inc() waits until enough registers are free.
template <int n>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(n >= 24 && n <= 256 && n % 8 == 0);
  LADDER_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(n >= 24 && n <= 256 && n % 8 == 0);
  LADDER_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

// ----------------------------------------------------------------------------------- bulk copies

/// Starts copying the map's box that begins at column c0, row c1, head c2, batch c3 to `target`;
/// one thread calls it. If rows are 128 bytes wide, `target` must be aligned to 1024 bytes, and
/// 16-byte chunk c of row r is stored at place c XOR r (mod 8); if they are 64 bytes wide, the
/// alignment is 512 and the place c XOR r/2 (mod 4). All bytes of the box, including zeros, count
/// towards the barrier's phase. (PTX ISA: “cp.async.bulk.tensor”.)
template <class T>
__device__ __forceinline__ void tma_load(const TensorMap& map, Mbarrier& barrier, T* target, int c0,
                                         int c1, int c2, int c3) {
  LADDER_SM90A(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(target)),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(&barrier))
      : "memory");
}
/// Starts copying a box from shared memory, in tma_load()'s layout, to the map's array. The box may
/// end outside the array but, unlike a load's, not start at a negative coordinate.
template <class T>
__device__ __forceinline__ void tma_store(const TensorMap& map, const T* source, int c0, int c1,
                                          int c2, int c3) {
  LADDER_SM90A(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(
          &map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(source))
      : "memory");
}
/// Closes the group of stores that this thread has started since the last commit.
__device__ __forceinline__ void tma_store_commit() {
  LADDER_SM90A("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until at most the last `groups` of this thread's groups still have to read shared memory.
/// Then the sources of the earlier groups may be overwritten.
template <int groups>
__device__ __forceinline__ void tma_store_wait_read() {
  LADDER_SM90A("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}
/// Waits until at most the last `groups` of this thread's groups are still in flight.
template <int groups>
__device__ __forceinline__ void tma_store_wait() {
  LADDER_SM90A("cp.async.bulk.wait_group %0;" ::"n"(groups) : "memory");
}

/// Starts copying n floats (a multiple of 4) from global to shared memory, both aligned to 16
/// bytes; one thread calls it. The bytes count towards the phase. (PTX ISA: “cp.async.bulk”.)
__device__ __forceinline__ void bulk_load(Mbarrier& barrier, float* target, const float* source,
                                          int n) {
  LADDER_SM90A(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(target)),
      "l"(source), "r"(4 * n), "r"(shared_address(&barrier))
      : "memory");
}
/// Starts adding n floats (a multiple of 4) from shared memory to n floats in global memory, both
/// aligned to 16 bytes. Each addition is atomic, and the operation joins the current group of
/// stores. One thread calls it, after the threads that wrote the floats have called
/// fence_proxy_async() and synchronised with it. (PTX ISA: “cp.reduce.async.bulk”.)
__device__ __forceinline__ void bulk_add(float* target, const float* source, int n) {
  LADDER_SM90A(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(target),
      "r"(shared_address(source)), "r"(4 * n)
      : "memory");
}

/// Stores four 8×8 matrices of 16-bit elements to shared memory, from the registers into which
/// ldmatrix_x4() would load them; each lane passes the address of one row (PTX ISA: “stmatrix”).
template <class T>
__device__ __forceinline__ void stmatrix_x4(T* row, const unsigned (&r)[4]) {
  LADDER_SM90A(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

// ------------------------------------------------------------------------- products of a warpgroup

/// Returns the descriptor that tells wgmma where to find a matrix in shared memory (PTX ISA:
/// “Matrix Descriptor Format”). It contains the start address (18 bits; in a cluster it may have
/// more), the leading and stride byte offsets, all in units of 16 bytes, and the swizzle mode in
/// bits 62 and 63: 1 for 128 bytes, 2 for 64. Rows (columns if the operand is transposed) are split
/// into lines of `piece` bytes, 128 or 64, which is also the swizzle's width. Groups of eight lines
/// repeat every `stride` bytes. `leading` is the distance in bytes to the next 64 columns (rows if
/// transposed) and matters only for a transposed operand.
template <class T>
__device__ __forceinline__ uint64_t matrix_descriptor(const T* start, int leading, int stride,
                                                      int piece = 128) {
  return (shared_address(start) & 0x3ffff) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{piece == 64 ? 2u : 1u} << 62;
}
/// Returns the descriptor of a matrix that starts `bytes` bytes later (a multiple of 16). This
/// takes one addition, to the lower half, so a kernel derives all descriptors of a tile from one.
__device__ __forceinline__ uint64_t advanced(uint64_t descriptor, int bytes) {
  return descriptor >> 32 << 32 | (static_cast<unsigned>(descriptor) + (bytes >> 4));
}

/// Returns x, which must be the same in all lanes that call this. `lanes` is the mask of these
/// lanes (default: the warp) and includes lane 0. The compiler then keeps x, and values computed
/// from it, in the warp's uniform registers instead of each thread's.
__device__ __forceinline__ int uniform(int x, unsigned lanes = 0xffffffff) {
  return __shfl_sync(lanes, x, 0);
}

/// Keeps earlier arithmetic before later waits. ptxas may move arithmetic past a wait for a product
/// on which it does not depend; then the arithmetic no longer overlaps the product. The machine
/// code of CUDA 13.0 shows that ptxas moves nothing across this performance-monitor event (PTX ISA:
/// “pmevent”), which nobody counts.
__device__ __forceinline__ void scheduling_barrier() {
  asm volatile("pmevent 0;");
}

/// Declares that the warp is done reading a part of shared memory. Only the simulator checks it.
template <class T>
__device__ __forceinline__ void done_with(Smem<T>, int) {}

/// Orders other code's accesses to registers before the next wgmmas, and is needed before the first
/// (PTX ISA: “wgmma.fence”). Kernels call wgmma_fence() in common/tile.
__device__ __forceinline__ void wgmma_fence_instruction() {
  LADDER_SM90A("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Keeps the compiler from moving uses of these registers across this call.
template <class Register, int n>
__device__ __forceinline__ void hold(Register (&registers)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if constexpr (std::is_same_v<Register, float>)
        asm volatile("" : "+f"(registers[i][e]));
      else
        asm volatile("" : "+r"(registers[i][e]));
}
/// Closes the group of wgmmas started since the last commit.
__device__ __forceinline__ void wgmma_commit() {
  LADDER_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `groups` groups are in flight. Kernels call wgmma_wait() in common/tile.
template <int groups>
__device__ __forceinline__ void wgmma_wait_instruction() {
  LADDER_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

// wgmma_m64(d, a, b, scale_d) starts d = scale_d·d + A·B, 64×N = 64×16 · 16×N, which the four warps
// of a warpgroup compute together (PTX ISA: “wgmma.mma_async”). scale_d is 0 or 1. d holds the
// warp's 16 rows of sums as 16 × 8 matrices, each in the layout of mma.m16n8k16 (“Register
// Fragments for wgmma.m64nNk16”). A is given by a descriptor or four registers, B by a descriptor.
// In a transposed operand, the elements of a column of A, or of a row of B, are contiguous. For
// e4m3 the product is 64×32 · 32×N, A's registers have the layout of mma.m16n8k32 (“Register
// Fragments for wgmma.m64nNk32”), and no operand is transposed. The asm names each register by its
// number, so there is one function for each N that steps use.
#define LADDER_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LADDER_REGISTERS_32 \
  LADDER_REGISTERS_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LADDER_REGISTERS_40 LADDER_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define LADDER_REGISTERS_48 \
  LADDER_REGISTERS_40       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define LADDER_REGISTERS_64 \
  LADDER_REGISTERS_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LADDER_REGISTERS_96                                                          \
  LADDER_REGISTERS_64                                                                \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LADDER_REGISTERS_128                                                                     \
  LADDER_REGISTERS_96                                                                            \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define LADDER_SUMS(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define LADDER_SUMS_16(j) LADDER_SUMS(j), LADDER_SUMS(j + 1), LADDER_SUMS(j + 2), LADDER_SUMS(j + 3)
#define LADDER_SUMS_32(j) LADDER_SUMS_16(j), LADDER_SUMS_16(j + 4)
#define LADDER_SUMS_40(j) LADDER_SUMS_32(j), LADDER_SUMS(j + 8), LADDER_SUMS(j + 9)
#define LADDER_SUMS_48(j) LADDER_SUMS_32(j), LADDER_SUMS_16(j + 8)
#define LADDER_SUMS_64(j) LADDER_SUMS_32(j), LADDER_SUMS_32(j + 8)
#define LADDER_SUMS_96(j) LADDER_SUMS_64(j), LADDER_SUMS_32(j + 16)
#define LADDER_SUMS_128(j) LADDER_SUMS_64(j), LADDER_SUMS_64(j + 16)

// n is the number of registers of d, %0 to %(n - 1). The operands that follow are %n, %n1, %n2, …:
// a, b, scale_d and the flags for transposition.
#define LADDER_WGMMA_ASM(N, n, shape, a, b, scale, transposed, ...)                         \
  LADDER_SM90A("{\n.reg .pred add;\nsetp.ne.b32 add, %" #scale                              \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N shape " {" LADDER_REGISTERS_##n \
               "}, " a ", %" #b ", add, 1, 1" transposed ";\n}"                             \
               : LADDER_SUMS_##n(0)                                                         \
               : __VA_ARGS__)
#define LADDER_WGMMA_OF_TYPE(N, n, a, b, scale, transposed, ...)                       \
  if constexpr (std::is_same_v<T, fp16>)                                               \
    LADDER_WGMMA_ASM(N, n, "k16.f32.f16.f16", a, b, scale, transposed, __VA_ARGS__);   \
  else if constexpr (std::is_same_v<T, bf16>)                                          \
    LADDER_WGMMA_ASM(N, n, "k16.f32.bf16.bf16", a, b, scale, transposed, __VA_ARGS__); \
  else                                                                                 \
    LADDER_WGMMA_ASM(N, n, "k32.f32.e4m3.e4m3", a, b, scale, "", __VA_ARGS__)
#define LADDER_WGMMA(N, n, n1, n2, n3, n4, n5, n6)                                                \
  template <class T, bool transposed_a, bool transposed_b>                                        \
  __device__ __forceinline__ void wgmma_m64(float(&d)[N / 8][4], uint64_t a, uint64_t b,          \
                                            int scale_d) {                                        \
    LADDER_WGMMA_OF_TYPE(N, n, "%" #n, n1, n2, ", %" #n3 ", %" #n4, "l"(a), "l"(b), "r"(scale_d), \
                         "n"(transposed_a), "n"(transposed_b));                                   \
  }                                                                                               \
  template <class T, bool transposed_b>                                                           \
  __device__ __forceinline__ void wgmma_m64(float(&d)[N / 8][4], unsigned(&a)[4], uint64_t b,     \
                                            int scale_d) {                                        \
    LADDER_WGMMA_OF_TYPE(N, n, "{%" #n ", %" #n1 ", %" #n2 ", %" #n3 "}", n4, n5, ", %" #n6,      \
                         "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d),        \
                         "n"(transposed_b));                                                      \
  }
LADDER_WGMMA(32, 16, 17, 18, 19, 20, 21, 22)
LADDER_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
LADDER_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
LADDER_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
LADDER_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
LADDER_WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
LADDER_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)
#undef LADDER_WGMMA
#undef LADDER_WGMMA_OF_TYPE
#undef LADDER_WGMMA_ASM

}  // namespace ladder::gpu
