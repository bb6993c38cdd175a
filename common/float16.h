// fp16 (IEEE binary16) and bf16 (the upper half of a float) without CUDA headers, for the sim and
// the host. Conversions give the same bits as CUDA's __float2half_rn, __float2bfloat16_rn and back.
#pragma once

#include <bit>
#include <cstdint>

namespace ladder {

struct fp16 {
  uint16_t bits = 0;

  fp16() = default;
  constexpr explicit fp16(float x) : bits(round(x)) {}
  static constexpr fp16 from_bits(uint16_t b) {
    fp16 h;
    h.bits = b;
    return h;
  }
  constexpr operator float() const {
    // Shifting exponent and mantissa into a float's place leaves the exponent 112 too small; one
    // multiplication by 2¹¹² corrects normal and subnormal values alike, exactly.
    const uint32_t magnitude = uint32_t{bits & 0x7fffu} << 13;
    uint32_t out = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    if (magnitude >= 0x0f800000) {
      if (magnitude > 0x0f800000) return std::bit_cast<float>(0x7fffffffu);  // NaN
      out = 0x7f800000;
    }
    return std::bit_cast<float>(out | uint32_t{bits & 0x8000u} << 16);
  }

 private:
  static constexpr uint16_t round(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t sign = u >> 16 & 0x8000;
    const uint32_t magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7fff;                                 // NaN
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // ≥ 65520: ∞
    if (magnitude < 0x38800000) {                                              // subnormal
      // Adding 0.5 puts the last place of the sum at 2⁻²⁴, fp16's smallest step.
      const float sum = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000));
    }
    const uint32_t even = magnitude >> 13 & 1;
    return static_cast<uint16_t>(sign | (magnitude - 0x38000000 + 0xfff + even) >> 13);
  }
};

struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float x) : bits(round(x)) {}
  static constexpr bf16 from_bits(uint16_t b) {
    bf16 h;
    h.bits = b;
    return h;
  }
  constexpr operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }

 private:
  static constexpr uint16_t round(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;  // NaN
    return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
};

}  // namespace ladder
