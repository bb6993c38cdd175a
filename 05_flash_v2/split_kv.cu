// 05 · Decoding: few queries, many keys, and the keys split among blocks (Flash-Decoding).
//
//   build/bin/05_flash_v2 --step split_kv --seqlen 1 --seqlen-kv 4096 --heads 8 --kv-heads 2
//
//   for each part s of the keys, one block each:
//     compute m_s, l_s and O_s over that part, like `large_tiles`, but do not divide O_s by l_s
//   for each row (merge):
//     m = max_s m_s,   l = Σ_s exp(m_s − m)·l_s,   O = Σ_s exp(m_s − m)·O_s / l
//
// Since `large_tiles`:
//   - The grid also covers parts of the keys, because one block per head would leave most SMs idle.
//   - The rows of a tile are the queries of all heads that share a head of K and V, so that K and V
//     are read once for all of them.
//   - Where rows are few, the warps split a tile's keys.
//   - A second kernel merges the parts' results by 03's rule.

#include <algorithm>
#include <string>

#include "machine/machine.h"
#include "rung.h"
#include "tile/over_warps.h"
#include "tile/rows.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpRows = 16;  // rows of Q per warp
constexpr int kAtOnce = 8;     // parts that each warp of merge adds up at a time
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

/// Compiled tiles: {largest head size, Br, Bc}. For each head size and Br, the fastest comes first.
constexpr TileSize kTiles[] = {{64, 16, 128}, {64, 64, 128}, {64, 16, 64},  {64, 64, 64},
                               {128, 16, 64}, {128, 64, 64}, {128, 16, 32}, {128, 64, 32},
                               {256, 16, 32}, {256, 64, 16}, {256, 16, 16}};
/// Number of parts that a head's keys are split into. If it is "auto", choose_parts chooses it.
constexpr const char* kSplits = "splits";
const Setting kSettings[] = {
    {kSplits, {"auto", "1", "2", "4", "8", "16", "32", "64"}, "blocks that share a head's keys"}};

/// Returns the number of stages; each holds a tile of K and a tile of V. At d ≤ 64 three stages are
/// up to 3.5% faster than two, and two blocks still fit in an SM's 227 KB. (At d = 128, too, two
/// blocks with three stages each would fit.)
constexpr int stages_of(int Dh) {
  return Dh <= 64 ? 3 : 2;
}
/// Returns how many warps split the keys of a tile: kWarps divided by the warps that its rows take,
/// but at most one for each 16 keys.
constexpr int across(int Br, int Bc) {
  return kWarps * kWarpRows / Br < Bc / 16 ? kWarps * kWarpRows / Br : Bc / 16;
}
/// Returns the row pitch of O in shared memory, in floats. Neighbouring rows start in other banks.
constexpr int pitch(int Dh) {
  return Dh + 8;
}

int64_t smem_bytes(int Dh, int Br, int Bc) {
  const int warps = across(Br, Bc);
  return array_bytes<fp16>(Br * Dh) + array_bytes<fp16>(2 * stages_of(Dh) * Bc * Dh) +
         (warps > 1 ? array_bytes<float>(warps * Br) + array_bytes<float>(Br) +
                          array_bytes<float>(Br * pitch(Dh))
                    : 0);
}

/// Returns the number of rows of Q that share a head of K and V: the queries of H / Hk heads, which
/// are consecutive in HBM.
constexpr int rows_of_head(const Problem& p) {
  return p.H / p.Hk * p.N;
}
/// Returns the number of keys that at least one row of the tile starting at `row` attends to.
constexpr int keys_of_tile(const Problem& p, int row, int Br) {
  const int end = row + Br < rows_of_head(p) ? row + Br : rows_of_head(p);
  // A tile that reaches into the next head contains the last query of the previous head.
  return p.keys(row / p.N == (end - 1) / p.N ? (end - 1) % p.N : p.N - 1);
}

