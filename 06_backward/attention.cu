// 06 · FlashAttention-2 (Dao 2023), forward (Algorithm 1) and backward (Algorithm 2).
//
//   build/bin/06_backward --step split_sums --seqlen 512 --causal
//
//   D = rowsum(dO∘O)
//   for each tile of Bc rows of K and V, one block each:
//     dK = 0, dV = 0
//     for each tile of Br rows of Q and dO:
//       S = scale·Q·Kᵀ,   P = exp(S − LSE)
//       dP = dO·Vᵀ,       dS = P∘(dP − D)
//       dV += Pᵀ·dO
//       dK += scale·dSᵀ·Q
//       dQ += scale·dS·K        in HBM, by atomic addition
//
// No N × N array is kept for the backward pass: P is recomputed tile by tile from Q, K and LSE. The
// forward pass is 05's `large_tiles`, except that only one block works on each tile of Q.
//
// Since `stages`: tiles are larger. Half of the warps sum up dV and the others dK, so that products
// read fewer bytes from shared memory. HBM holds the sums of dQ in fragment order: as 8 × 8
// matrices, each in the order of a warp's lanes. Also:
//
//   - The products load the next matrix of an operand while they multiply the current one
//     (tile/grouped.h).
//   - Heads of 96 and 192 columns have tiles of their own.
//   - Several blocks share a tile of keys if there are few tiles of keys or, under the mask, if
//     several query heads use each tile (query_split.h).

#include "machine/machine.h"
#include "query_split.h"
#include "rung.h"
#include "tile/grouped.h"
#include "tile/rows.h"
#include "tile/schedule.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

/// Compiled tiles: {largest head size, Br, Bc}. For each head size the fastest tile comes first.
constexpr TileSize kTiles[] = {{32, 128, 128}, {32, 64, 128},  {128, 128, 64}, {128, 64, 64},
                               {256, 128, 64}, {256, 128, 32}, {256, 64, 64},  {256, 64, 32}};
/// Returns the warps per block. For wide heads, a warp's registers hold only 16 rows of O.
constexpr int warps(int Dh, int Br) {
  return Dh <= 128 ? 4 : Br / 16;
}

int64_t smem_bytes(int Dh, int Br, int Bc) {
  return array_bytes<fp16>((Br + 2 * Bc) * Dh);
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (tiles of Q · B·H).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(32 * warps(Dh, Br), Dh <= 128 ? 2 : 1)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> LSE, Problem p) {
  constexpr int kWarps = warps(Dh, Br), kThreads = 32 * kWarps;
  constexpr int kWarpRows = Br / kWarps;  // rows of Q per warp
  const int tiles = ceil_div(p.N, Br);
  const int index = blockIdx.x;
  // Without the mask all tiles are equally long, and plain order needs fewer divisions.
  const auto [bh, tile] = p.causal
                              ? longest_first(index, {.heads = p.B * p.H,
                                                      .tiles = tiles,
                                                      .head_bytes = 2 * kIoBytes * p.N_kv * p.d,
                                                      .uneven = true})
                              : WorkTile{index / tiles, index % tiles};
  const int block_row = (tiles - 1 - tile) * Br;  // the last rows attend to the most keys
  const int warp_row = warp_id() * kWarpRows, row = block_row + warp_row;
  const int thread = threadIdx.x;
  const auto Q_tile = Q + (p.q_row(bh) + block_row) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const int keys = p.keys(min(block_row + Br, p.N) - 1);  // that the block's last row attends to
  const float c = p.scale * kLog2e;                       // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const GroupedTile<T, Br, Dh> tile_Q{smem.take<T>("Q", Br * Dh)};
  const GroupedTile<T, Bc, Dh> tile_K{smem.take<T>("K", Bc * Dh)};
  const GroupedTile<T, Bc, Dh> tile_V{smem.take<T>("V", Bc * Dh)};
  copy_async<kThreads>(tile_Q, Q_tile, p.d, p.N - block_row, p.d, thread);
  copy_async<kThreads>(tile_K, K_head, p.d, keys, p.d, thread);
  cp_async_commit();

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<kWarpRows>(-INFINITY), l = fill_rows<kWarpRows>(0);
  Accumulator<kWarpRows, Dh> O_sum;
  for (int key = 0; key < keys; key += Bc) {
    cp_async_wait<0>();
    __syncthreads();  // K has arrived, and all warps are done with the previous V
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, keys - key, p.d, thread);
    cp_async_commit();

    Accumulator<kWarpRows, Bc> S;
    mma_ABt(S, tile_Q, warp_row, tile_K);
    if (key + Bc > p.keys(row))
      mask_columns(S, [&](int i) {
        opaque(i);  // otherwise the rows' limits would occupy registers in every iteration
        return p.keys(row + i) - key;
      });

    cp_async_wait<0>();
    __syncthreads();  // V has arrived, and all warps are done with this K
    if (key + Bc < keys)
      copy_async<kThreads>(tile_K, K_head + int64_t{key + Bc} * p.d, p.d, keys - key - Bc, p.d,
                           thread);
    cp_async_commit();

    const auto m_new = max(m, c * row_max(S));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    auto& P = S;
    exp2_rows(P, c, shift);
    l = alpha * l + row_sum_in_lane(P);
    m = m_new;
    mul_rows(O_sum, alpha);
    mma_AB(O_sum, as_operand<T>(P), tile_V);
  }
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived even if there were no keys

  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  // O goes through the warp's own rows of Q's tile, so that it is written in 16-byte chunks.
  const GroupedTile<T, kWarpRows, Dh> tile_O{tile_Q.data + warp_row * Dh};
  write(tile_O, O_sum, 0, 0);
  __syncwarp();  // all lanes have written
  copy_out<32>(O + (p.q_row(bh) + row) * p.d, p.d, tile_O, p.N - row, p.d, lane_id());
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

