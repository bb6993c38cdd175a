// 06 on Hopper, step 6: the queries of a tile of keys split among blocks. This project's own way.
//
//   build/bin/06_backward --step split --seqlen 512 --heads 8 --kv-heads 1 --causal --verbose
//
//   for each tile of keys, and each of `parts` shares of the tiles of Q that see it, a block each:
//       …
//       dK, dV += the share's sums, in HBM, in fp32
//
// Since `ahead`: where tiles of keys are few, as with a short sequence or with one head of K and V
// under many of Q, they would leave most SMs idle. So several blocks share one; how many, the plan
// says by what takes least time, since what they add up costs traffic.

#include "machine/hopper.h"
#include "rung.h"
#include "tile/columns.h"
#include "tile/rows.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of the backward pass: heads up to …, Br, Bc.
constexpr TileSize kBackwardTiles[] = {{64, 128, 128}, {128, 64, 128}};

constexpr int kConsumersBackward = 2;                              // warpgroups that multiply
constexpr int kBackwardThreads = kWarpgroup * kConsumersBackward;  // of them
constexpr int kWarpgroupKeys = 64;                                 // of a consumer
constexpr int kStages = 2;  // of copies of Q and dO, and of dS

/// Registers of a thread of a consumer, and of the producer: together what three started with.
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kAll = 1;  // the named barrier of all consumers

int64_t backward_smem_bytes(int Dh, int Br, int Bc) {
  const int columns = std::max(Dh, 64);  // a tile has 64 at least
  return 2 * shared_bytes<fp16>(Bc * columns) + 2 * shared_bytes<fp16>(kStages * Br * columns) +
         shared_bytes<fp16>(kStages * Bc * Br) + shared_bytes<float>(Br * Dh) +
         2 * shared_bytes<float>(kStages * Br) + 4 * shared_bytes<Mbarrier>(1) +
         4 * shared_bytes<Mbarrier>(kStages);
}

/// A consumer's part of R × C sums: 64 rows of them or, where there are but 64, half of the
/// columns.
template <int R, int C>
struct Part {
  static constexpr int kColumns = R == 64 ? C / 2 : C;
  int consumer;
  __device__ int row() const { return R == 64 ? 0 : consumer * 64; }
  __device__ int column() const { return R == 64 ? consumer * kColumns : 0; }
};

constexpr int kElementwise = 256;  // threads of a block of a small kernel

