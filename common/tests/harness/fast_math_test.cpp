// The check where the compiler may take every number for finite: CMake gives this file -ffast-math
// after all other flags.
#include <gtest/gtest.h>

#include "harness/json.h"
#include "harness/reference_error.h"
#define compare compare_fast  // beside those of the library
#define compare_with_full_precision compare_with_full_precision_fast
#include "harness/reference_error.cpp"

TEST(FastMath, FoldsNoCheckAway) {
  const float one = 1, infinity = std::bit_cast<float>(0x7f800000);
  for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fffffffu, 0xffc00000u}) {
    const float out = std::bit_cast<float>(bits);
    EXPECT_EQ(ladder::json::value(out), "null");
    EXPECT_TRUE((ladder::TensorError{.max = out, .tolerance = 1}.wrong()));
    EXPECT_TRUE(ladder::compare_fast({"o", {0}, 1, "", {one}, {one}}, {out}).wrong()) << bits;
    EXPECT_EQ(ladder::compare_fast({"o", {0}, 1, "", {infinity}, {one}}, {out}).pass(),
              bits == 0x7f800000u);
  }
}