// ---- the backward pass

/// Compiled tiles of the backward pass, in the same form as kTiles.
constexpr TileSize kBackwardTiles[] = {{32, 128, 128}, {32, 32, 64},  {64, 128, 128}, {64, 64, 128},
                                       {64, 32, 64},   {96, 64, 128}, {96, 64, 64},   {96, 32, 64},
                                       {128, 64, 128}, {128, 64, 64}, {128, 32, 64},  {128, 32, 32},
                                       {256, 64, 64},  {256, 32, 32}};

/// Returns the stages for Q and dO. For wide heads, two stages do not fit on most GPUs; for 64 × 64
/// tiles at d = 128, two do not fit on GPUs with 100 KB of shared memory per SM.
constexpr int backward_stages(int Dh, int Br, int Bc) {
  return Dh > 128 || (Dh == 128 && Br == 64 && Bc == 64) ? 1 : 2;
}
/// Returns the rows of S and dP per warp. (backward_warps() returns the warps per block.)
constexpr int backward_rows(int Br) {
  return Br == 32 ? 16 : 32;
}
constexpr int backward_warps(int Br) {
  return Br == 32 ? 4 : 8;
}
/// Returns the least number of blocks per SM that the registers must allow; 0 sets no limit.
constexpr int least_blocks(int Dh, int Br) {
  return Dh == 32 && Br == 32 ? 4 : 0;
}
int64_t backward_smem_bytes(int Dh, int Br, int Bc) {  // per block of key_gradients
  const int stages = backward_stages(Dh, Br, Bc);
  return 2 * array_bytes<fp16>(Bc * Dh) + 2 * array_bytes<fp16>(stages * Br * Dh) +
         2 * array_bytes<fp16>(Br * Bc) + 2 * array_bytes<float>(stages * Br);
}

constexpr int kElementwise = 256;  // threads per block in the small kernels
/// Returns the lanes per row in the small kernels: at least Dh/8, and a power of two for shuffles.
constexpr int lanes_of(int Dh) {
  return Dh > 128 ? 32 : Dh > 64 ? 16 : Dh > 32 ? 8 : 4;
}

