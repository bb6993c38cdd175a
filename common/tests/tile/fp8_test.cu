// e4m3 on both machines: conversions and functions for quantising give the host's bits. And what
// the sim keeps of sums of products, which hopper_test.cu compares with the chip's.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "harness/quantised.h"
#include "machine/sim/fp8_sums.h"
#include "tests/device_test.h"
#include "tile/fp8.h"

namespace ladder::MACHINE {
namespace {

#ifdef LADDER_SIM
#define SUITE SimFloat8
#else
#define SUITE GpuFloat8
#endif

class SUITE : public DeviceTest {};

/// The bits of some numbers.
template <class T>
auto bits_of(const std::vector<T>& numbers) {
  using Bits = std::conditional_t<sizeof(T) == 1, uint8_t, uint32_t>;
  std::vector<Bits> bits;
  for (const T& x : numbers) bits.push_back(std::bit_cast<Bits>(x));
  return bits;
}

constexpr int kThreads = 128;

/// codes[i] = x[i] rounded, and packed: the same again by pack().
template <class T>
__global__ void round_to_e4m3(Hbm<const T> x, Hbm<e4m3> codes, Hbm<unsigned> packed, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) codes[i] = e4m3(x[i]);
  if (4 * i >= n) return;
  packed[i] =
      pack<e4m3>(float(x[4 * i]), float(x[4 * i + 1]), float(x[4 * i + 2]), float(x[4 * i + 3]));
}
__global__ void widen_e4m3(Hbm<const e4m3> codes, Hbm<float> x) {
  x[threadIdx.x] = float(codes[threadIdx.x]);
}

TEST_F(SUITE, ConversionsAreTheHosts) {
  const auto check = [&]<class T>(Case<T>, const std::vector<OnHost<T>>& numbers) {
    const int n = static_cast<int>(numbers.size());
    Array& codes = make("codes", n);
    Array& packed = make("packed", n);
    run(round_to_e4m3<T>, ceil_div(n, kThreads), kThreads, 0, upload<T>("x", numbers), codes,
        packed, n);
    const auto expected = bits_of(std::vector<ladder::e4m3>(numbers.begin(), numbers.end()));
    EXPECT_TRUE(bits_of(values<e4m3>(codes)) == expected) << sizeof(T) << " bytes";
    EXPECT_TRUE(bits_of(values<e4m3>(packed)) == expected) << sizeof(T) << " bytes, packed";
  };
  // Every upper half of a float with lower halves beside and at a tie.
  std::vector<float> floats;
  std::vector<ladder::fp16> halves;
  std::vector<ladder::bf16> bfloats;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    halves.push_back(ladder::fp16::from_bits(static_cast<uint16_t>(high)));
    bfloats.push_back(ladder::bf16::from_bits(static_cast<uint16_t>(high)));
    for (const uint32_t low : {0x0000u, 0x0001u, 0x8000u, 0xffffu})
      floats.push_back(std::bit_cast<float>(high << 16 | low));
  }
  check(Case<fp16>{}, halves);
  check(Case<bf16>{}, bfloats);
  check(Case<float>{}, floats);

  std::vector<ladder::e4m3> codes;
  for (int code = 0; code < 256; ++code)
    codes.push_back(ladder::e4m3::from_bits(static_cast<uint8_t>(code)));
  Array& x = make("x", 256 * 4);
  run(widen_e4m3, 1, 256, 0, upload<e4m3>("codes", codes), x);
  EXPECT_EQ(bits_of(values<float>(x)), bits_of(std::vector<float>(codes.begin(), codes.end())));
}

/// Rows of D numbers, 32·8/D of them in a warp: transformed; the largest of the block; and the rows
/// as they were, times `factor`, rounded.
template <int D, int kWarps>
__global__ void functions_for_e4m3(Hbm<const float> x, Hbm<float> transformed, Hbm<float> most,
                                   Hbm<e4m3> codes, float factor) {
  SharedMemory smem;
  const auto of_warps = smem.take<float>("of_warps", kWarps);
  const int at = static_cast<int>(threadIdx.x) * 8;
  float mine[8];
  for (int e = 0; e < 8; ++e) mine[e] = x[at + e];
  write_chunk(codes + at, rounded(mine, factor));
  const float of_block = block_max<kWarps>(largest(mine), of_warps);
  if (threadIdx.x == 0) most[0] = of_block;
  hadamard<D>(mine, at % D);
  for (int e = 0; e < 8; ++e) transformed[at + e] = mine[e];
}

