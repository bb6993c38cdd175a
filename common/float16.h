// Defines fp16, bf16 and e4m3 without CUDA headers, for the simulator and the host. Conversions
// give the same bits as those of CUDA's __half, __nv_bfloat16 and __nv_fp8_e4m3.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace ladder {

/// A number with a sign, exponent_bits bits of exponent and mantissa_bits bits of mantissa, as in
/// IEEE 754: ±(1 + mantissa/2^mantissa_bits)·2^(exponent − bias), or a subnormal if the exponent
/// field is 0. Values too large become kMost: infinity or, in a type without it, the largest value.
template <class Bits, int exponent_bits, int mantissa_bits, Bits kMost>
struct NarrowFloat {
  Bits bits = 0;

  NarrowFloat() = default;
  /// Rounds x to nearest, ties to even; a NaN becomes the one with all bits set but the sign.
  /// (Narrower types convert to float exactly, so converting one to another rounds only once.)
  [[gnu::always_inline]] constexpr explicit NarrowFloat(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & ~kSignOfFloat;
    if (magnitude > 0x7f800000) {
      bits = kNaN;
      return;
    }
    uint32_t rounded;
    if (magnitude >> 23 <= 127 - kBias) {  // subnormal: rounds to a multiple of `large`'s last bit
      constexpr uint32_t large = (151 - kBias - mantissa_bits) << 23;
      const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(large);
      rounded = std::bit_cast<uint32_t>(sum) - large;
    } else {
      const uint32_t even = magnitude >> kShift & 1, half = 1u << (kShift - 1);
      rounded = (magnitude - ((127 - kBias) << 23) + half - 1 + even) >> kShift;
    }
    const uint32_t sign = (u & kSignOfFloat) >> (32 - 8 * sizeof(Bits));
    bits = static_cast<Bits>(sign | std::min<uint32_t>(rounded, kMost));
  }
  static constexpr NarrowFloat from_bits(Bits b) {
    NarrowFloat x;
    x.bits = b;
    return x;
  }
  /// Converts exactly. A NaN of bf16 keeps its bits; others become CUDA's NaN, 0x7fffffff.
  constexpr operator float() const {
    const uint32_t sign = uint32_t{bits} << (32 - 8 * sizeof(Bits)) & kSignOfFloat;
    const uint32_t magnitude = uint32_t{bits} << kShift & (uint32_t{kNaN} << kShift);
    if constexpr (kBias == 127) return std::bit_cast<float>(sign | magnitude);
    if ((bits & kNaN) > kMost) return std::bit_cast<float>(0x7fffffffu);
    if (kMostIsInfinity && (bits & kNaN) == kMost) return std::bit_cast<float>(sign | 0x7f800000);
    // As a float, these bits have an exponent that is too small by 127 − kBias. A multiplication
    // corrects it exactly, for normal and for subnormal values.
    constexpr auto kScale = std::bit_cast<float>((254 - kBias) << 23);
    const float scaled = std::bit_cast<float>(magnitude) * kScale;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
  }

 private:
  static constexpr uint32_t kSignOfFloat = 0x80000000;
  static constexpr uint32_t kBias = (1u << (exponent_bits - 1)) - 1;
  static constexpr int kShift = 23 - mantissa_bits;               // from this mantissa to float's
  static constexpr Bits kNaN = static_cast<Bits>(~Bits{0}) >> 1;  // all bits but the sign
  static constexpr bool kMostIsInfinity = (kMost & ((1 << mantissa_bits) - 1)) == 0;
};

using fp16 = NarrowFloat<uint16_t, 5, 10, 0x7c00>;
using bf16 = NarrowFloat<uint16_t, 8, 7, 0x7f80>;
/// FP8 with 4 exponent and 3 mantissa bits. The largest value is 448, there is no infinity, and a
/// number is NaN only if all 7 of these bits are set.
using e4m3 = NarrowFloat<uint8_t, 4, 3, 0x7e>;

/// Returns whether x is neither infinite nor NaN. It tests the bits, because under -ffast-math the
/// compiler may assume that std::isfinite is always true.
constexpr bool is_finite(double x) {
  return (std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) != 0x7ff;
}

}  // namespace ladder