/// −delta = −rowsum(dO∘O), with which the sums dP begin, so that they give dP − delta; LSE in units
/// of ln 2; and dQ's sums, 0 to begin with. All three for whole tiles: heads have `rows` rows
/// there, of which those past p.N have LSE = +∞, which makes their P 0. So has a row that sees no
/// key, whose LSE is −∞. Dh/8 lanes per row: those of a tile fill whole blocks. The sums of dK and
/// dV too, of kv_chunks times 8 elements each, where several blocks add to them.
template <class T, int Dh>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE,
                           Hbm<float> minus_delta, Hbm<float> LSE_log2e, Hbm<float> dQ_sum,
                           Hbm<float> dK_sum, Hbm<float> dV_sum, int64_t kv_chunks, int rows,
                           Problem p) {
  constexpr int kLanes = Dh / 8;
  const int64_t chunk = int64_t{blockIdx.x} * kElementwise + threadIdx.x, at = chunk / kLanes;
  if (chunk < kv_chunks) {
    write_chunk(dK_sum + 8 * chunk, Chunk<float>{});
    write_chunk(dV_sum + 8 * chunk, Chunk<float>{});
  }
  if (at >= int64_t{p.B} * p.H * rows) return;  // a whole block
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  const bool real = row < p.N;
  const float lse = real && column == 0 ? LSE[head * p.N + row] : -INFINITY;
  float sum = 0;
  write_chunk(dQ_sum + (at * Dh + column), Chunk<float>{});
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

/// What is to be done at once: a share of the tiles of Q that see a tile of keys. These are those
/// of all query heads of the head of K and V, one head after the other.
struct Share {
  int bh, tile;       // of the B·Hk heads of K and V, and of a head's tiles of keys
  int first_row;      // of Q that sees one of the keys; in whole tiles
  int tiles_of_head;  // tiles of Q from there on
  int begin, end;     // of all heads' tiles; empty where there are more parts than tiles
};
/// Share `index` of `parts` for each tile of keys. The first keys are seen by the most rows.
/// at_once: blocks that the GPU has room for.
template <int Br, int Bc>
__device__ __forceinline__ Share share_of(int index, int tiles, int parts, int at_once,
                                          const Problem& p) {
  const int group = p.H / p.Hk;
  const auto [bh_part, tile] =
      longest_first(index, {.heads = p.B * p.Hk * parts,
                            .tiles = tiles,
                            .head_bytes = int64_t{4} * kIoBytes * p.N * p.d * group / parts,
                            .uneven = p.causal,
                            .at_once = at_once});
  const int first_row = p.first_query(tile * Bc) / Br * Br, part = bh_part % parts;
  const int tiles_of_head = static_cast<int>(ceil_div(p.N - first_row, Br));
  const int64_t all = int64_t{group} * tiles_of_head;
  return {bh_part / parts,
          tile,
          first_row,
          tiles_of_head,
          static_cast<int>(all * part / parts),
          static_cast<int>(all * (part + 1) / parts)};
}

/// Adds a warp's sums of dQ to those in HBM, by way of shared memory. In both a tile has its sums
/// in register order, all of a warp together.
template <int N>
__device__ __forceinline__ void add_to_dQ(Hbm<float> dQ_at, Smem<float> dQ_tile,
                                          const Accumulator<16, N>& dQ, int warp) {
  const int at = warp * 16 * N;
  write_fragments(dQ_tile + at, dQ);
  fence_proxy_async();  // TMA reads what this lane has written,
  __syncwarp();         // and all others of the warp
  if (lane_id() == 0) {
    bulk_add(dQ_at + at, dQ_tile + at, 16 * N);
    tma_store_commit();
  }
}

/// The producer, one thread: fetches the block's tile of keys, and the tiles of Q and dO of its
/// share into their rings.
template <int Br, int Bc, class RingKV, class RingQ, class RingdO>
__device__ __forceinline__ void produce(RingKV K, RingKV V, RingQ Q, RingdO dO,
                                        const TensorMap& map_K, const TensorMap& map_V,
                                        const TensorMap& map_Q, const TensorMap& map_dO,
                                        Hbm<const float> LSE_log2e, Hbm<const float> minus_delta,
                                        const Share& share, int rows, const Problem& p) {
  K.fill(map_K, 0, share.tile * Bc, share.bh % p.Hk, share.bh / p.Hk);
  V.fill(map_V, 0, share.tile * Bc, share.bh % p.Hk, share.bh / p.Hk);
  int head = share.bh * (p.H / p.Hk) + share.begin / share.tiles_of_head;
  int row = share.first_row + share.begin % share.tiles_of_head * Br;
#pragma unroll 1  // or a fifth of the code would be copies of this loop, which only waits
  for (int q_tile = share.begin; q_tile < share.end; ++q_tile) {
    const int64_t at = int64_t{head} * rows + row;
    Q.acquire();
    Q.fill(map_Q, 0, row, head % p.H, head / p.H, LSE_log2e + at);
    dO.acquire();
    dO.fill(map_dO, 0, row, head % p.H, head / p.H, minus_delta + at);
    row += Br;
    if (row >= p.N) ++head, row = share.first_row;
  }
}

/// What a consumer, a warpgroup with kWarpgroupKeys of the block's keys, does: it sums up its rows
/// of dK and dV over the share's tiles of Q, and adds its part of dQ to the sums in HBM, of which
/// the B·H heads have `rows` rows each.
template <int Br, class T, int Bc, int Dh, class RingQ, class RingdO>
__device__ __forceinline__ void accumulate(RingQ& Q, RingdO& dO,
                                           const SwizzledTile<T, Bc, Dh>& tile_K,
                                           const SwizzledTile<T, Bc, Dh>& tile_V, Smem<T> dS_stages,
                                           Smem<float> dQ_tile, Hbm<float> dQ_sum, int rows,
                                           const Share& share, const Problem& p,
                                           Accumulator<16, Dh>& dK_sum,
                                           Accumulator<16, Dh>& dV_sum) {
  using TileS = SwizzledTile<T, Bc, Br>;
  const int consumer = warpgroup_id() - 1, warp = warp_id() % 4, warp_row = warp * 16;
  const int consumer_key = consumer * kWarpgroupKeys;  // the first of its keys
  const Part<Br, Dh> of_dQ{consumer};
  const int key = share.tile * Bc, first_row = share.first_row;
  // The first query that sees key i of the tile is first_seen + i.
  const int first_seen = p.causal ? key - p.N_kv + p.N : -Bc;
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)

  Accumulator<16, Br> S, dP;       // their transposes: rows are keys, columns are queries
  auto Q_ahead = Q;                // where S is computed, a tile before the rest
  const auto start_scores = [&] {  // Sᵀ = K·Qᵀ
    S = {};                        // or the compiler would keep the last tile's
    Q_ahead.wait();
    wgmma_fence(S);
    wgmma_set_ABt(S, tile_K, consumer_key, Q_ahead.tile());
    wgmma_commit();
    Q_ahead.at.next();
  };
  start_scores();
  wgmma_wait<0>(S);
  int row = first_row + share.begin % share.tiles_of_head * Br;
  const int q_tiles = share.end - share.begin;
  const int head = share.bh * (p.H / p.Hk) + share.begin / share.tiles_of_head;
  auto dQ_at = dQ_sum + (int64_t{head} * rows + row) * Dh;
  for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
    dO.wait();
    fill_columns(dP, columns_of_rows<Br>(dO));
    wgmma_fence(dP);
    wgmma_ABt(dP, tile_V, consumer_key, dO.tile());  // dPᵀ = V·dOᵀ - D
    wgmma_commit();
    auto& P = S;
    exp2_columns(P, c, columns_of_rows<Br>(Q));
    // Of keys past N_kv too: exp(0 − LSE) may be ∞, and ∞·0 is NaN in dQ.
    if (row < first_seen + Bc - 1 || key + Bc > p.N_kv)
      for_each(P, [&](int i, int j, float& x) {
        i += consumer_key + warp_row;
        if (row + j < first_seen + i || key + i >= p.N_kv) x = 0;
      });
    auto P_operand = as_operand<T>(P);
    wgmma_wait<0>(dP);
    auto& dS = dP;
    mul(dS, P);
    auto dS_operand = as_operand<T>(dS);
    // Two stages do: the other consumer's dQ may still read the last dS, but since the last barrier
    // not the one before.
    const TileS tile_dS{dS_stages + q_tile % kStages * TileS::kElements};
    write_matrices(tile_dS, dS_operand, consumer_key + warp_row);
    wgmma_fence(dV_sum, P_operand);
    wgmma_AB(dV_sum, P_operand, dO.tile());  // dV += Pᵀ·dO
    wgmma_commit();
    fence_proxy_async();                           // dQ reads what threads have written
    if (lane_id() == 0) tma_store_wait_read<0>();  // this warp's last dQ has left dQ_tile
    named_barrier_sync(kAll, kBackwardThreads);    // dS is complete
    // With dV still under way, the products from here on would want more registers than there are,
    // and the compiler would have each of them wait for the one before (C7512).
    wgmma_wait<0>(dV_sum, P_operand);
    const auto start_dK = [&] {  // dK += dSᵀ·Q
      wgmma_fence(dK_sum, dS_operand);
      wgmma_AB(dK_sum, dS_operand, Q.tile());
      wgmma_commit();
    };

    Accumulator<16, of_dQ.kColumns> dQ;
    wgmma_fence(dQ);
    wgmma_set_AtB(dQ, tile_dS, of_dQ.row(), tile_K, of_dQ.column());  // dQ = dS·K
    wgmma_commit();
    dO.release();  // dV has read it; before dQ, this would only hold dQ up
    if (q_tile + 1 < q_tiles) {
      start_scores();  // of the next tile
      start_dK();
      wgmma_wait<2>(dQ);  // S and dK may still run
      add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
      wgmma_wait<0>(S);  // S cannot be under way where branches meet (C7515)
    } else {
      start_dK();
      wgmma_wait<1>(dQ);  // dK may still run
      add_to_dQ(dQ_at, dQ_tile, dQ, consumer * 4 + warp);
    }
    wgmma_wait<0>(dK_sum, dS_operand);
    Q.release();
    row += Br;
    dQ_at = dQ_at + Br * Dh;
    if (row >= p.N) {  // the next head
      row = first_row;
      dQ_at = dQ_at + int64_t{first_row} * Dh;
    }
  }
}

