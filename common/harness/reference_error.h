// How far an output may be from the float64 reference: the rule of what is correct.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "float16.h"
#include "harness/tensor.h"

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
};

/// Compares a tensor in the I/O type, which rounding to it may cost half a unit in the last place.
TensorError compare(const ExpectedTensor& expected, const Tensor& out);
/// Compares one in float32.
TensorError compare(const ExpectedTensor& expected, const std::vector<float>& out);
/// Compares what quantised inputs gave with what is expected of the inputs: reported, not judged.
TensorError compare_with_full_precision(const ExpectedTensor& expected, const Tensor& out);

}  // namespace ladder
