// Hopper's constructs on both machines: bulk copies of ragged tiles, what they count on the sim,
// and how the chip adds up products of e4m3. (Products, rings of stages, warpgroups that take
// turns, and sums that leave to memory, are tested with the steps of 05 and 06 that use them.)

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "machine/sim/fp8_sums.h"
#include "tests/device_test.h"
#include "tile/rows.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

#define SUITE ON_MACHINE(Hopper)

/// A GPU of another kind skips these.
class SUITE : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && device().info().compute_capability / 10 != 9)
      GTEST_SKIP() << device().info().name << " is no Hopper GPU";
  }
};

// ------------------------------------------------------------------------------------ bulk copies

/// Loads the tile at (column, row, head, batch), shows it, and stores it to the same place.
template <class T, int R, int C>
__global__ void copy_tile(const __grid_constant__ TensorMap from,
                          const __grid_constant__ TensorMap to, Hbm<float> seen, int column,
                          int row, int head, int batch) {
  SharedMemory smem;
  using CopiedTile = SwizzledTile<T, R, C>;
  constexpr int kChunk = CopiedTile::kChunk;
  const CopiedTile tile{smem.take<T>("tile", CopiedTile::kElements)};
  const auto full = smem.take<Mbarrier>("full", 1);
  if (threadIdx.x == 0) {
    full[0].init(1);
    fence_mbarrier_init();
    full[0].arrive_expect_tx(CopiedTile::kBytes);
    tma_load(from, full[0], tile, column, row, head, batch);
  }
  __syncthreads();
  full[0].wait(0);
  for (int i = threadIdx.x; i < R * C; i += blockDim.x)
    seen[i] = float(tile.data[tile.chunk(i / C, i % C / kChunk) + i % kChunk]);
  if (threadIdx.x == 0 && head >= 0 && batch >= 0) {
    tma_store(to, tile, column, row, head, batch);
    tma_store_commit();
    tma_store_wait<0>();
  }
}

TEST_F(SUITE, CopiesOfRaggedTilesAreFilledWithZerosAndStoredAsFarAsTheArrayGoes) {
  const auto check = [&]<class T, int R, int C>(Case<T, R, C>, int d, int rows, int row,
                                                int column = 0, int head = 1, int batch = 1) {
    SCOPED_TRACE(testing::Message()
                 << "tile " << R << "×" << C << " of d " << d << ", " << rows << " rows, from row "
                 << row << ", column " << column << ", head " << head << ", batch " << batch);
    constexpr int kHeads = 3, kBatch = 2, kBytes = sizeof(T);
    using CopiedTile = SwizzledTile<T, R, C>;
    const bool exists = head >= 0 && head < kHeads && batch >= 0 && batch < kBatch;
    const int first = (batch * kHeads + head) * rows;  // row of the array
    const Matrix a = random_matrix<T>(kBatch * kHeads * rows, d);
    Array& A = upload<T>("A", a);
    Array& B = make("B", A.bytes);
    Array& seen = make("seen", R * C * 4);
    const auto map = [&](Array& array) {
      return tensor_map<T>(array, d, rows, kHeads, kBatch, R, CopiedTile::kPanelBytes);
    };
    const auto counts = run(copy_tile<T, R, C>, 1, 64,
                            shared_bytes<T>(CopiedTile::kElements) + shared_bytes<Mbarrier>(1),
                            map(A), map(B), seen, column, row, head, batch);
    const Matrix in_tile = matrix<float>(seen, C), out = matrix<T>(B, d);
    const auto is_wrong = [&](int i, int j) {
      const bool inside = exists && row + i < rows && column + j < d;
      return in_tile(i, j) != (inside ? a(first + row + i, column + j) : 0);
    };
    EXPECT_EQ(count_where(R, C, is_wrong), 0) << "of the tile's elements";
    const auto is_miscopied = [&](int i, int j) {
      const bool copied = exists && i >= first + row && i < first + std::min(row + R, rows) &&
                          j >= column && j < column + C;
      return copied ? out(i, j) != a(i, j) : !std::isnan(out(i, j));
    };
    EXPECT_EQ(count_where(kBatch * kHeads * rows, d, is_miscopied), 0) << "of the array's elements";
    if (!counts) return;
    const int64_t inside =
        exists ? std::max(0, std::min(R, rows - row)) * std::min(C, d - column) * kBytes : 0;
    EXPECT_EQ(counts->hbm.requested_read, inside);
    EXPECT_EQ(counts->hbm.distinct_read, inside);
    EXPECT_EQ(counts->hbm.requested_write, inside + R * C * 4);
    EXPECT_EQ(counts->sram_write, CopiedTile::kBytes);
    EXPECT_EQ(counts->sram_read, inside + R * C * kBytes);
  };
  const Case<fp16, 64, 64> square;
  check(square, 64, 128, 64);
  check(square, 40, 7, 0);
  check(Case<fp16, 64, 32>{}, 8, 65, 64);
  check(Case<bf16, 64, 32>{}, 32, 64, 0);
  check(Case<bf16, 128, 128>{}, 80, 130, 0);
  check(Case<bf16, 64, 96>{}, 88, 130, 64);
  check(Case<fp16, 176, 128>{}, 128, 500, 176);
  check(Case<bf16, 64, 256>{}, 184, 70, 64);
  check(Case<bf16, 64, 256>{}, 256, 64, 64);  // all of it past the end
  // Of a head, and of a batch, that does not exist: not of what comes next in memory.
  for (const auto& [head, batch] : {std::pair{3, 0}, {0, 2}, {-1, 1}, {2, -1}})
    check(square, 64, 64, 0, 0, head, batch);
  check(Case<e4m3, 64, 64>{}, 48, 100, 64);
  check(Case<e4m3, 64, 64>{}, 256, 70, 0, 192);
  check(Case<e4m3, 128, 128>{}, 128, 200, 128);
  check(Case<e4m3, 32, 64>{}, 16, 7, 0);
  check(Case<e4m3, 64, 256>{}, 160, 64, 0);
  check(Case<e4m3, 64, 192>{}, 400, 64, 0, 192);
  check(Case<e4m3, 16, 128>{}, 128, 16, 16);  // all of it past the end
}

