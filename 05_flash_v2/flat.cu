// 05 · FlashAttention-2's forward pass in one function, with every address written out.
//
//   build/bin/05_flash_v2 --step flat --seqlen 512 --causal
//
//   for each tile of 128 rows of Q, one block of four warps, 32 rows per warp:
//     for each tile of 64 rows of K and V that one of these rows attends to:
//       1  S = scale·Q·Kᵀ, or −∞ where a row does not attend to the key
//       2  m_new = max(m, rowmax S),   P = exp(S − m_new),   α = exp(m − m_new)
//          l ← α·l + rowsum P,   O ← α·O
//       3  O ← O + P·V
//     O ← O / l,   LSE = m + ln l
//
// Since `large_tiles`: only the form changes. Nothing comes from common/tile, and there is one tile
// size, for heads of up to 128 columns.

#include "machine/machine.h"
#include "rung.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
constexpr int Br = 128, Bc = 64, kWarpRows = 32, kThreads = Br / kWarpRows * 32;
constexpr int kHeadSizes[] = {64, 128};         // at least 64: a row has groups of 8 chunks
constexpr TileSize kTiles[] = {{128, Br, Bc}};  // {largest head size, Br, Bc}
int64_t smem_bytes(int Dh) {
  return array_bytes<fp16>((Br + 2 * Bc) * Dh);
}

