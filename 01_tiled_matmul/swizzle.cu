// 01 · Tiled products, fourth step: tiles swizzled in shared memory.
//
//   build/bin/01_tiled_matmul --step swizzle --seqlen 512
//
// Since `mma`: the chunks of a tile's rows are permuted, so that the 8 rows of a piece that
// ldmatrix reads lie in different banks.

#include "machine/machine.h"
#include "rung.h"
#include "tile/tile.h"

namespace ladder::MACHINE {
namespace {

constexpr int kBlockRows = 128;  // rows of the product that a block makes
constexpr int kInner = 64;       // columns of A (and rows of B) in a tile
constexpr int kWarps = 8;        // 4 down × 2 across
constexpr int kThreads = 32 * kWarps;
constexpr int kRowWarps = 4;  // softmax: warps, and so rows, of a block

/// Elements from one row of S (and P) to the next.
constexpr int64_t pitch(const Problem& p) {
  return ceil_div(p.N_kv, 8) * 8;
}

/// Shape and layout of one product of each head: C = A·B, or A·Bᵀ.
struct Product {
  int rows, columns, inner;           // C is rows × columns
  int64_t pitch_A, pitch_B, pitch_C;  // elements from row to row
};

/// The product of one head. kScores: C = scale·A·Bᵀ with the causal mask, for S = scale·Q·Kᵀ;
/// otherwise C = A·B, for O = P·V. A block makes kBlockRows × kBlockColumns of C, a warp 32 ×
/// kBlockColumns/2. grid: (B·H, row blocks, column blocks).
template <class T, bool kScores, int kBlockColumns>
__global__ void __launch_bounds__(kThreads, 2)
    product(Hbm<const T> A, Hbm<const T> B, Hbm<T> C, Product g, Problem p) {
  const int64_t bh = blockIdx.x;
  const int row = blockIdx.y * kBlockRows, column = blockIdx.z * kBlockColumns;
  const int thread = threadIdx.x;
  const int warp_row = warp_id() % 4 * 32, warp_column = warp_id() / 4 * (kBlockColumns / 2);
  const auto A_head = A + (bh * g.rows + row) * g.pitch_A;
  const auto B_head = B + p.kv_row(bh) * g.pitch_B;

  // B's tile is kBlockColumns × kInner for A·Bᵀ.
  constexpr int kRows_B = kScores ? kBlockColumns : kInner,
                kColumns_B = kScores ? kInner : kBlockColumns;
  SharedMemory smem;
  const auto tiles = smem.take<T>("tiles", (kBlockRows + kBlockColumns) * kInner);
  const Tile<T, kBlockRows, kInner> tile_A{tiles};
  const Tile<T, kRows_B, kColumns_B> tile_B{tiles + kBlockRows * kInner};
  const int slices = ceil_div(g.inner, kInner);
  const auto copy = [&](int slice) {
    const int k = slice * kInner;
    copy_in<kThreads>(tile_A, A_head + k, g.pitch_A, g.rows - row, g.inner - k, thread);
    if constexpr (kScores)
      copy_in<kThreads>(tile_B, B_head + (column * g.pitch_B + k), g.pitch_B, g.columns - column,
                        g.inner - k, thread);
    else
      copy_in<kThreads>(tile_B, B_head + (k * g.pitch_B + column), g.pitch_B, g.inner - k,
                        g.columns - column, thread);
  };

  Accumulator<32, kBlockColumns / 2> acc;
  for (int slice = 0; slice < slices; ++slice) {
    copy(slice);
    __syncthreads();  // the tiles are complete
#pragma unroll
    for (int k = 0; k < kInner; k += 16) {
      Operand<T, 32, 16> a;
      load(a, tile_A, warp_row, k);
      if constexpr (kScores)
        mma_ABt(acc, a, tile_B, warp_column, k);
      else
        mma_AB(acc, a, tile_B, k, warp_column);
    }
    __syncthreads();  // everybody is done with them
  }

  if constexpr (kScores)
    for_each(acc, [&](int i, int j, float& s) {
      const int query = row + warp_row + i, key = column + warp_column + j;
      s = key < p.N_kv && p.sees(query, key) ? p.scale * s : -INFINITY;
    });
  // Through shared memory, so that C is written in rows of whole 16-byte pieces.
  const Tile<T, kBlockRows, kBlockColumns> tile_C{tiles};
  write(tile_C, acc, warp_row, warp_column);
  __syncthreads();
  copy_out<kThreads>(C + (bh * g.rows + row) * g.pitch_C + column, g.pitch_C, tile_C, g.rows - row,
                     g.columns - column, thread);
}

/// P = softmax(S), one warp for each of the B·H·N rows. A row's padding is −∞ and becomes 0.
template <class T>
__global__ void softmax(Hbm<const T> S, Hbm<T> P, Problem p) {
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + warp_id();
  if (row >= int64_t{p.B} * p.H * p.N) return;

  const int64_t first = row * pitch(p), last = first + pitch(p);
  float sum = 0;
  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    const auto s = read_chunk(S + j);
    for (int e = 0; e < 8; ++e) sum += expf(float(s[e]));
  }
  sum = warp_sum(sum);
  const float inverse = sum > 0 ? 1 / sum : 0;  // a row that sees no key gives P = 0

  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    auto s = read_chunk(S + j);
    for (int e = 0; e < 8; ++e) s[e] = T(expf(float(s[e])) * inverse);
    write_chunk(P + j, s);
  }
}

