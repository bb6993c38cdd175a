// 05 on Hopper, aside: products of e4m3, FlashAttention-3's third part. Half the bits, twice the
// rate, and numbers of 4 significant bits.
//
//   build/bin/05_flash_v2 --step fp8 --input outliers --set scale=head,hadamard=off
//
//   Q̂ = e4m3(Q·H/s_Q),  K̂ = e4m3(K·H/s_K),  V̂ᵀ = e4m3(Vᵀ/s_V),  a scale s for each tile
//   for each tile of Br rows of Q̂:
//     m = −∞, l = 0, O = 0
//     for each tile of Bc rows of K̂ and V̂:
//       S = scale·s_Q·s_K·Q̂·K̂ᵀ
//       m_new = max(m, rowmax S + ln s_V),   P = 2⁵·s_V·exp(S − m_new),   α = exp(m − m_new)
//       l ← α·l + rowsum P / s_V
//       O ← α·O + e4m3(P)·V̂
//     O ← O / l,   LSE = m + ln l − ln 2⁵
//
// Since `sm90`: the kernel `quantise` before, which writes what is multiplied to HBM. Scales let
// the largest of the numbers that share one be 448, e4m3's largest; H is orthogonal, so Q·H·(K·H)ᵀ
// is Q·Kᵀ, and spreads what sticks out of a row. Products of 8-bit numbers want both operands'
// neighbours along the inner dimension, so V is stored transposed, and its keys in the order in
// which the sums of S lie in registers. Q is small enough to stay in registers for nearly every d,
// and O, which is larger than its tile, leaves through one of its own. V's scale changes from tile
// to tile; in P's exponent it costs nothing, where in O it would have to be put right in every
// tile. The tensor cores' sums keep 14 bits: with two levels they are one tile's at a time, and O
// is summed in fp32.

#include "machine/hopper.h"
#include "rung.h"
#include "tile/fp8.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarpgroupRows = 64;  // rows of Q of a consumer, which is a warpgroup
constexpr int kStages = 2;          // of K and of V
// P is scaled by 2⁵, and the warp's rows keep their m while none is above 2^(5 + kSlack), which is
// 446 of e4m3's 448. More room would cost small P their bits.
constexpr int kPExponent = 5;
constexpr float kSlack = 3.8f;
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
constexpr float kLeast = 1e-37f;  // of factors of S: with 0 a masked key's −∞ would become NaN
// Named barriers: each consumer's own, and its turn at the tensor cores.
constexpr int kOwn = 1, kTurn = 4;

/// Compiled tiles: heads up to …, Br, Bc. Each consumer has kWarpgroupRows of the Br rows.
constexpr TileSize kTiles[] = {{64, 192, 128}, {128, 128, 128}, {256, 128, 64}};
const Setting kSettings[] = {
    {"scale", {"tile", "head", "tensor"}, "what shares a scale"},
    {"hadamard", {"on", "off"}, "spreads outliers of Q and K"},
    {"p_scale", {"on", "off"}, "P times 2^5 before it is rounded"},
    {"two_level", {"off", "on"}, "adds a tile's P*V to O in fp32"},
};
/// Whether a consumer keeps Q in registers: then each product S = Q·Kᵀ reads K alone from shared
/// memory. With two levels of sums there are not enough of them for wide heads and long tiles.
constexpr bool q_in_registers(int Dh, int Bc, bool two_level) {
  return !two_level || (Dh < 256 && Bc <= 128);
}
/// Columns of O that sums of a tile have registers for, of two levels.
constexpr int part_columns(int Dh, int Bc) {
  return Dh >= 128 && Bc <= 128 ? 64 : 32;
}
/// Threads of a block of `quantise`: each has 64 numbers of a tile of K or V. An SM has registers
/// for 640 of them at most (blocks of 256: 512), which keep 64 kB of reads of K or V under way.
constexpr int quantisers(int Dh, int Bc) {
  return std::max(Dh, 64) * Bc / 64;
}
/// Registers of a thread of a consumer; the producer's keep 32 or 40.
constexpr int registers(int consumers) {
  return consumers == 3 ? 160 : 232;
}
int64_t smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // of a tile, whose panels have 64
  const int consumers = Br / kWarpgroupRows;
  return shared_bytes<e4m3>(Br * columns) + 2 * shared_bytes<e4m3>(kStages * Bc * columns) +
         shared_bytes<fp16>(Br * columns) + shared_bytes<Work>(consumers) +
         shared_bytes<float>(consumers) + shared_bytes<float>(2 * kStages) +
         2 * shared_bytes<Mbarrier>(consumers) + 4 * shared_bytes<Mbarrier>(kStages);
}

