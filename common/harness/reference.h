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
  double tolerance = 0;   // 2·max|plain − ref| + atol
  int64_t nonfinite = 0;  // values that are not finite where the reference is
  bool pass() const { return nonfinite == 0 && max <= tolerance; }
};

/// Attention in float64 over the inputs as rounded, for all query rows or a sample of every head's,
/// and `plain`: the same with the roundings to the I/O type that the algorithm cannot avoid.
class Reference {
 public:
  /// `rows`: the query rows to compute, of every head; see all_rows and sampled_rows.
  Reference(const Problem& p, const Inputs& inputs, Rounding rounding, std::vector<int> rows);

  /// Compares O, (B, H, N, d) in the I/O type.
  TensorError check_o(const Tensor& O) const;
  /// Compares LSE, (B, H, N).
  TensorError check_lse(const std::vector<float>& LSE) const;

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

  Problem p_;
  std::vector<int> rows_;
  std::vector<double> o_, plain_o_, lse_;
  int64_t overflowing_ = 0;
};

std::vector<int> all_rows(const Problem& p);
/// First and last row and others evenly between, as many as about a second allows (4 at least).
std::vector<int> sampled_rows(const Problem& p);
/// Whether a full reference takes under about a second on this host.
bool full_is_quick(const Problem& p);

}  // namespace ladder
