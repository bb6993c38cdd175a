// How Hopper's tensor cores add up products of e4m3. Multiplying is exact; adding is not what fp32
// would do. The 32 products of a wgmma m64nNk32 and the sum so far are put side by side as numbers
// with the exponent of the largest of them, of which 13 bits of fraction are kept, and these are
// added. Measured on an H200: of 8,000 random sums all are equal to the bit, and with one bit more
// or less, with other groups than 32, or rounded in another way they are not. The GPU's tests in
// common/tests/tile/hopper_test.cu compare the two again.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace ladder::sim {

/// 2^exponent of a normal number.
inline float power_of_2(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}
/// 2^exponent(x), 0 for 0; infinite if x is not finite.
inline float leading(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7f800000);
}
/// The same of an e4m3, whose least exponent is −6.
inline float leading_of_e4m3(float x) {
  return x != 0 ? std::max(leading(x), 0x1p-6f) : 0;
}

/// c[j] += Σ_k a[k]·b[k·n + j] for k in [0, 32) and j in [0, n), n ≤ 256. Values of a and b are
/// e4m3's.
///
///   e = the largest of exponent(a[k]) + exponent(b[k·n + j]), of products other than 0, and of
///       exponent(c[j]). A subnormal's exponent is −6, and the product of two significands in
///       [1, 2) may be 2 or more: it is not normalised before.
///   Each product and c[j] lose what is below 2^(e − 13), towards zero; they are added exactly; the
///   sum loses what is below its own leading bit by 13, towards zero.
///
/// A sum with an infinity or a NaN is fp32's.
inline void add_fp8_products(float* c, const float* a, const float* b, int n) {
  // Loops run over neighbours in j, so that the compiler takes several sums at once.
  constexpr int kProducts = 32, kMost = 256, kFraction = 13;
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
