// 06 · The backward pass with the same bits on every run, an aside.
//
//   D = rowsum(dO∘O)
//   for each tile of Bc rows of K and V, one block each:
//     dK = 0, dV = 0
//     for each tile of Br rows of Q and dO:
//       S = scale·Q·Kᵀ,   P = exp(S − LSE)
//       dV += Pᵀ·dO
//       dP = dO·Vᵀ
//       dS = P∘(dP − D)
//       dK += scale·dSᵀ·Q
//       dQ += scale·dS·K        in HBM, by atomic addition
//
// Since 05: the backward pass. Nothing N × N was kept for it: P comes back tile by tile from Q, K
// and LSE. The forward pass is 05's, unchanged.

#include "machine/machine.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/tile.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kElementwise = 256;  // threads of a block of the small kernels
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

/// Compiled tiles: heads up to …, Br, Bc; for each head size the fastest first.
constexpr TileSize kTiles[] = {{128, 128, 64}, {128, 64, 64}, {256, 64, 64}, {256, 64, 32}};
int64_t smem_bytes(int D, int Br, int Bc) {
  return shared_bytes<fp16>((Br + 2 * Bc) * D);
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: (tiles of Q · B·H).
template <class T, int D, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, D <= 128 ? 2 : 1)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Hbm<float> LSE, Problem p) {
  constexpr int kRows = Br / kWarps;  // rows of Q of a warp
  const int tiles = ceil_div(p.N, Br);
  const auto [bh, tile] =
      longest_first(blockIdx.x, p.B * p.H, tiles, int64_t{4} * p.N_kv * p.d, p.causal);
  const int block_row = (tiles - 1 - tile) * Br;  // the last rows see the most keys
  const int warp_row = warp_id() * kRows, row = block_row + warp_row;
  const int thread = threadIdx.x;
  const auto Q_tile = Q + (p.q_row(bh) + block_row) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const int keys = p.keys(min(block_row + Br, p.N) - 1);  // that the block's last row sees
  const float c = p.scale * kLog2e;                       // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Br, D> tile_Q{smem.take<T>("Q", Br * D)};
  const Tile<T, Bc, D> tile_K{smem.take<T>("K", Bc * D)};
  const Tile<T, Bc, D> tile_V{smem.take<T>("V", Bc * D)};
  copy_async<kThreads>(tile_Q, Q_tile, p.d, p.N - block_row, p.d, thread);
  copy_async<kThreads>(tile_K, K_head, p.d, keys, p.d, thread);
  cp_async_commit();

  // m is kept in units of ln 2, like the exponents of 2^(c·s).
  auto m = fill_rows<kRows>(-INFINITY), l = fill_rows<kRows>(0);
  Accumulator<kRows, D> O_sum;
  for (int key = 0; key < keys; key += Bc) {
    cp_async_wait<0>();
    __syncthreads();  // K is there, and all warps are done with the last V
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, keys - key, p.d, thread);
    cp_async_commit();

    Accumulator<kRows, Bc> S;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      Operand<T, kRows, 16> q;
      load(q, tile_Q, warp_row, k);
      mma_ABt(S, q, tile_K, 0, k);
    }
    if (key + Bc > p.keys(row))
      for_each(S, [&](int i, int j, float& s) {
        if (key + j >= p.keys(row + i)) s = -INFINITY;
      });

    cp_async_wait<0>();
    __syncthreads();  // V is there, and all warps are done with this K
    if (key + Bc < keys)
      copy_async<kThreads>(tile_K, K_head + int64_t{key + Bc} * p.d, p.d, keys - key - Bc, p.d,
                           thread);
    cp_async_commit();

    const auto m_new = max(m, c * row_max(S));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    exp2_rows(S, c, shift);  // S is P from here on
    l = alpha * l + row_sum(S);
    m = m_new;
    mul_rows(O_sum, alpha);
    mma_AB(O_sum, as_operand<T>(S), tile_V, 0, 0);
  }
  cp_async_wait<0>();
  __syncthreads();  // Q is there even where there was no key

  mul_rows(O_sum, inverse_or_zero(l));
  // Through the warp's own rows of Q's tile, so that O is written in whole 16-byte pieces.
  const Tile<T, kRows, D> tile_O{tile_Q.data + warp_row * D};
  write(tile_O, O_sum, 0, 0);
  __syncwarp();
  copy_out<32>(O + (p.q_row(bh) + row) * p.d, p.d, tile_O, p.N - row, p.d, lane_id());
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}

// ---- the backward pass

