#include "harness/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "harness/parallel.h"
#include "harness/quantised.h"

namespace ladder {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

bool checks_all(const Problem& p, Check how, double rows_in_a_second) {
  return how == Check::full || (how == Check::automatic && p.N <= rows_in_a_second);
}

/// All rows; or the first, the last and others evenly between.
std::vector<int> rows_of(const Problem& p, bool all, double rows_in_a_second = 0) {
  const double wanted = all ? p.N : std::clamp(rows_in_a_second / 4, 4.0, 256.0);
  const auto n = static_cast<int64_t>(wanted);
  std::vector<int> rows;
  for (int64_t k = 0; k < n; ++k)
    rows.push_back(static_cast<int>((p.N - 1) * k / std::max<int64_t>(1, n - 1)));
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// Half a unit in the last place of the I/O type at x, which rounding to it may cost.
double half_ulp(DType dtype, double x) {
  const int mantissa = dtype == DType::fp16 ? 10 : 7;
  const int least = dtype == DType::fp16 ? -14 : -126;
  const int exponent = x > 0 ? std::max(std::ilogb(x), least) : least;
  return std::ldexp(0.5, exponent - mantissa);
}

std::string rows_text(size_t rows, int of) {
  return fmt::format("{} of {} rows", rows, of);
}

/// Those rows of each of the heads, among the N that a head has.
std::vector<int64_t> rows_of_heads(int64_t heads, int N, const std::vector<int>& rows) {
  std::vector<int64_t> all;
  for (int64_t head = 0; head < heads; ++head)
    for (const int row : rows) all.push_back(head * N + row);
  return all;
}

/// Compares the rows of a tensor, whose i-th element is out(i), with `exact` and `plain`, which
/// have these rows alone. atol: the tolerance beside what depends on `plain`, from the largest
/// |exact|.
TensorError compare(const char* name, auto out, const std::vector<int64_t>& rows, int columns,
                    const std::vector<double>& exact, const std::vector<double>& plain,
                    const std::string& compared, auto atol) {
  TensorError error{.name = name, .compared = compared};
  double largest = 0, off = 0, difference2 = 0, reference2 = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < std::ssize(exact); ++i) {
    const auto at = static_cast<size_t>(i);
    const double value = out(rows[at / static_cast<size_t>(columns)] * columns + i % columns);
    const double ref = exact[at];
    if (!std::isfinite(ref)) {
      if (value != ref) error.max = kInf;  // should have been that infinity
      continue;
    }
    largest = std::max(largest, std::abs(ref));
    if (!plain.empty() && std::isfinite(plain[at])) off = std::max(off, std::abs(plain[at] - ref));
    if (!std::isfinite(value)) {
      ++error.nonfinite;
      continue;
    }
    error.max = std::max(error.max, std::abs(value - ref));
    difference2 += (value - ref) * (value - ref);
    reference2 += ref * ref;
    ++finite;
  }
  error.rel = reference2 > 0 ? std::sqrt(difference2 / reference2) : 0;
  error.rms = finite > 0 ? std::sqrt(difference2 / static_cast<double>(finite)) : 0;
  error.tolerance = 2 * off + atol(largest);
  return error;
}

/// The same of a tensor in the I/O type, which rounding to it may cost half a unit in the last
/// place.
TensorError compare(const char* name, const Tensor& out, const std::vector<int64_t>& rows, int d,
                    const std::vector<double>& exact, const std::vector<double>& plain,
                    const std::string& compared, double extra = 0) {
  return compare(
      name, [&](int64_t i) { return out[i]; }, rows, d, exact, plain, compared,
      [&](double largest) { return half_ulp(out.dtype, largest) + 1e-5 + extra; });
}

}  // namespace

std::vector<int> rows_to_check(const Problem& p, Check how) {
  // Multiply-adds for one query row of every head.
  const double cost = 3.0 * p.B * p.H * p.N_kv * (p.d + 8);
  const double in_a_second = 6e8 * host_cores() / cost;
  return rows_of(p, checks_all(p, how, in_a_second), in_a_second);
}

