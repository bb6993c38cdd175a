// e4m3 on both machines: conversions, products of what sums become, and how the tensor cores add up
// products. On the gpu that the chip does all this as the sim does, bit for bit.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "float16.h"
#include "float8.h"
#include "harness/quantised.h"
#include "machine/sim/fp8_sums.h"
#include "tests/tile/warpgroup_test.h"
#include "tile/fp8.h"
#include "tile/rows.h"

namespace ladder::sim {
// The sim's half of SumsAreShortenedAsOnTheChip.
std::vector<float> run_product(Device& device, const std::vector<uint8_t>& a,
                               const std::vector<uint8_t>& b, float start);
}  // namespace ladder::sim

namespace ladder::MACHINE {
namespace {

#ifdef LADDER_SIM
#define SUITE SimFp8
#define CONVERSIONS SimFloat8
#else
#define SUITE GpuFp8
#define CONVERSIONS GpuFloat8
#endif

class CONVERSIONS : public DeviceTest {};

class SUITE : public HopperTest {};

constexpr int kThreads = 128;

// ------------------------------------------------------------------------------------ conversions

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

TEST_F(CONVERSIONS, AreTheHostsBitForBit) {
  const auto check = [&]<class T>(Case<T>, const char* type, const auto& numbers, auto to_float) {
    const int n = static_cast<int>(numbers.size());
    Array& codes = make("codes", n);
    Array& packed = make("packed", n);
    run(round_to_e4m3<T>, ceil_div(n, kThreads), kThreads, 0, upload("x", numbers), codes, packed,
        n);
    std::vector<uint8_t> expected;
    for (const auto x : numbers) expected.push_back(ladder::e4m3(to_float(x)).bits);
    EXPECT_TRUE(values<uint8_t>(codes) == expected) << type;
    EXPECT_TRUE(values<uint8_t>(packed) == expected) << type << ", packed";
  };
  std::vector<uint16_t> halves(0x10000);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  check(Case<fp16>{}, "fp16", halves, [](uint16_t b) { return float(ladder::fp16::from_bits(b)); });
  check(Case<bf16>{}, "bf16", halves, [](uint16_t b) { return float(ladder::bf16::from_bits(b)); });
  // Every upper half of a float with lower halves beside and at a tie.
  std::vector<float> floats;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0x0000u, 0x0001u, 0x8000u, 0xffffu})
      floats.push_back(std::bit_cast<float>(high << 16 | low));
  check(Case<float>{}, "float", floats, [](float x) { return x; });

  std::vector<uint8_t> all(256);
  std::iota(all.begin(), all.end(), uint8_t{0});
  Array& x = make("x", 256 * 4);
  run(widen_e4m3, 1, 256, 0, upload("codes", all), x);
  const auto widened = values<uint32_t>(x);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(widened[i], std::bit_cast<uint32_t>(float(ladder::e4m3::from_bits(all[i])))) << i;
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

TEST_F(CONVERSIONS, FunctionsForE4m3AreTheHosts) {
  const auto check = [&]<int D, int kWarps>(Case<e4m3, D, kWarps>) {
    SCOPED_TRACE(testing::Message() << "D " << D << ", " << kWarps << " warps");
    constexpr int n = kWarps * 256;
    std::mt19937 random(D);
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> numbers(n);
    for (float& v : numbers) v = normal(random);
    numbers[n - 5] = -77;
    std::vector<uint8_t> expected;
    for (const float x : numbers) expected.push_back(ladder::e4m3(x * 0.3f).bits);
    Array& transformed = make("transformed", n * 4);
    Array& most = make("most", 4);
    Array& codes = make("codes", n);
    const auto counts =
        run(functions_for_e4m3<D, kWarps>, 1, 32 * kWarps, shared_bytes<float>(kWarps),
            upload("x", numbers), transformed, most, codes, 0.3f);
    EXPECT_EQ(values<float>(most)[0], 77);
    EXPECT_EQ(values<uint8_t>(codes), expected);
    for (size_t row = 0; row < n; row += D) ladder::hadamard(&numbers[row], D);
    EXPECT_EQ(values<float>(transformed), numbers);  // to the bit
    if (!counts) return;
    EXPECT_EQ(counts->other_flops, n * (1 + 1 + 1 + std::bit_width(unsigned{D}) - 1));
  };
  check_each(check, Case<e4m3, 32, 1>{}, Case<e4m3, 64, 4>{}, Case<e4m3, 128, 2>{},
             Case<e4m3, 256, 8>{});
}

// ------------------------------------------------------------------------------------------- sums

constexpr int kN = 64, kK = 64;

/// C = start + A·Bᵀ, 64 × kN of 64 × kK, in two steps of 32.
__global__ void __launch_bounds__(kWarpgroup)
    product(Hbm<const e4m3> A, Hbm<const e4m3> B, Hbm<float> sums, float start) {
  SharedMemory smem;
  using TileB = SwizzledTile<e4m3, kN, kK>;
  const TileB tile_B{smem.take<e4m3>("B", TileB::kElements)};
  fill(tile_B, B);
  fence_proxy_async();
  __syncthreads();
  Operand<e4m3, 16, kK> a;
  fill(a, A);
  Accumulator<16, kN> acc;
  for_each(acc, [&](int, int, float& c) { c = start; });
  wgmma_fence(acc, a);
  wgmma_ABt(acc, a, tile_B);
  wgmma_commit();
  wgmma_wait<0>(acc, a);
  show(acc, sums);
}

}  // namespace