/// Columns of O that a block makes.
constexpr int output_columns(const Problem& p) {
  return p.d <= 64 ? 64 : 128;
}
constexpr int kScoreColumns = 128;

int64_t smem_bytes(int columns) {
  return shared_bytes<fp16>((kBlockRows + columns) * kInner);
}

Plan plan(const Problem& p, const DeviceInfo&, const TileRequest&) {
  const int64_t bytes = int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes;
  return {.block_q = kBlockRows,
          .block_kv = kScoreColumns,
          .head_dim = p.d,
          .warps = kWarps,
          .smem_bytes = smem_bytes(kScoreColumns),
          .workspace = {{"S", bytes}, {"P", bytes}}};
}

template <class T>
void launch_forward(const Problem& p, const Arrays& a) {
  const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
  const auto S = hbm<T>(a["S"]), P = hbm<T>(a["P"]), O = hbm<T>(a["O"]);
  const unsigned heads = p.B * p.H;
  const unsigned rows = grid_blocks(p.N, kBlockRows);
  const Product QKt{p.N, p.N_kv, p.d, p.d, p.d, pitch(p)};
  const Product PV{p.N, p.d, p.N_kv, pitch(p), p.d, p.d};
  const int columns = output_columns(p);

  launch("scores", product<T, true, kScoreColumns>,
         dim3(heads, rows, grid_blocks(p.N_kv, kScoreColumns)), dim3(kThreads),
         smem_bytes(kScoreColumns), Q, K, S, QKt, p);
  launch("softmax", softmax<T>, dim3(ceil_div(int64_t{heads} * p.N, kRowWarps)),
         dim3(32 * kRowWarps), 0, S, P, p);
  launch("output", columns == 64 ? product<T, false, 64> : product<T, false, 128>,
         dim3(heads, rows, grid_blocks(p.d, columns)), dim3(kThreads), smem_bytes(columns), P, V, O,
         PV, p);
}

void forward(const Problem& p, const Plan&, const Arrays& a) {
  p.dtype == DType::fp16 ? launch_forward<fp16>(p, a) : launch_forward<bf16>(p, a);
}

/// Requested bytes: an operand is read once for each block of the other operand's rows or columns.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;       // bytes of Q, and of O
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;    // bytes of K, and of V, as heads use them
  const int64_t S = heads * p.N * pitch(p) * kIoBytes;  // bytes of S, and of P
  const int64_t row_blocks = ceil_div(p.N, kBlockRows);
  return {
      {"scores",
       {{"Q", q * ceil_div(p.N_kv, kScoreColumns), 0}, {"K", k * row_blocks, 0}, {"S", 0, S}}},
      {"softmax", {{"S", 2 * S, 0}, {"P", 0, S}}},
      {"output",
       {{"P", S * ceil_div(p.d, output_columns(p)), 0}, {"V", k * row_blocks, 0}, {"O", 0, q}}}};
}

const Register step{{
    .rung = "01_tiled_matmul",
    .name = "swizzle",
    .after = "mma",
    .shown = {.idea = "no bank conflicts",
              .change = {"bank_conflicts", "to 0"},
              .summary = "and tiles swizzled, so that no bank is met twice",
              .colour = "#E69F00"},
    .needs = {.max_subtracted_by = "02_safe_softmax",
              .less_memory = "03_online_softmax and the rungs after it"},
    .rounding = Rounding::S_and_P_stored,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
