// 05 · FlashAttention-2's forward pass with every address written out: one function, and nothing
// from common/tile.
//
//   build/bin/05_flash_v2 --step flat --seqlen 512 --causal
//
//   for each tile of 128 rows of Q, one block of four warps, 32 rows per warp:
//     for each tile of 64 rows of K and V that one of these rows attends to:
//       1  S = Q·Kᵀ, or −∞ where a row does not attend to the key
//       2  m_new = max(m, rowmax S),   P = exp(S − m_new),   α = exp(m − m_new)
//          l ← α·l + rowsum P,   O ← α·O
//       3  O ← O + P·V
//     O ← O / l,   LSE = m + ln l
//
// Since `large_tiles`: only the form changes. The code spells out which thread copies which 16
// bytes where, which lane passes which row to ldmatrix, and which row and column each register
// holds. There is one tile size, for heads of up to 128 columns.

#include "machine/machine.h"
#include "rung.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
constexpr int Br = 128, Bc = 64, kWarpRows = 32, kThreads = Br / kWarpRows * 32;
constexpr int kHeadSizes[] = {64, 128};
constexpr TileSize kTiles[] = {{128, Br, Bc}};
int64_t smem_bytes(int Dh) {
  return array_bytes<fp16>((Br + 2 * Bc) * Dh);
}