/// Tiles of rows that have a scale each: of Q of all heads, then of K, then of V.
struct ScaledTiles {
  int q, kv;       // of a head
  int of_Q, of_K;  // of all heads; V has as many as K
  int64_t all;
};
constexpr ScaledTiles scaled_tiles(const Problem& p, int Bc) {
  const int q = static_cast<int>(ceil_div(p.N, kWarpgroupRows)),
            kv = static_cast<int>(ceil_div(p.N_kv, Bc));
  const int of_Q = q * p.B * p.H, of_K = kv * p.B * p.Hk;
  return {q, kv, of_Q, of_K, of_Q + int64_t{2} * of_K};
}

/// Keys of a row of V̂ᵀ: rows are whole pieces of 16 bytes.
constexpr int64_t padded_keys(int N_kv) {
  return ceil_div(N_kv, 16) * 16;
}

// ---------------------------------------------------------------------------------------- quantise

/// Where row r of V̂ᵀ starts in shared memory. A warp writes 8 bytes to each of 4 places in rows c,
/// c + 8, …, c + 56: those 16 bytes more after every 8 rows put them into different banks. It reads
/// lines of 128 bytes, whose banks are different anyway.
template <int Bc>
__device__ __forceinline__ constexpr int transposed_row(int r) {
  return r * Bc + r / 8 * 16;
}
template <int Dh, int Bc>
constexpr int64_t kQuantiseBytes = shared_bytes<float>(quantisers(Dh, Bc) / 32) +
                                   shared_bytes<e4m3>(transposed_row<Bc>(std::max(Dh, 64)));

