#include "harness/reference_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ladder {
namespace {

/// Half a unit in the last place of the I/O type at x, or at its largest number if that is less.
double half_ulp(DType dtype, double x) {
  const int mantissa = dtype == DType::fp16 ? 10 : 7;
  const int least = dtype == DType::fp16 ? -14 : -126;
  const int exponent = x > 0 ? std::clamp(std::ilogb(x), least, 1 - least) : least;
  return std::ldexp(0.5, exponent - mantissa);
}

/// rounding: what that of `out` may cost, from the largest |exact|.
TensorError compare_each(const ExpectedTensor& expected, const auto& out, auto rounding) {
  TensorError error{.name = expected.name, .compared = expected.compared};
  const int columns = expected.columns;
  double off = 0, difference2 = 0, reference2 = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < std::ssize(expected.exact); ++i) {
    const double value = out[expected.rows[i / columns] * columns + i % columns];
    const double ref = expected.exact[i], plain = expected.plain[i];
    if (!is_finite(ref)) {
      if (std::bit_cast<uint64_t>(value) != std::bit_cast<uint64_t>(ref))
        error.max = std::numeric_limits<double>::infinity();  // should have been that infinity
      continue;
    }
    error.largest = std::max(error.largest, std::abs(ref));
    if (is_finite(plain)) off = std::max(off, std::abs(plain - ref));
    if (!is_finite(value)) {
      ++error.nonfinite;
      error.out_of_range += !is_finite(plain);
      continue;
    }
    error.max = std::max(error.max, std::abs(value - ref));
    difference2 += (value - ref) * (value - ref);
    reference2 += ref * ref;
    ++finite;
  }
  error.rel = reference2 > 0 ? std::sqrt(difference2 / reference2) : 0;
  error.rms = finite > 0 ? std::sqrt(difference2 / static_cast<double>(finite)) : 0;
  error.tolerance =
      2 * off + 1e-5 + expected.extra + expected.relative * error.largest + rounding(error.largest);
  return error;
}

}  // namespace

TensorError compare(const ExpectedTensor& expected, const Tensor& out) {
  return compare_each(expected, out, [&](double largest) { return half_ulp(out.dtype, largest); });
}

TensorError compare(const ExpectedTensor& expected, const std::vector<float>& out) {
  return compare_each(expected, out, [](double) { return 0.0; });
}

TensorError compare_with_full_precision(const ExpectedTensor& expected, const Tensor& out) {
  TensorError error = compare(expected, out);
  error.name += "_full";
  error.compared += " in full precision";
  error.tolerance = std::numeric_limits<double>::infinity();
  return error;
}

}  // namespace ladder
