// The float64 reference.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/reference_error.h"
#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// How much of the outputs is compared: all where that takes under a second, all, some, none.
enum class Check { automatic, full, sampled, off };

/// What is compared: of O, LSE and dQ, rows of every head; dK and dV, whole, of some of the B·Hk
/// key/value heads. Without any of these there are no gradients.
struct Choice {
  std::vector<int> rows, kv_heads;  // ascending
};

/// All, where `how` says so or it takes under about a second on this host. Else the first row, the
/// last and others evenly between, 4 at least and as many as a quarter of a second allows; and of
/// dK and dV the last head: an element of dK depends on all queries: a head costs N·N_kv·d.
Choice to_check(const Problem& p, Check how, bool gradients);

/// Attention in float64 over the inputs as rounded, and the gradients of L = Σ dO∘O where they are
/// chosen; and `plain`: the same with the roundings to the I/O type that the algorithm cannot
/// avoid.
///
///   S = scale·Q·Kᵀ:     dQ = scale·dS·K,   dK = scale·dSᵀ·Q
///   P = softmax(S):     dS = P∘(dP − D),   D_i = Σ_j P_ij·dP_ij = Σ_c dO_ic·O_ic
///   O = P·V:            dV = Pᵀ·dO,        dP = dO·Vᵀ
///
/// dK and dV are sums over the query heads that share a key/value head. A row that sees no key has
/// O = 0, LSE = −∞ and dQ = 0, and adds nothing to dK and dV.
///
/// With a quantisation the inputs are those that it makes of Q, K and V, and `plain` is as far off
/// as rounding P to e4m3 and the tensor cores' sums of it may bring half of.
struct Reference {
  Reference(const Problem& p, const Inputs& inputs, Rounding rounding, const Choice& choice,
            const std::optional<Quantisation>& quantisation = {});

  ExpectedTensor o, lse, dq, dk, dv;
  /// Where S is stored: rows of O whose Σ exp(S), S rounded to the I/O type, leaves float32's
  /// normal range, so that a rung that subtracts no maximum must fail. All see a key.
  int64_t overflowing_rows = 0;
};

}  // namespace ladder
