// 05: where there are few tiles of Q, lets `parts` blocks share the keys of each tile, as split_kv
// does, and chooses their number. The steps large_tiles and sm90 use this header.
//
//   each block:  stores m, l and the unnormalised O of its part of the keys in HBM
//   merge:       combines all parts into O and LSE of each row, by 03's rule
#pragma once

#include <limits>

#include "machine/machine.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/warp.h"

namespace ladder::MACHINE {
namespace {

constexpr int kMergeThreads = 128;
constexpr int kMostParts = 32;  // the most parts that a plan takes
const Setting kSettings[] = {
    {"parts", {"auto", "1", "2", "4", "8", "16"}, "blocks that share a tile of Q"}};

/// The partial results in HBM. m (in units of ln 2) and l are indexed by (part, row), where `row`
/// runs over the B·H·N rows of all heads; the unnormalised O is indexed by (part, row, column).
struct Parts {
  Hbm<float> O, m, l;
};

/// The keys [begin, end).
struct Keys {
  int begin, end;
};
/// Returns the keys that this block computes, given that its tile of Q attends to the first `keys`
/// keys: all of them or, if kSplit, part blockIdx.y of gridDim.y, in whole tiles of Bc keys. Some
/// parts are empty if there are fewer tiles of keys than parts.
template <bool kSplit, int Bc>
__device__ __forceinline__ Keys keys_of_part(int keys) {
  if constexpr (!kSplit) return {0, keys};
  const int tiles = static_cast<int>(ceil_div(keys, Bc)), part = blockIdx.y, parts = gridDim.y;
  return {tiles * part / parts * Bc, min(keys, tiles * (part + 1) / parts * Bc)};
}

/// Stores m, l and the unnormalised O of the warp's M rows as part blockIdx.y. The rows start at
/// `row` of head bh; rows from p.N on are not stored.
template <int M, int Dh>
__device__ __forceinline__ void store_part(const Accumulator<M, Dh>& O_sum, const Rows<M>& m,
                                           const Rows<M>& l, const Parts& parts, int bh, int row,
                                           const Problem& p) {
  const int64_t to = p.q_row(blockIdx.y * p.B * p.H + bh) + row;
  for_each_pair(O_sum, [&](int i, int j, float a, float b) {
    if (row + i >= p.N || j >= p.d) return;
    store_pair(parts.O + ((to + i) * p.d + j), a, b);
  });
  for_each_row(m, sum_over_lanes(l), [&](int i, float max, float sum) {
    if (row + i >= p.N) return;
    parts.m[to + i] = max;
    parts.l[to + i] = sum;
  });
}

/// Computes O and LSE from the parts, by 03's rule; each thread computes 8 columns of one row.
/// grid: (B·H·N · Dh/8 / kMergeThreads, rounded up).
template <class T, int Dh>
__global__ void __launch_bounds__(kMergeThreads)
    merge(HbmWrittenBefore<const float> O_parts, HbmWrittenBefore<const float> m_parts,
          HbmWrittenBefore<const float> l_parts, Hbm<T> O, Hbm<float> LSE, int parts, Problem p) {
  constexpr float kLn2 = 0.693147181f;
  const int64_t thread = int64_t{blockIdx.x} * kMergeThreads + threadIdx.x;
  const int64_t rows = int64_t{p.B} * p.H * p.N, row = thread / (Dh / 8);
  const int column = static_cast<int>(thread % (Dh / 8)) * 8;
  if (row >= rows || column >= p.d) return;
  wait_for_kernel_before();  // that kernel writes the parts

  float m = -INFINITY, l = 0, o[8] = {};
#pragma unroll 4  // so that the parts' loads overlap
  for (int part = 0; part < parts; ++part) {
    const int64_t at = part * rows + row;
    const float m_part = m_parts[at], l_part = l_parts[at];
    const auto O_part = read_chunk(O_parts + (at * p.d + column));
    const float m_new = fmaxf(m, m_part), shift = m_new == -INFINITY ? 0 : m_new;
    const float alpha = exp2_fast(m - shift), weight = exp2_fast(m_part - shift);
    for (int e = 0; e < 8; ++e) o[e] = alpha * o[e] + weight * O_part[e];
    l = alpha * l + weight * l_part;
    m = m_new;
  }
  const float inverse = l > 0 ? 1 / l : 0;  // a row that attends to no key gives O = 0
  Chunk<T> out;
  for (int e = 0; e < 8; ++e) out[e] = T(o[e] * inverse);
  write_chunk(O + (row * p.d + column), out);
  if (column == 0) LSE[row] = l > 0 ? m * kLn2 + logf(l) : -INFINITY;
}

/// Returns the arrays of struct Parts, with their bytes, for a plan's workspace.
inline std::vector<WorkspaceArray> workspace_of_parts(const Problem& p, int parts) {
  const int64_t rows = parts * int64_t{p.B} * p.H * p.N;
  return {{"O_parts", rows * p.d * 4}, {"m_parts", rows * 4}, {"l_parts", rows * 4}};
}
inline Parts parts_in(const Arrays& a) {
  return {hbm<float>(a["O_parts"]), hbm<float>(a["m_parts"]), hbm<float>(a["l_parts"])};
}

/// Launches `merge` right after the kernel that stores the parts. The blocks of `merge` may start
/// before that kernel ends.
template <class T, int Dh>
void merge_parts(const Problem& p, int count, const Arrays& a) {
  const Parts parts = parts_in(a);
  const int64_t threads = int64_t{p.B} * p.H * p.N * (Dh / 8);
  launch<Start::early>("merge", merge<T, Dh>, dim3(ceil_div(threads, kMergeThreads)),
                       dim3(kMergeThreads), 0, Hbm<const float>(parts.O), Hbm<const float>(parts.m),
                       Hbm<const float>(parts.l), hbm<T>(a["O"]), hbm<float>(a["LSE"]), count, p);
}

/// Predicts the requested bytes if `parts` blocks share each tile of Q: every block reads its tile
/// of Q, and all blocks together read k bytes of K and k bytes of V. In `merge` each of a row's d/8
/// threads reads all m and l of that row.
inline Traffic traffic_of_parts(const Problem& p, int parts, int64_t k) {
  const int64_t lse = int64_t{p.B} * p.H * p.N * 4, q = lse / 4 * p.d * kIoBytes;
  const int64_t m_parts = parts * lse, O_parts = m_parts * p.d;
  return {{"attention",
           {{"Q", parts * q, 0},
            {"K", k, 0},
            {"V", k, 0},
            {"O_parts", 0, O_parts},
            {"m_parts", 0, m_parts},
            {"l_parts", 0, m_parts}}},
          {"merge",
           {{"O_parts", O_parts, 0},
            {"m_parts", m_parts * (p.d / 8), 0},
            {"l_parts", m_parts * (p.d / 8), 0},
            {"O", 0, q},
            {"LSE", 0, lse}}}};
}

/// Estimates the time in µs of the whole run with this tile, if `parts` blocks share each tile's
/// keys. A block has `warps` warps and `smem_bytes` bytes of shared memory. The constants were
/// fitted to times on an H200:
///   - An SM runs as many blocks as exist and fit, up to eight warps. With 64 rows and heads of up
///     to 64 columns, a thread needs fewer registers, so twelve warps fit.
///   - While each of an SM's blocks computes one tile of keys, 1 µs passes, the latency of the
///     tile's dependent steps, plus 1 µs per 9 MFLOP of these blocks together. If it is longer, the
///     time is 1 µs per 2.6 MFLOP instead. This second time grows by a tenth for tiles of 64 rows,
///     by a tenth for tiles of 32 keys, and by an eighth if fewer than eight warps run.
///   - Starting and ending a block takes the time of one tile of keys.
///   - A launch takes 4 µs. Merging parts takes 4 µs more, plus the time to write and read them at
///     8 TB/s, because they stay in L2.
inline double time_of_tile(const Problem& p, const DeviceInfo& device, const TileSize& tile,
                           int warps, int64_t smem_bytes, int parts) {
  const int64_t heads = int64_t{p.B} * p.H, blocks = heads * ceil_div(p.N, tile.block_q) * parts;
  const int most_warps = tile.block_q == 64 && tile.max_d <= 64 ? 12 : 8;
  const int64_t of_SM = std::min({int64_t{most_warps / warps}, device.blocks_per_sm(smem_bytes),
                                  ceil_div(blocks, device.multiprocessors)});
  const int64_t at_once = of_SM * device.multiprocessors, waves = ceil_div(blocks, at_once);
  // Times in units of one tile of keys: of all blocks of a head together, of its longest block, and
  // of its shortest.
  int64_t all = 0, longest = 0, shortest = std::numeric_limits<int64_t>::max();
  for (int64_t row = 0; row < p.N; row += tile.block_q) {
    const int64_t last = std::min<int64_t>(row + tile.block_q, p.N) - 1;
    const int64_t kv_tiles = ceil_div(p.keys(static_cast<int>(last)), tile.block_kv);
    all += kv_tiles + parts;
    longest = std::max(longest, ceil_div(kv_tiles, parts) + 1);
    shortest = std::min(shortest, kv_tiles / parts + 1);
  }
  const double mflop = 4e-6 * of_SM * tile.block_q * tile.block_kv * tile.max_d;
  const double slower =
      1 + 0.1 * (tile.block_q == 64) + 0.1 * (tile.block_kv == 32) + 0.125 * (of_SM * warps < 8);
  const double kv_tile = std::max(1 + mflop / 9, slower * mflop / 2.6);
  // Long blocks start first, and short ones fill the gaps. But an SM runs one block per wave in
  // each of its slots, and no block takes less time than the shortest.
  const double kv_tiles = std::max({static_cast<double>(heads * all) / at_once,
                                    static_cast<double>(longest), double(shortest * waves)});
  const double merged = 8.0 * parts * static_cast<double>(heads * p.N * p.d);  // bytes
  return kv_tile * kv_tiles + 4 + (parts > 1 ? 4 + merged / 8e6 : 0);
}

/// A tile, and the number of blocks that share its keys.
struct Choice {
  TileRequest tile;
  int parts = 1;
};
/// Chooses the tile and the number of parts with the lowest estimated time, among the tiles for
/// heads of Dh columns that fit in shared memory and match the request. If asked_parts is 0, any
/// number of parts up to kMostParts is allowed. A number above 1 must save 3% over the best choice
/// so far; of two equal times the smaller tile's counts. Returns the request if no tile fits.
/// warps(Dh, Br), may_split(Br) and smem_bytes(Dh, Br, Bc) are the step's functions of these names.
template <class Tiles, class Warps, class MaySplit, class SmemBytes>
Choice fastest_of(const Tiles& tiles, const Problem& p, int Dh, const DeviceInfo& device,
                  const TileRequest& asked, int asked_parts, Warps warps, MaySplit may_split,
                  SmemBytes smem_bytes) {
  Choice best{.tile = asked, .parts = std::max(1, asked_parts)};
  double least = 0;
  for (const auto& [max_d, Br, Bc] : tiles) {
    const int64_t bytes = smem_bytes(Dh, Br, Bc);
    if (max_d != tiles_for(tiles, Dh) || !asked.matches({max_d, Br, Bc}) ||
        bytes > device.smem_bytes)
      continue;
    for (int parts = 1; parts <= (may_split(Br) ? kMostParts : 1); ++parts) {
      if (asked_parts > 0 && parts != asked_parts) continue;
      const double time = time_of_tile(p, device, {Dh, Br, Bc}, warps(Dh, Br), bytes, parts);
      if (least != 0 && time > (parts > 1 ? 0.97 : 1) * least) continue;
      least = time;
      best = {{Br, Bc}, parts};
    }
  }
  return best;
}

}  // namespace
}  // namespace ladder::MACHINE
