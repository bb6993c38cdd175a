// The host's e4m3 against a definition of its own: of all values that the type has, the nearest, of
// two the one with the even mantissa.

#include "float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "float16.h"

namespace ladder {
namespace {

/// What the code `bits` says, by the definition of the format; NaN for 0x7f and 0xff.
double value_of(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent ? std::ldexp(8 + mantissa, exponent - 7 - 3) : std::ldexp(mantissa, -6 - 3);
  return bits & 0x80 ? -magnitude : magnitude;
}

/// The code nearest to x, found by looking at all of them.
int nearest(double x) {
  if (std::isnan(x)) return 0x7f;
  const double magnitude = std::min(std::abs(x), 448.0);
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double d = std::abs(magnitude - value_of(code));
    const double least = std::abs(magnitude - value_of(best));
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

TEST(Float8, WidensEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float x = e4m3::from_bits(static_cast<uint8_t>(code));
    const double expected = value_of(code);
    if (std::isnan(expected))
      EXPECT_EQ(std::bit_cast<uint32_t>(x), 0x7fffffffu) << code;
    else
      EXPECT_EQ(x, expected) << code;
    EXPECT_EQ(std::signbit(x), std::isnan(expected) ? false : code >= 0x80) << code;
    EXPECT_EQ(e4m3(x).bits, std::isnan(expected) ? 0x7f : code);
  }
}

TEST(Float8, RoundsEveryHalf) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float half = fp16::from_bits(bits), bfloat = bf16::from_bits(bits);
    ASSERT_EQ(e4m3(half).bits, nearest(half)) << "fp16 " << i;
    ASSERT_EQ(e4m3(bfloat).bits, nearest(bfloat)) << "bf16 " << i;
  }
}

// Between two neighbours the border is their mean. A float just beside it must not be rounded to
// the mean first, as it would be on the way through fp16.
TEST(Float8, RoundsFloatsOnce) {
  for (int code = 0; code < 0x7e; ++code)
    for (const float sign : {1.0f, -1.0f}) {
      const auto border = sign * static_cast<float>((value_of(code) + value_of(code + 1)) / 2);
      const int negative = sign < 0 ? 0x80 : 0;
      EXPECT_EQ(e4m3(border).bits, (code + code % 2) | negative) << border;
      EXPECT_EQ(e4m3(std::nextafterf(border, 0.0f)).bits, code | negative) << border;
      EXPECT_EQ(e4m3(std::nextafterf(border, sign * 1000)).bits, (code + 1) | negative) << border;
      EXPECT_EQ(e4m3(border).bits, nearest(border));
    }
  for (const float x : {0.0f, -0.0f, 0x1p-10f, 0x1.000002p-10f, 0x1p-149f, 447.0f, 448.0f, 463.9f,
                        464.0f, 480.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(e4m3(x).bits, nearest(std::min(x, 448.0f))) << x;
    EXPECT_EQ(e4m3(-x).bits, nearest(std::max(-x, -448.0f))) << -x;
  }
  for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu})
    EXPECT_EQ(e4m3(std::bit_cast<float>(nan)).bits, 0x7f);
}

}  // namespace
}  // namespace ladder