/// dK and dV of one tile of keys, and what it adds to dQ. There are `tiles` of a head of K and V,
/// and `rows` of a head of Q in whole tiles. grid: (tiles · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kWarpgroup + kBackwardThreads, 1)
    key_gradients(const __grid_constant__ TensorMap map_Q, const __grid_constant__ TensorMap map_K,
                  const __grid_constant__ TensorMap map_V, const __grid_constant__ TensorMap map_dO,
                  const __grid_constant__ TensorMap map_dK,
                  const __grid_constant__ TensorMap map_dV, Hbm<const float> minus_delta,
                  Hbm<const float> LSE_log2e, Hbm<float> dQ_sum, Hbm<float> dK_sums,
                  Hbm<float> dV_sums, int tiles, int rows, int parts, int at_once, Problem p) {
  using TileKV = SwizzledTile<T, Bc, Dh>;
  using TileQ = SwizzledTile<T, Br, Dh>;
  using TileS = SwizzledTile<T, Bc, Br>;
  const auto share = share_of<Br, Bc>(blockIdx.x, tiles, parts, at_once, p);
  if (share.begin == share.end) return;

  SharedMemory smem;
  Stages<TileKV, 1> K{smem, "K"}, V{smem, "V"};  // filled once
  StagesWithRows<TileQ, kStages, Br> Q{smem, "Q"}, dO{smem, "dO"};
  const auto dS_stages = smem.tiles<TileS>("dS", kStages);
  const auto dQ_tile = smem.take<float>("dQ", Br * Dh);
  Q.init(smem, "LSE_log2e", "Q_full", "Q_free", 4 * kConsumersBackward);  // a release by each warp
  dO.init(smem, "minus_delta", "dO_full", "dO_free", 4 * kConsumersBackward);
  K.init(smem, "K_full", "K_free", 1);
  V.init(smem, "V_full", "V_free", 1);
  if (threadIdx.x == 0) fence_mbarrier_init();  // before TMA counts bytes at the barriers,
  __syncthreads();                              // and before anybody waits there

  if (warpgroup_id() == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x != 0) return;
    produce<Br, Bc>(K, V, Q, dO, map_K, map_V, map_Q, map_dO, LSE_log2e, minus_delta, share, rows,
                    p);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  Accumulator<16, Dh> dK_sum, dV_sum;
  K.wait();
  V.wait();
  accumulate<Br>(Q, dO, K.tile(), V.tile(), dS_stages, dQ_tile, dQ_sum, rows, share, p, dK_sum,
                 dV_sum);
  named_barrier_sync(kAll, kBackwardThreads);  // all warps are done with K and V

  const int warp_row = (warp_id() - 4) * 16;  // of the tiles of K and V
  for_each(dK_sum, [&](int, int, float& x) { x *= p.scale; });
  if (parts > 1) {
    const int64_t at = ((int64_t{share.bh} * tiles + share.tile) * Bc + warp_row) * Dh;
    add_fragments(dK_sums + at, dK_sum);
    add_fragments(dV_sums + at, dV_sum);
    if (lane_id() == 0) tma_store_wait_read<0>();  // shared memory must live until then
    return;
  }
  // Through the tiles of K and V, from where TMA takes them.
  write_matrices(K.tile(), as_operand<T>(dK_sum), warp_row);
  write_matrices(V.tile(), as_operand<T>(dV_sum), warp_row);
  fence_proxy_async();                         // TMA reads what threads have written
  named_barrier_sync(kAll, kBackwardThreads);  // all rows are written
  if (threadIdx.x == kWarpgroup) {
    tma_store(map_dK, K.tile(), 0, share.tile * Bc, share.bh % p.Hk, share.bh / p.Hk);
    tma_store(map_dV, V.tile(), 0, share.tile * Bc, share.bh % p.Hk, share.bh / p.Hk);
    tma_store_commit();
  }
  if (lane_id() == 0) tma_store_wait_read<0>();  // shared memory must live until then
}

