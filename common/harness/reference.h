// The float64 reference, and how far an output may be from it: the rule of what is correct.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "float16.h"
#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// How far one output tensor is from the reference, over the elements checked.
struct TensorError {
  std::string name;          // "o", "lse", "dq", …
  double max = 0;            // max |out − ref|; an infinity equal to the reference's is error 0
  double rel = 0;            // ‖out − ref‖₂ / ‖ref‖₂ over finite values
  double rms = 0;            // √(mean (out − ref)²) over them
  double tolerance = 0;      // 2·max|plain − ref| + atol; infinite where it is but reported
  double largest = 0;        // max |ref| where it is finite
  int64_t nonfinite = 0;     // values that are not finite where the reference is
  std::string compared;      // which elements: "64 of 4096 rows"
  int64_t out_of_range = 0;  // those of `nonfinite` that in `plain` are not finite either
  std::string where;         // "heads 0 to 1, rows 16 to 31, columns 0 to 63", where it fails
  bool operator==(const TensorError&) const = default;
  bool pass() const { return nonfinite == 0 && !wrong(); }
  bool judged() const { return is_finite(tolerance); }
  /// Whether it says anything that it passes: not where zeros are as near. Where all should be 0,
  /// nothing but zeros is surely right.
  bool decides() const { return tolerance < largest / 2 || (largest == 0 && max == 0); }
  bool undecided() const { return judged() && pass() && !decides(); }
  /// Whether it fails by more than values that the I/O type, or float32 on the way, cannot hold.
  bool wrong() const { return nonfinite > out_of_range || !is_finite(max) || max > tolerance; }
};

/// Some rows of an output tensor as they should be, and how far off they may be.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> rows;  // which of all that the tensor has
  int columns = 1;
  std::string compared;  // as a TensorError has it
  std::vector<double> exact, plain;
  double extra = 0, relative = 0;  // of the tolerance; the second, of the largest |exact|
  int64_t rows_of_head = 0;        // of the tensor; 0: of one head
};

/// Compares a tensor in the I/O type, which rounding to it may cost half a unit in the last place.
TensorError compare(const ExpectedTensor& expected, const Tensor& out);
/// Compares one in float32.
TensorError compare(const ExpectedTensor& expected, const std::vector<float>& out);
/// Compares what quantised inputs gave with what is expected of the inputs: reported, not judged.
TensorError compare_with_full_precision(const ExpectedTensor& expected, const Tensor& out);

/// How much of the outputs is compared: all where that takes under a second, all, some, none.
enum class Check { automatic, full, sampled, off };

/// What is compared: of O, LSE and dQ, rows of every head; dK and dV, whole, of some of the B·Hk
/// key/value heads. Without any of these there are no gradients.
struct RowsToCheck {
  std::vector<int> rows, kv_heads;  // ascending
};

/// All, where `how` says so or it takes under about a second on this host. Else the first row, the
/// last and others evenly between, 4 at least and as many as a quarter of a second allows; and of
/// dK and dV the last head: an element of dK depends on all queries: a head costs N·N_kv·d.
RowsToCheck to_check(const Problem& p, Check how, bool gradients);

/// Attention in float64 over the inputs as rounded, and the gradients of L = Σ dO∘O where they are
/// chosen; and `plain`: the same with the roundings to the I/O type that the algorithm cannot
/// avoid.
///
///   S = scale·Q·Kᵀ:     dQ = scale·dS·K,   dK = scale·dSᵀ·Q
///   P = softmax(S):     dS = P∘(dP − D),   D_i = Σ_j P_ij·dP_ij = Σ_c dO_ic·O_ic
///   O = P·V:            dV = Pᵀ·dO,        dP = dO·Vᵀ
///
/// dK and dV are sums over the query heads that share a key/value head. A row that attends to no
/// key has O = 0, LSE = −∞ and dQ = 0, and adds nothing to dK and dV.
///
/// With a quantisation the inputs are those that it makes of Q, K and V, and `plain` is as far off
/// as rounding P to e4m3 and the tensor cores' sums of it may bring half of.
struct Reference {
  Reference(const Problem& p, const Inputs& inputs, Rounding rounding, const RowsToCheck& choice,
            const std::optional<Quantisation>& quantisation = {});

  ExpectedTensor o, lse, dq, dk, dv;
  /// Where S is stored: rows of O whose Σ exp(S), S rounded to the I/O type, leaves float32's
  /// normal range, so that a rung that subtracts no maximum must fail. All see a key.
  int64_t overflowing_rows = 0;
};

}  // namespace ladder
