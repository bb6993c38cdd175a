#include "machine/sim/fp8_sums.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace ladder::sim {
namespace {

constexpr int kProducts = 32, kMost = 256, kFraction = 13;

/// 2^exponent of a normal number.
float power_of_2(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}
/// 2^exponent(x), 0 for 0; infinite if x is not finite.
float leading(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7f800000);
}
/// The same of an e4m3, whose least exponent is −6.
float leading_of_e4m3(float x) {
  return x != 0 ? std::max(leading(x), 0x1p-6f) : 0;
}

}  // namespace

// Loops run over neighbours in j, so that the compiler takes several sums at once.
void add_fp8_products(float* c, const float* a, const float* b, int n) {
  float largest[kMost], scale[kMost], unit[kMost];
  int32_t sum[kMost];
  for (int j = 0; j < n; ++j) largest[j] = leading(c[j]);
  for (int k = 0; k < kProducts; ++k) {
    const float of_a = leading_of_e4m3(a[k]);
    for (int j = 0; j < n; ++j) {
      const float x = of_a * leading_of_e4m3(b[k * n + j]);
      largest[j] = x <= largest[j] ? largest[j] : x;  // NaN too
    }
  }
  bool finite = true;
  for (int j = 0; j < n; ++j) {
    // One below 2⁻¹⁰⁰ is no product's (they are 2⁻¹² at least) but that of a sum about to vanish.
    const int exponent =
        std::max(static_cast<int>(std::bit_cast<uint32_t>(largest[j]) >> 23) - 127, -100);
    finite &= exponent < 128;
    scale[j] = power_of_2(std::min(kFraction - exponent, 127));
    unit[j] = power_of_2(std::min(exponent - kFraction, 127));
  }
  if (!finite) {
    for (int k = 0; k < kProducts; ++k)
      for (int j = 0; j < n; ++j) c[j] += a[k] * b[k * n + j];
    return;
  }
  for (int j = 0; j < n; ++j) sum[j] = static_cast<int32_t>(c[j] * scale[j]);
  for (int k = 0; k < kProducts; ++k)
    for (int j = 0; j < n; ++j) sum[j] += static_cast<int32_t>(a[k] * b[k * n + j] * scale[j]);
  for (int j = 0; j < n; ++j) {
    const float exact = static_cast<float>(sum[j]) * unit[j];
    c[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(exact) & ~0u << (23 - kFraction));
  }
}

}  // namespace ladder::sim