/// For each row, writes minus_delta = −D = −rowsum(dO∘O) and LSE in units of ln 2, and sets dQ's
/// sums to 0. In key_gradients dP's sums start at minus_delta, and so end as dP − D. The arrays
/// written hold whole tiles, with `rows` rows per head. Rows past p.N, and rows that attend to no
/// key (LSE = −∞), get LSE = +∞, which makes their P 0. If blocks share tiles of keys, the kernel
/// also clears the sums of dK and dV. grid: lanes_of(Dh) lanes for each of B·H·rows rows, and at
/// least one lane for each chunk of the sums of dK.
template <class T, int Dh>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                           Hbm<float> minus_delta, Hbm<float> LSE_log2e, Hbm<float> dQ_sum,
                           KeySums key_sums, int rows, Problem p) {
  constexpr int kLanes = lanes_of(Dh);
  const int64_t thread = int64_t{blockIdx.x} * kElementwise + threadIdx.x, at = thread / kLanes;
  clear(key_sums, thread);
  if (at >= int64_t{p.B} * p.H * rows) return;  // true for all of a warp's lanes or none
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  const bool real = row < p.N;
  const float lse = real && column == 0 ? LSE[head * p.N + row] : -INFINITY;
  float sum = 0;
  if (column < Dh) write_chunk(dQ_sum + (at * Dh + column), Chunk<float>{});
  if (real && column < p.d) {
    const int64_t from = (head * p.N + row) * p.d + column;
    const auto o = read_chunk(O + from), g = read_chunk(dO + from);
    for (int e = 0; e < 8; ++e) sum += float(o[e]) * float(g[e]);
  }
  for (int bit = kLanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bit);
  if (column == 0) {
    minus_delta[at] = -sum;
    LSE_log2e[at] = lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
}

/// A tile of Q: its head, among B·H, and its first row within the head.
struct Place {
  int head, row;
};

/// Adds a warp's sums in the first d columns of a tile to the tile's sums in HBM, which start at
/// `tile`. They are stored as 8 × 8 matrices, each of them row by row, in the order of a warp's
/// lanes. So one addition by a warp goes to 256 contiguous bytes, instead of 32 bytes in each of 8
/// rows. The matrix whose first row is i and whose first column is j starts at offset i·Dh + 8·j.
template <int Dh, int M, int N, class WarpTile>
__device__ __forceinline__ void add_to_sums(Hbm<float> tile, const Accumulator<M, N>& sum,
                                            const WarpTile& part, int d) {
  const int lane = lane_id();
  for_each_pair(sum, [&](int i, int j, float a, float b) {
    i += part.row, j += part.column;
    const int block_row = i - lane / 4, block_column = j - lane % 4 * 2;
    if (block_column < d)
      atomic_add_pair(tile + (block_row * Dh + 8 * block_column + 2 * lane), a, b);
  });
}

/// Computes dK and dV for one tile of keys, and adds the tile's part of dQ to the sums in HBM. A
/// head of K and V has `tiles` tiles. In minus_delta, LSE_log2e and dQ_sum a head of Q has `rows`
/// rows, in whole tiles. If parts > 1, `parts` blocks share each tile of keys, and each adds its
/// part of dK and dV to the sums in HBM. grid: (tiles · B·Hk · parts).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(32 * backward_warps(Br), least_blocks(Dh, Br))
    key_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                  Hbm<const float> minus_delta, Hbm<const float> LSE_log2e, Hbm<float> dQ_sum,
                  Hbm<T> dK, Hbm<T> dV, KeySums key_sums, int tiles, int rows, int parts,
                  Problem p) {
  constexpr int kBackwardWarps = backward_warps(Br), kBackwardThreads = 32 * kBackwardWarps;
  constexpr int kStages = backward_stages(Dh, Br, Bc);
  constexpr int kWarpRows = backward_rows(Br);
  const WarpTile<Br, Bc, kWarpRows, kBackwardWarps> of_S;  // the warp's part of S, P, dP and dS
  // A warp has a multiple of 16 columns, and kWarpRows rows of dQ or 2·kWarpRows of dV or dK; or,
  // if Dh = 96 cannot be so divided among the warps side by side, half the rows, twice the columns.
  constexpr int kQRows = Dh % (16 * kBackwardWarps * kWarpRows / Br) ? kWarpRows / 2 : kWarpRows;
  constexpr int kKeyRows = Dh % (16 * kBackwardWarps * kWarpRows / Bc) ? kWarpRows : 2 * kWarpRows;
  const WarpTile<Br, Dh, kQRows, kBackwardWarps> of_dQ;
  // Half of the warps sum up dV, the others dK. If every warp did both, its part of each sum would
  // be half the size, and its products would read more bytes from shared memory per FLOP.
  const bool sums_dV = warp_id() < kBackwardWarps / 2;
  const WarpTile<Bc, Dh, kKeyRows, kBackwardWarps / 2> of_sum;
  const auto [bh, tile, first_row, tiles_of_head, begin, end] =
      query_split<Br, Bc>(blockIdx.x, tiles, parts, /*at_once=*/0, p);
  if (begin == end) return;  // an empty share: there are more parts than tiles of Q
  const int key = tile * Bc;
  const int thread = threadIdx.x;
  const int64_t kv_first = (int64_t{bh} * p.N_kv + key) * p.d;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const GroupedTile<T, Bc, Dh> tile_K{smem.take<T>("K", Bc * Dh)};
  const GroupedTile<T, Bc, Dh> tile_V{smem.take<T>("V", Bc * Dh)};
  const auto Q_stages = smem.take<T>("Q", kStages * Br * Dh);
  const auto dO_stages = smem.take<T>("dO", kStages * Br * Dh);
  const GroupedTile<T, Br, Bc> tile_P{smem.take<T>("P", Br * Bc)};
  const GroupedTile<T, Br, Bc> tile_dS{smem.take<T>("dS", Br * Bc)};
  const auto LSE_stages = smem.take<float>("LSE_log2e", kStages * Br);
  const auto minus_delta_stages = smem.take<float>("minus_delta", kStages * Br);

  // The tiles of Q that attend to this tile of keys, in all query heads that share its head of K
  // and V, are numbered head by head. The block works on tiles [begin, end).
  const auto after = [&](Place last) {  // the tile of Q that follows `last`
    return last.row + Br < p.N ? Place{last.head, last.row + Br} : Place{last.head + 1, first_row};
  };
  const auto start_copies = [&](int q_tile, Place place, int stage) {
    if (q_tile < end) {
      const int64_t at = int64_t{place.head} * rows + place.row;
      const int64_t from = p.q_row(place.head) + place.row;
      const GroupedTile<T, Br, Dh> tile_Q{Q_stages + stage * Br * Dh},
          tile_dO{dO_stages + stage * Br * Dh};
      copy_async<kBackwardThreads>(tile_Q, Q + from * p.d, p.d, p.N - place.row, p.d, thread);
      copy_async<kBackwardThreads>(tile_dO, dO + from * p.d, p.d, p.N - place.row, p.d, thread);
      copy_async<kBackwardThreads, Br>(minus_delta_stages + stage * Br, minus_delta + at, Br,
                                       thread);
      copy_async<kBackwardThreads, Br>(LSE_stages + stage * Br, LSE_log2e + at, Br, thread);
    }
    cp_async_commit();
  };
  copy_async<kBackwardThreads>(tile_K, K + kv_first, p.d, p.N_kv - key, p.d, thread);
  copy_async<kBackwardThreads>(tile_V, V + kv_first, p.d, p.N_kv - key, p.d, thread);
  Place next{bh * (p.H / p.Hk) + begin / tiles_of_head, first_row + begin % tiles_of_head * Br};
  int stage = 0;
  start_copies(begin, next, stage);

  Accumulator<kKeyRows, of_sum.kColumns> sum;  // of dV or of dK
  for (int q_tile = begin; q_tile < end; ++q_tile) {
    const auto [head, row] = next;
    next = after(next);
    cp_async_wait<0>();
    __syncthreads();  // Q and dO have arrived; all warps are done with P, dS and the previous tiles
    const GroupedTile<T, Br, Dh> tile_Q{Q_stages + stage * Br * Dh},
        tile_dO{dO_stages + stage * Br * Dh};
    const auto minus_delta_tile = minus_delta_stages + stage * Br,
               LSE_tile = LSE_stages + stage * Br;

    Accumulator<kWarpRows, of_S.kColumns> S;
    mma_ABt(S, tile_Q, of_S.row, tile_K, of_S.column);
    if (kStages == 2) start_copies(q_tile + 1, next, 1 - stage);  // overlaps S's products
    auto P = S;
    exp2_rows(P, c, load_rows<kWarpRows>(LSE_tile + of_S.row));

    // dP starts at −D, so that it ends as dP − D. Its products overlap the exponentials of P, so
    // the mask comes after both. Keys past N_kv, whose S is 0, get P = 0, too: exp(0 − LSE) may
    // be ∞, and ∞·0 would be NaN in dQ.
    Accumulator<kWarpRows, of_S.kColumns> dP;
    fill_rows(dP, load_rows<kWarpRows>(minus_delta_tile + of_S.row));
    mma_ABt(dP, tile_dO, of_S.row, tile_V, of_S.column);
    if (key + Bc > p.keys(row))
      mask_columns(
          P, [&](int i) { return p.keys(row + of_S.row + i) - key - of_S.column; }, 0);
    write(tile_P, P, of_S.row, of_S.column);

    auto dS = dP;
    mul(dS, P);
    write(tile_dS, dS, of_S.row, of_S.column);
    __syncthreads();  // P and dS are complete

    const auto left = sums_dV ? tile_P : tile_dS;
    const auto right = sums_dV ? tile_dO : tile_Q;
    mma_AtB(sum, left, of_sum.row, right, of_sum.column);
    if (kStages == 1) {
      __syncthreads();  // all warps are done with Q and dO
      start_copies(q_tile + 1, next, stage);
    }
    Accumulator<kQRows, of_dQ.kColumns> dQ;
    mma_AB(dQ, tile_dS, of_dQ.row, tile_K, of_dQ.column);
    add_to_sums<Dh>(dQ_sum + (int64_t{head} * rows + row) * Dh, dQ, of_dQ, p.d);
    stage = kStages - 1 - stage;  // the other stage, if there are two
  }
  __syncthreads();  // all warps are done with K and V, which arrived with the first tiles

  if (parts > 1) {
    const int64_t at = (int64_t{bh} * tiles + tile) * Bc * Dh;
    add_to_sums<Dh>((sums_dV ? key_sums.dV : key_sums.dK) + at, sum, of_sum, p.d);
    return;
  }
  // dK and dV go through the tiles of K and V, so that they are written in 16-byte chunks.
  if (!sums_dV) for_each(sum, [&](int, int, float& x) { x *= p.scale; });
  write(sums_dV ? tile_V : tile_K, sum, of_sum.row, of_sum.column);
  __syncthreads();
  copy_out<kBackwardThreads>(dK + kv_first, p.d, tile_K, p.N_kv - key, p.d, thread);
  copy_out<kBackwardThreads>(dV + kv_first, p.d, tile_V, p.N_kv - key, p.d, thread);
}