/// Each block quantises a tile of Q, K or V to e4m3, with its scale. Where tiles share a scale it
/// takes the largest of their maxima; for them it runs before, with only_maxima.
template <class T, int Dh, int Bc, bool only_maxima>
__global__ void __launch_bounds__(quantisers(Dh, Bc), std::max(1, 640 / quantisers(Dh, Bc)))
    quantise(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<e4m3> Q8, Hbm<e4m3> K8,
             Hbm<e4m3> V8, Hbm<float> maxima, Hbm<float> scales, Quantisation how, Problem p) {
  constexpr int kThreads = quantisers(Dh, Bc), kWarps = kThreads / 32;
  SharedMemory smem;
  const auto of_warps = smem.take<float>("of_warps", kWarps);
  const ScaledTiles tiles = scaled_tiles(p, Bc);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const bool is_Q = block < tiles.of_Q, is_V = block >= tiles.of_Q + tiles.of_K;
  const int first = is_Q ? 0 : is_V ? tiles.of_Q + tiles.of_K : tiles.of_Q;  // of this array
  const int of_head = is_Q ? tiles.q : tiles.kv, of_array = is_Q ? tiles.of_Q : tiles.of_K;
  const int head = (block - first) / of_head, tile = (block - first) % of_head;

  // The scale, once the thread knows the largest number that it has.
  const auto scale_of = [&](float own) {
    if (how.scope != Quantisation::Scope::tile) {
      const bool whole = how.scope == Quantisation::Scope::tensor;
      const int begin = whole ? first : block - tile, end = begin + (whole ? of_array : of_head);
      for (int i = begin + thread; i < end; i += kThreads) own = fmaxf(own, maxima[i]);
    }
    const float scale = e4m3_scale(block_max<kWarps>(own, of_warps));
    if (thread == 0) scales[block] = scale;
    return scale;
  };
  const auto write_maximum = [&](float own) {
    own = block_max<kWarps>(own, of_warps);
    if (thread == 0) maxima[block] = own;
  };

  const auto rows_to_e4m3 = [&]<int R>(Hbm<const T> X, Hbm<e4m3> X8, int N) {
    // A thread has 8 columns of every kStride-th row.
    constexpr int kStride = kThreads / (Dh / 8), n = (R + kStride - 1) / kStride;
    const int64_t first_row = int64_t{head} * N + tile * R;
    const int rows = min(R, N - tile * R), row = thread / (Dh / 8), column = thread % (Dh / 8) * 8;
    const auto source = X + ((first_row + row) * p.d + column);
    Chunk<T> chunks[n];
#pragma unroll
    for (int k = 0; k < n; ++k)
      chunks[k] = read_chunk(source + k * kStride * p.d, row + k * kStride < rows && column < p.d);
    float x[n][8], own = 0;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      widen(x[k], chunks[k]);
      if (how.hadamard) hadamard<Dh>(x[k], column);
      own = fmaxf(own, largest(x[k]));
    }
    if constexpr (only_maxima) return write_maximum(own);
    const float inverse = 1 / scale_of(own);
    const auto target = X8 + ((first_row + row) * Dh + column);
#pragma unroll
    for (int k = 0; k < n; ++k)
      if (row + k * kStride < rows) write_chunk(target + k * kStride * Dh, rounded(x[k], inverse));
  };
  if (is_Q) return rows_to_e4m3.template operator()<kWarpgroupRows>(Q, Q8, p.N);
  if (!is_V) return rows_to_e4m3.template operator()<Bc>(K, K8, p.N_kv);

  // Of V a thread has 8 columns of 8 keys, those that become neighbours: as rows 8 lanes read 128
  // bytes of one, and through shared memory 8 lanes write 128 bytes of a row of V̂ᵀ.
  const int place = thread / 8 % (Bc / 8) * 8, column = (thread % 8 + thread / Bc * 8) * 8;
  const int first_key = tile * Bc + column_at(place);  // place is a multiple of 8
  const auto source = V + ((int64_t{head} * p.N_kv + first_key) * p.d + column);
  Chunk<T> chunks[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int key = column_at(e);
    chunks[e] = read_chunk(source + key * p.d, first_key + key < p.N_kv && column < p.d);
  }
  float x[8][8], own = 0;  // [key][column]
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    widen(x[e], chunks[e]);
    own = fmaxf(own, largest(x[e]));
  }
  if constexpr (only_maxima) return write_maximum(own);
  const float inverse = 1 / scale_of(own);
  const auto transposed = smem.take<e4m3>("transposed", transposed_row<Bc>(std::max(Dh, 64)));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float of_column[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) of_column[e] = x[e][i];
    write_chunk(transposed + (transposed_row<Bc>(column + i) + place), rounded(of_column, inverse));
  }
  __syncthreads();  // the tile is transposed
  constexpr int kPieces = Bc / 16;
  const int64_t pitch = padded_keys(p.N_kv);
  const int piece = thread % kPieces * 16;
  const auto target = V8 + (int64_t{head} * p.d * pitch + tile * Bc + piece);
  if (tile * Bc + piece < pitch)
    for (int row = thread / kPieces; row < p.d; row += kThreads / kPieces)
      store_16_bytes(target + row * pitch, transposed + (transposed_row<Bc>(row) + piece));
}

// --------------------------------------------------------------------------------------- attention

