#include "harness/reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "harness/parallel.h"

namespace ladder {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Multiply-adds of the reference for one query row of every head.
double row_cost(const Problem& p) {
  return 3.0 * p.B * p.H * p.N_kv * (p.d + 8);
}
double rows_in_a_second(const Problem& p) {
  return 6e8 * host_cores() / row_cost(p);
}

/// Half a unit in the last place of the I/O type at x, which rounding to it may cost.
double half_ulp(DType dtype, double x) {
  const int mantissa = dtype == DType::fp16 ? 10 : 7;
  const int least = dtype == DType::fp16 ? -14 : -126;
  const int exponent = x > 0 ? std::max(std::ilogb(x), least) : least;
  return std::ldexp(0.5, exponent - mantissa);
}

/// Accumulates one tensor's comparison.
class Comparison {
 public:
  explicit Comparison(const char* name) { error_.name = name; }
  void add(double out, double ref) {
    if (std::isfinite(ref)) largest_ = std::max(largest_, std::abs(ref));
    if (out == ref) {
      if (std::isfinite(ref)) reference2_ += ref * ref;
      return;
    }
    if (std::isfinite(ref) && !std::isfinite(out)) {
      ++error_.nonfinite;
      return;
    }
    if (!std::isfinite(ref)) {  // should have been that infinity
      error_.max = kInf;
      return;
    }
    error_.max = std::max(error_.max, std::abs(out - ref));
    difference2_ += (out - ref) * (out - ref);
    reference2_ += ref * ref;
  }
  double largest() const { return largest_; }  // finite |ref|
  TensorError done(double tolerance) {
    error_.rel = reference2_ > 0 ? std::sqrt(difference2_ / reference2_) : 0;
    error_.tolerance = tolerance;
    return error_;
  }

 private:
  TensorError error_;
  double largest_ = 0, difference2_ = 0, reference2_ = 0;
};

}  // namespace

std::vector<int> all_rows(const Problem& p) {
  std::vector<int> rows(static_cast<size_t>(p.N));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

std::vector<int> sampled_rows(const Problem& p) {
  const auto n = static_cast<int64_t>(std::clamp(rows_in_a_second(p), 4.0, 256.0));
  std::vector<int> rows;
  for (int64_t k = 0; k < n; ++k)
    rows.push_back(static_cast<int>((p.N - 1) * k / std::max<int64_t>(1, n - 1)));
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

bool full_is_quick(const Problem& p) {
  return p.N <= rows_in_a_second(p);
}

Reference::Reference(const Problem& p, const Inputs& in, Rounding rounding, std::vector<int> rows)
    : p_(p), rows_(std::move(rows)) {
  const auto heads = static_cast<size_t>(p.B) * static_cast<size_t>(p.H);
  o_.resize(heads * rows_.size() * d());
  plain_o_.resize(o_.size());
  lse_.resize(heads * rows_.size());
  std::atomic<int64_t> overflowing{0};

  const auto N_kv = static_cast<size_t>(p.N_kv);
  std::vector<double> Kt(N_kv * d()), V(N_kv * d());
  for (size_t head = 0; head < heads; ++head) {
    const int64_t first = p.kv_row(static_cast<int>(head)) * p.d;
    // K transposed, so that the loops below run over neighbours and vectorise.
    parallel_for(p.N_kv, [&](int64_t row) {
      const auto j = static_cast<size_t>(row);
      for (size_t c = 0; c < d(); ++c) {
        const int64_t at = first + static_cast<int64_t>(j * d() + c);
        Kt[c * N_kv + j] = in.K[at];
        V[j * d() + c] = in.V[at];
      }
    });
    parallel_for(std::ssize(rows_), [&](int64_t r) {
      const int i = rows_[static_cast<size_t>(r)];
      const size_t at = head * rows_.size() + static_cast<size_t>(r);
      const auto keys = static_cast<size_t>(p.keys(i));
      if (keys == 0) {  // sees no key: O = 0, LSE = −∞
        lse_[at] = -kInf;
        return;
      }
      std::vector<double> s(keys, 0.0), stored(keys);
      const int64_t q = (p.q_row(static_cast<int>(head)) + i) * p.d;
      for (size_t c = 0; c < d(); ++c) {
        const double qc = in.Q[q + static_cast<int64_t>(c)];
        const double* k = &Kt[c * N_kv];
        for (size_t j = 0; j < keys; ++j) s[j] += qc * k[j];
      }
      for (double& x : s) x *= p.scale;

      // O = Σ_j e^(S_ij − m)·V_j / l, with each weight passed through `weight` before the product
      // and the sum divided by `divisor`.
      const auto weighted = [&](double* o, auto weight, double divisor) {
        for (size_t j = 0; j < keys; ++j) {
          const double w = weight(j);
          const double* v = &V[j * d()];
          for (size_t c = 0; c < d(); ++c) o[c] += w * v[c];
        }
        for (size_t c = 0; c < d(); ++c) o[c] /= divisor;
      };

      const double m = *std::max_element(s.begin(), s.end());
      std::vector<double> e(keys);
      double l = 0;
      for (size_t j = 0; j < keys; ++j) l += e[j] = std::exp(s[j] - m);
      lse_[at] = m + std::log(l);
      weighted(
          &o_[at * d()], [&](size_t j) { return e[j]; }, l);

      double* plain = &plain_o_[at * d()];
      for (size_t j = 0; j < keys; ++j) stored[j] = rounded(p.dtype, s[j]);
      const double stored_m = *std::max_element(stored.begin(), stored.end());
      double stored_l = 0;
      for (size_t j = 0; j < keys; ++j) stored_l += std::exp(stored[j] - stored_m);
      // Bounds of float32's normal numbers, in logarithms.
      const double sum = stored_m + std::log(stored_l);
      if (sum > std::log(3.4e38) || sum < std::log(1.2e-38)) ++overflowing;
      if (rounding == Rounding::S_and_P_stored) {
        weighted(
            plain,
            [&](size_t j) { return rounded(p.dtype, std::exp(stored[j] - stored_m) / stored_l); },
            1);
      } else {
        weighted(
            plain, [&](size_t j) { return rounded(p.dtype, e[j]); }, l);
      }
      for (size_t c = 0; c < d(); ++c) plain[c] = rounded(p.dtype, plain[c]);
    });
  }
  overflowing_ = overflowing;
}

TensorError Reference::check_o(const Tensor& O) const {
  Comparison out("o"), plain("plain");
  const int64_t heads = int64_t{p_.B} * p_.H;
  for (int64_t head = 0; head < heads; ++head)
    for (size_t r = 0; r < rows_.size(); ++r)
      for (int c = 0; c < p_.d; ++c) {
        const double ref = o(head, r, c);
        out.add(O[(head * p_.N + rows_[r]) * p_.d + c], ref);
        plain.add(plain_o_[index(head, r) * d() + static_cast<size_t>(c)], ref);
      }
  return out.done(2 * plain.done(0).max + half_ulp(p_.dtype, out.largest()) + 1e-5);
}

TensorError Reference::check_lse(const std::vector<float>& LSE) const {
  Comparison out("lse");
  const int64_t heads = int64_t{p_.B} * p_.H;
  for (int64_t head = 0; head < heads; ++head)
    for (size_t r = 0; r < rows_.size(); ++r)
      out.add(LSE[static_cast<size_t>(head * p_.N + rows_[r])], lse(head, r));
  return out.done(1e-5 + 0x1p-20 * out.largest() * std::max(1.0, std::sqrt(p_.d) / 8));
}

}  // namespace ladder