std::vector<float> run_product(Device& device, const std::vector<uint8_t>& a,
                               const std::vector<uint8_t>& b, float start) {
  const Buffer A(device, "A", std::ssize(a)), B(device, "B", std::ssize(b)),
      sums(device, "sums", 64 * kN * 4);
  device.upload(*A.array(), a.data());
  device.upload(*B.array(), b.data());
  run_kernel(device, product, 1, kWarpgroup,
             shared_bytes<e4m3>(SwizzledTile<e4m3, kN, kK>::kElements), *A.array(), *B.array(),
             *sums.array(), start);
  std::vector<float> out(64 * kN);
  device.download(out.data(), *sums.array());
  return out;
}

namespace {

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
#else
/// Codes of any finite value.
std::vector<uint8_t> random_codes(int n, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<uint8_t> codes(static_cast<size_t>(n));
  for (uint8_t& code : codes) do
      code = static_cast<uint8_t>(random() & 0xff);
    while ((code & 0x7f) == 0x7f);
  return codes;
}

/// 64 × kK codes whose first two columns are those of two values and the rest zeros.
std::vector<uint8_t> two_columns(float first, float second) {
  std::vector<uint8_t> codes(64 * kK, 0);
  for (size_t i = 0; i < 64; ++i) {
    codes[i * kK] = ladder::e4m3(first).bits;
    codes[i * kK + 1] = ladder::e4m3(second).bits;
  }
  return codes;
}

// Sums that tell how many bits the chip keeps, and random ones.
TEST_F(SUITE, SumsAreShortenedAsOnTheChip) {
  const auto sim = open_sim({});
  const auto check = [&](const std::string& what, const std::vector<uint8_t>& a,
                         const std::vector<uint8_t>& b, float start) {
    const auto chip = run_product(device(), a, b, start);
    const auto said = sim::run_product(*sim, a, b, start);
    for (size_t i = 0; i < chip.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(chip[i]), std::bit_cast<uint32_t>(said[i]))
          << what << ": the chip says " << chip[i] << ", the sim " << said[i] << " at " << i;
  };
  for (int bit = 6; bit <= 17; ++bit)
    for (const float sign : {1.0f, -1.0f})
      check("1 and 2^-" + std::to_string(bit), two_columns(1, std::ldexp(1.0f, -bit / 2)),
            two_columns(1, sign * std::ldexp(1.0f, -(bit - bit / 2))), 0);
  for (const float start : {0.0f, 1.0f, -1.0f, 1.0f / 3, -300.0f, 1e6f, -1e-3f, 0x1.fffffep0f})
    for (int seed = 0; seed < 4; ++seed)
      check("start " + std::to_string(start) + ", seed " + std::to_string(seed),
            random_codes(64 * kK, 2 * seed), random_codes(kN * kK, 2 * seed + 1), start);
}
#endif

}  // namespace

}  // namespace ladder::MACHINE
