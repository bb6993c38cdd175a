// 01 · Tiled products: one warp per row of the softmax.
//
//   build/bin/01_tiled_matmul --step warp_rows --seqlen 512
//
// Since `tile`: one warp computes each row of the softmax. Its lanes read neighbouring chunks of 16
// bytes, so HBM delivers whole sectors. Because a 16-byte load needs an aligned address, rows of S
// and P are padded to a multiple of 8 elements.

#include "machine/machine.h"
#include "rung.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kTile = 16;     // rows and columns of a tile and of a thread block
constexpr int kRowWarps = 4;  // softmax: warps per block, one per row

/// Returns the row pitch of S and P in elements: N_kv rounded up to a multiple of 8.
constexpr int64_t pitch(const Problem& p) {
  return ceil_div(p.N_kv, 8) * 8;
}

/// S = scale·Q·Kᵀ, or −∞ where the causal mask masks the key. Thread (x, y) computes S[i, j] with
/// i = 16·blockIdx.y + y, j = 16·blockIdx.z + x; blockIdx.x is the head.
template <class T>
__global__ void scores(Hbm<const T> Q, Hbm<const T> K, Hbm<T> S, Problem p) {
  const int64_t bh = blockIdx.x;
  const int x = threadIdx.x, y = threadIdx.y;
  const int i = blockIdx.y * kTile + y;
  const int j = blockIdx.z * kTile + x;
  const int j_loaded = blockIdx.z * kTile + y;  // the row of K that this thread copies from

  SharedMemory smem;
  const auto Qs = smem.take<T>("Q", kTile * kTile);
  const auto Ks = smem.take<T>("K", kTile * kTile);
  const int64_t q = (p.q_row(bh) + i) * p.d + x;
  const int64_t k_loaded = (p.kv_row(bh) + j_loaded) * p.d + x;
  float s = 0;
  for (int c = 0; c < p.d; c += kTile) {
    const bool inside = c + x < p.d;
    Qs[y * kTile + x] = inside && i < p.N ? Q[q + c] : T(0.0f);
    Ks[y * kTile + x] = inside && j_loaded < p.N_kv ? K[k_loaded + c] : T(0.0f);
    __syncthreads();  // the tiles are complete
    for (int k = 0; k < kTile; ++k) s = fmaf(float(Qs[y * kTile + k]), float(Ks[x * kTile + k]), s);
    __syncthreads();  // all threads are done with the tiles
  }
  if (i < p.N && j < pitch(p))
    S[(bh * p.N + i) * pitch(p) + j] = T(j < p.N_kv && p.attends(i, j) ? p.scale * s : -INFINITY);
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

/// O = P·V. Thread (x, y) computes O[i, c] with i = 16·blockIdx.y + y, c = 16·blockIdx.z + x.
template <class T>
__global__ void output(Hbm<const T> P, Hbm<const T> V, Hbm<T> O, Problem p) {
  const int64_t bh = blockIdx.x;
  const int x = threadIdx.x, y = threadIdx.y;
  const int i = blockIdx.y * kTile + y;
  const int c = blockIdx.z * kTile + x;

  SharedMemory smem;
  const auto Ps = smem.take<T>("P", kTile * kTile);
  const auto Vs = smem.take<T>("V", kTile * kTile);
  const int64_t row = (bh * p.N + i) * pitch(p) + x;
  const int64_t v = (p.kv_row(bh) + y) * p.d + c;
  float o = 0;
  for (int j = 0; j < p.N_kv; j += kTile) {
    Ps[y * kTile + x] = i < p.N && j + x < pitch(p) ? P[row + j] : T(0.0f);
    Vs[y * kTile + x] = j + y < p.N_kv && c < p.d ? V[v + int64_t{j} * p.d] : T(0.0f);
    __syncthreads();
    for (int k = 0; k < kTile; ++k) o = fmaf(float(Ps[y * kTile + k]), float(Vs[k * kTile + x]), o);
    __syncthreads();
  }
  if (i < p.N && c < p.d) O[(p.q_row(bh) + i) * p.d + c] = T(o);
}

Plan plan(const Problem& p, const DeviceInfo&, const TileRequest&) {
  grid_blocks(p.N, kTile), grid_blocks(p.N_kv, kTile);  // throws beyond 65,535 blocks
  const int64_t bytes = int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes;
  return {.block_q = kTile,
          .block_kv = kTile,
          .head_dim = p.d,
          .warps = kTile * kTile / 32,
          .smem_bytes = 2 * array_bytes<fp16>(kTile * kTile),
          .workspace = {{"S", bytes}, {"P", bytes}}};
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_type(p, [&]<class T>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto S = hbm<T>(a["S"]), P = hbm<T>(a["P"]), O = hbm<T>(a["O"]);
    const unsigned heads = p.B * p.H;
    const unsigned rows = grid_blocks(p.N, kTile);
    const dim3 block(kTile, kTile);

    launch("scores", scores<T>, dim3(heads, rows, grid_blocks(p.N_kv, kTile)), block,
           plan.smem_bytes, Q, K, S, p);
    launch("softmax", softmax<T>, dim3(ceil_div(int64_t{heads} * p.N, kRowWarps)),
           dim3(32 * kRowWarps), 0, S, P, p);
    launch("output", output<T>, dim3(heads, rows, grid_blocks(p.d, kTile)), block, plan.smem_bytes,
           P, V, O, p);
  });
}

/// Predicts the requested bytes: each operand is read once per row or column tile of the other.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;       // bytes of Q or O
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;    // bytes of K or V, once per query head
  const int64_t S = heads * p.N * pitch(p) * kIoBytes;  // bytes of S or P
  const int64_t row_tiles = ceil_div(p.N, kTile);
  return {{"scores", {{"Q", q * ceil_div(p.N_kv, kTile), 0}, {"K", k * row_tiles, 0}, {"S", 0, S}}},
          {"softmax", {{"S", 2 * S, 0}, {"P", 0, S}}},
          {"output", {{"P", S * ceil_div(p.d, kTile), 0}, {"V", k * row_tiles, 0}, {"O", 0, q}}}};
}

const Register step{{
    .rung = "01_tiled_matmul",
    .name = "warp_rows",
    .after = "tile",
    .shown = {.idea = "coalesced softmax",
              .change = {"hbm_sectors", "less"},
              .summary = "and a coalesced softmax: one warp per row",
              .colour = "#E69F00",
              .grid_limit = {4096, 2048}},
    .needs = {.max_subtracted_by = "02_safe_softmax",
              .less_memory = "03_online_softmax and the rungs after it"},
    .rounding = Rounding::S_and_P_stored,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