/// No block has asked for a further tile of Q yet.
__global__ void clear(Hbm<int> next) {
  next[0] = 0;
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: as many blocks as there are SMs; each takes a tile of
/// Q, and whenever it is done with one, the next that nobody has.
template <class T, int Dh, int kConsumers, int Bc, bool kTwoLevel>
__global__ void __launch_bounds__(kWarpgroup*(1 + kConsumers), 1)
    attention(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
              const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_O,
              Hbm<const float> scales, Hbm<float> LSE, Hbm<int> next, int p_exponent, Problem p) {
  using TileQ = SwizzledTile<e4m3, kWarpgroupRows, Dh>;
  using TileK = SwizzledTile<e4m3, Bc, Dh>;
  using TileV = SwizzledTile<e4m3, Dh, Bc>;  // transposed
  using TileO = SwizzledTile<T, kWarpgroupRows, Dh>;
  constexpr int Br = kConsumers * kWarpgroupRows;
  const int tiles = ceil_div(p.N, Br), works = tiles * p.B * p.H;
  const ScaledTiles scaled = scaled_tiles(p, Bc);
  // Half as many blocks at once as in mma, so half as many heads: what a group requests from HBM at
  // its start comes in smaller bursts.
  const auto work = [&](int index) {
    return longest_first(index, {.heads = p.B * p.H,
                                 .tiles = tiles,
                                 .head_bytes = int64_t{2} * p.N_kv * p.d,
                                 .uneven = p.causal,
                                 .group_bytes = 8 << 20});
  };
  // Tiles are laid from the last row up, since the last rows see the most keys. So a tile that some
  // consumers find empty, with rows before row 0, is the one with the fewest keys.
  const int end = static_cast<int>(ceil_div(p.N, kWarpgroupRows)) * kWarpgroupRows;
  const auto row_of = [&](const Work& w) { return end - (w.tile + 1) * Br; };
  // Tiles of K and V that rows [row, row + rows) see; one at least, all masked if need be.
  const auto kv_tiles_of = [&](int row, int rows) {
    const int last = min(row + rows, p.N) - 1, keys = last >= 0 ? p.keys(last) : 0;
    return keys > 0 ? static_cast<int>(ceil_div(keys, Bc)) : 1;
  };

  SharedMemory smem;
  Stages<TileQ, 1, kConsumers> Q{smem, "Q"};  // a tile of its own for each consumer
  Stages<TileK, kStages> K{smem, "K"};
  Stages<TileV, kStages> V{smem, "V"};
  const auto smem_O = smem.tiles<TileO>("O", kConsumers);
  const auto smem_work = smem.take<Work>("work", kConsumers);       // which tile of Q it is
  const auto scale_Q = smem.take<float>("scale_Q", kConsumers);     // and its scale
  const auto scale_KV = smem.take<float>("scale_KV", 2 * kStages);  // K's, and log2 of V's
  // A release by each warp.
  Q.init(smem, "Q_full", "Q_free", 4);
  K.init(smem, "K_full", "K_free", 4 * kConsumers);
  V.init(smem, "V_full", "V_free", 4 * kConsumers);
  if (threadIdx.x == 0) fence_mbarrier_init();
  __syncthreads();

  if (warpgroup_id() == 0) {  // the producer
    setmaxnreg_dec<kConsumers == 3 ? 32 : 40>();
    if (threadIdx.x != 0) return;
    // A tile of Q comes with its tile and head, so that consumers need not divide; after the last
    // one the head is negative.
    const auto send = [&](const Work& w) {
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        const int row = row_of(w) + consumer * kWarpgroupRows;
        Q.acquire();
        smem_work[Q.number()] = w;
        if (w.head < 0) {
          Q.fill_with_nothing();
          continue;
        }
        if (row >= 0)
          scale_Q[Q.number()] = scales[w.head * scaled.q + row / kWarpgroupRows];
        else
          scale_Q[Q.number()] = 1.0f;
        Q.fill(map_Q, 0, row, w.head % p.H, w.head / p.H);
      }
    };
    for (int index = blockIdx.x; index < works;) {
      const Work w = work(index);
      send(w);
      const int batch = w.head / p.H, head_kv = p.kv_head(w.head % p.H);
      const int first = scaled.of_Q + (batch * p.Hk + head_kv) * scaled.kv;
      const int kv_tiles = kv_tiles_of(row_of(w), Br);
      for (int kv_tile = 0; kv_tile < kv_tiles; ++kv_tile) {
        const float of_K = scales[first + kv_tile], of_V = scales[first + scaled.of_K + kv_tile];
        K.acquire();
        scale_KV[2 * K.number()] = of_K;
        scale_KV[2 * K.number() + 1] = logf(of_V) * kLog2e;
        K.fill(map_K, 0, kv_tile * Bc, head_kv, batch);
        // Fetched late for balance, but before the next wait, which hides the latency.
        if (kv_tile == kv_tiles - 1) index = gridDim.x + atomicAdd(next, 1);
        V.acquire();
        V.fill(map_V, kv_tile * Bc, 0, head_kv, batch);
      }
    }
    send({-1, -1});
    return;
  }

  setmaxnreg_inc<registers(kConsumers)>();  // a consumer
  const int consumer = warpgroup_id() - 1, warp_row = warp_id() % 4 * 16;
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  const TileO tile_O{smem_O + consumer * TileO::kElements};
  // Consumers take turns to issue products, so that one's softmax runs under another's products.
  const auto begin_turn = [&] { named_barrier_sync(kTurn + consumer, 2 * kWarpgroup); };
  const auto end_turn = [&] {
    named_barrier_arrive(kTurn + (consumer + 1) % kConsumers, 2 * kWarpgroup);
  };
  if (consumer == kConsumers - 1) end_turn();  // the first one's turn
  Q.share = consumer;

  Accumulator<16, Bc> S;
  Operand<e4m3, 16, Bc> P;
  Operand<e4m3, 16, Dh> Q_rows;                // if it is kept in registers
  Accumulator<16, Dh> O_sum;                   // of two levels: the second
  constexpr int kPart = part_columns(Dh, Bc);  // columns of the first at a time
  Accumulator<16, kPart> tile_sum;
  const auto start_scores = [&] {  // S = Q·Kᵀ
    if constexpr (q_in_registers(Dh, Bc, kTwoLevel)) {
      wgmma_fence(S, Q_rows);
      wgmma_ABt(S, Q_rows, K.tile(), 0);
    } else {
      wgmma_fence(S);
      wgmma_ABt(S, Q.tile(), 0, K.tile(), 0);
    }
    wgmma_commit();
  };
  // O += P·V; of two levels P·V alone, of kPart columns.
  const auto start_part = [&](int column) {
    wgmma_fence(tile_sum, P);
    wgmma_ABt(tile_sum, P, V.tile(), 0, column);
    wgmma_commit();
  };
  const auto start_output = [&] {
    V.wait();
    if constexpr (kTwoLevel) return start_part(0);
    wgmma_fence(O_sum, P);
    wgmma_ABt(O_sum, P, V.tile());
    wgmma_commit();
  };
  const auto finish_output = [&] {
    if constexpr (kTwoLevel) {
#pragma unroll
      for (int column = 0; column < Dh; column += kPart) {
        if (column > 0) start_part(column);
        wgmma_wait<0>(tile_sum, P);
        add_columns(O_sum, column, tile_sum);
      }
    } else {
      wgmma_wait<0>(O_sum, P);
    }
    V.release();
  };
  for (;;) {
    Q.wait();
    const Work w = smem_work[Q.number()];
    if (w.head < 0) break;
    const int batch = w.head / p.H, head = w.head % p.H;
    const int tile_row = row_of(w) + consumer * kWarpgroupRows, row = tile_row + warp_row;
    const int my_kv_tiles = kv_tiles_of(tile_row, kWarpgroupRows),
              kv_tiles = kv_tiles_of(row_of(w), Br);
    const float c_Q = p.scale * kLog2e * scale_Q[Q.number()];  // exp(scale·s) = 2^(c·s)
    __syncwarp();
    if constexpr (q_in_registers(Dh, Bc, kTwoLevel)) {
      load(Q_rows, Q.tile(), warp_row);
      Q.release();
    }

    // m is kept in units of ln 2, like the exponents of 2^(c·s). It is the maximum of c·s + log2
    // s_V, so that P·V̂ needs no scale of V any more, whichever tile it is of.
    auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0), alpha = m;
    O_sum = {};
    // S becomes s_V·P, by the rows' maxima when m was last raised. Whether it was raised now: then
    // O has to be scaled by alpha.
    const auto softmax = [&](int key, float c, float of_V) {
      if (key + Bc > p.keys(row))
        for_each(S, [&](int i, int j, float& s) {
          if (key + j >= p.keys(row + i)) s = -INFINITY;
        });
      const auto largest = c * row_max_in_lane(S) + fill_rows<16>(of_V);
      const bool raised = any_above(largest - m, kSlack);
      if (raised) {
        const auto m_new = max(m, max_over_lanes(largest));
        alpha = exp2(m - finite_or_zero(m_new));
        l = alpha * l;
        m = m_new;
      }
      exp2_rows(S, c, finite_or_zero(m) - fill_rows<16>(p_exponent + of_V));
      l = l + exp2_fast(-of_V) * row_sum_in_lane(S);
      return raised;
    };
    float c, of_V;  // this tile's: c with the scales of Q and K, and log2 of V's scale
    const auto wait_for_K = [&] {
      K.wait();
      c = fmaxf(c_Q * scale_KV[2 * K.number()], kLeast);
      of_V = scale_KV[2 * K.number() + 1];
      __syncwarp();
    };

    wait_for_K();
    begin_turn();
    start_scores();
    end_turn();
    wgmma_wait<0>(S);
    K.release();
    softmax(0, c, of_V);
    P = as_permuted_operand<e4m3>(S);
    for (int kv_tile = 1; kv_tile < my_kv_tiles; ++kv_tile) {
      // From here on the softmax of one tile runs under the product P·V of the tile before.
      wait_for_K();
      begin_turn();
      start_scores();
      start_output();
      end_turn();
      wgmma_wait<1>(S);
      K.release();
      const bool raised = softmax(kv_tile * Bc, c, of_V);
      finish_output();
      if (raised) mul_rows(O_sum, alpha);
      P = as_permuted_operand<e4m3>(S);
    }
    if constexpr (!q_in_registers(Dh, Bc, kTwoLevel)) Q.release();
    start_output();
    finish_output();
    for (int kv_tile = my_kv_tiles; kv_tile < kv_tiles; ++kv_tile) {  // the other consumers' alone
      K.wait();  // the turns keep consumers together too; without them this would have to
      begin_turn();
      end_turn();
      K.release();
      V.wait();
      V.release();
    }

    l = sum_over_lanes(l);
    mul_rows(O_sum, inverse_or_zero(l));
    if (first_thread) tma_store_wait_read<0>();  // of the last piece of work
    named_barrier_sync(kOwn + consumer, kWarpgroup);
    write(tile_O, O_sum, warp_row);
    fence_proxy_async();
    named_barrier_sync(kOwn + consumer, kWarpgroup);
    if (first_thread && tile_row >= 0) {  // else there is nothing to store
      tma_store(map_O, tile_O, 0, tile_row, head, batch);
      tma_store_commit();
    }
    for_each_row(m, l, [&](int i, float max, float sum) {
      if (row + i >= 0 && row + i < p.N)
        LSE[p.q_row(w.head) + row + i] =
            sum > 0 ? (max - p_exponent) * kLn2 + logf(sum) : -INFINITY;
    });
  }
  if (first_thread) tma_store_wait_read<0>();
  if (consumer == 0) begin_turn();  // receives the last consumer's last hand-over
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .stages = kStages};
  choose_tile(plan, kTiles, request, device.sram_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  plan.warps = 4 * (1 + plan.block_q / kWarpgroupRows);
  plan.settings = choose_settings(kSettings, request.settings);
  const auto on = [&](const char* name) { return plan.settings.at(name) == "on"; };
  using enum Quantisation::Scope;
  const std::string& scope = plan.settings.at("scale");
  plan.quantisation = {.scope = scope == "tile"   ? tile
                                : scope == "head" ? head
                                                  : tensor,
                       .tile_q = kWarpgroupRows,
                       .tile_kv = plan.block_kv,
                       .hadamard = on("hadamard"),
                       .p_exponent = on("p_scale") ? kPExponent : 0,
                       .slack = kSlack,
                       .two_level = on("two_level")};
  const int64_t heads = int64_t{p.B} * p.H, heads_kv = int64_t{p.B} * p.Hk;
  const int64_t scale_bytes = 4 * scaled_tiles(p, plan.block_kv).all;
  plan.workspace = {{"Q8", heads * p.N * Dh},
                    {"K8", heads_kv * p.N_kv * Dh},
                    {"V8", heads_kv * p.d * padded_keys(p.N_kv)},
                    {"scales", scale_bytes},
                    {"next", 4}};
  if (plan.quantisation->scope != tile) plan.workspace.push_back({"maxima", scale_bytes});
  return plan;
}