/// Merges m, l and O of the kAcross warps that share rows but have different keys into the first of
/// these warps, by 03's rule. Each warp rescales its l and O to the largest maximum; then the other
/// warps pass their l and O to the first warp, one after another, and the first warp adds them. All
/// threads of the block must call it; a warp whose across_index is kAcross or more has no keys and
/// only joins the barriers.
template <int kAcross, int Br, int Dh>
__device__ __forceinline__ void merge_warps(SharedMemory& smem, Rows<kWarpRows>& m,
                                            Rows<kWarpRows>& l, Accumulator<kWarpRows, Dh>& O_sum,
                                            int across_index, int warp_row) {
  const auto warp_m = smem.take<float>("rowmax", kAcross * Br);
  const auto warp_l = smem.take<float>("rowsum", Br);
  const auto warp_O = smem.take<float>("partial O", Br * pitch(Dh));
  if (across_index < kAcross) write(warp_m + (across_index * Br + warp_row), m);
  __syncthreads();  // all warps have written their maxima
  const auto m_old = m;
  m = make_rows<kWarpRows>([&](int i) {
    float largest = warp_m[warp_row + i];
    for (int w = 1; w < kAcross; ++w) largest = fmaxf(largest, warp_m[w * Br + warp_row + i]);
    return largest;
  });
  const auto alpha = exp2(m_old - finite_or_zero(m));
  l = alpha * l;
  mul_rows(O_sum, alpha);
  for (int w = 1; w < kAcross; ++w) {
    if (across_index == w) {
      write(warp_l + warp_row, l);
      write(warp_O + warp_row * pitch(Dh), pitch(Dh), O_sum);
    }
    __syncthreads();  // warp w has written l and O
    if (across_index == 0) {
      l = l + load_rows<kWarpRows>(warp_l + warp_row);
      for_each(O_sum, [&](int i, int j, float& o) { o += warp_O[(warp_row + i) * pitch(Dh) + j]; });
    }
    __syncthreads();  // the first warp has read l and O, so the next warp may write
  }
}

/// Stores O, divided by l, and LSE of the warp's rows, if there is only one part. The warp's first
/// row is number `row` of the `rows` rows that share a head of K and V, and row `to` in HBM. O
/// leaves through the warp's rows of Q's tile.
template <class T, int Br, int Dh>
__device__ __forceinline__ void store_whole(const Tile<T, Br, Dh>& tile_Q, int warp_row,
                                            Accumulator<kWarpRows, Dh>& O_sum,
                                            const Rows<kWarpRows>& m, const Rows<kWarpRows>& l,
                                            Hbm<T> O, Hbm<float> LSE, int64_t to, int row, int rows,
                                            const Problem& p) {
  mul_rows(O_sum, inverse_or_zero(l));
  const Tile<T, kWarpRows, Dh> tile_O{tile_Q.data + warp_row * Dh};
  __syncwarp();  // a block without keys has passed no barrier since Q's copies
  write(tile_O, O_sum, 0, 0);
  __syncwarp();  // all lanes have written
  copy_out<32>(O + to * p.d, p.d, tile_O, rows - row, p.d, lane_id());
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < rows) LSE[to + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
}
/// Stores m, l and the unnormalised O of one part of several, for `merge`. Rows are numbered as in
/// store_whole.
template <int Dh>
__device__ __forceinline__ void store_part(const Accumulator<kWarpRows, Dh>& O_sum,
                                           const Rows<kWarpRows>& m, const Rows<kWarpRows>& l,
                                           Hbm<float> O_parts, Hbm<float> m_parts,
                                           Hbm<float> l_parts, int64_t to, int row, int rows,
                                           const Problem& p) {
  for_each_pair(O_sum, [&](int i, int j, float a, float b) {
    if (row + i >= rows || j >= p.d) return;
    O_parts[(to + i) * p.d + j] = a;
    O_parts[(to + i) * p.d + j + 1] = b;
  });
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i >= rows) return;
    m_parts[to + i] = max;
    l_parts[to + i] = sum;
  });
}

