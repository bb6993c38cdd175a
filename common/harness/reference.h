// Declares the float64 reference and the rule for how far a correct output may deviate from it,
// which common/CONTRACTS.md states under "When a result counts as correct". run.cpp checks every
// run with them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "float16.h"
#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// The distance of one output tensor `out` from the reference `ref`, over the checked elements.
struct TensorError {
  std::string name;          // "o", "lse", "dq", …
  double max = 0;            // max |out − ref|; 0 for an infinity that is also in the reference
  double rel = 0;            // ‖out − ref‖₂ / ‖ref‖₂ over finite values
  double rms = 0;            // √(mean (out − ref)²) over finite values
  double tolerance = 0;      // 2·max |plain − ref| + atol; infinite if errors are only reported
  double largest = 0;        // max |ref| over the reference's finite values
  int64_t nonfinite = 0;     // number of values that are not finite although the reference is
  std::string compared;      // the checked elements: "64 of 4096 rows"
  int64_t out_of_range = 0;  // how many of the `nonfinite` values overflow in `plain`, too
  std::string where;         // a failure's place: "heads 0 to 1, rows 16 to 31, columns 0 to 63"
  bool operator==(const TensorError&) const = default;
  bool pass() const { return nonfinite == 0 && !wrong(); }
  /// Whether the output has to pass; false if its error is only reported.
  bool judged() const { return is_finite(tolerance); }
  /// Whether a pass is conclusive: zeros would fail, or all values should be 0 and are exactly 0.
  bool decides() const { return tolerance < largest / 2 || (largest == 0 && max == 0); }
  bool undecided() const { return judged() && pass() && !decides(); }
  /// Whether the output fails for another reason than overflow of the I/O type or of float32.
  bool wrong() const { return nonfinite > out_of_range || !is_finite(max) || max > tolerance; }
};

/// The expected values of some rows of an output tensor, and how far the output may deviate.
/// `exact` and `plain` (see Reference) hold these rows one after another.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> rows;  // indices of the rows among all rows of the tensor
  int columns = 1;
  std::string compared;  // see TensorError
  std::vector<double> exact, plain;
  double extra = 0, relative = 0;  // atol includes extra + relative · max |exact|
  int64_t rows_of_head = 0;        // rows per head; 0: the tensor is a single head
};

/// Compares the expected rows with those of `out`, the whole tensor in the I/O type. The tolerance
/// includes half a unit in the last place of that type.
TensorError compare(const ExpectedTensor& expected, const Tensor& out);
/// Compares the expected rows with a whole tensor in float32; no half unit is added.
TensorError compare(const ExpectedTensor& expected, const std::vector<float>& out);
/// Compares the output of a step that quantises with the reference for the inputs as given. The
/// error is only reported, as "o_full": the tolerance is infinite.
TensorError compare_with_full_precision(const ExpectedTensor& expected, const Tensor& out);

enum class Check { automatic, full, sampled, off };  // how much is compared: see to_check()

/// The rows to compare: `rows` of O, LSE and dQ in every head, and all rows of dK and dV in
/// `kv_heads` (in [0, B·Hk)). If `kv_heads` is empty, no gradients are computed.
struct RowsToCheck {
  std::vector<int> rows, kv_heads;  // ascending
};

/// Returns all rows if `how` is full, or if it is automatic and they take under about a second on
/// this host. Otherwise returns evenly spaced rows that include the first and the last: at least 4,
/// at most 256, and in between as many as a quarter of a second allows. For dK and dV it then
/// chooses only the last head, because one head alone costs N·N_kv·d: every query contributes.
RowsToCheck to_check(const Problem& p, Check how, bool gradients);

/// Attention of the given inputs in float64 (`exact`), and the same with those roundings to the I/O
/// type that the algorithm cannot avoid (`plain`). RowsToCheck with kv_heads adds the gradients of
/// L = Σ dO∘O.
///
///   S = scale·Q·Kᵀ:     dQ = scale·dS·K,   dK = scale·dSᵀ·Q
///   P = softmax(S):     dS = P∘(dP − D),   D_i = Σ_j P_ij·dP_ij = Σ_c dO_ic·O_ic
///   O = P·V:            dV = Pᵀ·dO,        dP = dO·Vᵀ
///
/// dK and dV are sums over the query heads that share a key/value head. A row that attends to no
/// key has O = 0, LSE = −∞ and dQ = 0, and adds nothing to dK and dV.
///
/// With a quantisation the inputs are the quantised Q, K and V. `plain` then differs from `exact`
/// by half the error that rounding P to e4m3 and the tensor cores' sums may cause, because the
/// tolerance doubles that difference.
struct Reference {
  Reference(const Problem& p, const Inputs& inputs, Rounding rounding, const RowsToCheck& choice,
            const std::optional<Quantisation>& quantisation = {});

  ExpectedTensor o, lse, dq, dk, dv;
  /// If S is stored: how many checked rows that attend to a key have a Σ exp(S), with S rounded,
  /// outside float32's normal range. A rung that subtracts no maximum must fail in these rows.
  int64_t overflowing_rows = 0;
};

}  // namespace ladder
