// 05/fp8: functions with which quantise.h rounds Q, K and V to e4m3. Each thread holds 8
// neighbouring elements of a row. On the simulator each function counts one FLOP per element and
// operation.
#pragma once

#include <array>
#include <bit>

#include "tile/warp.h"

namespace ladder::MACHINE {

/// Replaces a row x of Dh elements by H·(±x)/√Dh, where H is the Hadamard matrix of order Dh and
/// hadamard_sign gives the signs. Dh/8 neighbouring lanes hold 8 elements each; `column` is the
/// calling lane's first column. Multiplying by H takes log₂Dh rounds of sums and differences: of
/// elements 1, 2 and 4 apart within a lane, and then of elements in lanes 1, 2, 4, … apart.
template <int Dh>
__device__ __forceinline__ void hadamard(float (&x)[8], int column) {
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (hadamard_sign(column + e)) x[e] = -x[e];
#pragma unroll
  for (int bit = 1; bit < 8; bit *= 2)
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if ((e & bit) == 0) {
        const float a = x[e], b = x[e + bit];
        x[e] = a + b;
        x[e + bit] = a - b;
      }
  int rounds = 3;
#pragma unroll
  for (int lanes = 1; lanes < Dh / 8; lanes *= 2) {
    const float sign = lane_id() & lanes ? -1.0f : 1.0f;  // one FMA per element, no branch
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = __shfl_xor_sync(0xffffffff, x[e], lanes) + sign * x[e];
    ++rounds;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) x[e] *= hadamard_factor(Dh);
  count_flops(8 * (rounds + 1));
}

/// Converts a chunk to fp32.
template <class T>
__device__ __forceinline__ void widen(float (&x)[8], const Chunk<T>& chunk) {
#pragma unroll
  for (int e = 0; e < 8; ++e) x[e] = float(chunk[e]);
}

/// Returns the largest |x[e]|.
__device__ __forceinline__ float largest(const float (&x)[8]) {
  float most = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) most = fmaxf(most, fabsf(x[e]));
  count_flops(8);
  return most;
}

/// Returns the largest x over all threads of a block of kWarps warps. All threads must call it.
/// of_warps is shared memory for kWarps floats.
template <int kWarps>
__device__ __forceinline__ float block_max(float x, Smem<float> of_warps) {
  x = warp_max(x);
  if (lane_id() == 0) of_warps[warp_id()] = x;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) x = fmaxf(x, of_warps[w]);
  return x;
}

/// Returns x times `factor`, rounded to e4m3.
__device__ __forceinline__ Chunk<e4m3> rounded(const float (&x)[8], float factor) {
  count_flops(8);
  // pack() converts two elements per instruction; one at a time would take twice as many.
  const auto four = [&](int e) {
    return pack<e4m3>(x[e] * factor, x[e + 1] * factor, x[e + 2] * factor, x[e + 3] * factor);
  };
  return std::bit_cast<Chunk<e4m3>>(std::array{four(0), four(4)});
}

}  // namespace ladder::MACHINE
