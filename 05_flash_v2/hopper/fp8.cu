// 05 on Hopper, aside: products in e4m3 (Shah et al. 2024, FlashAttention-3, §3.3). Numbers take 8
// bits instead of 16, only 4 of them significant; products run at twice the rate.
//
//   build/bin/05_flash_v2 --step fp8 --input outliers --set scale=head,hadamard=off
//
//   Q̂ = e4m3(Q·H/s_Q),  K̂ = e4m3(K·H/s_K),  V̂ᵀ = e4m3(Vᵀ/s_V),  with one scale s per tile
//   for each tile of Br rows of Q̂:
//     m = −∞, l = 0, O = 0
//     for each tile of Bc rows of K̂ and V̂:
//       S = scale·s_Q·s_K·Q̂·K̂ᵀ
//       m_new = max(m, rowmax S + ln s_V),   P = 2⁵·s_V·exp(S − m_new),   α = exp(m − m_new)
//       l ← α·l + rowsum P / s_V
//       O ← α·O + e4m3(P)·V̂
//     O ← O / l,   LSE = m + ln l − ln 2⁵
//
// Since `sm90`, these parts are new:
//
//   quantise   runs first: a kernel that writes Q̂, K̂, V̂ᵀ and the scales to HBM (quantise.h). A
//              scale maps the largest magnitude among its numbers to 448, e4m3's largest number.
//   H          is orthogonal, so Q·H·(K·H)ᵀ = Q·Kᵀ. It spreads a row's outliers over all of its
//              columns (fp8.h).
//   V̂ᵀ         8-bit operands must be contiguous along the dimension over which the product sums.
//              So V is transposed, and its keys follow the order of S in a lane (KeyOrder).
//   s_V        differs from tile to tile. In P's exponent it costs nothing; otherwise O would have
//              to be rescaled for every tile.
//   Q and O    Q stays in registers, except at d = 256 with two levels. An O tile takes twice the
//              bytes of a Q tile, so O leaves through a tile of its own.
//   two_level  The tensor cores' sums keep 14 bits. With two levels they sum only one tile at a
//              time, and ordinary additions accumulate O in fp32.
//
// These parts of `sm90` are gone: tiles chosen by estimated time, tiles that blocks share or take
// in turn, the second stage of Q, the early start of `attention`, and the mask per row.

#include "block.h"
#include "machine/hopper.h"
#include "quantise.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"
#include "work.h"

