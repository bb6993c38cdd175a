// e4m3 on both machines: conversions and functions for quantising give the host's bits. And what
// the sim keeps of sums of products, which hopper_test.cu compares with the chip's.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "harness/quantised.h"
#include "machine/sim/fp8_sums.h"
#include "tests/device_test.h"
#include "tile/fp8.h"

namespace ladder::MACHINE {
namespace {

#define SUITE ON_MACHINE(Float8)

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

/// Rows of Dh numbers, 32·8/Dh of them in a warp: transformed; the largest of the block; the rows
/// as they were, times `factor`, rounded.
template <int Dh, int kWarps>
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
  hadamard<Dh>(mine, at % Dh);
  for (int e = 0; e < 8; ++e) transformed[at + e] = mine[e];
}

TEST_F(SUITE, FunctionsForE4m3AreTheHosts) {
  const auto check = [&]<int Dh, int kWarps>(Case<e4m3, Dh, kWarps>) {
    SCOPED_TRACE(testing::Message() << "Dh " << Dh << ", " << kWarps << " warps");
    constexpr int n = kWarps * 256;
    Matrix x = random_matrix<float>(1, n);
    x.all[n - 5] = -77;
    Array& transformed = make("transformed", n * 4);
    Array& most = make("most", 4);
    Array& codes = make("codes", n);
    const auto counts =
        run(functions_for_e4m3<Dh, kWarps>, 1, 32 * kWarps, shared_bytes<float>(kWarps),
            upload<float>("x", x), transformed, most, codes, 3.3f);
    EXPECT_EQ(values<float>(most)[0], 77);
    std::vector<ladder::e4m3> expected;
    for (const float number : x.all) expected.emplace_back(number * 3.3f);
    EXPECT_EQ(bits_of(values<e4m3>(codes)), bits_of(expected));
    for (int row = 0; row < n; row += Dh) ladder::hadamard(&x(0, row), Dh);
    EXPECT_EQ(values<float>(transformed), x.all);  // to the bit
    if (!counts) return;
    EXPECT_EQ(counts->other_flops, n * (1 + 1 + 1 + std::bit_width(unsigned{Dh}) - 1));
  };
  check_each(check, Case<e4m3, 32, 1>{}, Case<e4m3, 64, 4>{}, Case<e4m3, 128, 2>{},
             Case<e4m3, 256, 8>{});
}

#ifdef LADDER_SIM
/// c and 32 products added up by the definition in fp8_sums.h, in float64, which holds all exactly.
double sum_by_definition(double c, const float* a, const float* b) {
  const auto cut = [](double x, int leading) {
    return std::ldexp(std::trunc(std::ldexp(x, 13 - leading)), leading - 13);
  };
  const auto exponent = [](float x) { return std::max(std::ilogb(x), -6); };
  int largest = c != 0 ? std::ilogb(c) : -1000;
  for (int k = 0; k < 32; ++k)
    if (a[k] * b[k] != 0) largest = std::max(largest, exponent(a[k]) + exponent(b[k]));
  double sum = cut(c, largest);
  for (int k = 0; k < 32; ++k) sum += cut(a[k] * b[k], largest);
  return sum != 0 ? cut(sum, std::ilogb(sum)) : 0;
}

TEST(SimFp8Sums, AreThoseOfTheDefinition) {
  std::mt19937 random;
  const auto any = [&] {  // finite value
    for (;;)
      if (const float x = ladder::e4m3::from_bits(static_cast<uint8_t>(random())); x == x) return x;
  };
  for (int i = 0; i < 20000; ++i) {
    float a[32] = {}, b[32] = {};  // products are few, to be lost beside one another, or many
    const unsigned products = random() % 4 ? random() % 4 : random() % 33;
    for (unsigned k = 0; k < products; ++k) a[k] = any(), b[k] = any();
    const float starts[] = {0, 1.0f / 3, any() * any(), -0x1p-20f, 0x1p-80f};
    const float c = starts[random() % 5];
    ASSERT_EQ(add_fp8_products(c, a, b), sum_by_definition(c, a, b)) << i;
  }
  const float inf = std::numeric_limits<float>::infinity(), a[32] = {2};
  for (const auto& [start, other] : {std::pair{inf, 1.0f}, {1.0f, std::nanf("")}}) {
    const float b[32] = {other};
    const float c = add_fp8_products(start, a, b);
    EXPECT_FALSE(std::isfinite(c));
    EXPECT_EQ(std::isnan(c), std::isnan(other));
  }
}
#endif

}  // namespace
}  // namespace ladder::MACHINE
