// 05 on Hopper: the softmax of the step `lazy`, which rarely rescales O, for the steps from
// `own_keys` on.
#pragma once

#include "block.h"
#include "rung.h"
#include "tile/rows.h"

namespace ladder::MACHINE {
namespace {

// A warp's rows keep their m while no P exceeds 2^kSlack. Any m gives the same O and LSE, as long
// as P and the sums fit in their types.
constexpr float kSlack = 8;

/// How keys that a row does not attend to are masked. by_element compares the key of each element
/// with the row's last key; by_row works out each row's first masked column once, which takes fewer
/// instructions.
enum class Mask { by_element, by_row };

/// Turns S into P relative to the maxima m of the warp's rows, raising m first if P would grow
/// too large, and updates the running sums l. Returns whether m was raised; if so, O has to be
/// rescaled by alpha. S starts at (row, key).
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
