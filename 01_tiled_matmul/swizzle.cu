// 01 · Tiled products: tiles swizzled in shared memory.
//
//   build/bin/01_tiled_matmul --step swizzle --seqlen 512
//
// Since `mma`: chunk c (8 elements) of a tile's row r is stored at place c ⊕ (r mod 8) of that row
// in shared memory, so ldmatrix reads the 8 rows of a matrix from different banks.

#include "machine/machine.h"
#include "rung.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kBlockRows = 128;     // rows of the product per block
constexpr int kScoreColumns = 128;  // columns of S per block
constexpr int kInner = 64;          // columns of Q, K and P, and rows of V, per tile
constexpr int kWarps = 8;           // 4 down × 2 across
constexpr int kThreads = 32 * kWarps;
constexpr int kRowWarps = 4;  // softmax: warps per block, one per row

/// Returns the row pitch of S and P in elements: N_kv rounded up to a multiple of 8.
constexpr int64_t pitch(const Problem& p) {
  return ceil_div(p.N_kv, 8) * 8;
}

/// S = scale·Q·Kᵀ, or −∞ where the causal mask masks the key. A block computes
/// kBlockRows × kScoreColumns elements of S. grid: (B·H, row blocks, column blocks).
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    scores(Hbm<const T> Q, Hbm<const T> K, Hbm<T> S, Problem p) {
  const int64_t bh = blockIdx.x;
  const int row = blockIdx.y * kBlockRows, column = blockIdx.z * kScoreColumns;
  const int warp_row = warp_id() % 4 * 32, warp_column = warp_id() / 4 * (kScoreColumns / 2);
  const int thread = threadIdx.x;
  const auto Q_rows = Q + (p.q_row(bh) + row) * p.d;
  const auto K_rows = K + (p.kv_row(bh) + column) * p.d;

  SharedMemory smem;
  const auto tiles = smem.take<T>("tiles", (kBlockRows + kScoreColumns) * kInner);
  const Tile<T, kBlockRows, kInner> tile_Q{tiles};
  const Tile<T, kScoreColumns, kInner> tile_K{tiles + kBlockRows * kInner};
  Accumulator<32, kScoreColumns / 2> S_sum;
  for (int c = 0; c < p.d; c += kInner) {
    copy_in<kThreads>(tile_Q, Q_rows + c, p.d, p.N - row, p.d - c, thread);
    copy_in<kThreads>(tile_K, K_rows + c, p.d, p.N_kv - column, p.d - c, thread);
    __syncthreads();  // the tiles are complete
    mma_ABt(S_sum, tile_Q, warp_row, tile_K, warp_column);
    __syncthreads();  // all threads are done with the tiles
  }

  for_each(S_sum, [&](int i, int j, float& s) {
    const int query = row + warp_row + i, key = column + warp_column + j;
    s = key < p.N_kv && p.attends(query, key) ? p.scale * s : -INFINITY;
  });
  // S goes through shared memory, so that its rows are written in whole 16-byte chunks.
  const Tile<T, kBlockRows, kScoreColumns> tile_S{tiles};
  write(tile_S, S_sum, warp_row, warp_column);
  __syncthreads();
  copy_out<kThreads>(S + ((bh * p.N + row) * pitch(p) + column), pitch(p), tile_S, p.N - row,
                     pitch(p) - column, thread);
}

/// P = softmax(S), one warp for each of the B·H·N rows. A row's padding is −∞ in S and 0 in P.
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
  const float inverse = sum > 0 ? 1 / sum : 0;  // a row that attends to no key gives P = 0

  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    auto s = read_chunk(S + j);
    for (int e = 0; e < 8; ++e) s[e] = T(expf(float(s[e])) * inverse);
    write_chunk(P + j, s);
  }
}

