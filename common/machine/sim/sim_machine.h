// Implements machine.h for the simulator: CUDA's constructs, checked and counted. gpu_machine.h
// says what each function does; the comments here say what it counts and when it faults.
#pragma once

#define MACHINE sim
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

#include <algorithm>
#include <cmath>
#include <tuple>

#include "float16.h"
#include "machine/sim/sim_memory.h"

namespace ladder::sim {

inline constexpr DeviceKind kDevice = DeviceKind::sim;
using ladder::bf16;
using ladder::e4m3;
using ladder::fp16;
using std::max;
using std::min;

/// Stands for the run's I/O type, fp16 or bf16 (with_io_type()), so each kernel is compiled once.
struct IoFloat {
  static inline bool is_bf16 = false;
  uint16_t bits = 0;

  IoFloat() = default;
  [[gnu::always_inline]] explicit IoFloat(float x) : bits(is_bf16 ? bf16(x).bits : fp16(x).bits) {}
  operator float() const { return is_bf16 ? bf16::from_bits(bits) : float(fp16::from_bits(bits)); }
};
/// Returns whether T's bits are bf16's in this run.
template <class T>
bool is_bf16() {
  return std::is_same_v<T, IoFloat> ? IoFloat::is_bf16 : std::is_same_v<T, bf16>;
}
template <class F>
void with_io_type(DType dtype, const F& f) {
  IoFloat::is_bf16 = dtype == DType::bf16;
  f.template operator()<IoFloat>();
}

// --------------------------------------------------------------------------- barriers, collectives

inline void __syncthreads(Where where = Where::current()) {
  this_block->syncthreads(where);
}

/// Runs a collective: each lane publishes `mine`, and the last lane to arrive runs compute(lanes,
/// n), where lanes[i] points to lane i's `mine` and n is the warp's number of lanes. Faults if the
/// mask leaves out a lane of the warp.
template <class Lane, class Compute>
void collective(const char* name, unsigned mask, Lane& mine, Compute compute,
                Where where = Where::current()) {
  if (Meeting* const meeting = this_block->meet(name, mask, &mine, where)) {
    compute(reinterpret_cast<Lane* const*>(meeting->lanes), this_block->lanes());
    this_block->release(*meeting);
  }
}

/// Waits for all lanes and, unlike other collectives, orders memory as a barrier does: lanes may
/// then read what another lane copied asynchronously and has waited for.
inline void __syncwarp(unsigned mask = 0xffffffff, Where where = Where::current()) {
  int nothing = 0;
  collective(
      "__syncwarp", mask, nothing, [](int* const*, int) { this_block->publish_warp(); }, where);
}

/// Returns the value of lane `source`, or the calling lane's own value if `source` is outside [0,
/// 32). Faults if lane `source` does not take part, because its value is undefined.
template <class T>
T shuffle(const char* name, unsigned mask, T value, int source, Where where) {
  struct Lane {
    T in, out;
    int source;
  } mine{value, value, source};
  collective(
      name, mask, mine,
      [&](Lane* const* lanes, int n) {
        for (int i = 0; i < n; ++i) {
          const int from = lanes[i]->source;
          if (from < 0 || from >= 32) continue;
          if (from >= n)
            fault("{}: lane {} reads lane {}, which does not take part", name, i, from);
          lanes[i]->out = lanes[from]->in;
        }
      },
      where);
  return mine.out;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, Where where = Where::current()) {
  return shuffle("__shfl_sync", mask, value, lane & 31, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, Where where = Where::current()) {
  return shuffle("__shfl_xor_sync", mask, value, this_block->lane() ^ lanes, where);
}

inline bool __any_sync(unsigned mask, bool predicate, Where where = Where::current()) {
  collective(
      "__any_sync", mask, predicate,
      [](bool* const* lanes, int n) {
        const bool any = std::any_of(lanes, lanes + n, [](const bool* lane) { return *lane; });
        for (int i = 0; i < n; ++i) *lanes[i] = any;
      },
      where);
  return predicate;
}

// -------------------------------------------------------------------------------------- arithmetic

/// Counts two matmul FLOPs, because rungs use fmaf only for their products.
inline float fmaf(float a, float b, float c) {
  this_block->counts.matmul_flops += 2;
  return std::fma(a, b, c);
}
/// expf and exp2f count one exponential and, unlike exp2_fast, accept a NaN.
inline float expf(float x) {
  this_block->count_exps(1);
  return std::exp(x);
}
inline float exp2f(float x) {
  this_block->count_exps(1);
  return std::exp2(x);
}

/// Returns 2^x and counts one exponential, unless `counted` is false because another lane counts
/// it. Faults for a NaN, which might otherwise go unnoticed in a row whose weight is 0.
inline float exp2_fast(float x, bool counted = true) {
  this_block->count_exps(counted);
  check_waited_for(x);
  if (std::isnan(x)) [[unlikely]]
    fault("2^NaN: did −∞ − (−∞) come up?");
  return std::exp2(x);
}
/// Counts n FLOPs outside matmuls; the functions in common/tile call it.
inline void count_flops(int n) {
  this_block->counts.other_flops += n;
}

// ---------------------------------------------------------------- tensor cores and their operands

/// Rounds neighbours to T and returns them in one register, the first in the lowest bits.
template <class T, class... Float>
unsigned pack(Float... x) {
  static_assert(sizeof(T) * sizeof...(x) == 4);
  unsigned out = 0;
  int shift = 0;
  const auto add = [&](float one) {
    check_waited_for(one);
    out |= unsigned{T(one).bits} << shift;
    shift += 8 * int{sizeof(T)};
  };
  (add(static_cast<float>(x)), ...);
  return out;
}

/// Runs a collective that needs all 32 lanes (PTX: .sync.aligned); faults in a smaller warp.
template <class Lane, class Compute>
void whole_warp(const char* name, Lane& mine, Compute compute) {
  if (this_block->lanes() < 32) fault("{} in a warp of fewer than 32 threads", name);
  collective(name, 0xffffffff, mine, compute);
}

/// Counts the bank conflicts of an ldmatrix or stmatrix of four matrices: for each, the passes over
/// shared memory beyond the first. A lane's `at` is the byte offset of its row.
template <class Lane>
void count_conflicts(Lane* const* lanes) {
  for (int m = 0; m < 4; ++m) {
    int in_bank[8] = {}, passes = 1;  // how many rows start in each group of four banks
    for (int i = 0; i < 8; ++i) passes = std::max(passes, ++in_bank[lanes[8 * m + i]->at / 16 % 8]);
    this_block->counts.bank_conflicts += passes - 1;
  }
}
/// Implements ldmatrix_x4 and, if `transposed`, ldmatrix_x4_trans. An element is 16 bits.
void ldmatrix(unsigned (&r)[4], const Smem<uint16_t>& row, bool transposed);
template <class T>
void ldmatrix_x4(unsigned (&r)[4], Smem<T> row) {
  static_assert(sizeof(T) <= 2);
  ldmatrix(r, Smem<uint16_t>(row.place(0)), false);
}
template <class T>
void ldmatrix_x4_trans(unsigned (&r)[4], Smem<T> row) {
  static_assert(sizeof(T) == 2);
  ldmatrix(r, Smem<uint16_t>(row.place(0)), true);
}

/// One lane's registers for a warp's product c += a·b (mma.m16n8k16), which multiply() computes.
struct MmaLane {
  const unsigned* a;
  unsigned b[2];
  float* c;
};
void multiply(MmaLane& mine, bool is_bf16);

/// Computes C += A·B, 16×8 += 16×16 · 16×8, in fp32. Counts 4,096 matmul FLOPs per warp.
template <class T>
void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  MmaLane mine{a, {b0, b1}, c};
  multiply(mine, is_bf16<T>());
}

// ------------------------------------------------------------------------------------------ launch

/// When a kernel starts. On the simulator even an early kernel runs after the previous one, but any
/// of its threads that has not called wait_for_kernel_before() faults if it touches what the
/// previous kernel wrote, or writes what that kernel read.
enum class Start { after, early };
inline void let_next_kernel_start() {
  this_block->let_next_kernel_start();
}
inline void wait_for_kernel_before() {
  this_block->wait_for_kernel_before();
}

/// Runs all blocks of the grid, or throws a Fault. `name` identifies the kernel in reports.
template <Start start = Start::after, class... P, class... A>
void launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, int64_t smem_bytes,
            A&&... arguments) {
  const std::tuple<std::remove_cvref_t<P>...> parameters(std::forward<A>(arguments)...);
  run_kernel({.kernel = name,
              .grid = grid,
              .block = block,
              .smem_bytes = smem_bytes,
              .function = reinterpret_cast<const void*>(kernel),
              .body = [&] { std::apply(kernel, parameters); },
              .early = start == Start::early});
}

}  // namespace ladder::sim
