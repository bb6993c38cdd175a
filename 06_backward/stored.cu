// 06 · The textbook backward pass, which reads back the P that the forward pass stored.
//
//   build/bin/06_backward --step stored --seqlen 512 --causal
//
//   O = P·V:           dV = Pᵀ·dO,   dP = dO·Vᵀ
//   P = softmax(S):    D_i = Σ_j P_ij·dP_ij,   dS = P∘(dP − D)
//   S = scale·Q·Kᵀ:    dQ = scale·dS·K,   dK = scale·dSᵀ·Q
//
// Since 02: its step `safe` computes the forward pass and leaves P in HBM; then five kernels run.
// Four compute the products dV, dP, dQ and dK. Unlike in 02, the left operand may be transposed,
// too. The fifth computes each row of dS from the same row of P and dP, and overwrites dP with it.
// If several query heads share a head of K and V, dK and dV are sums over the queries of all these
// heads, whose rows are stored head by head.

#include "machine/machine.h"
#include "rung.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kBlockRows = 128;  // rows of a product C per block
constexpr int kInner = 64;       // elements of the inner dimension per stage
constexpr int kWarps = 8;        // 4 × 2: four down C's rows, two across its columns
constexpr int kThreads = 32 * kWarps;
constexpr int kRowWarps = 4;  // warps per block in softmax_gradient, one row of dS each

/// Returns the row pitch of P and dP in elements: N_kv rounded up to a multiple of 8, so that each
/// row starts on a 16-byte boundary. Copies move chunks of 8 elements, so a copy that ends at N_kv
/// moves the same bytes as one that ends at the pitch. The padding is 0.
constexpr int64_t pitch(const Problem& p) {
  return ceil_div(p.N_kv, 8) * 8;
}

/// The form of a product: dP is A·Bᵀ, dQ is A·B, and dV and dK are Aᵀ·B.
enum class Form { ABt, AB, AtB };

/// The sizes of one head's product C, in which the four launches of product() differ.
struct Product {
  int rows, columns, inner;           // C is rows × columns, each a sum of `inner` terms
  int64_t pitch_A, pitch_B, pitch_C;  // elements from one row to the next
  float factor = 1;                   // multiplies C
};

/// Computes C = factor·A·Bᵀ, factor·A·B or factor·Aᵀ·B, as kForm says, for each head of C. A block
/// computes kBlockRows × kBlockColumns of C, and each of its warps 32 × kBlockColumns/2. grid:
/// (heads of C, blocks of rows, blocks of columns).
template <class T, Form kForm, int kBlockColumns, int kStages>
__global__ void __launch_bounds__(kThreads, 2)
    product(Hbm<const T> A, Hbm<const T> B, Hbm<T> C, Product shape, Problem p) {
  constexpr bool kAtB = kForm == Form::AtB;
  const int64_t bh = blockIdx.x;
  const int row = blockIdx.y * kBlockRows, column = blockIdx.z * kBlockColumns;
  const int thread = threadIdx.x;
  const int warp_row = warp_id() % 4 * 32, warp_column = warp_id() / 4 * (kBlockColumns / 2);
  const auto A_head =
      A + (kAtB ? bh * shape.inner * shape.pitch_A + row : (bh * shape.rows + row) * shape.pitch_A);
  const auto B_head = B + (kAtB ? bh * shape.inner : p.kv_row(bh)) * shape.pitch_B;

  // A stage holds a tile of A, kBlockRows × kInner, and one of B, kInner × kBlockColumns. The tile
  // of a transposed operand, A in Aᵀ·B and B in A·Bᵀ, is stored with rows and columns exchanged.
  constexpr int kStage = (kBlockRows + kBlockColumns) * kInner;
  constexpr int kRows_A = kAtB ? kInner : kBlockRows, kColumns_A = kAtB ? kBlockRows : kInner;
  constexpr int kRows_B = kForm == Form::ABt ? kBlockColumns : kInner;
  constexpr int kColumns_B = kForm == Form::ABt ? kInner : kBlockColumns;
  SharedMemory smem;
  const auto stages = smem.take<T>("stages", kStages * kStage);
  const auto tile_A = [&](int slice) {
    return Tile<T, kRows_A, kColumns_A>{stages + slice % kStages * kStage};
  };
  const auto tile_B = [&](int slice) {
    return Tile<T, kRows_B, kColumns_B>{stages + (slice % kStages * kStage + kBlockRows * kInner)};
  };
  const int slices = ceil_div(shape.inner, kInner);
  const auto start_copies = [&](int slice) {
    const int k = slice * kInner;
    if (slice < slices) {
      if constexpr (kAtB)
        copy_async<kThreads>(tile_A(slice), A_head + k * shape.pitch_A, shape.pitch_A,
                             shape.inner - k, shape.pitch_A - row, thread);
      else
        copy_async<kThreads>(tile_A(slice), A_head + k, shape.pitch_A, shape.rows - row,
                             shape.inner - k, thread);
      if constexpr (kForm == Form::ABt)
        copy_async<kThreads>(tile_B(slice), B_head + (column * shape.pitch_B + k), shape.pitch_B,
                             shape.columns - column, shape.inner - k, thread);
      else
        copy_async<kThreads>(tile_B(slice), B_head + (k * shape.pitch_B + column), shape.pitch_B,
                             shape.inner - k, shape.columns - column, thread);
    }
    cp_async_commit();  // even an empty group, because the wait below counts groups
  };

  Accumulator<32, kBlockColumns / 2> acc;
  for (int slice = 0; slice < kStages - 1; ++slice) start_copies(slice);
  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the slice is complete, and no warp reads the previous one any more
    start_copies(slice + kStages - 1);
#pragma unroll
    for (int k = 0; k < kInner; k += 16) {
      Operand<T, 32, 16> a;
      if constexpr (kAtB)
        load_transposed(a, tile_A(slice), k, warp_row);
      else
        load(a, tile_A(slice), warp_row, k);
      if constexpr (kForm == Form::ABt)
        mma_ABt(acc, a, tile_B(slice), warp_column, k);
      else
        mma_AB(acc, a, tile_B(slice), k, warp_column);
    }
  }
  cp_async_wait<0>();
  __syncthreads();  // no warp reads the last slices any more

  for_each(acc, [&](int, int, float& c) { c *= shape.factor; });
  // C goes through shared memory, so that it is written in 16-byte chunks.
  const Tile<T, kBlockRows, kBlockColumns> tile_C{stages};
  write(tile_C, acc, warp_row, warp_column);
  __syncthreads();
  copy_out<kThreads>(C + (bh * shape.rows + row) * shape.pitch_C + column, shape.pitch_C, tile_C,
                     shape.rows - row, shape.columns - column, thread);
}

