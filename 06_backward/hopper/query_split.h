// 06 on Hopper: host code of `split` and `sm90` for sharing a tile of keys among several blocks:
// the number of blocks, the sums of dK and dV in HBM, and the launches that clear and convert them.
#pragma once

#include "../query_split.h"
#include "gradients.h"

namespace ladder::MACHINE {
namespace {

/// Returns the lanes per row in preprocess: a power of two, at least Dh/8.
constexpr int lanes_of(int Dh) {
  return Dh > 128 ? 32 : Dh / 8;
}
const Setting kSettings[] = {
    {"parts", {"auto", "1", "2", "4", "8", "16"}, "blocks for each tile of keys"}};

// Constants of choose_parts, fitted to times on an H200. The unit of time is one iteration, which
// processes a tile of Q with a tile of keys.
constexpr int kMostParts = 64;        // blocks per tile of keys, at most
constexpr int kBlockEnds = 3;         // time of a block's start and end together
constexpr double kSumsStart = 1;      // fixed cost of keeping sums of dK and dV in HBM
constexpr double kSumsRate = 7;       // MB of these sums that are moved per unit of time
constexpr double kWorthwhile = 0.97;  // more parts must take less than this fraction of the time
// Under the mask, blocks that run together drift apart to different query heads of a group, so L2
// has to hold more: Q, dO and the sums of dQ of all parts at work (`drifting`, in MB). Beyond
// kCached MB an iteration takes kUncached times as long. If d > 128, an iteration moves twice the
// bytes in the same time, so beyond kCachedWide MB its time grows in proportion to the data.
constexpr double kCached = 100, kUncached = 1.125, kCachedWide = 40;

/// Returns how many blocks should share a tile of keys: the number with the lowest estimated time.
/// The estimate is the time of the blocks plus, with several parts, the time for the sums in HBM,
/// which are cleared, added to by each part, and converted.
inline int choose_parts(const Problem& p, const Plan& plan, int64_t multiprocessors) {
  const int64_t group = p.H / p.Hk, heads = int64_t{p.B} * p.Hk;
  const int64_t tiles = ceil_div(p.N_kv, plan.block_kv);
  const double megabytes = 8e-6 * heads * tiles * plan.block_kv * plan.head_dim;  // both sums
  int best = 1;
  double least = 0;
  for (int parts = 1; parts <= std::min<int64_t>(kMostParts, group * ceil_div(p.N, plan.block_q));
       ++parts) {
    int64_t all = 0, longest = 0;  // times of a head's blocks together, and of its longest block
    for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
      const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
      const int64_t q_tiles = group * ceil_div(p.N - first, plan.block_q);
      all += q_tiles + kBlockEnds * parts;
      longest = std::max(longest, ceil_div(q_tiles, parts) + kBlockEnds);
    }
    const int64_t at_work = std::max<int64_t>(1, (multiprocessors + tiles / 2) / tiles);
    const double group_megabytes = 8e-6 * p.N * p.d * group / parts;  // Q, dO and sums of dQ
    const bool drift = p.causal && parts < group;                     // parts span several heads
    const double drifting = drift ? std::min(heads * parts, at_work) * group_megabytes : 0;
    const double slower = p.d > 128            ? std::max(1.0, drifting / kCachedWide)
                          : drifting > kCached ? kUncached
                                               : 1;
    const double time =
        slower * time_of(heads * all, longest, heads * tiles * parts, multiprocessors, p.causal) +
        (parts > 1 ? kSumsStart + megabytes * (2 + parts) / kSumsRate : 0);
    if (parts == 1 || time < kWorthwhile * least) best = parts, least = time;
  }
  return best;
}

/// Adds to a plan the number of blocks that share a tile of keys, and the workspace for their sums.
inline void plan_parts(Plan& plan, const Problem& p, const DeviceInfo& device,
                       const TileRequest& request) {
  plan.settings = choose_settings(kSettings, request.settings);
  const std::string& asked = plan.settings.at("parts");
  plan.parts = asked == "auto" ? choose_parts(p, plan, device.multiprocessors) : std::stoi(asked);
  const int64_t tiles = ceil_div(p.N_kv, plan.block_kv) * p.B * p.Hk;
  if (plan.parts > 1)
    for (const char* name : {"dK_sum", "dV_sum"})
      plan.workspace.push_back({name, tiles * plan.block_kv * plan.head_dim * 4});
  plan.note += (plan.note.empty() ? "" : "; ") + std::to_string(tiles) + " tiles of keys, " +
               std::to_string(plan.parts) + (plan.parts == 1 ? " block" : " blocks") +
               " for each, on " + std::to_string(device.multiprocessors) + " SMs";
}

inline KeySums key_sums_of(const Problem& p, const Plan& plan, const Kept& kept, const Arrays& a) {
  if (plan.parts == 1) return {kept.dQ_sum, kept.dQ_sum, 0};  // no kernel uses these two pointers
  return {hbm<float>(a["dK_sum"]), hbm<float>(a["dV_sum"]),
          key_tiles(p, kept) * plan.block_kv * (plan.head_dim / 8)};
}
/// Returns the grid of preprocess_and_clear: lanes_of(Dh) lanes for each padded row, and at least
/// one lane for each chunk of the sums of dK.
template <int Dh>
dim3 preprocess_blocks(const Problem& p, const Kept& kept, const KeySums& sums) {
  const int64_t lanes = int64_t{p.B} * p.H * kept.rows * lanes_of(Dh);
  return dim3(ceil_div(std::max(lanes, sums.chunks), kElementwise));
}
/// Launches postprocess for the sums of dK (which include the scale) and dV, if blocks share tiles.
template <class T, int Dh, int Bc, int kColumns>
void launch_postprocess_keys(const Problem& p, const Plan& plan, const Kept& kept,
                             const KeySums& sums, const Arrays& a) {
  if (plan.parts == 1) return;
  const auto of = [&](const char* name, Hbm<float> from, const char* to) {
    launch_postprocess<T, Dh, Bc, kColumns>(name, int64_t{p.B} * p.Hk, from, hbm<T>(a[to]), p.N_kv,
                                            kept.tiles * Bc, p.d, 1);
  };
  of("postprocess_dK", sums.dK, "dK");
  of("postprocess_dV", sums.dV, "dV");
}

}  // namespace
}  // namespace ladder::MACHINE
