// 01 · Tiled products: sixteen sums per thread, in registers.
//
//   build/bin/01_tiled_matmul --step thread_tile --seqlen 512
//
// Since `warp_rows`: a block computes 64 × 64 elements of S or O, and each of its 256 threads keeps
// 4 × 4 sums in registers. For each k the thread loads four elements of the left operand and four
// of the right one from shared memory, and uses each of them in four FMAs. That is half a load per
// FMA, where a thread of `warp_rows` needs two.
//
// A thread's rows are 16 apart, and so are its columns. Therefore the 16 threads with consecutive x
// still read and write neighbouring elements, and every access to HBM is as coalesced as before.

#include "machine/machine.h"
#include "rung.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kTile = 64;              // a block computes kTile × kTile elements of S or O
constexpr int kInner = 16;             // depth of a slice; kInner × kInner threads per block
constexpr int kEach = kTile / kInner;  // a thread computes kEach × kEach elements
constexpr int kRowWarps = 4;           // softmax: warps per block, one per row

/// Row pitch of K in shared memory, in elements. Two elements of padding make each row 9 words of 4
/// bytes long. A warp reads 16 rows at the same k. Because 9 is odd, the 16 words that it reads lie
/// in 16 different banks of shared memory. Rows of 8 words would use only four banks, and the warp
/// would read them in four passes.
constexpr int kKeyPitch = kInner + 2;

/// Returns the row pitch of S and P in elements: N_kv rounded up to a multiple of 8.
constexpr int64_t pitch(const Problem& p) {
  return ceil_div(p.N_kv, 8) * 8;
}

/// S = scale·Q·Kᵀ, or −∞ where the causal mask masks the key. Thread (x, y) computes
/// S[i + 16a, j + 16b] for a and b from 0 to 3, with i = 64·blockIdx.y + y and
/// j = 64·blockIdx.z + x; blockIdx.x is the head.
template <class T>
__global__ void scores(Hbm<const T> Q, Hbm<const T> K, Hbm<T> S, Problem p) {
  const int64_t bh = blockIdx.x;
  const int x = threadIdx.x, y = threadIdx.y;
  const int i = blockIdx.y * kTile + y;
  const int j = blockIdx.z * kTile + x;
  const int j_loaded = blockIdx.z * kTile + y;  // the first row of K that this thread copies from

  SharedMemory smem;
  const auto Qs = smem.take<T>("Q", kTile * kInner);
  const auto Ks = smem.take<T>("K", kTile * kKeyPitch);
  const int64_t q = (p.q_row(bh) + i) * p.d + x;
  const int64_t k_loaded = (p.kv_row(bh) + j_loaded) * p.d + x;
  float s[kEach][kEach] = {};
  for (int c = 0; c < p.d; c += kInner) {
    const bool inside = c + x < p.d;
    for (int r = 0; r < kTile; r += kInner) {
      Qs[(y + r) * kInner + x] = inside && i + r < p.N ? Q[q + r * p.d + c] : T(0.0f);
      Ks[(y + r) * kKeyPitch + x] =
          inside && j_loaded + r < p.N_kv ? K[k_loaded + r * p.d + c] : T(0.0f);
    }
    __syncthreads();  // the tiles are complete
    for (int k = 0; k < kInner; ++k) {
      float left[kEach], right[kEach];
      for (int e = 0; e < kEach; ++e) {
        left[e] = float(Qs[(y + e * kInner) * kInner + k]);
        right[e] = float(Ks[(x + e * kInner) * kKeyPitch + k]);
      }
      for (int a = 0; a < kEach; ++a)
        for (int b = 0; b < kEach; ++b) s[a][b] = fmaf(left[a], right[b], s[a][b]);
    }
    __syncthreads();  // all threads are done with the tiles
  }
  for (int a = 0; a < kEach; ++a)
    for (int b = 0; b < kEach; ++b) {
      const int row = i + a * kInner, key = j + b * kInner;
      if (row < p.N && key < pitch(p))
        S[(bh * p.N + row) * pitch(p) + key] =
            T(key < p.N_kv && p.attends(row, key) ? p.scale * s[a][b] : -INFINITY);
    }
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

/// O = P·V. Thread (x, y) computes O[i + 16a, c + 16b], with i = 64·blockIdx.y + y and
/// c = 64·blockIdx.z + x.
template <class T>
__global__ void output(Hbm<const T> P, Hbm<const T> V, Hbm<T> O, Problem p) {
  const int64_t bh = blockIdx.x;
  const int x = threadIdx.x, y = threadIdx.y;
  const int i = blockIdx.y * kTile + y;
  const int c = blockIdx.z * kTile + x;

  SharedMemory smem;
  const auto Ps = smem.take<T>("P", kTile * kInner);
  const auto Vs = smem.take<T>("V", kInner * kTile);
  const int64_t row = (bh * p.N + i) * pitch(p) + x;
  const int64_t v = (p.kv_row(bh) + y) * p.d + c;
  float o[kEach][kEach] = {};
  for (int j = 0; j < p.N_kv; j += kInner) {
    for (int r = 0; r < kTile; r += kInner) {
      Ps[(y + r) * kInner + x] =
          i + r < p.N && j + x < pitch(p) ? P[row + r * pitch(p) + j] : T(0.0f);
      Vs[y * kTile + x + r] = j + y < p.N_kv && c + r < p.d ? V[v + int64_t{j} * p.d + r] : T(0.0f);
    }
    __syncthreads();
    for (int k = 0; k < kInner; ++k) {
      float left[kEach], right[kEach];
      for (int e = 0; e < kEach; ++e) {
        left[e] = float(Ps[(y + e * kInner) * kInner + k]);
        right[e] = float(Vs[k * kTile + x + e * kInner]);
      }
      for (int a = 0; a < kEach; ++a)
        for (int b = 0; b < kEach; ++b) o[a][b] = fmaf(left[a], right[b], o[a][b]);
    }
    __syncthreads();
  }
  for (int a = 0; a < kEach; ++a)
    for (int b = 0; b < kEach; ++b)
      if (i + a * kInner < p.N && c + b * kInner < p.d)
        O[(p.q_row(bh) + i + a * kInner) * p.d + c + b * kInner] = T(o[a][b]);
}

Plan plan(const Problem& p, const DeviceInfo&, const TileRequest&) {
  grid_blocks(p.N, kTile), grid_blocks(p.N_kv, kTile);  // throws beyond 65,535 blocks
  const int64_t bytes = int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes;
  return {.block_q = kTile,
          .block_kv = kTile,
          .head_dim = p.d,
          .warps = kInner * kInner / 32,
          .smem_bytes = array_bytes<fp16>(kTile * kInner) + array_bytes<fp16>(kTile * kKeyPitch),
          .workspace = {{"S", bytes}, {"P", bytes}}};
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_type(p, [&]<class T>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto S = hbm<T>(a["S"]), P = hbm<T>(a["P"]), O = hbm<T>(a["O"]);
    const unsigned heads = p.B * p.H;
    const unsigned rows = grid_blocks(p.N, kTile);
    const dim3 block(kInner, kInner);

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
    .name = "thread_tile",
    .after = "warp_rows",
    .shown = {.idea = "sums in registers",
              .change = {"sram_read_bytes", "less"},
              .summary = "and 4 × 4 sums per thread, so each load feeds 4 FMAs",
              .colour = "#E69F00",
              .grid_limit = {4096, 2048}},
    .needs = {.max_subtracted_by = "02_safe_softmax",
              .less_memory = "03_online_softmax and the rungs after it"},
    .rounding = Rounding::S_and_P_stored,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