/// Sums of dQ, dK or dV times a factor, in the I/O type. N rows of a head, `rows` in whole tiles of
/// kRows. grid: (consumers' parts of tiles, of all heads).
template <class T, int Dh, int kRows>
__global__ void __launch_bounds__(kWarpgroup)
    postprocess(Hbm<const float> sums, Hbm<T> out, int N, int rows, int d, float factor) {
  using Part = Part<kRows, Dh>;
  const Part part{static_cast<int>(blockIdx.x) % kConsumersBackward};
  const int64_t at =
      int64_t{blockIdx.x} / kConsumersBackward * kRows;  // its tile's first row of all
  const int row = static_cast<int>(at % rows) + part.row(), column = part.column();
  Accumulator<16, Part::kColumns> sum;
  read_fragments(sum, sums + (at * Dh + (part.consumer * 4 + warp_id()) * 16 * Part::kColumns));
  for_each(sum, [&](int, int, float& x) { x *= factor; });
  using Tile = SwizzledTile<T, 64, Part::kColumns>;
  SharedMemory smem;
  const Tile tile{smem.tiles<Tile>("tile")};
  write(tile, sum, warp_id() * 16);
  __syncthreads();
  copy_out<kWarpgroup>(out + ((at / rows * N + row) * d + column), d, tile, N - row, d - column,
                       threadIdx.x);
}