/// Compiled tiles of the backward pass, in the same form.
constexpr TileSize kBackwardTiles[] = {{64, 128, 128}, {64, 64, 128}, {128, 64, 128},
                                       {128, 32, 64},  {256, 64, 64}, {256, 32, 32}};
/// Stages of copies of Q and dO; at d = 256 there is room for one.
constexpr int backward_stages(int D) {
  return D == 256 ? 1 : 2;
}
/// Rows that a warp makes of each product of a block, and warps of a block.
constexpr int backward_rows(int Br) {
  return Br == 32 ? 16 : 32;
}
constexpr int backward_warps(int Br) {
  return Br == 32 ? 4 : 8;
}
int64_t backward_smem_bytes(int D, int Br, int Bc) {
  const int stages = backward_stages(D);
  return 2 * shared_bytes<fp16>(Bc * D) + 2 * shared_bytes<fp16>(stages * Br * D) +
         2 * shared_bytes<fp16>(Br * Bc) + 2 * shared_bytes<float>(stages * Br);
}
/// The same for the second kernel of --deterministic: queries and keys of a tile, shared memory.
constexpr int kQueries = 64;
constexpr int query_keys(int D) {
  return D == 256 ? 32 : 64;
}
int64_t query_smem_bytes(int D) {
  return 2 * shared_bytes<fp16>(kQueries * D) + 2 * shared_bytes<fp16>(query_keys(D) * D) +
         2 * shared_bytes<float>(kQueries);
}

/// D = rowsum(dO∘O): what the softmax's derivative takes from each row of dP. D/8 lanes a row.
template <class T, int D>
__global__ void row_dots(Hbm<const T> O, Hbm<const T> dO, Hbm<float> D_rows, Problem p) {
  constexpr int kLanes = D / 8;
  const int64_t row = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  const int column = threadIdx.x % kLanes * 8;
  const bool inside = row < int64_t{p.B} * p.H * p.N;
  float sum = 0;
  if (inside && column < p.d) {
    const auto o = read_chunk(O + (row * p.d + column)), g = read_chunk(dO + (row * p.d + column));
    for (int e = 0; e < 8; ++e) sum += float(o[e]) * float(g[e]);
  }
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (inside && column == 0) D_rows[row] = sum;
}

