// Describes how a step quantises to e4m3. The step's kernel and the reference must do the same.
#pragma once

#include <compare>
#include <cstdint>

namespace ladder {

/// How a step quantises Q, K, V and P to e4m3: x ≈ scale·e4m3(x/scale). The scale maps the largest
/// |x| that shares it to 448, the largest value of e4m3.
struct Quantisation {
  enum class Scope { tile, head, tensor };
  Scope scope = Scope::tile;  // which elements share a scale
  int tile_q = 64;            // rows per tile of Q
  int tile_kv = 128;          // rows per tile of K or V
  bool hadamard = false;      // hadamard() transforms the padded rows of Q and K first
  int p_exponent = 0;         // P is scaled by 2^p_exponent
  float slack = 0;            // m is raised only if it would rise by more than slack·ln 2
  bool two_level = false;     // each tile's product P·V is added to O in fp32
  auto operator<=>(const Quantisation&) const = default;
};

/// Returns the scale for elements whose max |x| is `largest`, or 1 if that is nearly 0.
constexpr float e4m3_scale(float largest) {
  return largest > 1e-30f ? largest / 448 : 1;
}
/// Returns 1/√n for n = 32, 64, 128 or 256.
constexpr float hadamard_factor(int n) {
  return n == 32 ? 0.176776695f : n == 64 ? 0.125f : n == 128 ? 0.0883883476f : 0.0625f;
}
/// Whether hadamard() flips the sign of column c. The signs are fixed but pseudorandom.
constexpr bool hadamard_sign(int c) {
  const uint32_t x = (static_cast<uint32_t>(c) + 1) * 0x9e3779b9u;
  return ((x ^ x >> 15) * 0x85ebca77u) >> 31;
}

}  // namespace ladder
