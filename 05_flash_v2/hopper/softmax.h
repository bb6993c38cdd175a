// 05 on Hopper: the softmax that seldom rescales O, as `lazy` shows it, for the steps from
// `own_keys` on. This header is not a step of its own.
#pragma once

#include "block.h"
#include "rung.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

// The warp's rows keep their m while no P is above 2^kSlack: O and LSE are the same with any m, if
// P and the sums fit their types.
constexpr float kSlack = 8;

/// How keys that a row does not attend to are hidden: by a comparison with the row's last key for
/// each element, or from a column on that is worked out once for each row, in fewer instructions.
enum class Mask { by_element, by_row };

/// S becomes P, by the maxima m of the warp's rows when they were last raised, and l their running
/// sums. Whether they were raised now: then O has to be scaled by alpha.
template <Mask mask = Mask::by_element, int Bc>
__device__ __forceinline__ bool softmax(Accumulator<16, Bc>& S, Rows<16>& m, Rows<16>& l,
                                        Rows<16>& alpha, int row, int key, const Problem& p) {
  const float c = p.scale * kLog2e;  // exp(scale·s) = 2^(c·s)
  if (key + Bc > p.keys(row)) {
    if constexpr (mask == Mask::by_row)
      mask_columns(S, [&](int i) { return p.keys(row + i) - key; });
    else
      for_each(S, [&](int i, int j, float& s) {
        if (key + j >= p.keys(row + i)) s = -INFINITY;
      });
  }
  const auto largest = c * row_max_in_lane(S);
  const bool raised = any_above(largest - m, kSlack);
  if (raised) {
    const auto m_new = max(m, max_over_lanes(largest));
    alpha = exp2(m - finite_or_zero(m_new));
    l = alpha * l;
    m = m_new;
  }
  exp2_rows(S, c, finite_or_zero(m));
  l = l + row_sum_in_lane(S);
  return raised;
}

}  // namespace
}  // namespace ladder::MACHINE