const Setting kSettings[] = {
    {"parts", {"auto", "1", "2", "4", "8", "16"}, "blocks for each tile of keys"}};

/// How many blocks share a tile of keys: what takes least time, counted in tiles of Q, 3 of which a
/// block takes to start and to end. Adding up dK and dV takes one for each 7 MB, cleared, added by
/// each block and converted. Under the mask blocks come to different query heads of a group, and
/// where L2 holds not even half of what these read and add to, a tile takes an eighth longer.
int choose_parts(const Problem& p, const Plan& plan, int64_t multiprocessors) {
  const int64_t group = p.H / p.Hk, heads = int64_t{p.B} * p.Hk;
  const int64_t tiles = ceil_div(p.N_kv, plan.block_kv);
  const double megabytes = 8e-6 * heads * tiles * plan.block_kv * plan.head_dim;
  int best = 1;
  double least = 0;
  for (int parts = 1; parts <= std::min<int64_t>(64, group * ceil_div(p.N, plan.block_q));
       ++parts) {
    int64_t all = 0, longest = 0;
    for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
      const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
      const int64_t q_tiles = group * ceil_div(p.N - first, plan.block_q);
      all += q_tiles + 3 * parts;
      longest = std::max(longest, ceil_div(q_tiles, parts) + 3);
    }
    const int64_t at_work = std::max<int64_t>(1, (multiprocessors + tiles / 2) / tiles);
    const double group_megabytes = 8e-6 * p.N * p.d * group / parts;  // Q, dO and sums of dQ
    const bool drift = p.causal && parts < group;
    const double slower =
        drift && std::min(heads * parts, at_work) * group_megabytes > 100 ? 1.125 : 1;
    const double time =
        slower * time_of(heads * all, longest, heads * tiles * parts, multiprocessors, p.causal) +
        (parts > 1 ? 1 + megabytes * (2 + parts) / 7 : 0);
    if (parts == 1 || time < 0.97 * least) best = parts, least = time;
  }
  return best;
}