/// O = P·V. A block computes kBlockRows × kColumns elements of O.
/// grid: (B·H, row blocks, column blocks).
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads, 2)
    output(Hbm<const T> P, Hbm<const T> V, Hbm<T> O, Problem p) {
  const int64_t bh = blockIdx.x;
  const int row = blockIdx.y * kBlockRows, column = blockIdx.z * kColumns;
  const int warp_row = warp_id() % 4 * 32, warp_column = warp_id() / 4 * (kColumns / 2);
  const int thread = threadIdx.x;
  const int pitch_P = pitch(p);
  const auto P_rows = P + (bh * p.N + row) * pitch_P;
  const auto V_head = V + (p.kv_row(bh) * p.d + column);

  SharedMemory smem;
  const auto tiles = smem.take<T>("tiles", (kBlockRows + kColumns) * kInner);
  const Tile<T, kBlockRows, kInner> tile_P{tiles};
  const Tile<T, kInner, kColumns> tile_V{tiles + kBlockRows * kInner};
  Accumulator<32, kColumns / 2> O_sum;
  for (int j = 0; j < p.N_kv; j += kInner) {
    copy_in<kThreads>(tile_P, P_rows + j, pitch_P, p.N - row, pitch_P - j, thread);
    copy_in<kThreads>(tile_V, V_head + int64_t{j} * p.d, p.d, p.N_kv - j, p.d - column, thread);
    __syncthreads();
    mma_AB(O_sum, tile_P, warp_row, tile_V, warp_column);
    __syncthreads();
  }

  const Tile<T, kBlockRows, kColumns> tile_O{tiles};
  write(tile_O, O_sum, warp_row, warp_column);
  __syncthreads();
  copy_out<kThreads>(O + ((p.q_row(bh) + row) * p.d + column), p.d, tile_O, p.N - row, p.d - column,
                     thread);
}

/// Returns the number of columns of O that a block computes.
constexpr int output_columns(const Problem& p) {
  return p.d <= 64 ? 64 : 128;
}
int64_t smem_bytes(int columns) {  // per block, for this many columns of the product
  return array_bytes<fp16>((kBlockRows + columns) * kInner);
}

Plan plan(const Problem& p, const DeviceInfo&, const TileRequest&) {
  grid_blocks(p.N, kBlockRows), grid_blocks(p.N_kv, kScoreColumns);  // throws beyond 65,535 blocks
  const int64_t bytes = int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes;
  return {.block_q = kBlockRows,
          .block_kv = kScoreColumns,
          .head_dim = p.d,
          .warps = kWarps,
          .smem_bytes = smem_bytes(kScoreColumns),
          .workspace = {{"S", bytes}, {"P", bytes}}};
}

void forward(const Problem& p, const Plan&, const Arrays& a) {
  with_type(p, [&]<class T>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto S = hbm<T>(a["S"]), P = hbm<T>(a["P"]), O = hbm<T>(a["O"]);
    const unsigned heads = p.B * p.H;
    const unsigned rows = grid_blocks(p.N, kBlockRows);
    const int columns = output_columns(p);

    launch("scores", scores<T>, dim3(heads, rows, grid_blocks(p.N_kv, kScoreColumns)),
           dim3(kThreads), smem_bytes(kScoreColumns), Q, K, S, p);
    launch("softmax", softmax<T>, dim3(ceil_div(int64_t{heads} * p.N, kRowWarps)),
           dim3(32 * kRowWarps), 0, S, P, p);
    launch("output", columns == 64 ? output<T, 64> : output<T, 128>,
           dim3(heads, rows, grid_blocks(p.d, columns)), dim3(kThreads), smem_bytes(columns), P, V,
           O, p);
  });
}

/// Predicts the requested bytes: each operand is read once per row or column block of the other.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;       // bytes of Q or O
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;    // bytes of K or V, once per query head
  const int64_t S = heads * p.N * pitch(p) * kIoBytes;  // bytes of S or P
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
              .summary = "and swizzled tiles, so that ldmatrix has no bank conflicts",
              .colour = "#E69F00"},
    .needs = {.max_subtracted_by = "02_safe_softmax",
              .less_memory = "03_online_softmax and the rungs after it"},
    .rounding = Rounding::S_and_P_stored,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
