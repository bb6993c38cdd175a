// 03 · Online softmax, first step: maximum and sum of a row in one loop.
//
//   build/bin/03_online_softmax --step softmax --seqlen 512
//
//   m_j = max(m_(j−1), S_j),   l_j = l_(j−1)·exp(m_(j−1) − m_j) + exp(S_j − m_j)
//
// Since 02: two loops run over each row of S instead of three. Whenever the maximum grows, the sum
// so far is rescaled to the new maximum (Milakov and Gimelshein 2018, who write d for l). The code
// calls l `sum`. Everything else is as in 02.

#include <cfloat>

#include "machine/machine.h"
#include "rung.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kBlockRows = 128;     // rows of the product per block
constexpr int kScoreColumns = 128;  // columns of S per block
constexpr int kInner = 64;          // columns of Q, K and P, and rows of V, per stage
constexpr int kWarps = 8;           // 4 down × 2 across
constexpr int kThreads = 32 * kWarps;
constexpr int kRowWarps = 4;  // softmax: warps per block, one per row

/// Returns the row pitch of S and P in elements: N_kv rounded up to a multiple of 8.
constexpr int64_t pitch(const Problem& p) {
  return ceil_div(p.N_kv, 8) * 8;
}

/// S = scale·Q·Kᵀ, or −∞ where the causal mask masks the key. A block computes
/// kBlockRows × kScoreColumns elements of S. grid: (B·H, row blocks, column blocks).
template <class T, int kStages>
__global__ void __launch_bounds__(kThreads, 2)
    scores(Hbm<const T> Q, Hbm<const T> K, Hbm<T> S, Problem p) {
  const int64_t bh = blockIdx.x;
  const int row = blockIdx.y * kBlockRows, column = blockIdx.z * kScoreColumns;
  const int warp_row = warp_id() % 4 * 32, warp_column = warp_id() / 4 * (kScoreColumns / 2);
  const int thread = threadIdx.x;
  const auto Q_rows = Q + (p.q_row(bh) + row) * p.d;
  const auto K_rows = K + (p.kv_row(bh) + column) * p.d;

  SharedMemory smem;
  constexpr int kStage = (kBlockRows + kScoreColumns) * kInner;  // a tile of Q and one of K
  const auto stages = smem.take<T>("stages", kStages * kStage);
  const auto tile_Q = [&](int slice) {
    return Tile<T, kBlockRows, kInner>{stages + slice % kStages * kStage};
  };
  const auto tile_K = [&](int slice) {
    return Tile<T, kScoreColumns, kInner>{stages +
                                          (slice % kStages * kStage + kBlockRows * kInner)};
  };
  const int slices = ceil_div(p.d, kInner);
  const auto start_copies = [&](int slice) {
    const int c = slice * kInner;
    if (slice < slices) {
      copy_async<kThreads>(tile_Q(slice), Q_rows + c, p.d, p.N - row, p.d - c, thread);
      copy_async<kThreads>(tile_K(slice), K_rows + c, p.d, p.N_kv - column, p.d - c, thread);
    }
    cp_async_commit();  // even an empty group, because the wait below counts groups
  };

  Accumulator<32, kScoreColumns / 2> S_sum;
  for (int slice = 0; slice < kStages - 1; ++slice) start_copies(slice);
  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the slice is complete, and no thread still reads the previous one
    start_copies(slice + kStages - 1);
    mma_ABt(S_sum, tile_Q(slice), warp_row, tile_K(slice), warp_column);
  }
  cp_async_wait<0>();
  __syncthreads();  // no thread still reads the last slices

  for_each(S_sum, [&](int i, int j, float& s) {
    const int query = row + warp_row + i, key = column + warp_column + j;
    s = key < p.N_kv && p.attends(query, key) ? p.scale * s : -INFINITY;
  });
  // S goes through shared memory, so that its rows are written in whole 16-byte chunks.
  const Tile<T, kBlockRows, kScoreColumns> tile_S{stages};
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
  // The lowest finite float, not −∞, because −∞ − (−∞) would be NaN.
  float m = -FLT_MAX, sum = 0;
  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    const auto s = read_chunk(S + j);
    for (int e = 0; e < 8; ++e) {
      const float m_new = fmaxf(m, float(s[e]));
      sum = sum * expf(m - m_new) + expf(float(s[e]) - m_new);
      m = m_new;
    }
  }
  // The lanes' maxima differ, so each sum is rescaled to the row's maximum before it is added.
  const float m_row = warp_max(m);
  sum = warp_sum(sum * expf(m - m_row));
  m = m_row;
  const float inverse = sum > 0 ? 1 / sum : 0;  // a row that attends to no key gives P = 0

  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    auto s = read_chunk(S + j);
    for (int e = 0; e < 8; ++e) s[e] = T(expf(float(s[e]) - m) * inverse);
    write_chunk(P + j, s);
  }
}

