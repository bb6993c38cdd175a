// Hopper's constructs on both machines: bulk copies of ragged tiles, warpgroup products against
// float64, what they count on the sim, and how the chip adds up products of e4m3. (Rings of stages,
// warpgroups that take turns, and sums that leave to memory, are tested with the steps of 05 and 06
// that use them.)

#include <gtest/gtest.h>

#include <array>
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

enum Form { kABt, kAB, kAtB };
enum From { kShared, kRegisters, kLoaded };  // of A; loaded: from a tile to registers

/// Fills a tile from a row-major matrix by ordinary stores, columns past it with zeros.
template <class T, int R, int C>
__device__ __forceinline__ void fill(const SwizzledTile<T, R, C>& tile, Hbm<const T> source,
                                     int columns = C) {
  constexpr int kChunk = tile.kChunk, kAll = tile.kColumns * tile.kPanels;
  for (int i = threadIdx.x; i < R * kAll; i += kWarpgroup) {
    const int r = i / kAll, c = i % kAll;
    T x = T(0.0f);
    if (c < columns) x = source[r * columns + c];
    tile.data[tile.chunk(r, c / kChunk) + c % kChunk] = x;
  }
}

/// The warp's 16 rows of a row-major matrix, register by register as the PTX manual has them.
template <class T, int K>
__device__ __forceinline__ void fill(Operand<T, 16, K>& a, Hbm<const T> A) {
  constexpr int kIn = 4 / int{sizeof(T)};  // elements of a register
  for (int k = 0; k < K / (8 * kIn); ++k)
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * warp_id() + lane_id() / 4 + i % 2 * 8;
      const int at = row * K + 8 * kIn * k + lane_id() % 4 * kIn + i / 2 * 4 * kIn;
      if constexpr (kIn == 2)
        a.r[0][k][i] = pack<T>(float(A[at]), float(A[at + 1]));
      else
        a.r[0][k][i] = pack<T>(float(A[at]), float(A[at + 1]), float(A[at + 2]), float(A[at + 3]));
    }
}

template <int N>
__device__ __forceinline__ void show(Accumulator<16, N>& acc, Hbm<float> sums) {
  for_each(acc, [&](int i, int j, float c) { sums[(16 * warp_id() + i) * N + j] = c; });
}

/// A product 64 × n of an inner dimension k; of Aᵀ it takes columns 64 to 127 of a tile, of B
/// columns [column, column + n).
template <class Element, Form form, int n, int k, From from, int column = 0>
struct Product {
  using T = Element;
  static constexpr Form kForm = form;
  static constexpr From kFrom = from;
  static constexpr int N = n, K = k, kColumn = column;
  static constexpr int kColumns = column + n <= 32 ? 32 : (column + n + 63) / 64 * 64;  // B's tile
  using A = std::conditional_t<form == kAtB, SwizzledTile<T, K, 128>,
                               SwizzledTile<T, 64, from == kRegisters ? 64 : K>>;
  using B = std::conditional_t<form == kABt, SwizzledTile<T, N, K>, SwizzledTile<T, K, kColumns>>;
  static constexpr int64_t kSmem = shared_bytes<T>(A::kElements) + shared_bytes<T>(B::kElements);
};

/// C = start, then C = scale_d·C + A·Bᵀ, A·B or Aᵀ·B for each scale_d from the given one to 1.
template <class P>
__global__ void __launch_bounds__(kWarpgroup)
    product(Hbm<const typename P::T> A, Hbm<const typename P::T> B, Hbm<float> C, float start,
            int scale_d) {
  using T = typename P::T;
  SharedMemory smem;
  const typename P::A tile_A{smem.take<T>("A", P::A::kElements)};
  const typename P::B tile_B{smem.take<T>("B", P::B::kElements)};
  if constexpr (P::kFrom != kRegisters) fill(tile_A, A, P::kForm == kAtB ? 128 : P::K);
  fill(tile_B, B, P::kForm == kABt ? P::K : P::kColumn + P::N);
  fence_proxy_async();
  __syncthreads();
  Operand<T, 16, P::K> a;
  if constexpr (P::kFrom == kLoaded) load(a, tile_A, 16 * warp_id());
  if constexpr (P::kFrom == kRegisters) fill(a, A);
  Accumulator<16, P::N> acc;
  for_each(acc, [&](int, int, float& c) { c = start; });
  if constexpr (P::kFrom == kShared)
    wgmma_fence(acc);
  else
    wgmma_fence(acc, a);
  const auto multiply = [&]<int kScale>() {
    if constexpr (P::kForm == kAtB)
      wgmma_AtB<kScale>(acc, tile_A, 64, tile_B, P::kColumn);
    else if constexpr (P::kForm == kAB && P::kFrom == kShared)
      wgmma_AB<kScale>(acc, tile_A, 0, tile_B);
    else if constexpr (P::kForm == kAB)
      wgmma_AB<kScale>(acc, a, tile_B, P::kColumn);
    else if constexpr (P::kFrom == kShared)
      wgmma_ABt<kScale>(acc, tile_A, 0, tile_B);
    else
      wgmma_ABt<kScale>(acc, a, tile_B);
  };
  if (scale_d == 0) multiply.template operator()<0>();
  multiply.template operator()<1>();
  wgmma_commit();
  wgmma_wait<0>(acc);
  show(acc, C);
}

