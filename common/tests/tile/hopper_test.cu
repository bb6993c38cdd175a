// Hopper's constructs on both machines: bulk copies of ragged tiles, warpgroup products against
// float64; on the sim what they count; on the gpu that the sim reads shared memory through a
// descriptor as the chip does. (Rings of stages, warpgroups that take turns, and sums that leave to
// memory, are tested with the steps of 05 and 06 that use them.)

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/tile/warpgroup_test.h"
#include "tile/rows.h"

namespace ladder::sim {
// The sim's half of DescriptorsAreReadAsOnTheChip.
std::vector<float> run_by_descriptor(Device& device, const std::vector<uint16_t>& memory,
                                     uint64_t descriptor, bool transposed);
}  // namespace ladder::sim

namespace ladder::MACHINE {
namespace {

#ifdef LADDER_SIM
#define SUITE SimHopper
#else
#define SUITE GpuHopper
#endif

class SUITE : public HopperTest {};

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
    using Bits = std::conditional_t<kBytes == 1, uint8_t, uint16_t>;
    const bool exists = head >= 0 && head < kHeads && batch >= 0 && batch < kBatch;
    const int first = (batch * kHeads + head) * rows;  // row of the array
    Results<Bits> a{std::vector<Bits>(static_cast<size_t>(kBatch * kHeads * rows * d)), d};
    for (size_t i = 0; i < a.all.size(); ++i)  // neighbours differ, and all are finite
      a.all[i] = static_cast<Bits>(i * 40503 % (kBytes == 1 ? 0x7d : 0x7000) + 1);
    Array& A = upload("A", a.all);
    Array& B = make("B", A.bytes);
    Array& seen = make("seen", R * C * 4);
    const auto map = [&](Array& array) {
      return tensor_map<T>(array, d, rows, kHeads, kBatch, R, CopiedTile::kPanelBytes);
    };
    const auto counts = run(copy_tile<T, R, C>, 1, 64,
                            shared_bytes<T>(CopiedTile::kElements) + shared_bytes<Mbarrier>(1),
                            map(A), map(B), seen, column, row, head, batch);
    const auto in_tile = results<float>(seen, C);
    const auto is_wrong = [&](int i, int j) {
      const bool inside = exists && row + i < rows && column + j < d;
      return in_tile(i, j) !=
             (inside ? float(OnHost<T>::from_bits(a(first + row + i, column + j))) : 0);
    };
    EXPECT_EQ(count_where(R, C, is_wrong), 0) << "of the tile's elements";
    const auto out = results<Bits>(B, d);
    const auto is_miscopied = [&](int i, int j) {
      const bool copied = exists && i >= first + row && i < first + std::min(row + R, rows) &&
                          j >= column && j < column + C;
      return out(i, j) != (copied ? a(i, j) : static_cast<Bits>(-1));
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

/// Columns of a tile that has so many columns of a matrix.
constexpr int tile_columns(int n) {
  return n <= 32 ? 32 : (n + 63) / 64 * 64;
}

template <class T, int kForm, int N, int K, int kFrom, int kColumn>
using TileA = std::conditional_t<kForm == kAtB, SwizzledTile<T, K, 128>,
                                 SwizzledTile<T, 64, kFrom == kRegisters ? 64 : K>>;
template <class T, int kForm, int N, int K, int kFrom, int kColumn>
using TileB = std::conditional_t<kForm == kABt, SwizzledTile<T, N, K>,
                                 SwizzledTile<T, K, tile_columns(kColumn + N)>>;

/// C = A·Bᵀ, A·B or Aᵀ·B twice over, 64 × N; of Aᵀ columns 64 to 127 of a tile, of B columns
/// [kColumn, kColumn + N). The first product overwrites what is there.
template <class T, int kForm, int N, int K, int kFrom, int kColumn>
__global__ void __launch_bounds__(kWarpgroup)
    product(Hbm<const T> A, Hbm<const T> B, Hbm<float> sums) {
  using OfA = TileA<T, kForm, N, K, kFrom, kColumn>;
  using OfB = TileB<T, kForm, N, K, kFrom, kColumn>;
  SharedMemory smem;
  const OfA tile_A{smem.take<T>("A", OfA::kElements)};
  const OfB tile_B{smem.take<T>("B", OfB::kElements)};
  if constexpr (kFrom != kRegisters) fill(tile_A, A, kForm == kAtB ? 128 : K);
  fill(tile_B, B, kForm == kABt ? K : kColumn + N);
  fence_proxy_async();
  __syncthreads();
  Operand<T, 16, K> a;
  if constexpr (kFrom == kLoaded) load(a, tile_A, 16 * warp_id());
  if constexpr (kFrom == kRegisters) fill(a, A);
  Accumulator<16, N> acc;
  for_each(acc, [](int, int, float& c) { c = 7; });
  if constexpr (kFrom == kShared)
    wgmma_fence(acc);
  else
    wgmma_fence(acc, a);
  for (int scale_d = 0; scale_d < 2; ++scale_d) {
    if constexpr (kForm == kAtB)
      wgmma_AtB(acc, tile_A, 64, tile_B, scale_d, kColumn);
    else if constexpr (kForm == kAB && kFrom == kShared)
      wgmma_AB(acc, tile_A, 0, tile_B, scale_d);
    else if constexpr (kForm == kAB)
      wgmma_AB(acc, a, tile_B, scale_d, kColumn);
    else if constexpr (kFrom == kShared)
      wgmma_ABt(acc, tile_A, 0, tile_B, scale_d);
    else
      wgmma_ABt(acc, a, tile_B, scale_d);
  }
  wgmma_commit();
  wgmma_wait<0>(acc);
  show(acc, sums);
}

template <class T, int N, int K, int kFrom>
using ABt = Case<T, kABt, N, K, kFrom, 0>;
template <class T, int N, int K, int kFrom, int kColumn = 0>
using AB = Case<T, kAB, N, K, kFrom, kColumn>;
template <class T, int N, int K, int kColumn = 0>
using AtB = Case<T, kAtB, N, K, kShared, kColumn>;

TEST_F(SUITE, ProductsOfAWarpgroupAreRightAndCounted) {
  const auto check = [&]<class T, int kForm, int N, int K, int kFrom, int kColumn>(
                         Case<T, kForm, N, K, kFrom, kColumn>) {
    const char* const of_form[] = {"A·Bᵀ", "A·B", "Aᵀ·B"};
    const char* const from[] = {"shared memory", "registers", "a tile"};
    SCOPED_TRACE(testing::Message()
                 << of_form[kForm] << ", " << sizeof(T) << " bytes, N " << N << ", K " << K
                 << ", A from " << from[kFrom] << ", B from column " << kColumn);
    const Matrix a = kForm == kAtB ? random_operand<T>(K, 128) : random_operand<T>(64, K);
    const Matrix b = kForm == kABt ? random_operand<T>(N, K) : random_operand<T>(K, kColumn + N);
    Array& A = upload_as<T>("A", a);
    Array& B = upload_as<T>("B", b);
    Array& sums = make("sums", 64 * N * 4);
    const auto counts = run(product<T, kForm, N, K, kFrom, kColumn>, 1, kWarpgroup,
                            shared_bytes<T>(TileA<T, kForm, N, K, kFrom, kColumn>::kElements) +
                                shared_bytes<T>(TileB<T, kForm, N, K, kFrom, kColumn>::kElements),
                            A, B, sums);
    const auto term = [&](int i, int j, int k) {
      return 2 * (kForm == kAtB ? a(k, 64 + i) : a(i, k)) *
             (kForm == kABt ? b(j, k) : b(k, kColumn + j));
    };
    EXPECT_LE(worst_sum(results<float>(sums, N), 64, K, term), sizeof(T) == 1 ? 0 : 2e-3);
    if (!counts) return;
    const int64_t rows_read = 2 * (N + (kFrom == kShared ? 64 : 0)) + (kFrom == kLoaded ? 64 : 0);
    EXPECT_EQ(counts->matmul_flops, int64_t{2} * 2 * 64 * N * K);
    EXPECT_EQ(counts->sram_read, K * int64_t{sizeof(T)} * rows_read);
    EXPECT_EQ(counts->sram_operands, counts->sram_read);
    EXPECT_EQ(counts->bank_conflicts, 0);
  };
  // Each of the widths comes up in each form.
  check_each(check, ABt<fp16, 32, 32, kShared>{}, ABt<bf16, 64, 128, kShared>{},
             ABt<fp16, 128, 64, kShared>{}, ABt<bf16, 256, 256, kShared>{},
             ABt<fp16, 32, 64, kRegisters>{}, ABt<bf16, 64, 128, kRegisters>{},
             ABt<bf16, 128, 32, kRegisters>{}, ABt<fp16, 256, 64, kRegisters>{});
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
             AB<fp16, 64, 64, kRegisters, 64>{}, AB<bf16, 128, 80, kRegisters, 128>{});
  check_each(check, AtB<fp16, 32, 64>{}, AtB<fp16, 64, 64>{}, AtB<bf16, 128, 80>{},
             AtB<bf16, 256, 64>{}, AtB<bf16, 64, 64, 64>{}, AtB<fp16, 128, 80, 128>{});
}

// ------------------------------------------------------------------------------------ descriptors

constexpr int kColumns = 64;  // of B

/// Sums of a fixed A, from registers, with what a descriptor finds in `elements` elements of shared
/// memory; the start address in the descriptor counts from there.
template <bool transposed>
__global__ void __launch_bounds__(kWarpgroup)
    by_descriptor(Hbm<const fp16> memory, Hbm<float> sums, uint64_t descriptor, int elements) {
  SharedMemory smem;
  const auto all = smem.take<fp16>("memory", elements);
  for (int i = threadIdx.x; i < elements; i += kWarpgroup) all[i] = memory[i];
  fence_proxy_async();
  __syncthreads();
  Operand<fp16, 16, 16> a;
  for (int i = 0; i < 4; ++i) {
    // Small integers, different enough that sums tell which element was taken for which.
    const int row = 16 * warp_id() + lane_id() / 4 + i % 2 * 8, k = lane_id() % 4 * 2 + i / 2 * 8;
    const auto weight = [&](int column) { return float((row * 7 + column * 5) % 16 - 8); };
    a.r[0][0][i] = pack<fp16>(weight(k), weight(k + 1));
  }
  const uint64_t start = matrix_descriptor(all, 0, 0) & 0x3fff;
  Accumulator<16, kColumns> acc;
  wgmma_fence(acc, a);
  wgmma_m64<fp16, transposed>(acc.r[0], a.r[0][0], descriptor + start, 0);
  wgmma_commit();
  wgmma_wait<0>(acc);
  show(acc, sums);
}

}  // namespace

std::vector<float> run_by_descriptor(Device& device, const std::vector<uint16_t>& memory,
                                     uint64_t descriptor, bool transposed) {
  const Buffer M(device, "memory", std::ssize(memory) * 2), sums(device, "sums", 64 * kColumns * 4);
  device.upload(*M.array(), memory.data());
  run_kernel(device, transposed ? by_descriptor<true> : by_descriptor<false>, 1, kWarpgroup,
             shared_bytes<fp16>(std::ssize(memory)), *M.array(), *sums.array(), descriptor,
             static_cast<int>(memory.size()));
  std::vector<float> out(64 * kColumns);
  device.download(out.data(), *sums.array());
  return out;
}

namespace {

/// Swizzle mode 1 is 128 bytes, 2 is 64: those that the functions of common/tile use and the sim
/// knows, the second for operands as they stand.
uint64_t descriptor_bits(int start, int leading, int stride, int mode = 1) {
  return static_cast<uint64_t>(start >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(mode) << 62;
}

#ifdef LADDER_SIM
TEST_F(SUITE, FaultsOnDescriptorsOfAnotherSwizzle) {
  const Matrix m = random_matrix<fp16>(1, 32768);
  const auto run = [&](int mode, bool transposed) {
    run_by_descriptor(device(), m.elements.bits, descriptor_bits(0, 16, 1024, mode), transposed);
  };
  for (const int mode : {0, 3}) EXPECT_THROW(run(mode, false), Fault);
  EXPECT_NO_THROW(run(2, false));
  EXPECT_THROW(run(2, true), Fault);
  const uint64_t with_base_offset = descriptor_bits(0, 16, 1024, 1) | uint64_t{1} << 49;
  EXPECT_THROW(run_by_descriptor(device(), m.elements.bits, with_base_offset, false), Fault);
}
#else
/// The largest difference; NaN if one is.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = worse(most, std::abs(a[i] - b[i]));
  return most;
}

// The sim computes addresses from a descriptor by rules that it took from the manual. The chip must
// agree where 8 rows are aligned as the manual wants them, to 1024 bytes; elsewhere it is only told
// whether it does.
TEST_F(SUITE, DescriptorsAreReadAsOnTheChip) {
  const Matrix m = random_matrix<fp16>(1, 32768);
  const auto sim = open_sim({});
  int strange = 0, strange_and_different = 0;
  const auto compare = [&](bool transposed, int mode) {
    for (const int stride : {128, 256, 512, 1024, 2048})
      for (const int leading : {128, 1024, 8192})
        for (const int start : {0, 32, 64, 1024, 2048 + 96}) {
          const uint64_t bits = descriptor_bits(start, leading, stride, mode);
          const auto chip = run_by_descriptor(device(), m.elements.bits, bits, transposed);
          const auto said = sim::run_by_descriptor(*sim, m.elements.bits, bits, transposed);
          const double most = largest_difference(chip, said);
          // Not transposed, steps of 16 columns are in use.
          if (stride % (1024 / mode) || leading % 1024 || (start % 1024 && transposed)) {
            ++strange;
            strange_and_different += !(most < 1e-3f);
            continue;
          }
          EXPECT_LT(most, 1e-3) << "start " << start << ", leading " << leading << ", stride "
                                << stride << ", swizzle mode " << mode
                                << (transposed ? ", transposed" : "");
        }
  };
  compare(false, 1);
  compare(true, 1);
  compare(false, 2);
  printf(
      "of %d descriptors that are not aligned as they should be, the chip reads %d otherwise "
      "than the sim\n",
      strange, strange_and_different);
}
#endif

}  // namespace

}  // namespace ladder::MACHINE
