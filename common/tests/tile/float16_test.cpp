// The host's fp16 and bf16, and e4m3 of floats, give the same bits as CUDA's conversions, which
// CUDA's headers also have for the host: no GPU is needed. (More in narrow_float_test.cpp.)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

#include "float16.h"

namespace ladder {
namespace {

TEST(Float16, WidensLikeCuda) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    EXPECT_EQ(std::bit_cast<uint32_t>(float(fp16::from_bits(bits))),
              std::bit_cast<uint32_t>(__half2float(std::bit_cast<__half>(bits))))
        << "fp16 " << i;
    EXPECT_EQ(std::bit_cast<uint32_t>(float(bf16::from_bits(bits))),
              std::bit_cast<uint32_t>(__bfloat162float(std::bit_cast<__nv_bfloat16>(bits))))
        << "bf16 " << i;
  }
}

TEST(Float16, RoundsLikeCuda) {
  // Every upper half of a float with lower halves at and around the ties of both types.
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x3001u, 0x5a5au, 0x7fffu,
          0x8000u, 0x8001u, 0xefffu, 0xf000u, 0xffffu}) {
      const auto x = std::bit_cast<float>(high << 16 | low);
      ASSERT_EQ(fp16(x).bits, std::bit_cast<uint16_t>(__float2half_rn(x))) << "fp16 of " << x;
      ASSERT_EQ(bf16(x).bits, std::bit_cast<uint16_t>(__float2bfloat16_rn(x))) << "bf16 of " << x;
      ASSERT_EQ(e4m3(x).bits, __nv_fp8_e4m3(x).__x) << "e4m3 of " << x;
    }
  }
}

}  // namespace
}  // namespace ladder