/// Computes m (in units of ln 2), l and the unnormalised O of one part of the keys, and stores them
/// in arrays indexed by (part, row). If there is only one part, stores O and LSE instead.
/// grid: (tiles of rows · parts · B·Hk).
template <class T, int Dh, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, Dh <= 128 ? 2 : 1)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<float> O_parts,
              Hbm<float> m_parts, Hbm<float> l_parts, Hbm<T> O, Hbm<float> LSE, int parts,
              Problem p) {
  constexpr int kAcross = across(Br, Bc), kDown = Br / kWarpRows;
  constexpr int kStages = stages_of(Dh);
  constexpr int kWarpKeys = Bc / kAcross;  // keys per warp in each tile
  static_assert(kAcross * kDown <= kWarps);
  const int rows = rows_of_head(p), tiles = ceil_div(rows, Br);
  // Blocks with the same keys have consecutive numbers, so that L2 serves all but the first.
  const int64_t index = blockIdx.x, bh = index / tiles / parts;  // one of B·Hk heads of K and V
  const int block_row = static_cast<int>(index % tiles) * Br;
  const int part = static_cast<int>(index / tiles % parts);
  const int warp_row = warp_id() % kDown * kWarpRows, row = block_row + warp_row;
  const int across_index = warp_id() / kDown;  // among the warps that split the keys
  const int warp_key = across_index * kWarpKeys;
  const int thread = threadIdx.x;
  const auto K_head = K + bh * p.N_kv * p.d;
  const auto V_head = V + bh * p.N_kv * p.d;
  const int keys = keys_of_tile(p, block_row, Br);
  const int least = p.keys(0);  // keys that every row attends to
  const float c = p.scale * kLog2e;

  // The parts take tiles of keys in turn, so that blocks read neighbouring tiles at the same time.
  const int tiles_of_keys = static_cast<int>(ceil_div(keys, Bc));
  const int own_tiles = (tiles_of_keys - part + parts - 1) / parts;

  SharedMemory smem;
  const Tile<T, Br, Dh> tile_Q{smem.take<T>("Q", Br * Dh)};
  const auto stages = smem.take<T>("K and V", 2 * kStages * Bc * Dh);
  const auto tile_K = [&](int tile) {
    return Tile<T, Bc, Dh>{stages + tile % kStages * (2 * Bc * Dh)};
  };
  const auto tile_V = [&](int tile) {
    return Tile<T, Bc, Dh>{stages + (tile % kStages * (2 * Bc * Dh) + Bc * Dh)};
  };
  const auto start_copies = [&](int tile) {
    const int64_t key = (int64_t{tile} * parts + part) * Bc;
    if (tile < own_tiles) {
      copy_async<kThreads>(tile_K(tile), K_head + key * p.d, p.d, keys - key, p.d, thread);
      copy_async<kThreads>(tile_V(tile), V_head + key * p.d, p.d, keys - key, p.d, thread);
    }
    cp_async_commit();  // even an empty group, because the wait below counts groups
  };

  let_next_kernel_start();  // merge's blocks start early, and wait until this kernel has ended

  auto m = fill_rows<kWarpRows>(-INFINITY), l = fill_rows<kWarpRows>(0);
  Accumulator<kWarpRows, Dh> O_sum;
  if (across_index == 0)  // of the warps that share these rows, one copies them
    copy_async<32>(Tile<T, kWarpRows, Dh>{tile_Q.data + warp_row * Dh}, Q + (bh * rows + row) * p.d,
                   p.d, rows - row, p.d, lane_id());
  for (int ahead = 0; ahead < kStages - 1; ++ahead) start_copies(ahead);
  for (int tile = 0; tile < own_tiles; ++tile) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // this K and V have arrived, and all warps are done with the previous ones
    start_copies(tile + kStages - 1);
    if (across_index >= kAcross) continue;  // this warp gets no keys
    const int key = (tile * parts + part) * Bc + warp_key;

    Accumulator<kWarpRows, kWarpKeys> S;
    mma_ABt(S, tile_Q, warp_row, tile_K(tile), warp_key);
    if (key + kWarpKeys > least)
      for_each(S, [&](int i, int j, float& s) {
        if (key + j >= p.keys((row + i) % p.N)) s = -INFINITY;
      });

    const auto m_new = max(m, c * row_max(S));
    const auto shift = finite_or_zero(m_new);
    const auto alpha = exp2(m - shift);
    auto& P = S;
    exp2_rows(P, c, shift);
    l = alpha * l + row_sum_in_lane(P);
    m = m_new;
    mul_rows(O_sum, alpha);
    mma_AB(O_sum, as_operand<T>(P), tile_V(tile), warp_key, 0);
  }
  cp_async_wait<0>();  // Q has arrived even if there were no keys; O leaves through its tile
  l = sum_over_lanes(l);

  if constexpr (kAcross > 1) merge_warps<kAcross, Br>(smem, m, l, O_sum, across_index, warp_row);
  if (across_index > 0) return;

  const int64_t to = (int64_t{part} * p.B * p.Hk + bh) * rows + row;
  if (parts == 1) return store_whole(tile_Q, warp_row, O_sum, m, l, O, LSE, to, row, rows, p);
  store_part(O_sum, m, l, O_parts, m_parts, l_parts, to, row, rows, p);
}

