// Declares the float64 reference and the rule for how far a correct output may deviate from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "float16.h"
#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// The distance of one output tensor from the reference, over the checked elements.
struct TensorError {
  std::string name;          // "o", "lse", "dq", …
  double max = 0;            // max |out − ref|; 0 for an infinity that is also in the reference
  double rel = 0;            // ‖out − ref‖₂ / ‖ref‖₂ over finite values
  double rms = 0;            // √(mean (out − ref)²) over finite values
  double tolerance = 0;      // 2·max|plain − ref| + atol; infinite if errors are only reported
  double largest = 0;        // max |ref| over the reference's finite values
  int64_t nonfinite = 0;     // values that are not finite although the reference is
  std::string compared;      // the checked elements: "64 of 4096 rows"
  int64_t out_of_range = 0;  // those of them that are not finite in `plain` either
  std::string where;         // a failure's place: "heads 0 to 1, rows 16 to 31, columns 0 to 63"
  bool operator==(const TensorError&) const = default;
  bool pass() const { return nonfinite == 0 && !wrong(); }
  bool judged() const { return is_finite(tolerance); }
  /// Whether a pass is conclusive, that is, an output of zeros would fail. If all values should be
  /// 0, only exact zeros are conclusive.
  bool decides() const { return tolerance < largest / 2 || (largest == 0 && max == 0); }
  bool undecided() const { return judged() && pass() && !decides(); }
  /// Whether the output fails for a reason other than overflow of the I/O type, or of float32 in an
  /// intermediate result.
  bool wrong() const { return nonfinite > out_of_range || !is_finite(max) || max > tolerance; }
};

/// The expected values of some rows of an output tensor, and how far the output may deviate.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> rows;  // indices of the rows among all rows of the tensor
  int columns = 1;
  std::string compared;  // see TensorError
  std::vector<double> exact, plain;
  double extra = 0, relative = 0;  // added to the tolerance: extra + relative · max |exact|
  int64_t rows_of_head = 0;        // rows per head; 0: the tensor is a single head
};

/// Compares a tensor in the I/O type. The tolerance includes half a unit in the last place.
TensorError compare(const ExpectedTensor& expected, const Tensor& out);
/// Compares a tensor in float32.
TensorError compare(const ExpectedTensor& expected, const std::vector<float>& out);
/// Compares an output for quantised inputs with the original inputs' reference; never fails it.
TensorError compare_with_full_precision(const ExpectedTensor& expected, const Tensor& out);

/// How much of the outputs is compared. `automatic` compares everything if that takes under about a
/// second, otherwise a sample.
enum class Check { automatic, full, sampled, off };

/// The rows to compare: `rows` of O, LSE and dQ in every head, and all of dK and dV in `kv_heads`
/// of the B·Hk key/value heads. If `kv_heads` is empty, no gradients are computed.
struct RowsToCheck {
  std::vector<int> rows, kv_heads;  // ascending
};

/// Returns all rows if `how` is full, or if it is automatic and they take under about a second on
/// this host. Otherwise it returns evenly spaced rows that include the first and the last: at least
/// 4, at most 256, and as many as a quarter of a second allows. For dK and dV it then returns only
/// the last head: each element depends on all queries, so that one head already costs N·N_kv·d.
RowsToCheck to_check(const Problem& p, Check how, bool gradients);

/// Attention of the rounded inputs in float64 (`exact`), and the same with the roundings to the I/O
/// type that the algorithm cannot avoid (`plain`). If RowsToCheck has kv_heads, the gradients of
/// L = Σ dO∘O are computed, too.
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
  /// If S is stored: the number of checked rows whose Σ exp(S), with S rounded to the I/O type,
  /// leaves float32's normal range. A rung that subtracts no maximum must fail in these rows. (Rows
  /// that attend to no key are not counted.)
  int64_t overflowing_rows = 0;
};

}  // namespace ladder
