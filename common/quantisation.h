// Describes how a step quantises to e4m3. The kernels of 05/fp8 and the harness's reference both
// compute as a Quantisation says, so that the reference shows the error that it causes.
#pragma once

#include <compare>
#include <cstdint>

namespace ladder {

/// How a step quantises Q, K, V and P to e4m3: x ≈ scale·e4m3(x/scale). The scale maps the largest
/// |x| among the elements that share it to 448, the largest value of e4m3.
struct Quantisation {
  enum class Scope { tile, head, tensor };
  Scope scope = Scope::tile;  // which elements share a scale
  int tile_q = 64;            // rows per tile of Q
  int tile_kv = 128;          // rows per tile of K or V
  bool hadamard = false;      // hadamard() in 05's fp8.h first transforms padded rows of Q and K
  int p_exponent = 0;         // P is multiplied by 2^p_exponent before it is rounded
  float slack = 0;            // m, a row's maximum, rises only by steps of more than slack·ln 2
  bool two_level = false;     // each tile's P·V is summed from 0, then added to O in fp32
  auto operator<=>(const Quantisation&) const = default;
};

/// Returns the scale for elements whose largest |x| is `largest`, or 1 if that is nearly 0.
constexpr float e4m3_scale(float largest) {
  return largest > 1e-30f ? largest / 448 : 1;
}
/// Returns 1/√n for n = 32, 64, 128 or 256.
constexpr float hadamard_factor(int n) {
  return n == 32 ? 0.176776695f : n == 64 ? 0.125f : n == 128 ? 0.0883883476f : 0.0625f;
}
/// Returns whether hadamard() flips the sign of column c. The signs are pseudorandom but fixed.
constexpr bool hadamard_sign(int c) {
  const uint32_t x = (static_cast<uint32_t>(c) + 1) * 0x9e3779b9u;
  return ((x ^ x >> 15) * 0x85ebca77u) >> 31;
}

}  // namespace ladder