/// Computes O and LSE of one row from its parts, by 03's rule. Each warp takes kAtOnce parts at a
/// time, so that their loads overlap; then the warps' results are merged. grid: (B·H·N).
template <class T, int Dh>
__global__ void __launch_bounds__(kThreads)
    merge(HbmWrittenBefore<const float> O_parts, HbmWrittenBefore<const float> m_parts,
          HbmWrittenBefore<const float> l_parts, Hbm<T> O, Hbm<float> LSE, int parts, Problem p) {
  const int64_t row = blockIdx.x, rows = int64_t{p.B} * p.H * p.N;
  const int lane = lane_id();
  SharedMemory smem;
  const auto warp_m = smem.take<float>("m", kWarps);
  const auto warp_l = smem.take<float>("l", kWarps);
  const auto warp_O = smem.take<float>("O", kWarps * Dh);
  wait_for_kernel_before();  // that kernel writes the parts

  float m = -INFINITY, l = 0, o[Dh / 32] = {};
  for (int first = kAtOnce * warp_id(); first < parts; first += kAtOnce * kWarps) {
    // Lane i holds m and l of part first + i, and all lanes hold columns of each part's O.
    float m_part = -INFINITY, l_part = 0, O_part[kAtOnce][Dh / 32] = {};
    if (lane < kAtOnce && first + lane < parts) {
      m_part = m_parts[(first + lane) * rows + row];
      l_part = l_parts[(first + lane) * rows + row];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int e = 0; e < Dh / 32; ++e)
        if (first + i < parts && lane + 32 * e < p.d)
          O_part[i][e] = O_parts[((first + i) * rows + row) * p.d + lane + 32 * e];

    const float m_new = fmaxf(m, warp_max(m_part)), shift = m_new == -INFINITY ? 0 : m_new;
    const float alpha = exp2_fast(m - shift), weight = exp2_fast(m_part - shift);
    m = m_new;
    l = alpha * l + weight * l_part;
#pragma unroll
    for (int e = 0; e < Dh / 32; ++e) o[e] *= alpha;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float w = __shfl_sync(0xffffffff, weight, i);
#pragma unroll
      for (int e = 0; e < Dh / 32; ++e) o[e] += w * O_part[i][e];
    }
  }
  l = warp_sum(l);
  if (lane == 0) warp_m[warp_id()] = m, warp_l[warp_id()] = l;
  for (int e = 0; e < Dh / 32; ++e) warp_O[warp_id() * Dh + lane + 32 * e] = o[e];
  __syncthreads();  // all warps have written their results

  m = -INFINITY, l = 0;
  for (int w = 0; w < kWarps; ++w) m = fmaxf(m, warp_m[w]);
  const float shift = m == -INFINITY ? 0 : m;  // 0 for a row that attends to no key
  for (int w = 0; w < kWarps; ++w) l += exp2_fast(warp_m[w] - shift) * warp_l[w];
  const float inverse = l > 0 ? 1 / l : 0;
  for (int column = threadIdx.x; column < p.d; column += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += exp2_fast(warp_m[w] - shift) * warp_O[w * Dh + column];
    O[row * p.d + column] = T(sum * inverse);
  }
  if (threadIdx.x == 0) LSE[row] = l > 0 ? m * kLn2 + logf(l) : -INFINITY;
}

/// Returns the number of parts, at most kMost, with the lowest estimated time: the number of waves
/// × (tiles of the longest part + kStart for a part's start and end), in units of one tile of keys.
/// `blocks` is the number of blocks without splitting, `tiles` the number of tiles of a head's
/// keys, and `slots` the number of blocks that the GPU runs at once.
int choose_parts(int64_t blocks, int64_t tiles, int64_t slots) {
  constexpr int64_t kStart = 3, kMost = 128;
  int64_t best = 1, least = 0;
  for (int64_t parts = 1; parts <= std::min(tiles, kMost); ++parts) {
    const int64_t time = ceil_div(blocks * parts, slots) * (ceil_div(tiles, parts) + kStart);
    if (parts == 1 || time < least) best = parts, least = time;
  }
  return static_cast<int>(best);
}

/// Returns the number of tiles of rows of Q, over all B·Hk heads of K and V.
int64_t tiles_of_rows(const Problem& p, int Br) {
  return ceil_div(rows_of_head(p), Br) * p.B * p.Hk;
}