/// Returns P·x, or 0 if P is 0. A masked key has P = 0, but x, its dP or dP − D, may be ∞ in the
/// I/O type, and 0·∞ would be NaN.
__device__ __forceinline__ float weighted(float P, float x) {
  return P > 0 ? P * x : 0;
}

/// Replaces dP by dS = P∘(dP − D), with one warp for each of the B·H·N rows. Masked keys and the
/// padding get dS = 0, because their P is 0. grid: (blocks of kRowWarps rows).
template <class T>
__global__ void softmax_gradient(Hbm<const T> P, Hbm<T> dP, Problem p) {
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + warp_id();
  if (row >= int64_t{p.B} * p.H * p.N) return;

  const int64_t first = row * pitch(p), last = first + pitch(p);
  float delta = 0;
  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    const auto p_j = read_chunk(P + j), dp_j = read_chunk(dP + j);
    for (int e = 0; e < 8; ++e) delta += weighted(float(p_j[e]), float(dp_j[e]));
  }
  delta = warp_sum(delta);

  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    const auto p_j = read_chunk(P + j);
    auto ds = read_chunk(dP + j);
    for (int e = 0; e < 8; ++e) ds[e] = T(weighted(float(p_j[e]), float(ds[e]) - delta));
    write_chunk(dP + j, ds);
  }
}

/// Returns how many columns of dQ, dK or dV a block computes.
constexpr int output_columns(const Problem& p) {
  return p.d <= 64 ? 64 : 128;
}
constexpr int kScoreColumns = 128;  // columns of dP that a block computes

int64_t smem_bytes(int columns, int stages) {  // of product() with kBlockColumns = columns
  return array_bytes<fp16>(stages * (kBlockRows + columns) * kInner);
}

/// Plans three stages of copies, or two if three do not fit in shared memory.
Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  grid_blocks(p.N, kBlockRows), grid_blocks(p.N_kv, kBlockRows);  // throw if a length is too large
  const int stages = smem_bytes(kScoreColumns, 3) <= device.smem_bytes ? 3 : 2;
  return {.block_q = kBlockRows,
          .block_kv = kScoreColumns,
          .head_dim = p.d,
          .warps = kWarps,
          .stages = stages,
          .smem_bytes = smem_bytes(kScoreColumns, stages),
          .workspace = {{"dP", int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes}}};
}

