// 05 on Hopper: where tiles of Q are few, `parts` blocks share the keys of each, as in split_kv.
// tiles.h chooses how many. Not a step of its own.
//
//   each block:  m, l and O of its share of the keys, O not divided by l, to HBM
//   merge:       of all shares of a row, by 03's rule, O and LSE
#pragma once

#include "block.h"
#include "machine/hopper.h"
#include "rung.h"
#include "tile/rows.h"
#include "tile/warpgroup.h"
#include "work.h"

namespace ladder::MACHINE {
namespace {

constexpr int kMergeThreads = 128;

/// m, l and O of all parts, O not divided by l; m in units of ln 2. Arrays of (part, row).
struct Parts {
  Hbm<float> O, m, l;
};

/// Of a tile of Q's kv_tiles tiles of K and V those of this block, numbers begin to end − 1: all,
/// or a part. Where there are fewer than parts, the last blocks have one that no row attends to.
template <bool kSplit>
__device__ __forceinline__ KeyTiles key_tiles_of_split(int kv_tiles) {
  if constexpr (!kSplit) return {0, kv_tiles};
  const int part = blockIdx.y, parts = min(static_cast<int>(gridDim.y), kv_tiles);
  if (part >= parts) return {kv_tiles, kv_tiles + 1};
  return {kv_tiles * part / parts, kv_tiles * (part + 1) / parts};
}

/// A consumer's rows of m, l and O to their places in the block's part.
template <int Dh>
__device__ __forceinline__ void store_part(const Accumulator<16, Dh>& O_sum, const Rows<16>& m,
                                           const Rows<16>& l, const Parts& parts, int bh,
                                           int tile_row, const Problem& p) {
  const int row = tile_row + warp_id() % 4 * 16;
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

/// O and LSE from the parts, by 03's rule. A thread has 8 columns of a row. grid: (B·H·N · Dh/8 /
/// kMergeThreads).
template <class T, int Dh>
__global__ void __launch_bounds__(kMergeThreads)
    merge(HbmWrittenBefore<const float> O_parts, HbmWrittenBefore<const float> m_parts,
          HbmWrittenBefore<const float> l_parts, Hbm<T> O, Hbm<float> LSE, int parts, Problem p) {
  const int64_t thread = int64_t{blockIdx.x} * kMergeThreads + threadIdx.x;
  const int64_t rows = int64_t{p.B} * p.H * p.N, row = thread / (Dh / 8);
  const int column = static_cast<int>(thread % (Dh / 8)) * 8;
  if (row >= rows || column >= p.d) return;
  wait_for_kernel_before();  // which writes the parts

  float m = -INFINITY, l = 0, o[8] = {};
#pragma unroll 4  // their loads overlap
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
  const float inverse = l > 0 ? 1 / l : 0;  // a row that attends to no key
  Chunk<T> out;
  for (int e = 0; e < 8; ++e) out[e] = T(o[e] * inverse);
  write_chunk(O + (row * p.d + column), out);
  if (column == 0) LSE[row] = l > 0 ? m * kLn2 + logf(l) : -INFINITY;
}

std::vector<WorkspaceArray> workspace_of_parts(const Problem& p, int parts) {
  const int64_t rows = parts * int64_t{p.B} * p.H * p.N;
  return {{"O_parts", rows * p.d * 4}, {"m_parts", rows * 4}, {"l_parts", rows * 4}};
}
Parts parts_in(const Arrays& a) {
  return {hbm<float>(a["O_parts"]), hbm<float>(a["m_parts"]), hbm<float>(a["l_parts"])};
}

/// Launches `merge`, right behind the kernel that stores the parts.
template <class T, int Dh>
void merge_parts(const Problem& p, int count, const Arrays& a) {
  const Parts parts = parts_in(a);
  const int64_t threads = int64_t{p.B} * p.H * p.N * (Dh / 8);
  launch<Start::early>("merge", merge<T, Dh>, dim3(ceil_div(threads, kMergeThreads)),
                       dim3(kMergeThreads), 0, Hbm<const float>(parts.O), Hbm<const float>(parts.m),
                       Hbm<const float>(parts.l), hbm<T>(a["O"]), hbm<float>(a["LSE"]), count, p);
}

/// Requested bytes where tiles are shared, instead of those of `whole` tiles: every part reads Q;
/// and parts for which there is none of a tile's kv_tiles tiles of keys read one in vain.
Traffic traffic_of_parts(const Problem& p, const Plan& plan,
                         const std::vector<ArrayTraffic>& whole) {
  const int64_t lse = int64_t{p.B} * p.H * p.N * 4, q = lse / 4 * p.d * kIoBytes;
  const int64_t vain = sum_over_tiles(p, plan, kWarpgroupRows, [&](int64_t kv_tiles) {
    return std::max<int64_t>(0, plan.parts - kv_tiles) *
           std::clamp<int64_t>(p.N_kv - kv_tiles * plan.block_kv, 0, plan.block_kv);
  });
  const int64_t k = whole[1].read + vain * p.B * p.H * p.d * kIoBytes;
  const int64_t m_parts = plan.parts * lse, O_parts = m_parts * p.d;
  return {{"attention",
           {{"Q", plan.parts * q, 0},
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

}  // namespace
}  // namespace ladder::MACHINE