/// dK and dV of one tile of keys. grid: (tiles of K · B·Hk).
template <class T, int D, int Br, int Bc>
__global__ void __launch_bounds__(32 * backward_warps(Br))
    key_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                  Hbm<const float> LSE, Hbm<const float> D_rows, Hbm<T> dK, Hbm<T> dV, Problem p) {
  constexpr int kWarps = backward_warps(Br), kThreads = 32 * kWarps;
  constexpr int kStages = backward_stages(D);
  // Every product is shared out in pieces of kRows rows: `down` warps one below the other, and as
  // many columns for each as that leaves. S, P, dP, dS: Br × Bc; dQ: Br × D; dK, dV: Bc × D.
  constexpr int kRows = backward_rows(Br);
  constexpr int down = Br / kRows, kv_down = Bc / kRows;
  constexpr int kS = Bc * down / kWarps, kKV = D * kv_down / kWarps;
  // bh: of the B·Hk heads of K and V. The first keys are seen by the most rows.
  const auto [bh, tile] = longest_first(blockIdx.x, p.B * p.Hk, ceil_div(p.N_kv, Bc),
                                        int64_t{8} * p.N * p.d * (p.H / p.Hk), p.causal);
  const int key = tile * Bc;
  const int warp_row = warp_id() % down * kRows;  // of S and of dQ
  const int s_column = warp_id() / down * kS;
  const int kv_row = warp_id() % kv_down * kRows, kv_column = warp_id() / kv_down * kKV;
  const int thread = threadIdx.x;
  const int64_t kv_first = (int64_t{bh} * p.N_kv + key) * p.d;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Bc, D> tile_K{smem.take<T>("K", Bc * D)};
  const Tile<T, Bc, D> tile_V{smem.take<T>("V", Bc * D)};
  const auto Q_stages = smem.take<T>("Q", kStages * Br * D);
  const auto dO_stages = smem.take<T>("dO", kStages * Br * D);
  const Tile<T, Br, Bc> tile_P{smem.take<T>("P", Br * Bc)};
  const Tile<T, Br, Bc> tile_dS{smem.take<T>("dS", Br * Bc)};
  const auto LSE_stages = smem.take<float>("LSE", kStages * Br);
  const auto D_stages = smem.take<float>("D", kStages * Br);

  // The query heads of this head of K and V, one after the other; of each, the tiles of Q from the
  // first row that sees a key of this tile.
  const int group = p.H / p.Hk;
  const int first = p.first_query(key);
  const int first_row = first < p.N ? first / Br * Br : p.N;
  const int steps_of_a_head = ceil_div(p.N - first_row, Br);
  const int steps = group * steps_of_a_head;
  const auto head_of = [&](int step) { return int64_t{bh} * group + step / steps_of_a_head; };
  const auto row_of = [&](int step) { return first_row + step % steps_of_a_head * Br; };
  const auto start_copies = [&](int step) {
    if (step < steps) {
      const int row = row_of(step), stage = step % kStages;
      const int64_t at = head_of(step) * p.N + row;
      const Tile<T, Br, D> tile_Q{Q_stages + stage * Br * D}, tile_dO{dO_stages + stage * Br * D};
      copy_async<kThreads>(tile_Q, Q + at * p.d, p.d, p.N - row, p.d, thread);
      copy_async<kThreads>(tile_dO, dO + at * p.d, p.d, p.N - row, p.d, thread);
      copy_async<kThreads, Br>(LSE_stages + stage * Br, LSE + at, p.N - row, thread);
      copy_async<kThreads, Br>(D_stages + stage * Br, D_rows + at, p.N - row, thread);
    }
    cp_async_commit();
  };
  copy_async<kThreads>(tile_K, K + kv_first, p.d, p.N_kv - key, p.d, thread);
  copy_async<kThreads>(tile_V, V + kv_first, p.d, p.N_kv - key, p.d, thread);
  start_copies(0);

  Accumulator<kRows, kKV> dK_sum, dV_sum;
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<0>();
    __syncthreads();  // this step's tiles are there, and all warps are done with the last step's
    if (kStages == 2) start_copies(step + 1);
    const int row = row_of(step), stage = step % kStages;
    const Tile<T, Br, D> tile_Q{Q_stages + stage * Br * D}, tile_dO{dO_stages + stage * Br * D};

    Accumulator<kRows, kS> P;  // S until the exponential
#pragma unroll 2
    for (int k = 0; k < D; k += 16) {
      Operand<T, kRows, 16> q;
      load(q, tile_Q, warp_row, k);
      mma_ABt(P, q, tile_K, s_column, k);
    }
    // A row that sees no key has LSE = −∞, read as +∞: its P is 0.
    const auto lse = make_rows<kRows>([&](int i) {
      const float x = LSE_stages[stage * Br + warp_row + i];
      return x == -INFINITY ? INFINITY : x * kLog2e;
    });
    exp2_rows(P, c, lse);
    if (key + Bc > p.keys(row))
      for_each(P, [&](int i, int j, float& x) {
        if (key + s_column + j >= p.keys(row + warp_row + i)) x = 0;
      });
    write(tile_P, P, warp_row, s_column);

    Accumulator<kRows, kS> dS;  // dP until D is subtracted
#pragma unroll 2
    for (int k = 0; k < D; k += 16) {
      Operand<T, kRows, 16> g;
      load(g, tile_dO, warp_row, k);
      mma_ABt(dS, g, tile_V, s_column, k);
    }
    sub_rows(dS,
             make_rows<kRows>([&](int i) -> float { return D_stages[stage * Br + warp_row + i]; }));
    mul(dS, P);
    write(tile_dS, dS, warp_row, s_column);
    __syncthreads();  // P and dS are complete

#pragma unroll 2
    for (int k = 0; k < Br; k += 16) {
      Operand<T, kRows, 16> a;
      load_transposed(a, tile_P, k, kv_row);
      mma_AB(dV_sum, a, tile_dO, k, kv_column);
    }
#pragma unroll 2
    for (int k = 0; k < Br; k += 16) {
      Operand<T, kRows, 16> a;
      load_transposed(a, tile_dS, k, kv_row);
      mma_AB(dK_sum, a, tile_Q, k, kv_column);
    }
    if (kStages == 1) {
      __syncthreads();  // all warps are done with Q and dO
      start_copies(step + 1);
    }
  }
  cp_async_wait<0>();
  __syncthreads();  // all warps are done with K and V

  // Through the tiles of K and V, so that dK and dV are written in whole 16-byte pieces.
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  write(tile_K, dK_sum, kv_row, kv_column);
  write(tile_V, dV_sum, kv_row, kv_column);
  __syncthreads();
  copy_out<kThreads>(dK + kv_first, p.d, tile_K, p.N_kv - key, p.d, thread);
  copy_out<kThreads>(dV + kv_first, p.d, tile_V, p.N_kv - key, p.d, thread);
}