/// Multiplies the sums of dQ, dK or dV, which add_to_sums() has stored, by a factor and rounds them
/// to the I/O type. A head has N rows in `out` and `rows` rows of sums, in whole tiles; all heads
/// together have all_rows rows of sums. grid: lanes_of(Dh) lanes for each of these rows.
template <class T, int Dh>
__global__ void postprocess(Hbm<const float> sums, Hbm<T> out, int N, int rows, int64_t all_rows,
                            int d, float factor) {
  constexpr int kLanes = lanes_of(Dh);
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  if (at >= all_rows || row >= N || column >= d) return;
  const auto sum = read_chunk(sums + (at / 8 * 8 * Dh + 8 * column + row % 8 * 8));
  Chunk<T> chunk;
  for (int e = 0; e < 8; ++e) chunk[e] = T(factor * sum[e]);
  write_chunk(out + ((head * N + row) * d + column), chunk);
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim<kAllHeadDims>(p.d);
  Plan plan{.head_dim = Dh, .stages = 1};
  choose_tile(
      plan, kTiles, request, device.smem_bytes,
      [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); },
      Dh <= 128 ? 2 : 1);  // blocks per SM: while one waits, the other runs
  plan.warps = warps(Dh, plan.block_q);
  return plan;
}

const Setting kSettings[] = {
    {"parts", {"auto", "1", "2", "4", "8", "16"}, "blocks for each tile of keys"}};

