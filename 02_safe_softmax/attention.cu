// 02 · Safe softmax: the row's maximum is subtracted before exp.
//
//   build/bin/02_safe_softmax --step safe --seqlen 512 --scale 200
//
//   m_i = max_j S_ij,   P_ij = exp(S_ij − m_i) / Σ_j exp(S_ij − m_i)
//
// Since 01: three loops over a row of S where there were two: maximum, sum, normalise. No exponent
// is above 0 any more, so nothing overflows; and S is read once more. All else is 01's.

#include "machine/machine.h"
#include "rung.h"
#include "tile/tile.h"

namespace ladder::MACHINE {
namespace {

constexpr int kBlockRows = 128;  // rows of the product that a block makes
constexpr int kInner = 64;       // columns of A (and rows of B) in a stage
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
template <class T, bool kScores, int kBlockColumns, int kStages>
__global__ void __launch_bounds__(kThreads, 2)
    product(Hbm<const T> A, Hbm<const T> B, Hbm<T> C, Product g, Problem p) {
  const int64_t bh = blockIdx.x;
  const int row = blockIdx.y * kBlockRows, column = blockIdx.z * kBlockColumns;
  const int thread = threadIdx.x;
  const int warp_row = warp_id() % 4 * 32, warp_column = warp_id() / 4 * (kBlockColumns / 2);
  const auto A_head = A + (bh * g.rows + row) * g.pitch_A;
  const auto B_head = B + p.kv_row(bh) * g.pitch_B;

  // A stage holds a tile of A and one of B. B's tile is kBlockColumns × kInner for A·Bᵀ.
  constexpr int kStage = (kBlockRows + kBlockColumns) * kInner;
  constexpr int kRows_B = kScores ? kBlockColumns : kInner,
                kColumns_B = kScores ? kInner : kBlockColumns;
  SharedMemory smem;
  const auto stages = smem.take<T>("stages", kStages * kStage);
  const auto tile_A = [&](int slice) {
    return Tile<T, kBlockRows, kInner>{stages + slice % kStages * kStage};
  };
  const auto tile_B = [&](int slice) {
    return Tile<T, kRows_B, kColumns_B>{stages + (slice % kStages * kStage + kBlockRows * kInner)};
  };
  const int slices = ceil_div(g.inner, kInner);
  const auto start_copies = [&](int slice) {
    const int k = slice * kInner;
    if (slice < slices) {
      copy_async<kThreads>(tile_A(slice), A_head + k, g.pitch_A, g.rows - row, g.inner - k, thread);
      if constexpr (kScores)
        copy_async<kThreads>(tile_B(slice), B_head + (column * g.pitch_B + k), g.pitch_B,
                             g.columns - column, g.inner - k, thread);
      else
        copy_async<kThreads>(tile_B(slice), B_head + (k * g.pitch_B + column), g.pitch_B,
                             g.inner - k, g.columns - column, thread);
    }
    cp_async_commit();  // an empty group too: the wait below counts groups
  };

  Accumulator<32, kBlockColumns / 2> acc;
  for (int slice = 0; slice < kStages - 1; ++slice) start_copies(slice);
  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the slice is complete, and nobody reads the one before any more
    start_copies(slice + kStages - 1);
#pragma unroll
    for (int k = 0; k < kInner; k += 16) {
      Operand<T, 32, 16> a;
      load(a, tile_A(slice), warp_row, k);
      if constexpr (kScores)
        mma_ABt(acc, a, tile_B(slice), warp_column, k);
      else
        mma_AB(acc, a, tile_B(slice), k, warp_column);
    }
  }
  cp_async_wait<0>();
  __syncthreads();