template <class T, int kStages>
void launch_backward(const Problem& p, const Arrays& a) {
  const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
  const auto P = hbm<T>(a["P"]), dP = hbm<T>(a["dP"]);
  const auto dO = hbm<const T>(a["dO"]);
  const auto dQ = hbm<T>(a["dQ"]), dK = hbm<T>(a["dK"]), dV = hbm<T>(a["dV"]);
  const unsigned heads = p.B * p.H;
  const int columns = output_columns(p);
  const int queries = p.H / p.Hk * p.N;  // of all query heads that share a head of K and V
  const Product dOVt{p.N, p.N_kv, p.d, p.d, p.d, pitch(p)};
  const Product dSK{p.N, p.d, p.N_kv, pitch(p), p.d, p.d, p.scale};
  const Product PtdO{p.N_kv, p.d, queries, pitch(p), p.d, p.d};
  const Product dStQ{p.N_kv, p.d, queries, pitch(p), p.d, p.d, p.scale};
  const unsigned rows = grid_blocks(p.N, kBlockRows), key_rows = grid_blocks(p.N_kv, kBlockRows);
  const dim3 of_dQ(heads, rows, grid_blocks(p.d, columns));
  const dim3 of_dK(p.B * p.Hk, key_rows, grid_blocks(p.d, columns));
  const auto AB =
      columns == 64 ? product<T, Form::AB, 64, kStages> : product<T, Form::AB, 128, kStages>;
  const auto AtB =
      columns == 64 ? product<T, Form::AtB, 64, kStages> : product<T, Form::AtB, 128, kStages>;

  launch("dV", AtB, of_dK, dim3(kThreads), smem_bytes(columns, kStages), P, dO, dV, PtdO, p);
  launch("dP", product<T, Form::ABt, kScoreColumns, kStages>,
         dim3(heads, rows, grid_blocks(p.N_kv, kScoreColumns)), dim3(kThreads),
         smem_bytes(kScoreColumns, kStages), dO, V, dP, dOVt, p);
  launch("dS", softmax_gradient<T>, dim3(ceil_div(int64_t{heads} * p.N, kRowWarps)),
         dim3(32 * kRowWarps), 0, P, dP, p);  // dP holds dS from here on
  launch("dQ", AB, of_dQ, dim3(kThreads), smem_bytes(columns, kStages), dP, K, dQ, dSK, p);
  launch("dK", AtB, of_dK, dim3(kThreads), smem_bytes(columns, kStages), dP, Q, dK, dStQ, p);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_type(p, [&]<class T>() {
    plan.stages == 3 ? launch_backward<T, 3>(p, a) : launch_backward<T, 2>(p, a);
  });
}

Traffic backward_traffic(const Problem& p, const Plan&) {  // the requested bytes, per kernel
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;                    // bytes of Q, dO or dQ
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;                 // of K or V, per query head
  const int64_t dk = int64_t{p.B} * p.Hk * p.N_kv * p.d * kIoBytes;  // of dK or dV
  const int64_t S = heads * p.N * pitch(p) * kIoBytes;               // of P or dP
  const int64_t row_blocks = ceil_div(p.N, kBlockRows), key_blocks = ceil_div(p.N_kv, kBlockRows);
  const int64_t column_blocks = ceil_div(p.d, output_columns(p));
  return {
      {"dV", {{"P", S * column_blocks, 0}, {"dO", q * key_blocks, 0}, {"dV", 0, dk}}},
      {"dP",
       {{"dO", q * ceil_div(p.N_kv, kScoreColumns), 0}, {"V", k * row_blocks, 0}, {"dP", 0, S}}},
      {"dS", {{"P", 2 * S, 0}, {"dP", 2 * S, S}}},
      {"dQ", {{"dP", S * column_blocks, 0}, {"K", k * row_blocks, 0}, {"dQ", 0, q}}},
      {"dK", {{"dP", S * column_blocks, 0}, {"Q", q * key_blocks, 0}, {"dK", 0, dk}}}};
}

const Register step{{
    .rung = "06_backward",
    .name = "stored",
    .shown = {.idea = "P read back",
              .summary = "the textbook's backward pass: reads back the P that 02 stored",
              .colour = "#D55E00"},
    .needs = {.less_memory = "the steps of 06_backward after it"},
    .rounding = Rounding::S_and_P_stored,
    .deterministic = true,
    .forward_of = "02_safe_softmax/safe",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
