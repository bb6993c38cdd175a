// Tests e4m3, the 8-bit float of the step 05/fp8: conversions match the host's bits, and sums of
// products match the simulator's model of the tensor cores. The file is compiled twice, for the GPU
// and for the simulator (LADDER_SIM). The tests of steps cover Hopper's other constructs.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "../fp8.h"
#include "harness/quantised.h"
#include "machine/sim/fp8_sums.h"
#include "tests/device_test.h"
#include "tile/rows.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

#define SUITE ON_MACHINE(Float8)

class SUITE : public DeviceTest {};

/// Returns the bits of each number.
template <class T>
auto bits_of(const std::vector<T>& numbers) {
  using Bits = std::conditional_t<sizeof(T) == 1, uint8_t, uint32_t>;
  std::vector<Bits> bits;
  for (const T& x : numbers) bits.push_back(std::bit_cast<Bits>(x));
  return bits;
}

constexpr int kThreads = 128;

/// Rounds x to e4m3 twice: into codes, element by element, and into packed, with pack(), which puts
/// four elements into each word. Each thread rounds four elements.
__global__ void round_to_e4m3(Hbm<const float> x, Hbm<e4m3> codes, Hbm<unsigned> packed) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int k = 4 * i; k < 4 * i + 4; ++k) codes[k] = e4m3(x[k]);
  packed[i] = pack<e4m3>(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}
/// Converts one e4m3 number per thread to fp32.
__global__ void widen_e4m3(Hbm<const e4m3> codes, Hbm<float> x) {
  x[threadIdx.x] = float(codes[threadIdx.x]);
}

TEST_F(SUITE, ConversionsAreTheHosts) {
  // All upper halves of a float's bits, each with four lower halves. A tie between two values of
  // e4m3 ends in 0x0000; the float above it ends in 0x0001, the one below in 0xffff.
  std::vector<float> floats;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0x0000u, 0x0001u, 0x8000u, 0xffffu})
      floats.push_back(std::bit_cast<float>(high << 16 | low));
  const int n = static_cast<int>(floats.size());
  Array &rounded = make("codes", n), &packed = make("packed", n);
  run(round_to_e4m3, n / 4 / kThreads, kThreads, 0, upload<float>("x", floats), rounded, packed);
  const auto expected = bits_of(std::vector<ladder::e4m3>(floats.begin(), floats.end()));
  EXPECT_TRUE(bits_of(values<e4m3>(rounded)) == expected);
  EXPECT_TRUE(bits_of(values<e4m3>(packed)) == expected);

  std::vector<ladder::e4m3> codes;
  for (int code = 0; code < 256; ++code)
    codes.push_back(ladder::e4m3::from_bits(static_cast<uint8_t>(code)));
  Array& x = make("x", 256 * 4);
  run(widen_e4m3, 1, 256, 0, upload<e4m3>("codes", codes), x);
  EXPECT_EQ(bits_of(values<float>(x)), bits_of(std::vector<float>(codes.begin(), codes.end())));
}

constexpr int kRow = 64, kWarps = 4, kElements = kWarps * 256;  // a thread holds 8 elements

/// Applies the functions of fp8.h to kElements numbers, in rows of kRow: writes the rows times
/// `factor` as codes, the largest magnitude of all as most[0], and the transformed rows.
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
  hadamard<kRow>(mine, at % kRow);
  for (int e = 0; e < 8; ++e) transformed[at + e] = mine[e];
  Accumulator<16, 2 * kRow> sums = {};  // only to count the FLOPs of add_columns()
  add_columns(sums, kRow, Accumulator<16, kRow>{});
}

// Tests one size. (The test suite runs 05/fp8, and so these functions, at other sizes.)
TEST_F(SUITE, FunctionsAreTheHostsAndCounted) {
  std::vector<float> x = random<float>(kElements);
  Array &transformed = make("transformed", kElements * 4), &most = make("most", 4),
        &codes = make("codes", kElements);
  const auto counts = run(functions_for_e4m3, 1, 32 * kWarps, array_bytes<float>(kWarps),
                          upload<float>("x", x), transformed, most, codes, 3.3f);
  for (int row = 0; row < kElements; row += kRow) ladder::hadamard(&x[row], kRow);
  EXPECT_EQ(values<float>(transformed), x);  // to the bit
  if (!counts) return;
  // Per element, rounded() and largest() count 1 FLOP each, and hadamard() bit_width(64) = 7 FLOPs:
  // log2(64) = 6 sums and a multiplication. Per warp, add_columns() counts 16 × kRow additions.
  EXPECT_EQ(counts->other_flops,
            kElements * (1 + 1 + std::bit_width(unsigned{kRow})) + kWarps * 16 * kRow);
}

// C is 64 × kN, and its elements are sums of kK products; one wgmma adds kDepth of them.
constexpr int kN = 64, kK = 64, kDepth = 32;
using Factor = SwizzledTile<e4m3, kN, kK>;