// Three layouts:
// - A tile in shared memory. A row has Dh/8 chunks of 8 elements, 16 bytes each. ldmatrix reads one
//   chunk from each of 8 rows at a time. If chunk c of every row were at place c, all 8 would lie
//   in the same four banks. So chunk c of row r is at place c XOR r within its group of 8 chunks.
// - Four 8 × 8 matrices, which one ldmatrix loads. Lanes 8n to 8n + 7 pass the addresses of matrix
//   n's rows, one chunk each. Afterwards register n of a lane holds two elements of matrix n.
// - A 16 × 8 piece of S or O, spread over the 32 lanes. With g = lane / 4 and t = lane % 4, a lane
//   holds columns 2t and 2t + 1 of row g (registers 0 and 1) and of row g + 8 (registers 2 and 3).
//   So of a warp's 32 rows a lane holds parts of four, rows 8r + g for r = 0 to 3: the first two
//   are in the upper 16 rows (i = 0), the others in the lower 16 (i = 1). entry(S, r, n) is the
//   lane's n-th element of row 8r + g, which is in column n/2·8 + 2t + n%2.

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (groups of heads · tiles of Q · `group`), with `group`
/// heads per group. Tiles go from the last rows up, because the last rows attend to the most keys.
template <class T, int Dh>
__global__ void __launch_bounds__(kThreads, 2)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> LSE,
              unsigned group, Problem p) {
  const int thread = threadIdx.x, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const unsigned tiles = ceil_div(p.N, Br), index = blockIdx.x / group;
  const int bh = index / tiles * group + blockIdx.x % group;
  if (bh >= p.B * p.H) return;  // the last group may have fewer heads
  const int block_row = (tiles - 1 - index % tiles) * Br;
  const int warp_row = thread / 32 * kWarpRows, row = block_row + warp_row;  // in tile; in head
  const int end = p.keys(min(block_row + Br, p.N) - 1);  // keys that the last row attends to
  auto K_tile = K + p.kv_row(bh) * p.d, V_tile = V + p.kv_row(bh) * p.d;  // next tiles to copy
  SharedMemory smem;
  const auto Qs = smem.take<T>("Q", Br * Dh);
  const auto Ks = smem.take<T>("K", Bc * Dh), Vs = smem.take<T>("V", Bc * Dh);
  // The offset of a tile's chunk c of row r, in elements. 8 rows further down it is 8·Dh larger.
  const auto at = [](unsigned r, unsigned c) -> int {
    return r * Dh + c / 8 * 64 + (c ^ r) % 8 * 8;
  };
  // Starts copying a tile, one cp.async per chunk. A thread copies one chunk of every kAtOnce-th
  // row, always in the same column; the next thread takes the next column. Past the last row or
  // column, cp.async gets a source size of 0 bytes, so it reads nothing and writes zeros.
  const auto copy = [&]<int kRows>(Smem<T> to, Hbm<const T> from, int rows) {
    constexpr int kAtOnce = kThreads / (Dh / 8);
    const int first = thread / (Dh / 8), chunk = thread % (Dh / 8);
    auto source = from + (first * p.d + chunk * 8);
    for (int r = 0; r < kRows; r += kAtOnce) {
      cp_async(to + (r * Dh + at(first, chunk)), source, first + r < rows && chunk * 8 < p.d);
      source = source + kAtOnce * p.d;
    }
  };
  copy.template operator()<Br>(Qs, Q + (p.q_row(bh) + block_row) * p.d, p.N - block_row);
  copy.template operator()<Bc>(Ks, K_tile, end);
  cp_async_commit();

  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s), so m is kept in units of ln 2
  float m[4], l[4], O_sum[2][Dh / 8][4] = {};
  for (int r = 0; r < 4; ++r) m[r] = -INFINITY, l[r] = 0;
  const auto entry = [](auto& of, int r, int n) -> float& {
    return of[r / 2][n / 2][r % 2 * 2 + n % 2];
  };
  for (int key = 0; key < end; key += Bc) {
    cp_async_wait<0>();
    __syncthreads();  // K has arrived, and all warps are done with the previous V
    copy.template operator()<Bc>(Vs, V_tile, end - key);
    V_tile = V_tile + Bc * p.d;
    cp_async_commit();

    // 1. S = Q·Kᵀ, 16 columns of Q and K at a time. A is a 16 × 16 piece of Q. Its registers
    // hold the upper left, lower left, upper right and lower right matrix, in this order. B is a
    // 16 × 16 piece of Kᵀ. Its columns are rows of K, so ldmatrix need not transpose. Its matrices
    // are keys 0–7 with the first and the second 8 columns of K, then keys 8–15 with the same.
    float S[2][Bc / 8][4] = {};
    unsigned a[2][2][4], b[4];  // a[k % 2] is in use while the other half receives the next pieces
    const auto load_Q = [&](int k) {
      for (int i = 0; i < 2; ++i)
        ldmatrix_x4(a[k % 2][i],
                    Qs + ((warp_row + 16 * i) * Dh + at(lane % 16, 2 * k + lane / 16)));
    };
    load_Q(0);
#pragma unroll
    for (int k = 0; k < Dh / 16; ++k) {
      if (k + 1 < Dh / 16) load_Q(k + 1);
#pragma unroll
      for (int j = 0; j < Bc / 16; ++j) {
        ldmatrix_x4(b, Ks + (16 * j * Dh + at(lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2)));
        for (int i = 0; i < 2; ++i) {
          mma_m16n8k16<T>(S[i][2 * j], a[k % 2][i], b[0], b[1]);      // keys 16j to 16j + 7
          mma_m16n8k16<T>(S[i][2 * j + 1], a[k % 2][i], b[2], b[3]);  // keys 16j + 8 to 16j + 15
        }
      }
    }
    if (key + Bc > p.keys(row)) {  // some row of the warp does not attend to all of these keys
      int first_row = row + g;
      opaque(first_row);  // otherwise the compiler would keep all limits in registers
      for (int r = 0; r < 4; ++r) {
        int limit = p.keys(first_row + 8 * r) - key - 2 * t;
        opaque(limit);
        for (int n = 0; n < Bc / 4; ++n)
          if (n / 2 * 8 + n % 2 >= limit) entry(S, r, n) = -INFINITY;
      }
    }
    cp_async_wait<0>();
    __syncthreads();  // V has arrived, and all warps are done with this K
    K_tile = K_tile + Bc * p.d;
    if (key + Bc < end) copy.template operator()<Bc>(Ks, K_tile, end - key - Bc);
    cp_async_commit();

    // 2. The softmax of each row r, of whose 64 scores this lane holds 16. P takes S's registers.
    // The innermost loops run over the four rows, whose chains of operations then overlap.
    float most[4], shift[4], alpha[4], sum[4] = {};
    for (int n = 0; n < Bc / 4; ++n)
      for (int r = 0; r < 4; ++r) most[r] = n ? fmaxf(most[r], entry(S, r, n)) : entry(S, r, n);
    for (int r = 0; r < 4; ++r) {
      for (int bit : {1, 2}) most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffff, most[r], bit));
      const float m_new = fmaxf(m[r], c * most[r]);
      shift[r] = m_new == -INFINITY ? 0 : m_new;  // no key yet: −∞ − (−∞) would be NaN
      alpha[r] = exp2_fast(m[r] - shift[r], t == 0);  // the first of the four lanes counts it
      m[r] = m_new;
    }
    for (int n = 0; n < Bc / 4; ++n)
      for (int r = 0; r < 4; ++r)
        sum[r] += entry(S, r, n) = exp2_fast(c * entry(S, r, n) - shift[r]);
    for (int r = 0; r < 4; ++r) {
      l[r] = alpha[r] * l[r] + sum[r];  // the lane's part; the four are added up at the end
      for (int n = 0; n < Dh / 4; ++n) entry(O_sum, r, n) *= alpha[r];
    }
    count_flops(4 * Bc + Dh + (t == 0 ? 20 : 0));  // FLOPs: 4 per score, 1 per O_ij, 5 per row

    // 3. O += P·V, 16 keys at a time. Two neighbouring 16 × 8 pieces of P are laid out like one
    // left operand A, so P stays in its lanes and is only rounded to T. B is a 16 × 16 piece of V:
    // keys 0–7 and 8–15 with 8 columns, then with the next 8. ldmatrix transposes each matrix.
