// 01 · Tiled products: the tensor cores, one instruction at a time.
//
//   build/bin/01_tiled_matmul --step fragment --seqlen 512
//
// Since `thread_tile`: each warp computes 16 × 8 elements of a product. Its instruction,
// mma.m16n8k16, adds A·B to C, where A is 16 × 16 and B is 16 × 8. All three matrices are
// distributed over the registers of the 32 lanes as fragments, which the PTX manual defines. Lane
// 4·g + t reads its elements of A and B from HBM, two 16-bit elements per register:
//
//   A   a[0]: row g      columns 2t, 2t + 1        B   b[0]: rows 2t, 2t + 1 of column g
//       a[1]: row g + 8  same columns                  b[1]: rows 2t + 8, 2t + 9
//       a[2]: row g      columns 2t + 8, 2t + 9    C   c[0], c[1]: row g, columns 2t, 2t + 1
//       a[3]: row g + 8  same columns                  c[2], c[3]: row g + 8, same columns
//
// No shared memory is used: every warp reads its operands from HBM, even if others read the same.

#include "machine/machine.h"
#include "rung.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kRows = 16, kColumns = 8;  // elements of the product per block (one warp)
constexpr int kInner = 16;               // columns of A and rows of B per mma
constexpr int kRowWarps = 4;             // softmax: warps per block, one per row

/// Returns the row pitch of S and P in elements: N_kv rounded up to a multiple of 8.
constexpr int64_t pitch(const Problem& p) {
  return ceil_div(p.N_kv, 8) * 8;
}

