// The host's e4m3 against a definition of its own: of all values that the type has, the nearest, of
// two the one with the even mantissa.

#include "float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

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

// Every upper half of a float, beside lower halves that make it a tie of two neighbours or a little
// more or less: what went through fp16 first would be rounded to the tie.
TEST(Float8, RoundsToTheNearestOnce) {
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0x0000u, 0x0001u, 0x8000u, 0xffffu}) {
      const auto x = std::bit_cast<float>(high << 16 | low);
      ASSERT_EQ(e4m3(x).bits, nearest(x)) << x;
    }
}

}  // namespace
}  // namespace ladder
