// The float64 reference, and the rule of what is correct.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// How far one output tensor is from the reference, over the elements checked.
struct TensorError {
  std::string name;       // "o", "lse", "dq", …
  double max = 0;         // max |out − ref|; an infinity equal to the reference's is error 0
  double rel = 0;         // ‖out − ref‖₂ / ‖ref‖₂ over finite values
  double rms = 0;         // √(mean (out − ref)²) over them
  double tolerance = 0;   // 2·max|plain − ref| + atol; infinite where it is but reported
  int64_t nonfinite = 0;  // values that are not finite where the reference is
  std::string compared;   // which elements: "64 of 4096 rows"
  bool pass() const { return nonfinite == 0 && max <= tolerance; }
};

/// Attention in float64 over the inputs as rounded, for all query rows or a sample of every head's,
/// and `plain`: the same with the roundings to the I/O type that the algorithm cannot avoid.
class Reference {
 public:
  /// `rows`: the query rows to compute, of every head; see rows_to_check. With a
  /// quantisation the inputs are those that it makes of Q, K and V, and `plain` rounds P as it says
  /// and adds up as the tensor cores do.
  Reference(const Problem& p, const Inputs& inputs, Rounding rounding, std::vector<int> rows,
            const std::optional<Quantisation>& quantisation = {});

  /// Compares O, (B, H, N, d) in the I/O type.
  TensorError check_o(const Tensor& O) const;
  /// Compares LSE, (B, H, N).
  TensorError check_lse(const std::vector<float>& LSE) const;
  /// With a quantisation: O beside attention of the inputs as they were. Reported, not judged.
  TensorError compare_with_full_precision(const Tensor& O) const;

  /// Rows whose Σ exp(S), S rounded to the I/O type, leaves float32's normal range: where a rung
  /// that subtracts no maximum must fail. Rows that see no key are not among them.
  int64_t overflowing_rows() const { return overflowing_; }
  const std::vector<int>& rows() const { return rows_; }
  double o(int64_t head, size_t row, int c) const { return o_[index(head, row) * d() + size_t(c)]; }
  double lse(int64_t head, size_t row) const { return lse_[index(head, row)]; }

 private:
  size_t index(int64_t head, size_t row) const {
    return static_cast<size_t>(head) * rows_.size() + row;
  }
  size_t d() const { return static_cast<size_t>(p_.d); }
  std::vector<int64_t> tensor_rows() const;  // of rows_, among all of O

  Problem p_;
  std::vector<int> rows_;
  std::vector<double> o_, plain_o_, lse_;
  std::vector<double> full_o_, plain_lse_;  // with a quantisation
  int64_t overflowing_ = 0;
};

/// Which of the gradients to compute: dQ of some query rows of every head; dK and dV, whole, of
/// some of the B·Hk key/value heads.
struct GradientChoice {
  std::vector<int> rows, kv_heads;  // ascending
};

/// The gradients of L = Σ dO∘O in float64, and their `plain`, as Reference has them of O:
///
///   O = P·V:            dV = Pᵀ·dO,   dP = dO·Vᵀ
///   P = softmax(S):     dS = P∘(dP − D),   D_i = Σ_j P_ij·dP_ij = Σ_c dO_ic·O_ic
///   S = scale·Q·Kᵀ:     dQ = scale·dS·K,   dK = scale·dSᵀ·Q
///
/// dK and dV are sums over the query heads that share a key/value head. A row that sees no key has
/// dQ = 0 and adds nothing to dK and dV.
class GradientReference {
 public:
  GradientReference(const Problem& p, const Inputs& inputs, Rounding rounding,
                    GradientChoice choice);

  /// Compare dQ, (B, H, N, d), and dK and dV, (B, Hk, N_kv, d), in the I/O type.
  TensorError check_dq(const Tensor& dQ) const;
  TensorError check_dk(const Tensor& dK) const;
  TensorError check_dv(const Tensor& dV) const;

  /// Of all that was computed, in the order of GradientChoice: (head, row, column), for dQ of
  /// the B·H heads and the chosen rows, for dK and dV of the chosen heads and all keys.
  const std::vector<double>& dq() const { return dq_.exact; }
  const std::vector<double>& dk() const { return dk_.exact; }
  const std::vector<double>& dv() const { return dv_.exact; }

 private:
  struct Gradient {
    std::vector<double> exact, plain;
  };
  /// A block of query rows of one head: what its rows of P and dS are, exactly and plainly.
  struct Block;
  void compute_rows(Block& block, size_t begin, size_t end);
  /// Where query row i stands among those whose dQ is computed.
  std::optional<size_t> dq_row(int i) const;
  /// u·|scale|: what rounding O moves scale·D_i by at most, in units of Σ_c|dO_ic·O_ic|.
  double rounding_of_D() const;
  TensorError check_kv(const char* name, const Tensor& out, const Gradient& gradient,
                       double extra) const;

  Problem p_;
  Rounding rounding_;
  GradientChoice choice_;
  Gradient dq_, dk_, dv_;
  // max_ij(P_ij·Σ_c|dO_ic·O_ic|) over the rows of dQ and over those that dK sums, and max |K|, |Q|.
  double dq_weight_ = 0, dk_weight_ = 0, largest_k_ = 0, largest_q_ = 0;
};

/// All rows, where `how` says so or it takes under about a second on this host; else the first, the
/// last and others evenly between, 4 at least and as many as a quarter of a second allows.
std::vector<int> rows_to_check(const Problem& p, Check how);
/// The same for dQ; and of dK and dV all heads, or the last: an element of dK depends on every
/// query, so that head costs N·N_kv·d whatever is sampled.
GradientChoice gradients_to_check(const Problem& p, Check how);

}  // namespace ladder