Plan backward_plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .warps = 4 * (1 + kConsumersBackward), .stages = kStages};
  choose_tile(plan, kBackwardTiles, {}, device.sram_bytes,
              [&](int Br, int Bc) { return backward_smem_bytes(Dh, Br, Bc); });
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q;
  plan.workspace = {{"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * Dh * 4}};
  plan.settings = choose_settings(kSettings, request.settings);
  const std::string& asked = plan.settings.at("parts");
  plan.parts = asked == "auto" ? choose_parts(p, plan, device.multiprocessors) : std::stoi(asked);
  const int64_t tiles = ceil_div(p.N_kv, plan.block_kv) * p.B * p.Hk;
  if (plan.parts > 1)
    for (const char* name : {"dK_sum", "dV_sum"})
      plan.workspace.push_back({name, tiles * plan.block_kv * Dh * 4});
  plan.note += (plan.note.empty() ? "" : "; ") + std::to_string(tiles) + " tiles of keys, " +
               std::to_string(plan.parts) + (plan.parts == 1 ? " block" : " blocks") +
               " for each, on " + std::to_string(device.multiprocessors) + " SMs";
  return plan;
}

void backward(const Problem& p, const Plan& plan, const Arrays& a) {
  const auto minus_delta = hbm<float>(a["minus_delta"]), LSE_log2e = hbm<float>(a["LSE_log2e"]);
  const auto dQ_sum = hbm<float>(a["dQ_sum"]);
  const int rows = static_cast<int>(ceil_div(p.N, plan.block_q)) * plan.block_q;
  const int tiles = static_cast<int>(ceil_div(p.N_kv, plan.block_kv));
  const int64_t rows_of_all = int64_t{p.B} * p.H * rows;
  const int64_t keys_of_all = int64_t{tiles} * p.B * p.Hk * plan.block_kv;
  // Where nothing is added up, the kernels touch neither.
  const auto dK_sum = hbm<float>(a[plan.parts > 1 ? "dK_sum" : "dQ_sum"]);
  const auto dV_sum = hbm<float>(a[plan.parts > 1 ? "dV_sum" : "dQ_sum"]);
  with_tile<kBackwardTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    const int64_t kv_chunks = plan.parts > 1 ? keys_of_all * (Dh / 8) : 0;
    const dim3 of_rows(ceil_div(std::max(rows_of_all * (Dh / 8), kv_chunks), kElementwise));
    const auto map = [&](const char* name, int length, int heads, int box_rows) {
      return tensor_map<T>(a[name], p.d, length, heads, p.B, box_rows);
    };
    launch("preprocess", preprocess<T, Dh>, of_rows, dim3(kElementwise), 0, hbm<const T>(a["O"]),
           hbm<const T>(a["dO"]), hbm<const float>(a["LSE"]), minus_delta, LSE_log2e, dQ_sum,
           dK_sum, dV_sum, kv_chunks, rows, p);
    launch("key_gradients", key_gradients<T, Dh, Br, Bc>, dim3(keys_of_all / Bc * plan.parts),
           dim3(kWarpgroup + kBackwardThreads), plan.smem_bytes, map("Q", p.N, p.H, Br),
           map("K", p.N_kv, p.Hk, Bc), map("V", p.N_kv, p.Hk, Bc), map("dO", p.N, p.H, Br),
           map("dK", p.N_kv, p.Hk, Bc), map("dV", p.N_kv, p.Hk, Bc), minus_delta, LSE_log2e, dQ_sum,
           dK_sum, dV_sum, tiles, rows, plan.parts, resident_blocks(), p);
    launch("postprocess", postprocess<T, Dh, Br>, dim3(rows_of_all / Br * kConsumersBackward),
           dim3(kWarpgroup), shared_bytes<T>(64 * 64), dQ_sum, hbm<T>(a["dQ"]), p.N, rows, p.d,
           p.scale);
    if (plan.parts == 1) return;
    const auto postprocess_keys = [&](const char* name, Hbm<float> sums, const char* out) {
      launch(name, postprocess<T, Dh, Bc>, dim3(keys_of_all / Bc * kConsumersBackward),
             dim3(kWarpgroup), shared_bytes<T>(64 * std::max(Dh, 64)), sums, hbm<T>(a[out]), p.N_kv,
             tiles * Bc, p.d, 1.0f);
    };
    postprocess_keys("postprocess_dK", dK_sum, "dK");
    postprocess_keys("postprocess_dV", dV_sum, "dV");
  });
}