// --------------------------------------------------------------------------------------- products

constexpr int kN = 64, kK = 64, kDepth = 32;  // of a product 64 × N, K at a time by one instruction
using Factor = SwizzledTile<e4m3, kN, kK>;

/// C = start + A·Bᵀ, A from registers, of which a lane has those that the PTX manual says.
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

// Sums of e4m3 products that tell how many bits the chip keeps, and random ones: those of both
// machines are add_fp8_products(), bit for bit.
TEST_F(SUITE, SumsOfE4m3AreShortenedAsOnTheChip) {
  const auto check = [&](const Matrix& a, const Matrix& b, float start) {
    Array& C = make("C", 64 * kN * 4);
    run(add_products, 1, kWarpgroup, shared_bytes<e4m3>(kN * kK), upload<e4m3>("A", a),
        upload<e4m3>("B", b), C, start);
    const Matrix got = matrix<float>(C, kN);
    const auto differs = [&](int i, int j) {
      float sum = start;
      for (int k = 0; k < kK; k += kDepth)
        sum = sim::add_fp8_products(sum, &a.all[i * kK + k], &b.all[j * kK + k]);
      return std::bit_cast<uint32_t>(got(i, j)) != std::bit_cast<uint32_t>(sum);
    };
    EXPECT_EQ(count_where(64, kN, differs), 0) << "from " << start << ", B " << b(0, 1);
  };
  const auto two_columns = [&](float first, float second) {  // and zeros
    Matrix m{kK, std::vector<float>(64 * kK)};
    for (int i = 0; i < 64; ++i) m(i, 0) = first, m(i, 1) = second;
    return m;
  };
  for (int bit = 6; bit <= 17; ++bit)
    for (const float sign : {1.0f, -1.0f})
      check(two_columns(1, std::ldexp(1.0f, -bit / 2)),
            two_columns(1, sign * std::ldexp(1.0f, -(bit - bit / 2))), 0);
  std::mt19937 random;
  const auto random_codes = [&] {  // any finite value
    Matrix m{kK, {}};
    while (m.all.size() < 64 * kK) {
      const float x = ladder::e4m3::from_bits(static_cast<uint8_t>(random()));
      if (std::isfinite(x)) m.all.push_back(x);
    }
    return m;
  };
  for (const float start : {0.0f, 1.0f, -1.0f, 1.0f / 3, -300.0f, 1e6f, -1e-3f, 0x1.fffffep0f})
    for (int i = 0; i < 4; ++i) check(random_codes(), random_codes(), start);
}

}  // namespace
}  // namespace ladder::MACHINE