template <class T, int Dh, int Br, int Bc>
void launch_forward(const Problem& p, const Plan& plan, const Arrays& a) {
  const Quantisation& how = *plan.quantisation;
  const bool shared = how.scope != Quantisation::Scope::tile;
  const auto quantise_by = [&](const char* name, auto kernel) {
    launch(name, kernel, dim3(scaled_tiles(p, Bc).all), dim3(quantisers(Dh, Bc)),
           kQuantiseBytes<Dh, Bc>, hbm<const T>(a["Q"]), hbm<const T>(a["K"]), hbm<const T>(a["V"]),
           hbm<e4m3>(a["Q8"]), hbm<e4m3>(a["K8"]), hbm<e4m3>(a["V8"]),
           hbm<float>(a[shared ? "maxima" : "scales"]), hbm<float>(a["scales"]), how, p);
  };
  if (shared) quantise_by("maxima", quantise<T, Dh, Bc, true>);
  quantise_by("quantise", quantise<T, Dh, Bc, false>);

  constexpr int kConsumers = Br / kWarpgroupRows;
  const auto map_of_rows = [&](const char* name, int rows, int heads, int box_rows) {
    return tensor_map<e4m3>(a[name], Dh, rows, heads, p.B, box_rows,
                            SwizzledTile<e4m3, kWarpgroupRows, Dh>::kPanelBytes);
  };
  const auto next = hbm<int>(a["next"]);
  launch("clear", clear, dim3(1), dim3(1), 0, next);
  const int64_t works = ceil_div(p.N, Br) * p.B * p.H;
  launch("attention",
         how.two_level ? attention<T, Dh, kConsumers, Bc, true>
                       : attention<T, Dh, kConsumers, Bc, false>,
         dim3(std::min<int64_t>(works, multiprocessors())), dim3(kWarpgroup * (1 + kConsumers)),
         plan.smem_bytes, map_of_rows("Q8", p.N, p.H, kWarpgroupRows),
         map_of_rows("K8", p.N_kv, p.Hk, Bc),
         tensor_map<e4m3>(a["V8"], padded_keys(p.N_kv), p.d, p.Hk, p.B, Dh,
                          SwizzledTile<e4m3, Dh, Bc>::kPanelBytes),
         tensor_map<T>(a["O"], p.d, p.N, p.H, p.B, kWarpgroupRows), hbm<const float>(a["scales"]),
         hbm<float>(a["LSE"]), next, how.p_exponent, p);
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch_forward<T, Dh, Br, Bc>(p, plan, a);
  });
}

