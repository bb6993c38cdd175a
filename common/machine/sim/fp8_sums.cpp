#include "machine/sim/fp8_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ladder::sim {
namespace {

constexpr int kProducts = 32, kMost = 256;

/// 2^exponent as a float, for exponents of normal ones.
float power_of_2(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

float cut(float x, int result_bits) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & ~0u << (23 - result_bits));
}

}  // namespace

// Loops run over neighbours in j, so that the compiler takes several sums at once.
void add_fp8_products(const Fp8Sums& how, float* c, const float* a, const float* b, int n) {
  float largest[kMost], scale[kMost], unit[kMost];
  int32_t sum[kMost];
  for (int first = 0; first < kProducts; first += how.products) {
    for (int j = 0; j < n; ++j) largest[j] = std::abs(c[j]);
    for (int k = first; k < first + how.products; ++k)
      for (int j = 0; j < n; ++j) {
        const float x = std::abs(a[k] * b[k * n + j]);
        largest[j] = x > largest[j] || x != x ? x : largest[j];
      }
    for (int j = 0; j < n; ++j) {
      // A largest below 2⁻¹⁰⁰ is no product (they are 2⁻¹⁸ at least) but a sum about to vanish.
      const int exponent =
          std::max(static_cast<int>(std::bit_cast<uint32_t>(largest[j]) >> 23) - 127, -100);
      const bool finite = exponent < 128;
      scale[j] = finite ? power_of_2(std::min(how.fraction_bits - exponent, 127)) : 0;
      unit[j] = finite ? power_of_2(exponent - how.fraction_bits) : 0;
      sum[j] = 0;
    }
    const auto add = [&](int j, float x) {
      x *= scale[j];
      sum[j] += static_cast<int32_t>(how.nearest ? std::nearbyint(x) : x);
    };
    for (int j = 0; j < n; ++j)
      if (unit[j] > 0) add(j, c[j]);
    for (int k = first; k < first + how.products; ++k)
      for (int j = 0; j < n; ++j)
        if (unit[j] > 0) add(j, a[k] * b[k * n + j]);
    for (int j = 0; j < n; ++j) {
      if (unit[j] > 0) {
        c[j] = cut(static_cast<float>(sum[j]) * unit[j], how.result_bits);
        continue;
      }
      for (int k = first; k < first + how.products; ++k) c[j] += a[k] * b[k * n + j];
    }
  }
}

}  // namespace ladder::sim