namespace ladder::MACHINE {
namespace {

constexpr int kStages = 2;  // stages of K and of V
// P is scaled by 2⁵, and a warp's rows keep their m while no scaled P exceeds 2^(5 + kSlack). That
// is 446, just below e4m3's largest number, 448. With a smaller factor than 2⁵, m would rise less
// often, but small elements of P would lose bits.
constexpr int kPExponent = 5;
constexpr float kSlack = 3.8f;
constexpr float kLeast = 1e-37f;  // lowest factor for S; 0 would turn a masked key's −∞ into NaN
constexpr int kPingPong = 4;      // first named barrier for the consumers' turns

/// Compiled tiles: {largest head size, Br, Bc}. Each consumer has kWarpgroupRows of the Br rows.
constexpr TileSize kTiles[] = {{64, 192, 128}, {128, 128, 128}, {256, 128, 64}};
const Setting kSettings[] = {
    {"scale", {"tile", "head", "tensor"}, "what shares a scale"},
    {"hadamard", {"on", "off"}, "spreads outliers of Q and K"},
    {"p_scale", {"on", "off"}, "P times 2^5 before it is rounded"},
    {"two_level", {"off", "on"}, "adds a tile's P*V to O in fp32"},
};
/// Returns whether a consumer keeps Q in registers, so that each product S = Q·Kᵀ reads only K from
/// shared memory. With two levels of sums, heads of 256 columns leave no registers for Q, and
/// neither would tiles of more than 128 keys.
constexpr bool q_in_registers(int Dh, int Bc, bool two_level) {
  return !two_level || (Dh < 256 && Bc <= 128);
}
/// With two levels of sums, returns how many columns of O the first level computes at a time, as
/// registers permit.
constexpr int part_columns(int Dh, int Bc) {
  return Dh >= 128 && Bc <= 128 ? 64 : 32;
}

int64_t smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // of a tile: whole panels of 64
  const int consumers = Br / kWarpgroupRows;
  return array_bytes<e4m3>(Br * columns) + 2 * array_bytes<e4m3>(kStages * Bc * columns) +
         array_bytes<fp16>(Br * columns) + array_bytes<WorkTile>(consumers) +
         array_bytes<float>(consumers) + array_bytes<float>(2 * kStages) +
         2 * array_bytes<Mbarrier>(consumers) + 4 * array_bytes<Mbarrier>(kStages);
}

/// Maps a column i of V̂ᵀ to its key in the tile of V. A lane's registers hold the keys of S, and
/// thus of P, in the same order.
struct KeyOrder {
  __device__ __forceinline__ int operator()(int i) const { return column_at(i); }
};

/// Returns the number of tiles of K and V for rows of Q that end before row `end`, and at least 1.
/// Unlike kv_tiles_of it accepts an `end` of 0 or less, because in this step a consumer whose rows
/// all lie before row 0 also computes one tile, from rows that TMA filled with zeros, and stores
/// nothing.
template <int Bc>
__device__ __forceinline__ int tiles_seen(int end, const Problem& p) {
  const int last = min(end, p.N) - 1, keys = last >= 0 ? p.keys(last) : 0;
  return keys > 0 ? static_cast<int>(ceil_div(keys, Bc)) : 1;
}

/// The rings of Q, K and V.
template <class StagesQ, class StagesK, class StagesV>
struct Rings {
  StagesQ Q;
  StagesK K;
  StagesV V;
};
template <class StagesQ, class StagesK, class StagesV>
Rings(StagesQ, StagesK, StagesV) -> Rings<StagesQ, StagesK, StagesV>;  // clang 16 needs this guide
/// The data that the producer hands over along with the tiles.
struct WithTiles {
  Smem<WorkTile> work;   // per consumer: its tile of Q
  Smem<float> scale_Q;   // per consumer: the scale of that tile
  Smem<float> scale_KV;  // two per stage: K's scale, and log2 of V's scale
};

/// Runs the producer thread: starts the copies of the block's tiles of Q and, for each of these, of
/// its tiles of K and V, and hands over their scales.
template <int Br, int Bc, class StagesQ, class StagesK, class StagesV>
__device__ __forceinline__ void produce(Rings<StagesQ, StagesK, StagesV> rings,
                                        const WithTiles& with, const InputMaps& maps,
                                        Hbm<const float> scales, Hbm<int> next, const Problem& p) {
  auto& [Q, K, V] = rings;
  const ScaledTiles scaled = scaled_tiles(p, Bc);
  // Sends a tile of Q with its number and head, so that the consumers need no divisions. A negative
  // head, sent after the last tile, ends the consumers' loops.
  const auto send = [&](const WorkTile& work) {
    for (int row = row_from_end<Br>(work, p), end = row + Br; row < end; row += kWarpgroupRows) {
      Q.acquire();
      with.work[Q.number()] = work;
      if (work.head < 0) {
        Q.signal_end();
        continue;
      }
      if (row >= 0)
        with.scale_Q[Q.number()] = scales[work.head * scaled.q + row / kWarpgroupRows];
      else
        with.scale_Q[Q.number()] = 1.0f;
      Q.fill(maps.Q, 0, row, work.head % p.H, work.head / p.H);
    }
  };
  // Groups of heads are small, so that the requests at a group's start come in smaller bursts
  // (work.h).
  const WorkList all{.heads = p.B * p.H,
                     .tiles = static_cast<int>(ceil_div(p.N, Br)),
                     .head_bytes = int64_t{2} * p.N_kv * p.d,
                     .uneven = p.causal,
                     .group_bytes = 8 << 20};
  for (int index = blockIdx.x; index < all.heads * all.tiles;) {
    const WorkTile work = longest_first(index, all);
    send(work);
    const int batch = work.head / p.H, head_kv = p.kv_head(work.head % p.H);
    const int first = scaled.of_Q + (batch * p.Hk + head_kv) * scaled.kv;
    const int kv_tiles = tiles_seen<Bc>(row_from_end<Br>(work, p) + Br, p);
    for (int kv_tile = 0; kv_tile < kv_tiles; ++kv_tile) {
      const float of_K = scales[first + kv_tile], of_V = scales[first + scaled.of_K + kv_tile];
      K.acquire();
      with.scale_KV[2 * K.number()] = of_K;
      with.scale_KV[2 * K.number() + 1] = logf(of_V) * kLog2e;
      K.fill(maps.K, 0, kv_tile * Bc, head_kv, batch);
      // The next tile is requested late, to balance the load, but before the next wait, which hides
      // the request's latency.
      if (kv_tile == kv_tiles - 1) index = gridDim.x + atomicAdd(next, 1);
      V.acquire();
      V.fill(maps.V, kv_tile * Bc, 0, head_kv, batch);
    }
  }
  send({-1, -1});
}

/// With two levels of sums, starts the first level: P·V for N columns, starting at `column`.
template <int N, int Bc, int Dh>
__device__ __forceinline__ void start_part(Accumulator<16, N>& tile_sum, Operand<e4m3, 16, Bc>& P,
                                           const SwizzledTile<e4m3, Dh, Bc>& tile_V, int column) {
  wgmma_fence(tile_sum, P);
  wgmma_set_ABt(tile_sum, P, tile_V, column);
  wgmma_commit();
}

/// Turns S into s_V·P·2^p_exponent and adds P·2^p_exponent to the running sums l, both relative to
/// each row's m, which is raised first if needed. Returns whether m was raised; if so, O has to
/// be rescaled by alpha. S starts at (row, key). c includes the scales of Q and K; of_V is log2
/// s_V. m is the maximum of c·s + log2 s_V, so that s_V·P is in e4m3's range; the product with V̂
/// then needs no further scale of V.
template <int Bc>
__device__ __forceinline__ bool softmax(Accumulator<16, Bc>& S, Rows<16>& m, Rows<16>& l,
                                        Rows<16>& alpha, int row, int key, float c, float of_V,
                                        int p_exponent, const Problem& p) {
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
}

/// Waits until S is complete; up to `groups` later products may still run. If Q is kept in
/// registers, the product also owns Q's registers until it completes.
template <int groups, bool kTwoLevel, int Dh, int Bc>
__device__ __forceinline__ void wait_for_scores(Accumulator<16, Bc>& S,
                                                Operand<e4m3, 16, Dh>& Q_rows) {
  if constexpr (q_in_registers(Dh, Bc, kTwoLevel))
    wgmma_wait<groups>(S, Q_rows);
  else
    wgmma_wait<groups>(S);
}

/// Divides a consumer's rows of O by l and stores O and LSE to HBM. O goes through a tile of its
/// own, and TMA stores it from there. l contains P's factor 2^p_exponent; LSE does not.
template <class T, int Dh>
__device__ __forceinline__ void store_output(const SwizzledTile<T, kWarpgroupRows, Dh>& tile,
                                             Accumulator<16, Dh>& O_sum, const Rows<16>& m,
                                             Rows<16> l, const TensorMap& map_O, Hbm<float> LSE,
                                             int bh, int tile_row, int p_exponent,
                                             const Problem& p) {
  const int row = tile_row + warp_id() % 4 * 16, barrier = kWarpgroupBarrier + warpgroup_id();
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  l = sum_over_lanes(l);
  mul_rows(O_sum, inverse_or_zero(l));
  if (first_thread) tma_store_wait_read<0>();  // the previous tile's O has left,
  named_barrier_sync(barrier, kWarpgroup);     // so all warps may write here
  write(tile, O_sum, row - tile_row);
  fence_proxy_async();                      // makes this thread's writes visible to TMA
  named_barrier_sync(barrier, kWarpgroup);  // all of the tile is written
  if (first_thread && tile_row >= 0) {      // a consumer without rows stores nothing
    tma_store(map_O, tile, 0, tile_row, bh % p.H, bh / p.H);
    tma_store_commit();
  }
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i >= 0 && row + i < p.N)
      LSE[p.q_row(bh) + row + i] = sum > 0 ? (max - p_exponent) * kLn2 + logf(sum) : -INFINITY;
  });
}