/// S = scale·Q·Kᵀ, or −∞ where the causal mask masks the key. A is Q and B is Kᵀ: a column of B is
/// a row of K. grid: (B·H, row tiles, column tiles).
template <class T>
__global__ void scores(Hbm<const T> Q, Hbm<const T> K, Hbm<T> S, Problem p) {
  const int64_t bh = blockIdx.x;
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const int i = blockIdx.y * kRows + g;     // this lane's rows of A and C: i and i + 8
  const int j = blockIdx.z * kColumns + g;  // this lane's column of B
  const auto Q_i = Q + (p.q_row(bh) + i) * p.d;
  const auto K_j = K + (p.kv_row(bh) + j) * p.d;
  const bool row = i < p.N, row_8 = i + 8 < p.N, column = j < p.N_kv;

  float s[4] = {};
  for (int first = 0; first < p.d; first += kInner) {
    const int c = first + 2 * t;
    const bool half = first + 8 < p.d;  // d, a multiple of 8, may end before the second half
    const unsigned a[4] = {read_pair(Q_i + c, row), read_pair(Q_i + (8 * p.d + c), row_8),
                           read_pair(Q_i + (c + 8), row && half),
                           read_pair(Q_i + (8 * p.d + c + 8), row_8 && half)};
    const unsigned b[2] = {read_pair(K_j + c, column), read_pair(K_j + (c + 8), column && half)};
    mma_m16n8k16<T>(s, a, b[0], b[1]);
  }

  const int key = blockIdx.z * kColumns + 2 * t;  // the key of s[0] and s[2]
  for (int e = 0; e < 4; ++e)
    s[e] =
        key + e % 2 < p.N_kv && p.attends(i + e / 2 * 8, key + e % 2) ? p.scale * s[e] : -INFINITY;
  const auto S_i = S + ((bh * p.N + i) * pitch(p) + key);
  if (row) store_pair(S_i, pack<T>(s[0], s[1]));
  if (row_8) store_pair(S_i + 8 * pitch(p), pack<T>(s[2], s[3]));
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

/// O = P·V. A is P, and B is V. grid: (B·H, row tiles, column tiles).
template <class T>
__global__ void output(Hbm<const T> P, Hbm<const T> V, Hbm<T> O, Problem p) {
  const int64_t bh = blockIdx.x;
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const int i = blockIdx.y * kRows + g;
  const int c = blockIdx.z * kColumns + g;
  const auto P_i = P + (bh * p.N + i) * pitch(p);
  const auto V_c = V + (p.kv_row(bh) * p.d + c);
  const bool row = i < p.N, row_8 = i + 8 < p.N;
  // Packs elements j and j + 1 of a column of V: two loads, because the two are in different rows.
  const auto column_pair = [&](int j) {
    const float v = j < p.N_kv ? float(V_c[int64_t{j} * p.d]) : 0;
    return pack<T>(v, j + 1 < p.N_kv ? float(V_c[int64_t{j + 1} * p.d]) : 0);
  };

  float o[4] = {};
  for (int first = 0; first < p.N_kv; first += kInner) {
    const int j = first + 2 * t;
    const bool half = first + 8 < pitch(p);  // as above: pitch(p) is a multiple of 8
    const unsigned a[4] = {read_pair(P_i + j, row), read_pair(P_i + (8 * pitch(p) + j), row_8),
                           read_pair(P_i + (j + 8), row && half),
                           read_pair(P_i + (8 * pitch(p) + j + 8), row_8 && half)};
    mma_m16n8k16<T>(o, a, column_pair(j), column_pair(j + 8));
  }

  const auto O_i = O + ((p.q_row(bh) + i) * p.d + blockIdx.z * kColumns + 2 * t);
  if (row) store_pair(O_i, pack<T>(o[0], o[1]));
  if (row_8) store_pair(O_i + 8 * p.d, pack<T>(o[2], o[3]));
}

Plan plan(const Problem& p, const DeviceInfo&, const TileRequest&) {
  grid_blocks(p.N, kRows), grid_blocks(p.N_kv, kColumns);  // throws beyond 65,535 blocks
  const int64_t bytes = int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes;
  return {.block_q = kRows,
          .block_kv = kColumns,
          .head_dim = p.d,
          .warps = 1,
          .workspace = {{"S", bytes}, {"P", bytes}}};
}

void forward(const Problem& p, const Plan&, const Arrays& a) {
  with_type(p, [&]<class T>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto S = hbm<T>(a["S"]), P = hbm<T>(a["P"]), O = hbm<T>(a["O"]);
    const unsigned heads = p.B * p.H;
    const unsigned rows = grid_blocks(p.N, kRows);

    launch("scores", scores<T>, dim3(heads, rows, grid_blocks(p.N_kv, kColumns)), dim3(32), 0, Q, K,
           S, p);
    launch("softmax", softmax<T>, dim3(ceil_div(int64_t{heads} * p.N, kRowWarps)),
           dim3(32 * kRowWarps), 0, S, P, p);
    launch("output", output<T>, dim3(heads, rows, grid_blocks(p.d, kColumns)), dim3(32), 0, P, V, O,
           p);
  });
}

/// Predicts the requested bytes: each operand is read once per row or column tile of the other.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;       // bytes of Q or O
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;    // bytes of K or V, once per query head
  const int64_t S = heads * p.N * pitch(p) * kIoBytes;  // bytes of S or P
  const int64_t row_tiles = ceil_div(p.N, kRows);
  return {
      {"scores", {{"Q", q * ceil_div(p.N_kv, kColumns), 0}, {"K", k * row_tiles, 0}, {"S", 0, S}}},
      {"softmax", {{"S", 2 * S, 0}, {"P", 0, S}}},
      {"output", {{"P", S * ceil_div(p.d, kColumns), 0}, {"V", k * row_tiles, 0}, {"O", 0, q}}}};
}

const Register step{{
    .rung = "01_tiled_matmul",
    .name = "fragment",
    .after = "thread_tile",
    .shown = {.idea = "one mma at a time",
              .change = {"products", "from 0"},
              .summary = "tensor cores: 16 × 8 elements per warp, operands straight from HBM",
              .colour = "#E69F00",
              .grid_limit = {4096, 2048}},
    .needs = {.max_subtracted_by = "02_safe_softmax",
              .less_memory = "03_online_softmax and the rungs after it"},
    .rounding = Rounding::S_and_P_stored,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
