// The float64 reference.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/reference_error.h"
#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// Attention in float64 over the inputs as rounded, for all query rows or a sample of every head's,
/// and `plain`: the same with the roundings to the I/O type that the algorithm cannot avoid.
class Reference {
 public:
  /// `rows`: the query rows to compute, of every head; see rows_to_check. With a quantisation the
  /// inputs are those that it makes of Q, K and V, and `plain` is as far off as rounding P to e4m3
  /// and the tensor cores' sums of it may bring half of.
  Reference(const Problem& p, const Inputs& inputs, Rounding rounding, const std::vector<int>& rows,
            const std::optional<Quantisation>& quantisation = {});

  /// Compares O, (B, H, N, d) in the I/O type.
  TensorError check_o(const Tensor& O) const { return compare(o_, O); }
  /// Compares LSE, (B, H, N).
  TensorError check_lse(const std::vector<float>& LSE) const { return compare_lse(lse_, LSE, d_); }
  /// The same where O is of quantised inputs and this of the inputs as they were: reported, not
  /// judged.
  TensorError compare_with_full_precision(const Tensor& O) const;

  /// Rows whose Σ exp(S), S rounded to the I/O type, leaves float32's normal range: where a rung
  /// that subtracts no maximum must fail. Rows that see no key are not among them.
  int64_t overflowing_rows() const { return overflowing_; }
  /// Of all heads, row by row.
  const std::vector<double>& o() const { return o_.exact; }
  const std::vector<double>& lse() const { return lse_.exact; }

 private:
  int d_;
  ExpectedTensor o_, lse_;
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
                    const GradientChoice& choice);

  /// Compare dQ, (B, H, N, d), and dK and dV, (B, Hk, N_kv, d), in the I/O type.
  TensorError check_dq(const Tensor& dQ) const { return compare(dq_, dQ); }
  TensorError check_dk(const Tensor& dK) const { return compare(dk_, dK); }
  TensorError check_dv(const Tensor& dV) const { return compare(dv_, dV); }

  /// Of all that was computed, in the order of GradientChoice: (head, row, column), for dQ of
  /// the B·H heads and the chosen rows, for dK and dV of the chosen heads and all keys.
  const std::vector<double>& dq() const { return dq_.exact; }
  const std::vector<double>& dk() const { return dk_.exact; }
  const std::vector<double>& dv() const { return dv_.exact; }

 private:
  ExpectedTensor dq_, dk_, dv_;
};

/// How much of the outputs is compared: all where that takes under a second, all, some, none.
enum class Check { automatic, full, sampled, off };

/// All rows, where `how` says so or it takes under about a second on this host; else the first, the
/// last and others evenly between, 4 at least and as many as a quarter of a second allows.
std::vector<int> rows_to_check(const Problem& p, Check how);
/// The same for dQ; and of dK and dV all heads, or the last: an element of dK depends on every
/// query, so that head costs N·N_kv·d whatever is sampled.
GradientChoice gradients_to_check(const Problem& p, Check how);

}  // namespace ladder