/// Runs a consumer warpgroup: computes O and LSE for its rows in each of the block's tiles of Q.
template <class T, int Dh, int Br, int Bc, bool kTwoLevel, class StagesQ, class StagesK,
          class StagesV>
__device__ __forceinline__ void consume(Rings<StagesQ, StagesK, StagesV> rings,
                                        const WithTiles& with, Smem<T> smem_O,
                                        const TensorMap& map_O, Hbm<float> LSE, int p_exponent,
                                        const Problem& p) {
  auto& [Q, K, V] = rings;
  using TileO = SwizzledTile<T, kWarpgroupRows, Dh>;
  constexpr int kConsumers = Br / kWarpgroupRows;
  const int consumer = warpgroup_id() - 1, warp_row = warp_id() % 4 * 16;
  const TileO tile_O{smem_O + consumer * TileO::kElements};
  // Consumers take turns issuing products, so that one's softmax overlaps another's products.
  const auto begin_turn = [&] { named_barrier_sync(kPingPong + consumer, 2 * kWarpgroup); };
  const auto end_turn = [&] {
    named_barrier_arrive(kPingPong + (consumer + 1) % kConsumers, 2 * kWarpgroup);
  };
  if (consumer == kConsumers - 1) end_turn();  // gives the first consumer its turn
  Q.slot = consumer;

  Accumulator<16, Bc> S;
  Operand<e4m3, 16, Bc> P;
  Operand<e4m3, 16, Dh> Q_rows;                // used if Q is kept in registers
  Accumulator<16, Dh> O_sum;                   // with two levels of sums: the second level
  constexpr int kPart = part_columns(Dh, Bc);  // columns of the first level at a time
  Accumulator<16, kPart> tile_sum;
  const auto start_scores = [&] {  // S = Q·Kᵀ
    if constexpr (q_in_registers(Dh, Bc, kTwoLevel)) {
      wgmma_fence(S, Q_rows);
      wgmma_set_ABt(S, Q_rows, K.tile());
    } else {
      wgmma_fence(S);
      wgmma_set_ABt(S, Q.tile(), K.tile());
    }
    wgmma_commit();
  };
  const auto start_output = [&] {  // O += P·V; with two levels, the first kPart columns of P·V
    V.wait();
    if constexpr (kTwoLevel) return start_part(tile_sum, P, V.tile(), 0);
    wgmma_fence(O_sum, P);
    wgmma_ABt(O_sum, P, V.tile());
    wgmma_commit();
  };
  const auto finish_output = [&] {  // waits for P·V; with two levels, adds it to O in fp32
    if constexpr (kTwoLevel) {
#pragma unroll
      for (int column = 0; column < Dh; column += kPart) {
        if (column > 0) start_part(tile_sum, P, V.tile(), column);
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
    const WorkTile work = with.work[Q.number()];
    if (work.head < 0) break;
    const int block_row = row_from_end<Br>(work, p);
    const int tile_row = block_row + consumer * kWarpgroupRows, row = tile_row + warp_row;
    const int own_kv_tiles = tiles_seen<Bc>(tile_row + kWarpgroupRows, p),
              kv_tiles = tiles_seen<Bc>(block_row + Br, p);
    const float c_Q = p.scale * kLog2e * with.scale_Q[Q.number()];  // exp(scale·s) = 2^(c·s)
    if constexpr (q_in_registers(Dh, Bc, kTwoLevel)) load(Q_rows, Q.tile(), warp_row);
    __syncwarp();  // all lanes have read their data; release() does not wait for lanes
    if constexpr (q_in_registers(Dh, Bc, kTwoLevel)) Q.release();

    // m is kept in units of ln 2, like the exponents of 2^(c·s). alpha is set before it is used.
    auto m = fill_rows<16>(-INFINITY), l = fill_rows<16>(0), alpha = m;
    O_sum = {};
    float c, of_V;  // per tile of keys: c times the scales of Q and K; log2 of V's scale
    const auto wait_for_K = [&] {
      K.wait();
      c = fmaxf(c_Q * with.scale_KV[2 * K.number()], kLeast);
      of_V = with.scale_KV[2 * K.number() + 1];
      __syncwarp();  // all lanes have read the scales before one releases the stage
    };

    // Prologue: the first tile's S and softmax, which no product of this consumer overlaps.
    wait_for_K();
    begin_turn();
    start_scores();
    end_turn();
    wait_for_scores<0, kTwoLevel>(S, Q_rows);
    K.release();
    softmax(S, m, l, alpha, row, 0, c, of_V, p_exponent, p);
    P = as_permuted_operand<e4m3>(S);
    // Main loop: S of a tile and P·V of the previous one, then the tile's softmax.
    for (int kv_tile = 1; kv_tile < own_kv_tiles; ++kv_tile) {
      wait_for_K();
      begin_turn();
      start_scores();
      start_output();
      end_turn();
      wait_for_scores<1, kTwoLevel>(S, Q_rows);  // P·V, committed last, may still run
      K.release();
      const bool raised = softmax(S, m, l, alpha, row, kv_tile * Bc, c, of_V, p_exponent, p);
      finish_output();
      if (raised) mul_rows(O_sum, alpha);
      P = as_permuted_operand<e4m3>(S);
    }
    // Epilogue: the last tile's P·V and the other consumers' tiles; then O and LSE go to HBM.
    if constexpr (!q_in_registers(Dh, Bc, kTwoLevel)) Q.release();
    start_output();
    finish_output();
    for (int kv_tile = own_kv_tiles; kv_tile < kv_tiles; ++kv_tile) {
      // Without a wait, the release would be counted towards an earlier tile that other consumers
      // may still be reading. (For K the turns already prevent this.)
      K.wait();
      begin_turn();
      end_turn();
      K.release();
      V.wait();
      V.release();
    }
    store_output(tile_O, O_sum, m, l, map_O, LSE, work.head, tile_row, p_exponent, p);
  }
  if (threadIdx.x % kWarpgroup == 0)
    tma_store_wait_read<0>();       // stay until TMA has read shared memory
  if (consumer == 0) begin_turn();  // receives the last consumer's final hand-over
}

/// O = softmax(scale·Q·Kᵀ)·V and LSE. grid: one block per SM; whenever a block finishes a tile of
/// Q, it takes the next tile that no block has taken.
template <class T, int Dh, int Br, int Bc, bool kTwoLevel>
__global__ void __launch_bounds__(threads(Br), 1)
    attention(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
              const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_O,
              Hbm<const float> scales, Hbm<float> LSE, Hbm<int> next, int p_exponent, Problem p) {
  using TileQ = SwizzledTile<e4m3, kWarpgroupRows, Dh>;
  using TileK = SwizzledTile<e4m3, Bc, Dh>;
  using TileV = SwizzledTile<e4m3, Dh, Bc>;  // transposed
  using TileO = SwizzledTile<T, kWarpgroupRows, Dh>;
  constexpr int kConsumers = Br / kWarpgroupRows;
  SharedMemory smem;
  Stages<TileQ, 1, kConsumers> Q{smem, "Q"};  // one slot per consumer
  Stages<TileK, kStages> K{smem, "K"};
  Stages<TileV, kStages> V{smem, "V"};
  const auto smem_O = smem.tiles<TileO>("O", kConsumers);
  const WithTiles with{smem.take<WorkTile>("work", kConsumers),
                       smem.take<float>("scale_Q", kConsumers),
                       smem.take<float>("scale_KV", 2 * kStages)};
  // A stage is free after one arrival per consumer warp.
  Q.init(smem, "Q_full", "Q_free", 4);
  K.init(smem, "K_full", "K_free", 4 * kConsumers);
  V.init(smem, "V_full", "V_free", 4 * kConsumers);
  if (threadIdx.x == 0) fence_mbarrier_init();  // makes the initialised barriers visible to TMA
  __syncthreads();                              // all threads see them initialised

  if (warpgroup_id() == 0) {
    setmaxnreg_dec<producer_registers(Br)>();
    if (threadIdx.x == 0)
      produce<Br, Bc>(Rings{Q, K, V}, with, {map_Q, map_K, map_V}, scales, next, p);
  } else {
    setmaxnreg_inc<consumer_registers(Br)>();
    consume<T, Dh, Br, Bc, kTwoLevel>(Rings{Q, K, V}, with, smem_O, map_O, LSE, p_exponent, p);
  }
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  Plan plan = plan_of(p, device, request, kTiles, kStages, smem_bytes);
  const int Dh = plan.head_dim;
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
  const int64_t tiles = scaled_tiles(p, plan.block_kv).all;
  if (tiles >= int64_t{1} << 31)  // quantise launches one block per tile
    throw Error(Exit::bad_usage, "--heads " + std::to_string(p.H) + ": " + std::to_string(tiles) +
                                     " tiles of Q, K and V; at most 2147483647 can have scales");
  const int64_t scale_bytes = 4 * tiles;
  plan.workspace = {{"Q8", heads * p.N * Dh},
                    {"K8", heads_kv * p.N_kv * Dh},
                    {"V8", heads_kv * p.d * padded_keys(p.N_kv)},
                    {"scales", scale_bytes},
                    {"next", 4}};
  if (plan.quantisation->scope != tile) plan.workspace.push_back({"maxima", scale_bytes});
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const Quantisation& how = *plan.quantisation;
    const bool shared = how.scope != Quantisation::Scope::tile;
    const auto quantise_by = [&](const char* name, auto kernel) {
      launch(name, kernel, dim3(scaled_tiles(p, Bc).all), dim3(quantisers(Dh, Bc)),
             kQuantiseBytes<Dh, Bc>, hbm<const T>(a["Q"]), hbm<const T>(a["K"]),
             hbm<const T>(a["V"]), hbm<e4m3>(a["Q8"]), hbm<e4m3>(a["K8"]), hbm<e4m3>(a["V8"]),
             hbm<float>(a[shared ? "maxima" : "scales"]), hbm<float>(a["scales"]), how, p);
    };
    if (shared) quantise_by("maxima", quantise<T, Dh, Bc, true, KeyOrder>);
    quantise_by("quantise", quantise<T, Dh, Bc, false, KeyOrder>);

    const auto map_of_rows = [&](const char* name, int rows, int heads, int box_rows) {
      return tensor_map<e4m3>(a[name], Dh, rows, heads, p.B, box_rows,
                              SwizzledTile<e4m3, kWarpgroupRows, Dh>::kPanelBytes);
    };
    const auto next = hbm<int>(a["next"]);
    launch("clear", clear, dim3(1), dim3(1), 0, next);
    const int64_t works = ceil_div(p.N, Br) * p.B * p.H;
    launch("attention",
           how.two_level ? attention<T, Dh, Br, Bc, true> : attention<T, Dh, Br, Bc, false>,
           dim3(std::min<int64_t>(works, resident_blocks())), dim3(threads(Br)), plan.smem_bytes,
           map_of_rows("Q8", p.N, p.H, kWarpgroupRows), map_of_rows("K8", p.N_kv, p.Hk, Bc),
           tensor_map<e4m3>(a["V8"], padded_keys(p.N_kv), p.d, p.Hk, p.B, Dh,
                            SwizzledTile<e4m3, Dh, Bc>::kPanelBytes),
           tensor_map<T>(a["O"], p.d, p.N, p.H, p.B, kWarpgroupRows), hbm<const float>(a["scales"]),
           hbm<float>(a["LSE"]), next, how.p_exponent, p);
  });
}