// Three layouts:
// - A tile in shared memory. A row has Dh/8 chunks of 8 elements, 16 bytes each. ldmatrix reads one
//   chunk from each of 8 rows at a time. If chunk c of every row were at place c, all 8 would lie
//   in the same four banks. So chunk c of row r is at place c XOR r within its group of 8 chunks.
// - Four 8 × 8 matrices, which one ldmatrix loads. Lanes 0–7 address the rows of the first matrix,
//   lanes 8–15 the rows of the second, and so on; each lane passes the address of one chunk.
//   Afterwards register n of a lane holds two elements of matrix n.
// - A 16 × 8 piece of S or O, spread over the 32 lanes. With g = lane / 4 and t = lane % 4, a lane
//   holds columns 2t and 2t + 1 of row g (registers 0 and 1) and of row g + 8 (registers 2 and 3).
//   A warp's 32 rows form two halves i of 16 rows, so a lane holds parts of four rows: r = 2i is
//   row 16i + g, and r = 2i + 1 is row 16i + g + 8. Either way, r is row 8r + g of the warp.

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (tiles of Q · B·H).
template <class T, int Dh>
__global__ void __launch_bounds__(kThreads, 2)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> LSE, int group,
              Problem p) {
  const int thread = threadIdx.x, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // Blocks go through the heads of a group, then through their tiles from the last rows up, which
  // attend to the most keys, then through the groups.
  const int tiles = ceil_div(p.N, Br), index = blockIdx.x;
  const int head = index / (group * tiles) * group, heads = min(group, p.B * p.H - head);
  const int of_group = index - head * tiles, bh = head + of_group % heads;
  const int block_row = (tiles - 1 - of_group / heads) * Br;
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
  // Starts copying a tile, one cp.async per chunk. A thread goes down a column of chunks, kAtOnce
  // rows at a time; the next thread takes the next column. Past the last row or column, cp.async
  // gets a source size of 0 bytes, so it reads nothing and writes zeros.
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
  for (int key = 0; key < end; key += Bc) {
    cp_async_wait<0>();
    __syncthreads();  // K has arrived, and all warps are done with the previous V
    copy.template operator()<Bc>(Vs, V_tile, end - key);
    V_tile = V_tile + Bc * p.d;
    cp_async_commit();

    // 1. S = Q·Kᵀ, 16 columns of Q and K at a time. A is a 16 × 16 piece of Q: its upper left,
    // lower left, upper right and lower right matrix. B is a 16 × 16 piece of Kᵀ. Its columns are
    // rows of K, so ldmatrix need not transpose. Its matrices are keys 0–7 with the first and the
    // second 8 columns of K, then keys 8–15 with the same columns.
    float S[2][Bc / 8][4] = {};
#pragma unroll
    for (int k = 0; k < Dh / 16; ++k) {
      unsigned a[2][4], b[4];
      for (int i = 0; i < 2; ++i)
        ldmatrix_x4(a[i], Qs + ((warp_row + 16 * i) * Dh + at(lane % 16, 2 * k + lane / 16)));
#pragma unroll
      for (int j = 0; j < Bc / 16; ++j) {
        ldmatrix_x4(b, Ks + (16 * j * Dh + at(lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2)));
        for (int i = 0; i < 2; ++i) {
          mma_m16n8k16<T>(S[i][2 * j], a[i], b[0], b[1]);      // keys 16j to 16j + 7
          mma_m16n8k16<T>(S[i][2 * j + 1], a[i], b[2], b[3]);  // keys 16j + 8 to 16j + 15
        }
      }
    }
    if (key + Bc > p.keys(row)) {  // some row of the warp does not attend to all of these keys
      int first_row = row + g;
      opaque(first_row);  // otherwise the four limits would occupy registers all the time
      for (int r = 0; r < 4; ++r) {
        int limit = p.keys(first_row + 8 * r) - key - 2 * t;
        opaque(limit);
        for (int j = 0; j < Bc / 8; ++j)
          for (int e = 0; e < 2; ++e)
            if (8 * j + e >= limit) S[r / 2][j][r % 2 * 2 + e] = -INFINITY;
      }
    }
    cp_async_wait<0>();
    __syncthreads();  // V has arrived, and all warps are done with this K
    K_tile = K_tile + Bc * p.d;
    if (key + Bc < end) copy.template operator()<Bc>(Ks, K_tile, end - key - Bc);
    cp_async_commit();

    // 2. The softmax of each row r, whose 64 scores four lanes hold. P takes S's registers.
    for (int r = 0; r < 4; ++r) {
      float most = -INFINITY, sum = 0;
      for (int j = 0; j < Bc / 8; ++j)
        most = fmaxf(most, fmaxf(S[r / 2][j][r % 2 * 2], S[r / 2][j][r % 2 * 2 + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
      const float m_new = fmaxf(m[r], c * most);
      const float shift = m_new == -INFINITY ? 0 : m_new;  // no key yet: −∞ − (−∞) would be NaN
      const float alpha = exp2_fast(m[r] - shift, t == 0);  // the first of the four lanes counts it
      for (int j = 0; j < Bc / 8; ++j)
        for (int e = 0; e < 2; ++e) {
          float& s = S[r / 2][j][r % 2 * 2 + e];
          s = exp2_fast(c * s - shift);
          sum += s;
        }
      m[r] = m_new;
      l[r] = alpha * l[r] + sum;  // over this lane's columns; the lanes' sums are added at the end
      for (int j = 0; j < Dh / 8; ++j)
        for (int e = 0; e < 2; ++e) O_sum[r / 2][j][r % 2 * 2 + e] *= alpha;
    }
    count_flops(4 * Bc + Dh + (t == 0 ? 20 : 0));  // for the simulator's count of other FLOPs

    // 3. O += P·V, 16 keys at a time. Two neighbouring 16 × 8 pieces of P are laid out like one
    // left operand A, so P stays in its lanes and is only rounded to T. B is a 16 × 16 piece of V,
    // and its columns are V's, so ldmatrix transposes each matrix: keys 0–7 and 8–15 with 8 columns
    // of V, then the same keys with the next 8 columns.
#pragma unroll
    for (int k = 0; k < Bc / 16; ++k) {
      unsigned a[2][4], b[4];
      for (int i = 0; i < 2; ++i)
        for (int e = 0; e < 4; ++e)
          a[i][e] = pack<T>(S[i][2 * k + e / 2][e % 2 * 2], S[i][2 * k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
      for (int j = 0; j < Dh / 16; ++j) {
        ldmatrix_x4_trans(b, Vs + (16 * k * Dh + at(lane % 16, 2 * j + lane / 16)));
        for (int i = 0; i < 2; ++i) {
          mma_m16n8k16<T>(O_sum[i][2 * j], a[i], b[0], b[1]);
          mma_m16n8k16<T>(O_sum[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived even if there were no keys
  // O / l goes through the warp's own rows of Q's tile, so that it is written in whole chunks.
  for (int r = 0; r < 4; ++r) {
    l[r] += __shfl_xor_sync(0xffffffff, l[r], 1);
    l[r] += __shfl_xor_sync(0xffffffff, l[r], 2);
    const float inverse = l[r] > 0 ? 1 / l[r] : 0;  // a row that attends to no key gives O = 0
    for (int j = 0; j < Dh / 8; ++j)
      store_pair(
          Qs + ((warp_row + 8 * r) * Dh + at(g, j) + 2 * t),
          pack<T>(inverse * O_sum[r / 2][j][r % 2 * 2], inverse * O_sum[r / 2][j][r % 2 * 2 + 1]));
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

/// Returns the number of heads per group: one or, under the mask, where the longest tiles of many
/// heads have to start first, as many as fit their K and V into 16 MiB of L2.
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
    launch("attention", attention<T, Dh>, dim3(ceil_div(p.N, Br) * p.B * p.H), dim3(kThreads),
           plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]), hbm<const T>(a["V"]),
           hbm<T>(a["O"]), hbm<float>(a["LSE"]), heads_of_group(p), p);
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