#pragma unroll
    for (int k = 0; k < Bc / 16; ++k) {
      for (int i = 0; i < 2; ++i)
        for (int e = 0; e < 4; ++e)
          a[0][i][e] = pack<T>(S[i][2 * k + e / 2][e % 2 * 2], S[i][2 * k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
      for (int j = 0; j < Dh / 16; ++j) {
        ldmatrix_x4_trans(b, Vs + (16 * k * Dh + at(lane % 16, 2 * j + lane / 16)));
        for (int i = 0; i < 2; ++i) {
          mma_m16n8k16<T>(O_sum[i][2 * j], a[0][i], b[0], b[1]);
          mma_m16n8k16<T>(O_sum[i][2 * j + 1], a[0][i], b[2], b[3]);
        }
      }
    }
  }
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived even if there were no keys
  // O / l, rounded to T, goes through the warp's rows of Q's tile, to be stored in whole chunks.
  for (int r = 0; r < 4; ++r) {
    for (int bit : {1, 2}) l[r] += __shfl_xor_sync(0xffffffff, l[r], bit);
    const float inverse = l[r] > 0 ? 1 / l[r] : 0;  // a row that attends to no key gives O = 0
    for (int j = 0; j < Dh / 8; ++j)
      store_pair(Qs + ((warp_row + 8 * r) * Dh + at(g, j) + 2 * t),
                 pack<T>(inverse * entry(O_sum, r, 2 * j), inverse * entry(O_sum, r, 2 * j + 1)));
    if (const int i = row + 8 * r + g; t == 0 && i < p.N)  // LSE = m + ln l; m is in units of ln 2
      LSE[p.q_row(bh) + i] = l[r] > 0 ? m[r] * kLn2 + logf(l[r]) : -INFINITY;
  }
  count_flops(Dh + (t == 0 ? 4 : 0));
  __syncwarp();  // all lanes have written
  for (int n = lane; n < kWarpRows * Dh / 8; n += 32) {
    const int i = n / (Dh / 8), chunk = n % (Dh / 8);
    if (row + i < p.N && chunk * 8 < p.d)
      store_16_bytes(O + ((p.q_row(bh) + row + i) * p.d + chunk * 8), Qs + at(warp_row + i, chunk));
  }
}

/// Returns the number of heads per group: one without the mask. Under it the longest tiles of many
/// heads should start first, so a group has all heads whose K and V fit in 16 MiB of L2.
int heads_of_group(const Problem& p) {
  const int64_t kv = 2 * kIoBytes * p.N_kv * p.d, most = p.causal ? (int64_t{16} << 20) / kv : 1;
  return static_cast<int>(std::clamp<int64_t>(most, 1, int64_t{p.B} * p.H));
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  Plan plan{.head_dim = std::max(64, padded_head_dim(p.d)), .warps = kThreads / 32, .stages = 1};
  choose_tile(plan, kTiles, request, device.smem_bytes,
              [&](int, int) { return smem_bytes(plan.head_dim); });
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_type_and_head_dim<kHeadSizes>(p, [&]<class T, int Dh>() {
    const int64_t group = heads_of_group(p), heads = ceil_div(p.B * p.H, group) * group;
    launch("attention", attention<T, Dh>, dim3(ceil_div(p.N, Br) * heads), dim3(kThreads),
           plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]), hbm<const T>(a["V"]),
           hbm<T>(a["O"]), hbm<float>(a["LSE"]), group, p);
  });
}

/// Predicts the requested bytes: each tile of Q reads K and V up to its last row's last key.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q or O
  int64_t rows = 0;                                // rows of K or V that a head's tiles read
  for (int64_t row = 0; row < p.N; row += Br)
    rows += p.keys(static_cast<int>(std::min<int64_t>(row + Br, p.N) - 1));
  const int64_t k = heads * rows * p.d * kIoBytes;
  return {{"attention",
           {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}, {"LSE", 0, heads * p.N * 4}}}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "flat",
    .after = "large_tiles",
    .aside = true,
    .shown = {.idea = "all in one function",
              .summary = "large_tiles' forward pass in one function, without common/tile",
              .colour = "#0072B2"},
    .has_lse = true,
    .tiles = kTiles,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