/// O = P·V. A block computes kBlockRows × kColumns elements of O.
/// grid: (B·H, row blocks, column blocks).
template <class T, int kColumns, int kStages>
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
  constexpr int kStage = (kBlockRows + kColumns) * kInner;  // a tile of P and one of V
  const auto stages = smem.take<T>("stages", kStages * kStage);
  const auto tile_P = [&](int slice) {
    return Tile<T, kBlockRows, kInner>{stages + slice % kStages * kStage};
  };
  const auto tile_V = [&](int slice) {
    return Tile<T, kInner, kColumns>{stages + (slice % kStages * kStage + kBlockRows * kInner)};
  };
  const int slices = ceil_div(p.N_kv, kInner);
  const auto start_copies = [&](int slice) {
    const int j = slice * kInner;
    if (slice < slices) {
      copy_async<kThreads>(tile_P(slice), P_rows + j, pitch_P, p.N - row, pitch_P - j, thread);
      copy_async<kThreads>(tile_V(slice), V_head + int64_t{j} * p.d, p.d, p.N_kv - j, p.d - column,
                           thread);
    }
    cp_async_commit();
  };

  Accumulator<32, kColumns / 2> O_sum;
  for (int slice = 0; slice < kStages - 1; ++slice) start_copies(slice);
  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    start_copies(slice + kStages - 1);
    mma_AB(O_sum, tile_P(slice), warp_row, tile_V(slice), warp_column);
  }
  cp_async_wait<0>();
  __syncthreads();  // no thread still reads the last slices

  const Tile<T, kBlockRows, kColumns> tile_O{stages};
  write(tile_O, O_sum, warp_row, warp_column);
  __syncthreads();
  copy_out<kThreads>(O + ((p.q_row(bh) + row) * p.d + column), p.d, tile_O, p.N - row, p.d - column,
                     thread);
}

/// Returns the number of columns of O that a block computes.
constexpr int output_columns(const Problem& p) {
  return p.d <= 64 ? 64 : 128;
}
int64_t smem_bytes(int columns, int stages) {  // per block; columns: of the product
  return array_bytes<fp16>(stages * (kBlockRows + columns) * kInner);
}

/// Plans three stages, or two on a device whose shared memory is too small for three.
Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest&) {
  grid_blocks(p.N, kBlockRows), grid_blocks(p.N_kv, kScoreColumns);  // throws beyond 65,535 blocks
  const int stages = smem_bytes(kScoreColumns, 3) <= device.smem_bytes ? 3 : 2;
  const int64_t bytes = int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes;
  return {.block_q = kBlockRows,
          .block_kv = kScoreColumns,
          .head_dim = p.d,
          .warps = kWarps,
          .stages = stages,
          .smem_bytes = smem_bytes(kScoreColumns, stages),
          .workspace = {{"S", bytes}, {"P", bytes}}};
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_type(p, [&]<class T>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto S = hbm<T>(a["S"]), P = hbm<T>(a["P"]), O = hbm<T>(a["O"]);
    const unsigned heads = p.B * p.H;
    const unsigned rows = grid_blocks(p.N, kBlockRows);
    const int columns = output_columns(p);

    const bool three = plan.stages == 3;
    const auto narrow = three ? output<T, 64, 3> : output<T, 64, 2>;
    const auto wide = three ? output<T, 128, 3> : output<T, 128, 2>;
    launch("scores", three ? scores<T, 3> : scores<T, 2>,
           dim3(heads, rows, grid_blocks(p.N_kv, kScoreColumns)), dim3(kThreads), plan.smem_bytes,
           Q, K, S, p);
    launch("softmax", softmax<T>, dim3(ceil_div(int64_t{heads} * p.N, kRowWarps)),
           dim3(32 * kRowWarps), 0, S, P, p);
    launch("output", columns == 64 ? narrow : wide, dim3(heads, rows, grid_blocks(p.d, columns)),
           dim3(kThreads), smem_bytes(columns, plan.stages), P, V, O, p);
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
    .rung = "03_online_softmax",
    .name = "softmax",
    .shown = {.idea = "online softmax",
              .change = {"requested_bytes", "less"},
              .summary = "maximum and sum of a row of S in one loop",
              .colour = "#009E73"},
    .needs = {.less_memory = "the steps of 03_online_softmax after it"},
    .rounding = Rounding::S_and_P_stored,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