/// Requested bytes of the backward pass: every tile of keys reads Q and dO from the first row that
/// sees one of its keys, and adds to dQ there. What is kept between the kernels has whole tiles.
Traffic backward_traffic(const Problem& p, const Plan& plan) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO and dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK and dV
  const int64_t padded = heads * ceil_div(p.N, plan.block_q) * plan.block_q;  // rows
  const int64_t sums = padded * plan.head_dim * 4;                            // bytes of dQ_sum
  int64_t queries = 0, tiles = 0;  // rows, and tiles of Q, that the tiles of keys of a head read
  int64_t keys = 0, shares = 0;    // rows of K and of V that a head's shares read, and how many
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    if (first < p.N) {
      queries += p.N - first;
      tiles += ceil_div(p.N - first, plan.block_q);
      const int64_t of_tile =
          std::min<int64_t>(plan.parts, p.H / p.Hk * ceil_div(p.N - first, plan.block_q));
      keys += of_tile * std::min<int64_t>(plan.block_kv, p.N_kv - key);
      shares += of_tile;
    }
  }
  const int64_t kv_read = kv_heads * keys * p.d * kIoBytes;      // bytes of K, and of V
  const int64_t tile_bytes = plan.block_kv * plan.head_dim * 4;  // of dK's sums, and of dV's
  const int64_t kv_sums = kv_heads * ceil_div(p.N_kv, plan.block_kv) * tile_bytes;
  const int64_t added = kv_heads * shares * tile_bytes;
  const int64_t read = heads * queries * p.d * kIoBytes;  // bytes of Q, and of dO
  const int64_t rows = heads * tiles * plan.block_q;      // of LSE, D and dQ's sums
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
                {"dQ_sum", rows * plan.head_dim * 4, rows * plan.head_dim * 4},
                {"dK", 0, plan.parts > 1 ? 0 : kv},
                {"dV", 0, plan.parts > 1 ? 0 : kv}}},
              {"postprocess", {{"dQ_sum", sums, 0}, {"dQ", 0, q}}}};
  if (plan.parts > 1) {
    for (const char* name : {"dK_sum", "dV_sum"}) {
      all[0].arrays.push_back({name, 0, kv_sums});
      all[1].arrays.push_back({name, added, added});
    }
    all.push_back({"postprocess_dK", {{"dK_sum", kv_sums, 0}, {"dK", 0, kv}}});
    all.push_back({"postprocess_dV", {{"dV_sum", kv_sums, 0}, {"dV", 0, kv}}});
  }
  return all;
}

const Register step{{
    .rung = "06_backward",
    .name = "split",
    .after = "ahead",
    .shown = {.idea = "queries split",
              .change = {"blocks", "more", "--heads 8 --kv-heads 1"},
              .summary = "and the queries of a tile of keys split among blocks",
              .colour = "#D55E00"},
    .needs = {.min_compute_capability = 90, .exact_architecture = true},
    .settings = kSettings,
    .forward_of = "05_flash_v2/sm90",
    .backward = {backward_plan, backward, backward_traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