/// Returns how many blocks share a tile of keys. Without the mask it starts at 1. Under the mask
/// it starts at the number of query heads that use the tile, so that blocks that run together read
/// the same Q and dO from L2; but for at most 32 tiles of Q it starts at 1, because adding up the
/// sums in HBM would cost more than that saves. It doubles while enough SMs are idle. On the
/// simulator it is 1, so that the counts do not depend on a GPU's size.
int choose_parts(const Problem& p, const Plan& plan, const DeviceInfo& device) {
  if (device.kind == DeviceKind::sim) return 1;
  const int64_t group = p.H / p.Hk, q_tiles = group * ceil_div(p.N, plan.block_q);
  const int64_t blocks = ceil_div(p.N_kv, plan.block_kv) * p.B * p.Hk;
  int64_t parts = p.causal && q_tiles > 32 ? group : 1;
  while (2 * parts * blocks <= device.multiprocessors && 2 * parts <= q_tiles) parts *= 2;
  return static_cast<int>(parts);
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim<kAllHeadDims>(p.d);
  Plan plan{.head_dim = Dh, .settings = choose_settings(kSettings, request.settings)};
  choose_tile(plan, kBackwardTiles, {}, device.smem_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(Dh, Br, Bc); });
  plan.warps = backward_warps(plan.block_q);
  plan.stages = backward_stages(Dh, plan.block_q, plan.block_kv);
  const std::string& parts = plan.settings.at("parts");
  plan.parts = parts == "auto" ? choose_parts(p, plan, device) : std::stoi(parts);
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q;
  const int64_t keys = int64_t{p.B} * p.Hk * ceil_div(p.N_kv, plan.block_kv) * plan.block_kv;
  plan.workspace = {{"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * Dh * 4}};
  if (plan.parts > 1)
    for (const char* name : {"dK_sum", "dV_sum"}) plan.workspace.push_back({name, keys * Dh * 4});
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles, kAllHeadDims>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch("attention", attention<T, Dh, Br, Bc>, dim3(ceil_div(p.N, Br) * p.B * p.H),
           dim3(32 * warps(Dh, Br)), plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]),
           hbm<const T>(a["V"]), hbm<T>(a["O"]), hbm<float>(a["LSE"]), p);
  });
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto minus_delta = hbm<float>(a["minus_delta"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
  const auto dQ_sum = hbm<float>(a["dQ_sum"]);
  const int rows = static_cast<int>(ceil_div(p.N, plan.block_q)) * plan.block_q;  // per head
  const int tiles = static_cast<int>(ceil_div(p.N_kv, plan.block_kv));            // per head
  const int keys = tiles * plan.block_kv;
  const int64_t rows_of_all = int64_t{p.B} * p.H * rows, keys_of_all = int64_t{p.B} * p.Hk * keys;
  with_tile<kBackwardTiles, kAllHeadDims>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const KeySums key_sums =
        plan.parts > 1
            ? KeySums{hbm<float>(a["dK_sum"]), hbm<float>(a["dV_sum"]), keys_of_all * (Dh / 8)}
            : KeySums{};
    const auto blocks = [](int64_t threads) { return dim3(ceil_div(threads, kElementwise)); };
    launch("preprocess", preprocess<T, Dh>,
           blocks(std::max(rows_of_all * lanes_of(Dh), key_sums.chunks)), dim3(kElementwise), 0,
           hbm<const T>(a["O"]), hbm<const T>(a["dO"]), hbm<const float>(a["LSE"]), minus_delta,
           LSE_log2e, dQ_sum, key_sums, rows, p);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>,
           dim3(int64_t{tiles} * p.B * p.Hk * plan.parts), dim3(32 * backward_warps(Br)),
           plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]), hbm<const T>(a["V"]),
           hbm<const T>(a["dO"]), minus_delta, LSE_log2e, dQ_sum, hbm<T>(a["dK"]), hbm<T>(a["dV"]),
           key_sums, tiles, rows, plan.parts, p);
    launch("postprocess", postprocess<T, Dh>, blocks(rows_of_all * lanes_of(Dh)),
           dim3(kElementwise), 0, dQ_sum, hbm<T>(a["dQ"]), p.N, rows, rows_of_all, p.d, p.scale);
    if (plan.parts == 1) return;
    launch("postprocess_dK", postprocess<T, Dh>, blocks(keys_of_all * lanes_of(Dh)),
           dim3(kElementwise), 0, key_sums.dK, hbm<T>(a["dK"]), p.N_kv, keys, keys_of_all, p.d,
           p.scale);
    launch("postprocess_dV", postprocess<T, Dh>, blocks(keys_of_all * lanes_of(Dh)),
           dim3(kElementwise), 0, key_sums.dV, hbm<T>(a["dV"]), p.N_kv, keys, keys_of_all, p.d, 1);
  });
}