/// Requested bytes: quantise reads everything once, and what it writes every tile of Q reads: whole
/// tiles of K and V as far as its last row sees, and one at least.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, heads_kv = int64_t{p.B} * p.Hk, Dh = plan.head_dim;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q, and of O
  const int64_t kv = heads_kv * p.N_kv * p.d * kIoBytes;
  const int64_t pitch = padded_keys(p.N_kv);
  const ScaledTiles tiles = scaled_tiles(p, plan.block_kv);
  Traffic traffic;
  int64_t maxima = 0;  // bytes of them that quantise reads
  if (plan.quantisation->scope != Quantisation::Scope::tile) {
    traffic.push_back({"maxima", {{"Q", q, 0}, {"K", kv, 0}, {"V", kv, 0}}});
    traffic.back().arrays.push_back({"maxima", 0, 4 * tiles.all});
    const bool whole = plan.quantisation->scope == Quantisation::Scope::tensor;
    maxima = 4 * (int64_t{tiles.of_Q} * (whole ? tiles.of_Q : tiles.q) +
                  int64_t{2} * tiles.of_K * (whole ? tiles.of_K : tiles.kv));
  }
  traffic.push_back({"quantise",
                     {{"Q", q, 0},
                      {"K", kv, 0},
                      {"V", kv, 0},
                      {"maxima", maxima, 0},
                      {"Q8", 0, heads * p.N * Dh},
                      {"K8", 0, heads_kv * p.N_kv * Dh},
                      {"V8", 0, heads_kv * p.d * pitch},
                      {"scales", 0, 4 * tiles.all}}});

  int64_t rows = 0, columns = 0, all_kv_tiles = 0;  // of K8 and V8 that the tiles of a head read
  for (int64_t row = ceil_div(p.N, kWarpgroupRows) * kWarpgroupRows; row > 0; row -= plan.block_q) {
    const int keys = p.keys(static_cast<int>(std::min<int64_t>(row, p.N) - 1));
    const int64_t kv_tiles = std::max<int64_t>(1, ceil_div(keys, plan.block_kv));
    rows += std::min<int64_t>(kv_tiles * plan.block_kv, p.N_kv);
    columns += std::min<int64_t>(kv_tiles * plan.block_kv, pitch);
    all_kv_tiles += kv_tiles;
  }
  // A block asks for another tile of Q after each that it has had, the last time in vain.
  const int64_t asked = 4 * heads * ceil_div(p.N, plan.block_q);
  traffic.push_back({"clear", {{"next", 0, 4}}});
  traffic.push_back({"attention",
                     {{"Q8", heads * p.N * Dh, 0},
                      {"K8", heads * rows * Dh, 0},
                      {"V8", heads * columns * p.d, 0},
                      {"scales", 4 * heads * (tiles.q + 2 * all_kv_tiles), 0},
                      {"O", 0, q},
                      {"LSE", 0, heads * p.N * 4},
                      {"next", asked, asked}}});
  return traffic;
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "fp8",
    .after = "sm90",
    .aside = true,
    .shown = {.idea = "products in FP8",
              .change = {"products", "less"},
              .summary = "aside: products of e4m3, the inputs quantised before",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .settings = kSettings,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
