// How a step quantises to e4m3: what its kernel and the reference must do alike.
#pragma once

#include <compare>
#include <cstdint>

namespace ladder {

/// How a step quantises Q, K, V and P to e4m3: x ≈ scale·e4m3(x/scale), where the scale maps the
/// largest |x| of those that share it to 448, e4m3's largest.
struct Quantisation {
  enum class Scope { tile, head, tensor };
  Scope scope = Scope::tile;  // what shares a scale
  int tile_q = 64;            // rows of a tile of Q
  int tile_kv = 128;          // of K and of V
  bool hadamard = false;      // rows of Q and K, padded, go through hadamard() before
  int p_exponent = 0;         // P is scaled by 2^p_exponent
  float slack = 0;            // m rises once it would by more, in units of ln 2
  bool two_level = false;     // sums of P·V of a tile are added to O in fp32
  auto operator<=>(const Quantisation&) const = default;
};

/// Scale for a given max |x|; 1 if all are about 0.
constexpr float e4m3_scale(float largest) {
  return largest > 1e-30f ? largest / 448 : 1;
}
/// 1/√n for n = 32, 64, 128 and 256.
constexpr float hadamard_factor(int n) {
  return n == 32 ? 0.176776695f : n == 64 ? 0.125f : n == 128 ? 0.0883883476f : 0.0625f;
}
/// Whether hadamard() turns the sign of column c: fixed, and as if drawn at random.
constexpr bool hadamard_sign(int c) {
  const uint32_t x = (static_cast<uint32_t>(c) + 1) * 0x9e3779b9u;
  return ((x ^ x >> 15) * 0x85ebca77u) >> 31;
}

}  // namespace ladder