/// dQ of one tile of queries, for --deterministic: one order of summation, and no atomics. It costs
/// S and dP once more. grid: (tiles of Q · B·H).
template <class T, int D, int Br, int Bc>
__global__ void __launch_bounds__(kThreads)
    query_gradients(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<const T> dO,
                    Hbm<const float> LSE, Hbm<const float> D_rows, Hbm<T> dQ, Problem p) {
  constexpr int kRows = Br / kWarps;  // rows of Q of a warp
  const int tiles = ceil_div(p.N, Br);
  const auto [bh, tile] =
      longest_first(blockIdx.x, p.B * p.H, tiles, int64_t{4} * p.N_kv * p.d, p.causal);
  const int row = (tiles - 1 - tile) * Br, warp_row = warp_id() * kRows;
  const int thread = threadIdx.x;
  const int64_t q_first = (p.q_row(bh) + row) * p.d;
  const auto K_head = K + p.kv_row(bh) * p.d;
  const auto V_head = V + p.kv_row(bh) * p.d;
  const int keys = p.keys(min(row + Br, p.N) - 1);  // that the block's last row sees
  const float c = p.scale * kLog2e;                 // exp(scale·s) = 2^(c·s)

  SharedMemory smem;
  const Tile<T, Br, D> tile_Q{smem.take<T>("Q", Br * D)}, tile_dO{smem.take<T>("dO", Br * D)};
  const Tile<T, Bc, D> tile_K{smem.take<T>("K", Bc * D)}, tile_V{smem.take<T>("V", Bc * D)};
  const auto LSE_tile = smem.take<float>("LSE", Br), D_tile = smem.take<float>("D", Br);
  copy_async<kThreads>(tile_Q, Q + q_first, p.d, p.N - row, p.d, thread);
  copy_async<kThreads>(tile_dO, dO + q_first, p.d, p.N - row, p.d, thread);
  copy_async<kThreads, Br>(LSE_tile, LSE + (p.q_row(bh) + row), p.N - row, thread);
  copy_async<kThreads, Br>(D_tile, D_rows + (p.q_row(bh) + row), p.N - row, thread);
  cp_async_commit();

  Accumulator<kRows, D> dQ_sum;
  for (int key = 0; key < keys; key += Bc) {
    copy_async<kThreads>(tile_K, K_head + int64_t{key} * p.d, p.d, keys - key, p.d, thread);
    copy_async<kThreads>(tile_V, V_head + int64_t{key} * p.d, p.d, keys - key, p.d, thread);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // the tiles are there

    Accumulator<kRows, Bc> P, dS;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      Operand<T, kRows, 16> q, g;
      load(q, tile_Q, warp_row, k);
      mma_ABt(P, q, tile_K, 0, k);
      load(g, tile_dO, warp_row, k);
      mma_ABt(dS, g, tile_V, 0, k);
    }
    exp2_rows(P, c, make_rows<kRows>([&](int i) {
                const float x = LSE_tile[warp_row + i];
                return x == -INFINITY ? INFINITY : x * kLog2e;
              }));
    if (key + Bc > p.keys(row + warp_row))
      for_each(P, [&](int i, int j, float& x) {
        if (key + j >= p.keys(row + warp_row + i)) x = 0;
      });
    sub_rows(dS, make_rows<kRows>([&](int i) -> float { return D_tile[warp_row + i]; }));
    mul(dS, P);
    mma_AB(dQ_sum, as_operand<T>(dS), tile_K, 0, 0);
    __syncthreads();  // all warps are done with K and V
  }
  cp_async_wait<0>();
  __syncthreads();  // Q is there even where there was no key

  for_each(dQ_sum, [&](int, int, float& x) { x *= p.scale; });
  const Tile<T, kRows, D> tile_dQ{tile_Q.data + warp_row * D};
  write(tile_dQ, dQ_sum, 0, 0);
  __syncwarp();
  copy_out<32>(dQ + (q_first + warp_row * p.d), p.d, tile_dQ, p.N - row - warp_row, p.d, lane_id());
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int D = padded_head_dim(p.d);
  Plan plan{.head_dim = D, .warps = kWarps, .stages = 1};
  choose_tile(plan, kTiles, request, device.sram_bytes,
              [&](int Br, int Bc) { return smem_bytes(D, Br, Bc); });
  return plan;
}

Plan backward_plan(const Problem& p, const DeviceInfo& device) {
  const int D = padded_head_dim(p.d);
  Plan plan{.head_dim = D, .stages = backward_stages(D)};
  choose_tile(plan, kBackwardTiles, {}, device.sram_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(D, Br, Bc); });
  plan.warps = backward_warps(plan.block_q);
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  plan.workspace = {{"D", rows * 4}};
  return plan;
}

