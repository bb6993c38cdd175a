// e4m3, the 8-bit type of 4 exponent and 3 mantissa bits, without CUDA headers, for the sim and the
// host. Conversions give the same bits as CUDA's __nv_fp8_e4m3.
#pragma once

#include <bit>
#include <cstdint>

namespace ladder {

/// ±(1 + mantissa/8)·2^(exponent − 7), and ±mantissa·2⁻⁹ where the exponent is 0. The largest
/// value is 448: there is no infinity, and of the codes with all exponent bits set only the one
/// with all mantissa bits set is NaN.
struct e4m3 {
  uint8_t bits = 0;

  e4m3() = default;
  /// The nearest value, of two equally near the one whose mantissa is even; what lies beyond ±448
  /// becomes ±448. Of an fp16 or bf16 too, which a float holds exactly, so that none is rounded
  /// twice.
  constexpr explicit e4m3(float x) : bits(round(x)) {}
  static constexpr e4m3 from_bits(uint8_t b) {
    e4m3 e;
    e.bits = b;
    return e;
  }
  constexpr operator float() const {
    if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fffffffu);  // NaN
    // As of an fp16: in a float's place the exponent is 120 too small.
    const float magnitude = std::bit_cast<float>(uint32_t{bits & 0x7fu} << 20) * 0x1p120f;
    return bits & 0x80 ? -magnitude : magnitude;
  }

 private:
  static constexpr uint8_t round(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t sign = u >> 24 & 0x80;
    const uint32_t magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7f;                                // NaN
    if (magnitude >= 0x43e00000) return static_cast<uint8_t>(sign | 0x7e);  // ≥ 448
    if (magnitude < 0x3c800000) {                                           // subnormal
      // Adding 2¹⁴ puts the last place of the sum at 2⁻⁹, e4m3's smallest step.
      const float sum = std::bit_cast<float>(magnitude) + 16384.0f;
      return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x46800000));
    }
    const uint32_t even = magnitude >> 20 & 1;
    return static_cast<uint8_t>(sign | (magnitude - 0x3c000000 + 0x7ffff + even) >> 20);
  }
};

}  // namespace ladder