template <class T, int N, int K, From from>
using ABt = Product<T, kABt, N, K, from>;
template <class T, int N, int K, From from, int column = 0>
using AB = Product<T, kAB, N, K, from, column>;
template <class T, int N, int K, int column = 0>
using AtB = Product<T, kAtB, N, K, kShared, column>;

TEST_F(SUITE, ProductsOfAWarpgroupAreRightAndCounted) {
  const auto check = [&]<class P>(P) {
    using T = typename P::T;
    SCOPED_TRACE(testing::PrintToString(
        std::array{int{P::kForm}, int{sizeof(T)}, P::N, P::K, int{P::kFrom}, P::kColumn}));
    const Matrix a = P::kForm == kAtB ? random_matrix<T>(P::K, 128) : random_matrix<T>(64, P::K);
    const Matrix b =
        P::kForm == kABt ? random_matrix<T>(P::N, P::K) : random_matrix<T>(P::K, P::kColumn + P::N);
    Array& C = make("C", 64 * P::N * 4);
    const auto counts =
        run(product<P>, 1, kWarpgroup, P::kSmem, upload<T>("A", a), upload<T>("B", b), C, 7, 0);
    const auto term = [&](int i, int j, int k) {
      return 2 * (P::kForm == kAtB ? a(k, 64 + i) : a(i, k)) *
             (P::kForm == kABt ? b(j, k) : b(k, P::kColumn + j));
    };
    const double within = sizeof(T) == 1 ? 0 : 2e-3;
    EXPECT_EQ(count_wrong_sums(matrix<float>(C, P::N), 64, P::N, P::K, within, term), 0);
    if (!counts) return;
    const int64_t rows_read =
        2 * (P::N + (P::kFrom == kShared ? 64 : 0)) + (P::kFrom == kLoaded ? 64 : 0);
    EXPECT_EQ(counts->matmul_flops, int64_t{2} * 2 * 64 * P::N * P::K);
    EXPECT_EQ(counts->sram_read, P::K * int64_t{sizeof(T)} * rows_read);
    EXPECT_EQ(counts->sram_operands, counts->sram_read);
    EXPECT_EQ(counts->bank_conflicts, 0);
  };
  // Each of the widths comes up in each form.
  check_each(check, ABt<fp16, 32, 32, kShared>{}, ABt<bf16, 64, 128, kShared>{},
             ABt<fp16, 128, 64, kShared>{}, ABt<bf16, 256, 256, kShared>{},
             ABt<fp16, 32, 64, kRegisters>{}, ABt<bf16, 64, 128, kRegisters>{},
             ABt<bf16, 128, 32, kRegisters>{}, ABt<fp16, 256, 64, kRegisters>{},
             ABt<bf16, 96, 192, kShared>{}, ABt<fp16, 192, 96, kRegisters>{});
  check_each(check, ABt<e4m3, 32, 32, kShared>{}, ABt<e4m3, 64, 192, kShared>{},
             ABt<e4m3, 128, 256, kShared>{}, ABt<e4m3, 256, 128, kShared>{},
             ABt<e4m3, 32, 32, kRegisters>{}, ABt<e4m3, 64, 64, kRegisters>{},
             ABt<e4m3, 128, 192, kRegisters>{}, ABt<e4m3, 256, 256, kRegisters>{},
             ABt<e4m3, 32, 32, kLoaded>{}, ABt<e4m3, 64, 192, kLoaded>{},
             ABt<e4m3, 128, 256, kLoaded>{});
  check_each(check, AB<fp16, 32, 64, kShared>{}, AB<bf16, 64, 128, kShared>{},
             AB<fp16, 128, 64, kShared>{}, AB<bf16, 256, 64, kShared>{},
             AB<bf16, 32, 176, kRegisters>{}, AB<fp16, 64, 128, kRegisters>{},
             AB<bf16, 128, 80, kRegisters>{}, AB<fp16, 256, 64, kRegisters>{},
             AB<fp16, 64, 64, kRegisters, 64>{}, AB<bf16, 128, 80, kRegisters, 128>{},
             AB<bf16, 96, 96, kRegisters>{}, AB<fp16, 192, 96, kShared>{});
  check_each(check, AtB<fp16, 32, 64>{}, AtB<fp16, 64, 64>{}, AtB<bf16, 128, 80>{},
             AtB<bf16, 256, 64>{}, AtB<bf16, 64, 64, 64>{}, AtB<fp16, 128, 80, 128>{},
             AtB<fp16, 96, 64>{}, AtB<bf16, 192, 64>{});
}

// Sums of e4m3 products that tell how many bits the chip keeps, and random ones: those of both
// machines are add_fp8_products(), bit for bit.
TEST_F(SUITE, SumsOfE4m3AreShortenedAsOnTheChip) {
  constexpr int kN = 64, kK = 64, kDepth = 32;  // of one instruction
  const auto check = [&](const Matrix& a, const Matrix& b, float start) {
    Array& C = make("C", 64 * kN * 4);
    using P = ABt<e4m3, kN, kK, kRegisters>;
    run(product<P>, 1, kWarpgroup, P::kSmem, upload<e4m3>("A", a), upload<e4m3>("B", b), C, start,
        1);
    const Matrix got = matrix<float>(C, kN);
    const auto differs = [&](int i, int j) {
      float sum = start;
      for (int k = 0; k < kK; k += kDepth)
        sim::add_fp8_products(&sum, &a.all[i * kK + k], &b.all[j * kK + k], 1);
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