template <class T, int D, int Br, int Bc>
void launch_forward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
  const auto O = hbm<T>(a["O"]);
  const auto LSE = hbm<float>(a["LSE"]);
  launch("attention", attention<T, D, Br, Bc>, dim3(ceil_div(p.N, Br) * p.B * p.H), dim3(kThreads),
         plan.smem_bytes, Q, K, V, O, LSE, p);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(
      p, plan, [&]<class T, int D, int Br, int Bc>() { launch_forward<T, D, Br, Bc>(p, plan, a); });
}

template <class T, int D, int Br, int Bc>
void launch_backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
  const auto O = hbm<const T>(a["O"]), dO = hbm<const T>(a["dO"]);
  const auto LSE = hbm<float>(a["LSE"]), D_rows = hbm<float>(a["D"]);
  const auto dQ = hbm<T>(a["dQ"]), dK = hbm<T>(a["dK"]), dV = hbm<T>(a["dV"]);
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  const dim3 key_blocks(ceil_div(p.N_kv, Bc) * p.B * p.Hk);
  const dim3 threads(32 * backward_warps(Br));

  launch("row_dots", row_dots<T, D>, dim3(ceil_div(rows * (D / 8), kElementwise)),
         dim3(kElementwise), 0, O, dO, D_rows, p);
  launch("key_gradients", key_gradients<T, D, Br, Bc>, key_blocks, threads, plan.smem_bytes, Q, K,
         V, dO, LSE, D_rows, dK, dV, p);
  launch("query_gradients", query_gradients<T, D, kQueries, query_keys(D)>,
         dim3(ceil_div(p.N, kQueries) * p.B * p.H), dim3(kThreads), query_smem_bytes(D), Q, K, V,
         dO, LSE, D_rows, dQ, p);
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int D, int Br, int Bc>() {
    launch_backward<T, D, Br, Bc>(p, plan, a);
  });
}

/// Requested bytes: every tile of Q reads K and V as far as its last row sees.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q, and of O
  int64_t rows = 0;                                // of K, and of V, that the tiles of a head read
  for (int64_t row = 0; row < p.N; row += plan.block_q)
    rows += p.keys(static_cast<int>(std::min<int64_t>(row + plan.block_q, p.N) - 1));
  const int64_t k = heads * rows * p.d * kIoBytes;
  return {{"attention",
           {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}, {"LSE", 0, heads * p.N * 4}}}};
}

/// Requested bytes of the backward pass: every tile of keys reads Q and dO from the first row that
/// sees one of its keys, and adds to dQ there.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO and dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK and dV
  const int64_t rows = heads * p.N * 4;                   // bytes of LSE and D
  int64_t queries = 0;  // rows that the tiles of keys of a head read
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key));
    if (first < p.N) queries += p.N - first / plan.block_q * plan.block_q;
  }
  queries *= heads;
  const int64_t tiles = queries * p.d * kIoBytes;  // bytes of Q, and of dO, that they read
  KernelTraffic key_gradients{"key_gradients",
                              {{"Q", tiles, 0},
                               {"K", kv, 0},
                               {"V", kv, 0},
                               {"dO", tiles, 0},
                               {"LSE", queries * 4, 0},
                               {"D", queries * 4, 0},
                               {"dK", 0, kv},
                               {"dV", 0, kv}}};
  const KernelTraffic row_dots{"row_dots", {{"O", q, 0}, {"dO", q, 0}, {"D", 0, rows}}};
  int64_t keys = 0;  // that the tiles of Q of a head read
  for (int64_t row = 0; row < p.N; row += kQueries)
    keys += p.keys(static_cast<int>(std::min<int64_t>(row + kQueries, p.N) - 1));
  const int64_t k = heads * keys * p.d * kIoBytes;
  return {row_dots,
          key_gradients,
          {"query_gradients",
           {{"Q", q, 0},
            {"K", k, 0},
            {"V", k, 0},
            {"dO", q, 0},
            {"LSE", rows, 0},
            {"D", rows, 0},
            {"dQ", 0, q}}}};
}

const Register step{{.rung = "06_backward",
                     .name = "deterministic",
                     .summary = "mma without atomic additions: dQ in a kernel of its own",
                     .colour = "#D55E00",
                     .step = 2,
                     .has_lse = true,
                     .deterministic = true,
                     .by_name_only = true,
                     .tiles = kTiles,
                     .plan = plan,
                     .forward = forward,
                     .traffic = traffic,
                     .backward_plan = backward_plan,
                     .backward = backward,
                     .backward_traffic = backward_traffic}};

}  // namespace
}  // namespace ladder::MACHINE