Plan plan(const Problem& p, const DeviceInfo& device, const TileRequest& request) {
  const int Dh = padded_head_dim(p.d);
  Plan plan{.head_dim = Dh, .warps = kWarps, .stages = stages_of(Dh)};
  TileRequest wanted = request;
  if (wanted.block_q == 0)
    wanted.block_q = rows_of_head(p) <= kWarpRows ? kWarpRows : 4 * kWarpRows;
  choose_tile(plan, kTiles, wanted, device.smem_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  plan.settings = choose_settings(kSettings, request.settings);
  if (const std::string& splits = plan.settings.at(kSplits); splits != "auto") {
    plan.parts = std::stoi(splits);
  } else {
    const int64_t slots = device.multiprocessors * device.blocks_per_sm(plan.smem_bytes);
    const int64_t blocks = tiles_of_rows(p, plan.block_q), tiles = ceil_div(p.N_kv, plan.block_kv);
    plan.parts = choose_parts(blocks, tiles, slots);
    plan.note += (plan.note.empty() ? "" : "; ") + std::to_string(tiles) + " tiles of keys in " +
                 std::to_string(plan.parts) + (plan.parts == 1 ? " part: " : " parts: ") +
                 std::to_string(blocks * plan.parts) + " blocks, and the GPU has slots for " +
                 std::to_string(slots);
  }
  const int64_t rows = plan.parts * int64_t{p.B} * p.H * p.N;  // over all parts
  if (plan.parts > 1)
    plan.workspace = {{"O_parts", rows * p.d * 4}, {"m_parts", rows * 4}, {"l_parts", rows * 4}};
  return plan;
}

void forward(const Problem& p, const Plan& plan, const Arrays& a) {
  const int parts = plan.parts;
  const auto of_parts = [&](const char* name) {
    return parts > 1 ? hbm<float>(a[name]) : Hbm<float>{};
  };
  const auto O_parts = of_parts("O_parts"), m_parts = of_parts("m_parts"),
             l_parts = of_parts("l_parts"), LSE = hbm<float>(a["LSE"]);
  with_tile<kTiles>(p, plan, [&]<class T, int Dh, int Br, int Bc>() {
    launch("attention", attention<T, Dh, Br, Bc>, dim3(tiles_of_rows(p, Br) * parts),
           dim3(kThreads), plan.smem_bytes, hbm<const T>(a["Q"]), hbm<const T>(a["K"]),
           hbm<const T>(a["V"]), O_parts, m_parts, l_parts, hbm<T>(a["O"]), LSE, parts, p);
  });
  if (parts == 1) return;
  with_type_and_head_dim(p, [&]<class T, int Dh>() {
    launch<Start::early>("merge", merge<T, Dh>, dim3(p.B * p.H * p.N), dim3(kThreads),
                         2 * array_bytes<float>(kWarps) + array_bytes<float>(kWarps * Dh),
                         Hbm<const float>(O_parts), Hbm<const float>(m_parts),
                         Hbm<const float>(l_parts), hbm<T>(a["O"]), LSE, parts, p);
  });
}

/// Predicts the requested bytes: each tile of rows reads its rows of Q once per part, and K and V
/// once altogether.
Traffic traffic(const Problem& p, const Plan& plan) {
  const int64_t parts = plan.parts;
  const int64_t rows = int64_t{p.B} * p.H * p.N;
  int64_t keys = 0;  // rows of K or V that a head's tiles read
  for (int row = 0; row < rows_of_head(p); row += plan.block_q)
    keys += keys_of_tile(p, row, plan.block_q);
  const int64_t q = rows * p.d * kIoBytes, k = int64_t{p.B} * p.Hk * keys * p.d * kIoBytes;
  const int64_t O_parts = parts * rows * p.d * 4, m_parts = parts * rows * 4;
  if (parts == 1)
    return {
        {"attention", {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}, {"LSE", 0, rows * 4}}}};
  return {{"attention",
           {{"Q", parts * q, 0},
            {"K", k, 0},
            {"V", k, 0},
            {"O_parts", 0, O_parts},
            {"m_parts", 0, m_parts},
            {"l_parts", 0, m_parts}}},
          {"merge",
           {{"O_parts", O_parts, 0},
            {"m_parts", m_parts, 0},
            {"l_parts", m_parts, 0},
            {"O", 0, q},
            {"LSE", 0, rows * 4}}}};
}

const Register step{{
    .rung = "05_flash_v2",
    .name = "split_kv",
    .after = "large_tiles",
    .aside = true,
    .shown = {.idea = "keys split",
              .change = {"blocks", "more", "--seqlen 1 --seqlen-kv 2048"},
              .summary = "decoding: blocks split the keys, and another kernel merges their results",
              .colour = "#0072B2",
              .decoding = true},
    .has_lse = true,
    .tiles = kTiles,
    .settings = kSettings,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
