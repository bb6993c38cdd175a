// Tests the host's fp16, bf16 and e4m3 against their definitions: the value of every code, and the
// code nearest to a number. The kernels' results are judged with these types.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "float16.h"

namespace ladder {
namespace {

/// Checks all codes of T, whose bits are a sign, an exponent and a mantissa. `most` is the largest
/// positive code that is not NaN: infinity, or e4m3's 448.
template <class T>
void check(int exponent_bits, int mantissa_bits, int most, bool most_is_infinity) {
  SCOPED_TRACE(most);
  const int nan = (1 << (exponent_bits + mantissa_bits)) - 1;
  const auto value = [&](int code) {  // by the definition, for a code without a sign
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = code >> mantissa_bits, mantissa = code - (exponent << mantissa_bits);
    const int significand = mantissa + (exponent ? 1 << mantissa_bits : 0);
    return std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
  };
  const auto bits = [](float x) -> int { return T(x).bits; };
  const auto widened = [](int code) -> float {
    return T::from_bits(static_cast<decltype(T::bits)>(code));
  };
  for (int code = 0; code <= nan; ++code) {
    const int negative = code + nan + 1;
    if (code > most) {
      ASSERT_TRUE(std::isnan(widened(code)) && std::isnan(widened(negative))) << code;
      continue;
    }
    const bool is_infinity = code == most && most_is_infinity;
    const float here = is_infinity ? INFINITY : static_cast<float>(value(code));
    ASSERT_EQ(widened(code), here) << code;
    ASSERT_EQ(widened(negative), -here) << code;
    ASSERT_TRUE(std::signbit(widened(negative))) << code;
    ASSERT_EQ(bits(here), code);
    ASSERT_EQ(bits(-here), negative);
    if (code == most) continue;
    // Halfway to the next code is a tie, which must round to the even code.
    const auto tie = static_cast<float>((value(code) + value(code + 1)) / 2);
    ASSERT_EQ(bits(std::nextafter(tie, 0.0f)), code);
    ASSERT_EQ(bits(tie), code + code % 2);
    ASSERT_EQ(bits(std::nextafter(tie, INFINITY)), code + 1);
    ASSERT_EQ(bits(-std::nextafter(tie, INFINITY)), negative + 1);
  }
  for (const float large : {3.4e38f, INFINITY}) EXPECT_EQ(bits(large), most);
  for (const uint32_t any : {0x7f800001u, 0x7fffffffu, 0xffc00000u})
    EXPECT_EQ(bits(std::bit_cast<float>(any)), nan);
}

TEST(NarrowFloats, ConvertAndRoundToNearestEven) {
  check<fp16>(5, 10, 0x7c00, true);
  check<bf16>(8, 7, 0x7f80, true);
  check<e4m3>(4, 3, 0x7e, false);
}

}  // namespace
}  // namespace ladder