/// Computes C = start + A·Bᵀ with one warpgroup. A (64 × kK) is in registers, distributed over the
/// lanes as the PTX manual says; B (kN × kK) is in shared memory.
__global__ void __launch_bounds__(kWarpgroup)
    add_products(Hbm<const e4m3> A, Hbm<const e4m3> B, Hbm<float> C, float start) {
  const Factor tile{SharedMemory().take<e4m3>("B", Factor::kElements)};
  for (int i = threadIdx.x; i < kN * kK; i += kWarpgroup)
    tile.data[tile.chunk(i / kK, i % kK / tile.kChunk) + i % tile.kChunk] = B[i];
  fence_proxy_async();
  __syncthreads();
  Operand<e4m3, 16, kK> a;
  for (int k = 0; k < kK / kDepth; ++k)
    for (int i = 0; i < 4; ++i) {
      const auto at = A + ((16 * warp_id() + lane_id() / 4 + i % 2 * 8) * kK + kDepth * k +
                           lane_id() % 4 * 4 + i / 2 * 16);
      a.r[0][k][i] = pack<e4m3>(float(at[0]), float(at[1]), float(at[2]), float(at[3]));
    }
  Accumulator<16, kN> acc;
  for_each(acc, [&](int, int, float& c) { c = start; });
  wgmma_fence(acc, a);
  wgmma_ABt(acc, a, tile);
  wgmma_commit();
  wgmma_wait<0>(acc, a);
  for_each(acc, [&](int i, int j, float c) { C[(16 * warp_id() + i) * kN + j] = c; });
}

// Checks sums of the products 1 and ±2^−bit, which reveal that the chip keeps 13 fraction bits, and
// sums of random products. Both machines must match add_fp8_products() bit for bit.
TEST_F(SUITE, SumsAreShortenedAsOnTheChip) {
  if (device().info().compute_capability / 10 != 9)
    GTEST_SKIP() << device().info().name << " is no Hopper GPU";
  using Codes = std::vector<ladder::e4m3>;  // 64 rows of kK
  const auto check = [&](const Codes& a, const Codes& b, float start) {
    Array& C = make("C", 64 * kN * 4);
    run(add_products, 1, kWarpgroup, array_bytes<e4m3>(kN * kK), upload<e4m3>("A", a),
        upload<e4m3>("B", b), C, start);
    const std::vector<float> A(a.begin(), a.end()), B(b.begin(), b.end());
    std::vector<float> sums(64 * kN, start);
    for (int i = 0; i < 64; ++i)
      for (int j = 0; j < kN; ++j)
        for (int k = 0; k < kK; k += kDepth)
          sums[i * kN + j] =
              sim::add_fp8_products(sums[i * kN + j], &A[i * kK + k], &B[j * kK + k]);
    EXPECT_TRUE(bits_of(values<float>(C)) == bits_of(sums)) << "from " << start << ", B " << B[1];
  };
  // Returns 64 rows that contain `first`, `second` and then zeros.
  const auto two_columns = [&](float first, float second) {
    Codes all(64 * kK, ladder::e4m3(0));
    for (int i = 0; i < 64 * kK; i += kK)
      all[i] = ladder::e4m3(first), all[i + 1] = ladder::e4m3(second);
    return all;
  };
  for (int bit = 6; bit <= 17; ++bit)
    for (const float sign : {1.0f, -1.0f})
      check(two_columns(1, std::ldexp(1.0f, -bit / 2)),
            two_columns(1, sign * std::ldexp(1.0f, -(bit - bit / 2))), 0);
  std::mt19937 random;
  const auto random_codes = [&] {  // any finite value
    Codes all;
    while (all.size() < 64 * kK) {
      const auto x = ladder::e4m3::from_bits(static_cast<uint8_t>(random()));
      if (std::isfinite(float(x))) all.push_back(x);
    }
    return all;
  };
  for (const float start : {0.0f, 1.0f, -1.0f, 1.0f / 3, -300.0f, 1e6f, -1e-3f, 0x1.fffffep0f})
    for (int i = 0; i < 4; ++i) check(random_codes(), random_codes(), start);
}

#ifdef LADDER_SIM
/// Returns c plus 32 products, by the definition in fp8_sums.h, in float64, where terms are exact.
double sum_by_definition(double c, const float* a, const float* b) {
  // Truncates x to a multiple of 2^(leading − 13).
  const auto cut = [](double x, int leading) {
    return std::ldexp(std::trunc(std::ldexp(x, 13 - leading)), leading - 13);
  };
  const auto exponent = [](float x) { return std::max(std::ilogb(x), -6); };  // −6: subnormal
  int largest = c != 0 ? std::ilogb(c) : -1000;  // −1000: below every exponent
  for (int k = 0; k < 32; ++k)
    if (a[k] * b[k] != 0) largest = std::max(largest, exponent(a[k]) + exponent(b[k]));
  double sum = cut(c, largest);
  for (int k = 0; k < 32; ++k) sum += cut(a[k] * b[k], largest);
  return sum != 0 ? cut(sum, std::ilogb(sum)) : 0;
}

TEST(SimFp8Sums, AreThoseOfTheDefinition) {
  std::mt19937 random;
  const auto any = [&] {  // returns any finite value
    for (;;)
      if (const float x = ladder::e4m3::from_bits(static_cast<uint8_t>(random())); x == x) return x;
  };
  for (int i = 0; i < 20000; ++i) {
    float a[32] = {}, b[32] = {};
    // Usually 0 to 3 products, so that small ones are lost beside a large one; otherwise 0 to 32.
    const unsigned products = random() % 4 ? random() % 4 : random() % 33;
    for (unsigned k = 0; k < products; ++k) a[k] = any(), b[k] = any();
    const float starts[] = {0, 1.0f / 3, any() * any(), -0x1p-20f, 0x1p-80f};
    const float c = starts[random() % 5];
    ASSERT_EQ(add_fp8_products(c, a, b), sum_by_definition(c, a, b)) << i;
  }
  // An infinite or NaN term makes the sum infinite or NaN.
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