Reference::Reference(const Problem& p, const Inputs& in, Rounding rounding, std::vector<int> rows,
                     const std::optional<Quantisation>& quantisation)
    : p_(p), rows_(std::move(rows)) {
  const auto heads = static_cast<size_t>(p.B) * static_cast<size_t>(p.H);
  std::optional<QuantisedAttention> quantised;
  if (quantisation) {
    // What the result is compared with beside: the same without it.
    full_o_ = Reference(p, in, rounding, rows_).o_;
    quantised.emplace(p, *quantisation, in);
    plain_lse_.resize(heads * rows_.size());
  }
  const auto columns = quantised ? static_cast<size_t>(quantised->Q().columns) : d();
  // Element c of a row of Q, K or V: as given, or as quantised.
  const auto element = [&](const Tensor& given, auto rows_of, int64_t row, size_t c) -> double {
    if (!quantised) return given[row * p.d + static_cast<int64_t>(c)];
    const QuantisedRows& from = ((*quantised).*rows_of)();
    return double{from.values[static_cast<size_t>(row * from.columns) + c]} *
           from.scales[static_cast<size_t>(row)];
  };
  o_.resize(heads * rows_.size() * d());
  plain_o_.resize(o_.size());
  lse_.resize(heads * rows_.size());
  std::atomic<int64_t> overflowing{0};

  const auto N_kv = static_cast<size_t>(p.N_kv);
  std::vector<double> Kt(N_kv * columns), V(N_kv * d());
  for (size_t head = 0; head < heads; ++head) {
    const int64_t first = p.kv_row(static_cast<int>(head));
    // K transposed, so that the loops below run over neighbours and vectorise.
    parallel_for_blocks(p.N_kv, 64, [&](int64_t row) {
      const auto j = static_cast<size_t>(row);
      for (size_t c = 0; c < columns; ++c)
        Kt[c * N_kv + j] = element(in.K, &QuantisedAttention::K, first + row, c);
      for (size_t c = 0; c < d(); ++c)
        V[j * d() + c] = element(in.V, &QuantisedAttention::V, first + row, c);
    });
    parallel_for(std::ssize(rows_), [&](int64_t r) {
      const int i = rows_[static_cast<size_t>(r)];
      const size_t at = head * rows_.size() + static_cast<size_t>(r);
      if (quantised) {
        const QuantisedAttention::Row plain = quantised->row(static_cast<int>(head), i);
        for (size_t c = 0; c < d(); ++c) plain_o_[at * d() + c] = rounded(p.dtype, plain.o[c]);
        plain_lse_[at] = plain.lse;
      }
      const auto keys = static_cast<size_t>(p.keys(i));
      if (keys == 0) {  // sees no key: O = 0, LSE = −∞
        lse_[at] = -kInf;
        return;
      }
      std::vector<double> s(keys, 0.0), stored(keys);
      const int64_t q_row = p.q_row(static_cast<int>(head)) + i;
      for (size_t c = 0; c < columns; ++c) {
        const double qc = element(in.Q, &QuantisedAttention::Q, q_row, c);
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
      if (quantised) return;

      double* plain = &plain_o_[at * d()];
      const bool P_stored = rounding == Rounding::S_and_P_stored;
      for (size_t j = 0; j < keys; ++j) stored[j] = rounded(p.dtype, s[j]);
      const double stored_m = *std::max_element(stored.begin(), stored.end());
      double stored_l = 0;
      for (size_t j = 0; j < keys; ++j) stored_l += std::exp(stored[j] - stored_m);
      // Bounds of float32's normal numbers, in logarithms.
      const double sum = stored_m + std::log(stored_l);
      if (sum > std::log(3.4e38) || sum < std::log(1.2e-38)) ++overflowing;
      const auto plain_weight = [&](size_t j) {
        return rounded(p.dtype, P_stored ? std::exp(stored[j] - stored_m) / stored_l : e[j]);
      };
      weighted(plain, plain_weight, P_stored ? 1 : l);
      for (size_t c = 0; c < d(); ++c) plain[c] = rounded(p.dtype, plain[c]);
    });
  }
  overflowing_ = overflowing;
}

TensorError Reference::check_o(const Tensor& O) const {
  return compare("o", O, tensor_rows(), p_.d, o_, plain_o_, rows_text(rows_.size(), p_.N));
}

TensorError Reference::check_lse(const std::vector<float>& LSE) const {
  return compare(
      "lse", [&](int64_t i) { return LSE[static_cast<size_t>(i)]; }, tensor_rows(), 1, lse_,
      plain_lse_, rows_text(rows_.size(), p_.N),
      [&](double largest) {
        return 1e-5 + 0x1p-20 * largest * std::max(1.0, std::sqrt(p_.d) / 8);
      });
}

TensorError Reference::compare_with_full_precision(const Tensor& O) const {
  return compare("o_full", O, tensor_rows(), p_.d, full_o_, {},
                 rows_text(rows_.size(), p_.N) + " in full precision", kInf);
}

std::vector<int64_t> Reference::tensor_rows() const {
  return rows_of_heads(int64_t{p_.B} * p_.H, p_.N, rows_);
}

// --------------------------------------------------------------------------------------- gradients

namespace {

/// A part of a matrix: element (i, j) is at[i·row + j·column].
struct View {
  const double* at;
  size_t row, column = 1;
};

/// C += A·B, m × n of m × inner and inner × n; the rows of C are `pitch` apart, B's column is 1.
void add_product(double* C, size_t pitch, const View& A, const View& B, size_t m, size_t n,
                 size_t inner) {
  constexpr size_t kColumns = 256, kInner = 64;  // the piece of B that stays in the cache
  for (size_t first_j = 0; first_j < n; first_j += kColumns)
    for (size_t first_k = 0; first_k < inner; first_k += kInner) {
      const size_t columns = std::min(kColumns, n - first_j);
      const size_t last_k = std::min(inner, first_k + kInner);
      for (size_t i = 0; i < m; ++i) {
        double* c = C + i * pitch + first_j;
        const auto a = [&](size_t k) { return A.at[i * A.row + k * A.column]; };
        const auto b = [&](size_t k) { return B.at + k * B.row + first_j; };
        size_t k = first_k;
        for (; k + 4 <= last_k; k += 4) {
          const double a0 = a(k), a1 = a(k + 1), a2 = a(k + 2), a3 = a(k + 3);
          const double *b0 = b(k), *b1 = b(k + 1), *b2 = b(k + 2), *b3 = b(k + 3);
          for (size_t j = 0; j < columns; ++j)
            c[j] += (a0 * b0[j] + a1 * b1[j]) + (a2 * b2[j] + a3 * b3[j]);
        }
        for (; k < last_k; ++k)
          for (size_t j = 0; j < columns; ++j) c[j] += a(k) * b(k)[j];
      }
    }
}

/// x ← softmax of its first `keys` elements, of which there is at least one.
void softmax(double* x, size_t keys) {
  const double m = *std::max_element(x, x + keys);
  double l = 0;
  for (size_t j = 0; j < keys; ++j) l += x[j] = std::exp(x[j] - m);
  for (size_t j = 0; j < keys; ++j) x[j] /= l;
}

/// dS = P∘(dP − D) of one row, in the place of dP.
void softmax_gradient(const double* P, double* dP, size_t keys) {
  double D = 0;
  for (size_t j = 0; j < keys; ++j) D += P[j] * dP[j];
  for (size_t j = 0; j < keys; ++j) dP[j] = P[j] * (dP[j] - D);
}

/// K and V of one head: as they are and transposed, so that every product runs along rows of its
/// right operand.
struct KeysAndValues {
  std::vector<double> K, Kt, V, Vt;
  KeysAndValues(const Problem& p, const Inputs& in, int64_t first_row) {
    const auto N_kv = static_cast<size_t>(p.N_kv), d = static_cast<size_t>(p.d);
    for (auto* x : {&K, &Kt, &V, &Vt}) x->resize(N_kv * d);
    parallel_for_blocks(p.N_kv, 64, [&](int64_t row) {
      const auto j = static_cast<size_t>(row);
      for (size_t c = 0; c < d; ++c) {
        const int64_t at = (first_row + row) * p.d + static_cast<int64_t>(c);
        K[j * d + c] = Kt[c * N_kv + j] = in.K[at];
        V[j * d + c] = Vt[c * N_kv + j] = in.V[at];
      }
    });
  }
};

}  // namespace

struct GradientReference::Block {
  const Inputs& in;
  const KeysAndValues* kv = nullptr;
  int64_t head = 0;            // of the B·H
  const int* first = nullptr;  // the block's query rows
  // Row by row: of Q and dO, and of P and dS, which are 0 where a query does not see a key.
  std::vector<double> Q, dO, P, dS, plain_P, plain_dS;
  std::vector<double> weight;  // max_j P_ij · Σ_c|dO_ic·O_ic|
};

GradientChoice gradients_to_check(const Problem& p, Check how) {
  // Rows of every head that a second is enough for with their share of dK and dV, and without.
  const double in_a_second = 2e9 * host_cores() / (1.0 * p.B * p.H * p.N_kv);
  const bool all = checks_all(p, how, in_a_second / (9.0 * p.d + 60));
  GradientChoice choice{rows_of(p, all, in_a_second / (5.0 * p.d + 60)), {}};
  for (int head = all ? 0 : p.B * p.Hk - 1; head < p.B * p.Hk; ++head)
    choice.kv_heads.push_back(head);
  return choice;
}

GradientReference::GradientReference(const Problem& p, const Inputs& in, Rounding rounding,
                                     GradientChoice choice)
    : p_(p), rounding_(rounding), choice_(std::move(choice)) {
  const auto N_kv = static_cast<size_t>(p.N_kv), d = static_cast<size_t>(p.d);
  const int group = p.H / p.Hk;
  for (auto* x : {&dq_.exact, &dq_.plain})
    x->resize(static_cast<size_t>(p.B) * static_cast<size_t>(p.H) * choice_.rows.size() * d);
  for (auto* x : {&dk_.exact, &dk_.plain, &dv_.exact, &dv_.plain})
    x->resize(choice_.kv_heads.size() * N_kv * d);

  const std::vector<int> every_row = rows_of(p, true);
  const size_t block_rows = std::clamp<size_t>((size_t{1} << 20) / N_kv, 16, 256);
  Block block{in};  // one for all: fresh memory for each costs more than what is done with it
  for (auto* x : {&block.Q, &block.dO}) x->resize(block_rows * d);
  for (auto* x : {&block.P, &block.dS, &block.plain_P, &block.plain_dS})
    x->resize(block_rows * N_kv);
  for (int kv_head = 0; kv_head < p.B * p.Hk; ++kv_head) {
    const KeysAndValues kv(p, in, int64_t{kv_head} * p.N_kv);
    for (const double k : kv.K) largest_k_ = std::max(largest_k_, std::abs(k));
    const auto chosen = std::lower_bound(choice_.kv_heads.begin(), choice_.kv_heads.end(), kv_head);
    const bool with_dk_dv = chosen != choice_.kv_heads.end() && *chosen == kv_head;
    const size_t at = static_cast<size_t>(chosen - choice_.kv_heads.begin()) * N_kv * d;
    const std::vector<int>& rows = with_dk_dv ? every_row : choice_.rows;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (size_t first = 0; first < rows.size(); first += block_rows) {
        const size_t n = std::min(block_rows, rows.size() - first);
        if (p.keys(rows[first + n - 1]) == 0) continue;  // none of these sees a key: dQ = 0
        block.kv = &kv;
        block.head = head;
        block.first = &rows[first];
        block.weight.assign(n, 0);
        constexpr size_t kRows = 8, kKeys = 16;  // that one core takes at a time
        parallel_for(ceil_div(std::ssize(block.weight), kRows), [&](int64_t i) {
          const size_t begin = static_cast<size_t>(i) * kRows;
          compute_rows(block, begin, std::min(n, begin + kRows));
        });
        for (size_t r = 0; r < n; ++r)
          if (dq_row(rows[first + r])) dq_weight_ = std::max(dq_weight_, block.weight[r]);
        if (!with_dk_dv) continue;
        parallel_for(ceil_div(p.N_kv, kKeys), [&](int64_t i) {
          const size_t j = static_cast<size_t>(i) * kKeys, keys = std::min(kKeys, N_kv - j);
          // The block's rows from the first on that sees one of these keys.
          const int* seeing = std::partition_point(block.first, block.first + n, [&](int row) {
            return static_cast<size_t>(p.keys(row)) <= j;
          });
          const auto r = static_cast<size_t>(seeing - block.first);
          const auto add = [&](std::vector<double>& sum, const std::vector<double>& A,
                               const std::vector<double>& B) {
            add_product(&sum[at + j * d], d, {A.data() + r * N_kv + j, 1, N_kv},
                        {B.data() + r * d, d}, keys, d, n - r);
          };
          add(dk_.exact, block.dS, block.Q);
          add(dk_.plain, block.plain_dS, block.Q);
          add(dv_.exact, block.P, block.dO);
          add(dv_.plain, block.plain_P, block.dO);
        });
        for (const double w : block.weight) dk_weight_ = std::max(dk_weight_, w);
        // Of the rows that see a key, like the weights: what the blocks are does not matter.
        for (size_t r = 0; r < n; ++r)
          for (size_t c = 0; c < d && p.keys(rows[first + r]) > 0; ++c)
            largest_q_ = std::max(largest_q_, std::abs(block.Q[r * d + c]));
      }
  }
  for (auto* x : {&dq_, &dk_}) {
    for (double& y : x->exact) y *= p.scale;
    for (double& y : x->plain) y *= p.scale;
  }
  for (auto* x : {&dq_, &dk_, &dv_})
    for (double& y : x->plain) y = rounded(p.dtype, y);
}

std::optional<size_t> GradientReference::dq_row(int i) const {
  const auto found = std::lower_bound(choice_.rows.begin(), choice_.rows.end(), i);
  if (found == choice_.rows.end() || *found != i) return {};
  return static_cast<size_t>(found - choice_.rows.begin());
}

void GradientReference::compute_rows(Block& b, size_t begin, size_t end) {
  const auto N_kv = static_cast<size_t>(p_.N_kv), d = static_cast<size_t>(p_.d);
  const size_t rows = end - begin;
  for (auto* x : {&b.P, &b.dS, &b.plain_P, &b.plain_dS})
    std::fill_n(x->data() + begin * N_kv, rows * N_kv, 0.0);
  for (size_t r = begin; r < end; ++r)
    for (size_t c = 0; c < d; ++c) {
      const int64_t at = (p_.q_row(b.head) + b.first[r]) * p_.d + static_cast<int64_t>(c);
      b.Q[r * d + c] = b.in.Q[at];
      b.dO[r * d + c] = b.in.dO[at];
    }
  // S and dP first, in the place of P and dS; as far as the last of the rows sees, which sees most.
  const auto all_keys = static_cast<size_t>(p_.keys(b.first[end - 1]));
  add_product(&b.P[begin * N_kv], N_kv, {&b.Q[begin * d], d}, {b.kv->Kt.data(), N_kv}, rows,
              all_keys, d);
  add_product(&b.dS[begin * N_kv], N_kv, {&b.dO[begin * d], d}, {b.kv->Vt.data(), N_kv}, rows,
              all_keys, d);
  const auto round = [&](double* x, const double* y, size_t n) {
    for (size_t j = 0; j < n; ++j) x[j] = rounded(p_.dtype, y[j]);
  };
  for (size_t r = begin; r < end; ++r) {
    const auto keys = static_cast<size_t>(p_.keys(b.first[r]));
    double *P = &b.P[r * N_kv], *dS = &b.dS[r * N_kv];
    double *plain_P = &b.plain_P[r * N_kv], *plain_dS = &b.plain_dS[r * N_kv];
    std::fill(P + keys, P + all_keys, 0.0);
    std::fill(dS + keys, dS + all_keys, 0.0);
    if (keys == 0) continue;
    for (size_t j = 0; j < keys; ++j) P[j] *= p_.scale;
    if (rounding_ == Rounding::S_and_P_stored) {
      round(plain_P, P, keys);
      softmax(plain_P, keys);
      round(plain_P, plain_P, keys);
      round(plain_dS, dS, keys);
      softmax_gradient(plain_P, plain_dS, keys);
      round(plain_dS, plain_dS, keys);
    }
    softmax(P, keys);
    softmax_gradient(P, dS, keys);
    if (rounding_ == Rounding::on_chip) {
      round(plain_P, P, keys);
      round(plain_dS, dS, keys);
    }
  }

  std::vector<double> O(rows * d);
  add_product(O.data(), d, {&b.P[begin * N_kv], N_kv}, {b.kv->V.data(), d}, rows, d, all_keys);
  for (size_t r = begin; r < end; ++r) {
    double sum = 0;
    for (size_t c = 0; c < d; ++c) sum += std::abs(b.dO[r * d + c] * O[(r - begin) * d + c]);
    const double* P = &b.P[r * N_kv];
    b.weight[r] = *std::max_element(P, P + N_kv) * sum;
    const auto wanted = dq_row(b.first[r]);
    if (!wanted) continue;
    const size_t at = (static_cast<size_t>(b.head) * choice_.rows.size() + *wanted) * d;
    const View K{b.kv->K.data(), d};
    add_product(&dq_.exact[at], d, {&b.dS[r * N_kv], N_kv}, K, 1, d, all_keys);
    add_product(&dq_.plain[at], d, {&b.plain_dS[r * N_kv], N_kv}, K, 1, d, all_keys);
  }
}

TensorError GradientReference::check_dq(const Tensor& dQ) const {
  return compare("dq", dQ, rows_of_heads(int64_t{p_.B} * p_.H, p_.N, choice_.rows), p_.d, dq_.exact,
                 dq_.plain, rows_text(choice_.rows.size(), p_.N),
                 rounding_of_D() * dq_weight_ * largest_k_);
}
TensorError GradientReference::check_dk(const Tensor& dK) const {
  return check_kv("dk", dK, dk_, rounding_of_D() * dk_weight_ * largest_q_);
}
TensorError GradientReference::check_dv(const Tensor& dV) const {
  return check_kv("dv", dV, dv_, 0);
}

TensorError GradientReference::check_kv(const char* name, const Tensor& out,
                                        const Gradient& gradient, double extra) const {
  std::vector<int64_t> rows;
  for (const int64_t head : choice_.kv_heads)
    for (int j = 0; j < p_.N_kv; ++j) rows.push_back(head * p_.N_kv + j);
  std::string compared = rows_text(static_cast<size_t>(p_.N_kv), p_.N_kv);
  if (std::ssize(choice_.kv_heads) < p_.B * p_.Hk)
    compared += fmt::format(", {} of {} heads", choice_.kv_heads.size(), p_.B * p_.Hk);
  return compare(name, out, rows, p_.d, gradient.exact, gradient.plain, compared, extra);
}

double GradientReference::rounding_of_D() const {
  return std::abs(p_.scale) * (p_.dtype == DType::fp16 ? 0x1p-11 : 0x1p-8);
}

}  // namespace ladder