/// Predicts the requested bytes: quantise reads the inputs once. Of the arrays that quantise
/// writes, each tile of Q reads whole tiles of K and V up to its last row's last key, and at least
/// one tile of each.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, heads_kv = int64_t{p.B} * p.Hk, Dh = plan.head_dim;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q or O
  const int64_t kv = heads_kv * p.N_kv * p.d * kIoBytes;
  const int64_t pitch = padded_keys(p.N_kv);
  const ScaledTiles tiles = scaled_tiles(p, plan.block_kv);
  Traffic traffic;
  int64_t maxima = 0;  // bytes of the tiles' maxima that quantise reads
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

  // Returns how many units of K8 or V8 one head's tiles of Q read in all. A unit is a row, a column
  // or a tile: of_tile units make a tile of keys, and at most `most` make all keys of a head.
  const auto sum = [&](int64_t of_tile, int64_t most) {
    return sum_over_tiles(p, plan, kWarpgroupRows, [&](int64_t kv_tiles) {
      return std::min<int64_t>(kv_tiles * of_tile, most);
    });
  };
  const int64_t rows = sum(plan.block_kv, p.N_kv), columns = sum(plan.block_kv, pitch),
                all_kv_tiles = sum(1, p.N_kv);
  const Traffic rest =
      traffic_with_counter(p, plan,
                           {{"Q8", heads * p.N * Dh, 0},
                            {"K8", heads * rows * Dh, 0},
                            {"V8", heads * columns * p.d, 0},
                            {"scales", 4 * heads * (tiles.q + 2 * all_kv_tiles), 0},
                            {"O", 0, q},
                            {"LSE", 0, heads * p.N * 4}});
  traffic.insert(traffic.end(), rest.begin(), rest.end());
  return traffic;
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "fp8",
    .after = "sm90",
    .aside = true,
    .shown = {.idea = "products in FP8",
              .change = {"products", "less"},
              .summary = "aside: products of e4m3; a kernel quantises the inputs first",
              .colour = "#0072B2"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .has_lse = true,
    .tiles = kTiles,
    .settings = kSettings,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