/// Predicts the requested bytes: each tile of Q reads K and V up to its last row's last key.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q or O
  int64_t rows = 0;                                // rows of K or V that a head's tiles read
  for (int64_t row = 0; row < p.N; row += plan.block_q)
    rows += p.keys(static_cast<int>(std::min<int64_t>(row + plan.block_q, p.N) - 1));
  const int64_t k = heads * rows * p.d * kIoBytes;
  return {{"attention",
           {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}, {"LSE", 0, heads * p.N * 4}}}};
}

/// Predicts the requested bytes of the backward pass. A tile of keys reads Q and dO from the first
/// tile of Q that attends to one of its keys on, and adds to dQ's sums for the same tiles of Q.
/// minus_delta, LSE_log2e and dQ_sum hold whole tiles of rows. If blocks share a tile of keys, each
/// reads K and V, and adds its part of dK and dV to the sums in HBM.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO or dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK or dV
  const int64_t padded = heads * ceil_div(p.N, plan.block_q) * plan.block_q;  // rows in whole tiles
  const int64_t sums = padded * plan.head_dim * 4;                            // bytes of dQ_sum
  int64_t queries = 0, tiles = 0;  // rows and tiles of Q that a head's tiles of keys read
  int64_t keys = 0, shares = 0;    // rows of K that a head's blocks read; number of those blocks
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    const int64_t q_tiles = ceil_div(p.N - first, plan.block_q);
    const int64_t blocks = std::min<int64_t>(plan.parts, p.H / p.Hk * q_tiles);
    queries += p.N - first;
    tiles += q_tiles;
    keys += blocks * std::min<int64_t>(plan.block_kv, p.N_kv - key);
    shares += blocks;
  }
  const int64_t read = heads * queries * p.d * kIoBytes;     // bytes of Q or dO
  const int64_t rows = heads * tiles * plan.block_q;         // rows of LSE, D or dQ's sums
  const int64_t kv_read = kv_heads * keys * p.d * kIoBytes;  // bytes of K or V
  const bool split = plan.parts > 1;
  Traffic all{{"preprocess",
               {{"O", q, 0},
                {"dO", q, 0},
                {"LSE", heads * p.N * 4, 0},
                {"minus_delta", 0, padded * 4},
                {"LSE_log2e", 0, padded * 4},
                {"dQ_sum", 0, sums}}},
              {"key_gradients",
               {{"Q", read, 0},
                {"K", kv_read, 0},
                {"V", kv_read, 0},
                {"dO", read, 0},
                {"minus_delta", rows * 4, 0},
                {"LSE_log2e", rows * 4, 0},
                {"dQ_sum", rows * p.d * 4, rows * p.d * 4},
                {"dK", 0, split ? 0 : kv},
                {"dV", 0, split ? 0 : kv}}},
              {"postprocess", {{"dQ_sum", 2 * q, 0}, {"dQ", 0, q}}}};  // the sums are fp32
  if (!split) return all;
  const int64_t cleared =  // bytes of dK_sum or dV_sum
      kv_heads * ceil_div(p.N_kv, plan.block_kv) * plan.block_kv * plan.head_dim * 4;
  const int64_t added = kv_heads * shares * plan.block_kv * p.d * 4;  // bytes added to it
  for (const char* name : {"dK_sum", "dV_sum"}) {
    all[0].arrays.push_back({name, 0, cleared});
    all[1].arrays.push_back({name, added, added});
  }
  all.push_back({"postprocess_dK", {{"dK_sum", 2 * kv, 0}, {"dK", 0, kv}}});
  all.push_back({"postprocess_dV", {{"dV_sum", 2 * kv, 0}, {"dV", 0, kv}}});
  return all;
}

const Register step{{
    .rung = "06_backward",
    .name = "split_sums",
    .after = "stages",
    .formerly = {"mma"},
    .is_default = true,
    .shown = {.idea = "sums split",
              .change = {"sram_operand_bytes", "less"},
              .summary = "larger tiles; half of the warps sum up dV, the others dK",
              .colour = "#D55E00"},
    .has_lse = true,
    .tiles = kTiles,
    .settings = kSettings,
    .forward = {plan, forward, traffic},
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