TEST_F(SUITE, FunctionsForE4m3AreTheHosts) {
  const auto check = [&]<int D, int kWarps>(Case<e4m3, D, kWarps>) {
    SCOPED_TRACE(testing::Message() << "D " << D << ", " << kWarps << " warps");
    constexpr int n = kWarps * 256;
    Matrix x = random_matrix<float>(1, n);
    x.all[n - 5] = -77;
    Array& transformed = make("transformed", n * 4);
    Array& most = make("most", 4);
    Array& codes = make("codes", n);
    const auto counts =
        run(functions_for_e4m3<D, kWarps>, 1, 32 * kWarps, shared_bytes<float>(kWarps),
            upload<float>("x", x), transformed, most, codes, 3.3f);
    EXPECT_EQ(values<float>(most)[0], 77);
    std::vector<ladder::e4m3> expected;
    for (const float number : x.all) expected.emplace_back(number * 3.3f);
    EXPECT_EQ(bits_of(values<e4m3>(codes)), bits_of(expected));
    for (int row = 0; row < n; row += D) ladder::hadamard(&x(0, row), D);
    EXPECT_EQ(values<float>(transformed), x.all);  // to the bit
    if (!counts) return;
    EXPECT_EQ(counts->other_flops, n * (1 + 1 + 1 + std::bit_width(unsigned{D}) - 1));
  };
  check_each(check, Case<e4m3, 32, 1>{}, Case<e4m3, 64, 4>{}, Case<e4m3, 128, 2>{},
             Case<e4m3, 256, 8>{});
}

#ifdef LADDER_SIM
/// c and up to 32 products, added up.
float sum_of(float c, const std::vector<std::pair<float, float>>& products) {
  float a[32] = {}, b[32] = {};
  for (size_t k = 0; k < products.size(); ++k) a[k] = products[k].first, b[k] = products[k].second;
  add_fp8_products(&c, a, b, 1);
  return c;
}

TEST(SimFp8Sums, TellWhatIsKept) {
  // 13 bits after the leading one: 1 + 2⁻¹³ is there, 2⁻¹⁴ is not, nor are 31 of them.
  EXPECT_EQ(sum_of(1, {{0x1p-6f, 0x1p-7f}}), 1 + 0x1p-13f);
  EXPECT_EQ(sum_of(1, {{0x1p-7f, 0x1p-7f}}), 1);
  std::vector<std::pair<float, float>> many(32, {0x1p-7f, 0x1p-7f});
  EXPECT_EQ(sum_of(0, many), 32 * 0x1p-14f);
  many[7] = {1, 1};
  EXPECT_EQ(sum_of(0, many), 1);
  // As the chip has it: 3.515625 beside 2⁷ to 2¹⁵, and what 2¹⁶ leaves of 7.5, 15, 30 and 60.
  const float beside[][2] = {{7, 131.515625f}, {8, 259.5f}, {12, 4099.5f},
                             {13, 8195},       {14, 16386}, {15, 32768}};
  for (const auto& [e, sum] : beside)
    for (const float sign : {1.0f, -1.0f}) {
      const float power = std::ldexp(1.0f, static_cast<int>(e) - 7);
      EXPECT_EQ(sum_of(0, {{128, sign * power}, {1.875f, sign * 1.875f}}), sign * sum) << e;
      EXPECT_EQ(sum_of(sign * 128 * power, {{1.875f, sign * 1.875f}}), sign * sum) << e;
    }
  for (const auto& [x, left] : {std::pair{4, 0}, {8, 8}, {16, 24}, {32, 56}, {64, 120}})
    EXPECT_EQ(sum_of(0, {{256, 256}, {x, 1.875f}, {-256, 256}}), left);
  // Towards zero, sums and products alike.
  EXPECT_EQ(sum_of(-1, {{-0x1.8p-6f, 0x1p-7f}}), -1 - 0x1p-13f);
  EXPECT_EQ(sum_of(1.0f / 3, {{16, 16}}), 256.3125f);
  EXPECT_EQ(sum_of(1.0f / 3, {}), std::bit_cast<float>(0x3eaaaaaau & ~0x3ffu));
  // A carry lengthens the sum, which is shortened again.
  EXPECT_EQ(sum_of(1, {{1, 1}, {0x1p-6f, 0x1p-7f}}), 2);
  // Products are not normalised: those here are 1.27 to 3.5, their exponent is 0, and 2⁻¹³ stays.
  EXPECT_EQ(sum_of(0, {{1.875f, 1.875f}, {-1.5f, 1.5f}, {-1.125f, 1.125f}, {0x1p-6f, 0x1p-7f}}),
            0x1p-13f);
  // Subnormals count as 2⁻⁶, and what is below 2⁻¹⁹ is lost beside one. A zero does not count.
  EXPECT_EQ(sum_of(0x1p-20f, {{0x1p-9f, 1}}), 0x1p-9f);
  EXPECT_EQ(sum_of(0x1p-20f, {{0, 448}}), 0x1p-20f);

  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of(inf, {{1, 1}}), inf);
  EXPECT_TRUE(std::isnan(sum_of(1, {{2, 1}, {std::nanf(""), 1}})));
  EXPECT_EQ(sum_of(0, {}), 0);
  EXPECT_EQ(sum_of(0x1p-80f, {}), 0x1p-80f);
}
#endif

}  // namespace
}  // namespace ladder::MACHINE