  if constexpr (kScores)
    for_each(acc, [&](int i, int j, float& s) {
      const int query = row + warp_row + i, key = column + warp_column + j;
      s = key < p.N_kv && p.sees(query, key) ? p.scale * s : -INFINITY;
    });
  // Through shared memory, so that C is written in rows of whole 16-byte pieces.
  const Tile<T, kBlockRows, kBlockColumns> tile_C{stages};
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
  float m = -INFINITY;
  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    const auto s = read_chunk(S + j);
    for (int e = 0; e < 8; ++e) m = fmaxf(m, float(s[e]));
  }
  m = warp_max(m);
  if (m == -INFINITY) m = 0;  // a row that sees no key: exp(−∞ − 0) = 0

  float sum = 0;
  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    const auto s = read_chunk(S + j);
    for (int e = 0; e < 8; ++e) sum += expf(float(s[e]) - m);
  }
  sum = warp_sum(sum);
  const float inverse = sum > 0 ? 1 / sum : 0;  // a row that sees no key gives P = 0

  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    auto s = read_chunk(S + j);
    for (int e = 0; e < 8; ++e) s[e] = T(expf(float(s[e]) - m) * inverse);
    write_chunk(P + j, s);
  }
}

/// Columns of O that a block makes.
constexpr int output_columns(const Problem& p) {
  return p.d <= 64 ? 64 : 128;
}
constexpr int kScoreColumns = 128;

int64_t smem_bytes(int columns, int stages) {
  return shared_bytes<fp16>(stages * (kBlockRows + columns) * kInner);
}

/// Three stages of copies under way, or two where three do not fit.
Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  const int stages = smem_bytes(kScoreColumns, 3) <= device.sram_bytes ? 3 : 2;
  const int64_t bytes = int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes;
  return {.block_q = kBlockRows,
          .block_kv = kScoreColumns,
          .head_dim = p.d,
          .warps = kWarps,
          .stages = stages,
          .smem_bytes = smem_bytes(kScoreColumns, stages),
          .workspace = {{"S", bytes}, {"P", bytes}}};
}

template <class T, int kStages>
void launch_forward(const Problem& p, const Arrays& a) {
  const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
  const auto S = hbm<T>(a["S"]), P = hbm<T>(a["P"]), O = hbm<T>(a["O"]);
  const unsigned heads = p.B * p.H;
  const unsigned rows = grid_blocks(p.N, kBlockRows);
  const Product QKt{p.N, p.N_kv, p.d, p.d, p.d, pitch(p)};
  const Product PV{p.N, p.d, p.N_kv, pitch(p), p.d, p.d};
  const int columns = output_columns(p);

  launch("scores", product<T, true, kScoreColumns, kStages>,
         dim3(heads, rows, grid_blocks(p.N_kv, kScoreColumns)), dim3(kThreads),
         smem_bytes(kScoreColumns, kStages), Q, K, S, QKt, p);
  launch("softmax", softmax<T>, dim3(ceil_div(int64_t{heads} * p.N, kRowWarps)),
         dim3(32 * kRowWarps), 0, S, P, p);
  launch("output", columns == 64 ? product<T, false, 64, kStages> : product<T, false, 128, kStages>,
         dim3(heads, rows, grid_blocks(p.d, columns)), dim3(kThreads), smem_bytes(columns, kStages),
         P, V, O, PV, p);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto with_type = [&]<class T>() {
    plan.stages == 3 ? launch_forward<T, 3>(p, a) : launch_forward<T, 2>(p, a);
  };
  p.dtype == DType::fp16 ? with_type.template operator()<fp16>()
                         : with_type.template operator()<bf16>();
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
      {"softmax", {{"S", 3 * S, 0}, {"P", 0, S}}},
      {"output",
       {{"P", S * ceil_div(p.d, output_columns(p)), 0}, {"V", k * row_blocks, 0}, {"O", 0, q}}}};
}

const Register step{{
    .rung = "02_safe_softmax",
    .name = "safe",
    .is_default = true,
    .shown = {.idea = "maximum subtracted",
              .change = {"requested_bytes", "more"},
              .summary = "the row maximum is subtracted: three loops over each row of S",
              .colour = "#8a8d00"},
    .needs = {.less_memory = "03_online_softmax and the rungs after it"},
    .rounding = Rounding::S_and_P_stored,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
