// Computes attention and its gradients in float64 on the host, and compares outputs with them.
// Names: r counts the queries of a head that are computed, j its keys, c columns; m and l are a
// row's maximum and sum of exponentials. A plain value is one with the algorithm's roundings.
#include "harness/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "harness/quantised.h"
#include "parallel.h"

namespace ladder {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Returns the dot product of two vectors of n numbers; n is a multiple of 8.
double dot(const double* a, const double* b, size_t n) {
  double sums[8] = {};  // eight sums, so that the compiler uses vectors
  for (size_t i = 0; i < n; i += 8)
    for (size_t k = 0; k < 8; ++k) sums[k] += a[i + k] * b[i + k];
  return std::accumulate(sums, sums + 8, 0.0);
}

void add(double* to, double x, const double* row, size_t n) {
  for (size_t c = 0; c < n; ++c) to[c] += x * row[c];
}

/// Returns a bound of the tensor cores' error in a sum of n products of e4m3 values, term(0), …,
/// term(n − 1). Tensor cores add 32 terms at a time to the sum so far, and cut off bits: of each
/// term, and of the sum before and after the addition. Each cut loses less than 2⁻¹³ of the largest
/// magnitude (fp8_test measures this). The terms' losses have either sign, so by Hoeffding's
/// inequality they exceed 6·√n losses in only 3 of 10⁸ cases. The sum's may all have one sign.
double sum_bound(size_t n, auto term) {
  double largest = 0, sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = term(i);
    sum += x;
    largest = std::max(largest, std::abs(x));
    if (i % 32 == 31 || i + 1 == n) largest = std::max(largest, std::abs(sum));
  }
  const auto count = static_cast<double>(n);
  return (std::min(count, 6 * std::sqrt(count)) + 2 * std::ceil(count / 32)) * 0x1p-13 * largest;
}

/// Returns the n rows row(0), …, row(n − 1) of Q, K, V or dO in float64: those of `quantised` if it
/// is not null, otherwise those of `given`. Rows are numbered across all heads.
std::vector<double> read_rows(const Tensor& given, const QuantisedRows* quantised, size_t columns,
                              size_t n, auto row) {
  std::vector<double> values(n * columns);
  const auto read = [&](int64_t r) {
    for (size_t c = 0; c < columns; ++c) {
      const auto i = static_cast<int64_t>(row(r) * columns + c);
      values[r * columns + c] =
          quantised ? double{quantised->values[i]} * quantised->scales[row(r)] : given[i];
    }
  };
  parallel_for(static_cast<int64_t>(n), read, 64);
  return values;
}

/// The statistics of a row of S.
struct Row {
  double m = 0, l = 0, D = 0;  // max_j S_ij, Σ_j exp(S_ij − m), Σ_j P_ij·dP_ij
  double stored_m = 0, stored_l = 0, stored_D = 0;  // the same, computed from stored S, P and dP
  bool lost = false;       // a kernel may lose P, because S, QKᵀ or S·log2(e) overflows float32
  double weight = 0;       // max_j P_ij · Σ_c|dO_ic·O_ic|, for the tolerances of dQ and dK
  bool overflows = false;  // if S is stored: Σ exp(S) leaves float32's normal range
};

struct Element {
  double P, dS, plain_P, plain_dS;
  double of_O;  // V's weight in the plain O: the stored P, or the rounded exp(S − m) divided by l
};

/// Computes one head: O, LSE and dQ row by row, and dK and dV key by key. Each element of S is
/// computed twice, so that no N × N_kv matrix has to be kept.
struct Head {
  const Problem& p;
  const bool stored;
  Reference& out;
  const size_t columns;             // columns of Q and K, which quantisation may pad
  const std::vector<int>& queries;  // queries that attend to a key; Q and dO hold their rows
  const std::vector<double> Q, K, V;
  std::vector<double> dO = {};            // empty: no gradients
  std::vector<Row> rows{queries.size()};  // filled by compute_row()
  const float* s_V = nullptr;             // if quantised: the scales of V's rows
  int p_exponent = 0;                     // if quantised: the exponent of P's scale
  const size_t d = static_cast<size_t>(p.d);

  double rounded(double x) const { return ladder::rounded(p.dtype, x); }
  double score(size_t r, size_t j) const {
    return p.scale * dot(&Q[r * columns], &K[j * columns], columns);
  }
  bool gradients() const { return !dO.empty(); }
  double dP(size_t r, size_t j) const { return gradients() ? dot(&dO[r * d], &V[j * d], d) : 0; }

  /// Returns P·x, or 0 if P is 0: an x that is not finite must not make it NaN.
  static double weighted(double P, double x) { return P > 0 ? P * x : 0; }
  /// Returns P as a step computes it from the stored S, and stores it.
  double stored_P(const Row& row, double S) const {
    return rounded(std::exp(rounded(S) - row.stored_m) / row.stored_l);
  }
  /// Returns the values that belong to an element of S; e is exp(S − m).
  Element element(const Row& row, double e, double S, double dP) const {
    const double P = e / row.l, dS = P * (dP - row.D);
    if (row.lost) return {P, dS, kInf, kInf, kInf};
    if (!stored) return {P, dS, rounded(P), rounded(dS), rounded(e) / row.l};
    const double plain = stored_P(row, S);
    return {P, dS, plain, rounded(weighted(plain, rounded(dP) - row.stored_D)), plain};
  }

  /// Returns the statistics of a row of S and dP, and writes exp(S − m) to e.
  Row row_of(const std::vector<double>& S, const std::vector<double>& dP,
             std::vector<double>& e) const {
    Row row{.m = std::ranges::max(S)};
    // |S| above this overflows float32, either in QKᵀ = S/scale or in S·log2(e) = S/ln 2.
    const double most =
        std::numeric_limits<float>::max() * std::min(double{p.scale}, std::log(2.0));
    row.lost = std::ranges::any_of(S, [&](double x) { return std::abs(x) > most; });
    row.stored_m = rounded(row.m);
    for (size_t j = 0; j < S.size(); ++j) {
      row.l += e[j] = std::exp(S[j] - row.m);
      if (stored) row.stored_l += std::exp(rounded(S[j]) - row.stored_m);
    }
    for (size_t j = 0; j < S.size() && gradients(); ++j) {
      row.D += e[j] / row.l * dP[j];
      if (stored) row.stored_D += weighted(stored_P(row, S[j]), rounded(dP[j]));
    }
    return row;
  }

  /// Computes the statistics of query queries[r] and, if `to` is given, row `to` of O, LSE and dQ.
  void compute_row(size_t r, std::optional<size_t> to) {
    const auto keys = static_cast<size_t>(p.keys(queries[r]));
    std::vector<double> S(keys), of_dP(keys), e(keys), unwanted(4 * d);
    for (size_t j = 0; j < keys; ++j) {
      S[j] = score(r, j);
      of_dP[j] = dP(r, j);
    }
    Row& row = rows[r] = row_of(S, of_dP, e);
    // Returns where to add up a row of `output`; if the output does not want it, in `unwanted`.
    const auto at = [&](std::vector<double>& output, size_t other) {
      return to && !output.empty() ? &output[*to * d] : &unwanted[other * d];
    };
    double *const o = at(out.o.exact, 0), *const plain_o = at(out.o.plain, 1);
    double *const dq = at(out.dq.exact, 2), *const plain_dq = at(out.dq.plain, 3);
    double largest = 0;
    for (size_t j = 0; j < keys; ++j) {
      const Element x = element(row, e[j], S[j], of_dP[j]);
      add(o, x.P, &V[j * d], d);
      add(plain_o, x.of_O, &V[j * d], d);
      largest = std::max(largest, x.P);
      if (!gradients()) continue;
      add(dq, p.scale * x.dS, &K[j * d], d);
      add(plain_dq, p.scale * x.plain_dS, &K[j * d], d);
    }
    for (size_t c = 0; c < d && gradients(); ++c)
      row.weight += std::abs(largest * dO[r * d + c] * o[c]);
    if (!to) return;
    std::transform(plain_o, plain_o + d, plain_o, [&](double x) { return rounded(x); });
    double& lse = out.lse.plain[*to] = out.lse.exact[*to] = row.m + std::log(row.l);
    if (row.lost)
      lse = kInf;
    else if (s_V)
      lse += plain_in_e4m3(r, S, e, plain_o, o);
    const double sum = row.stored_m + std::log(row.stored_l);  // ln Σ exp(S), S rounded
    row.overflows = stored && (sum > std::log(3.4e38) || sum < std::log(1.2e-38));
  }

  /// Fills the plain row of O for an e4m3 step, given the exact row `o`, and returns plain − exact
  /// for the row's LSE. The plain values differ from the exact ones by half the error that a step
  /// may make, because the tolerance doubles it. With e_j = exp(S_j − m), there are three errors:
  /// - in S, by its sum of products and by rounding to float32. An error t changes e_j by t·e_j.
  /// - in P: with E = p_exponent, the step rounds 2^E·s_V·e_j or a larger multiple of e_j to e4m3;
  ///   the row's largest is at least 2^E. Rounding to 4 significant bits costs at most 2⁻⁴ of a
  ///   value, or 2⁻¹⁰ if the value is below 2⁻⁶.
  /// - in the sum of P·V over the keys.
  /// The keys' errors in S and P are independent, so Hoeffding's bound 6·√(Σ error²) holds.
  double plain_in_e4m3(size_t r, const std::vector<double>& S, const std::vector<double>& e,
                       double* plain_o, const double* o) const {
    const double m = rows[r].m, l = rows[r].l;
    const size_t keys = S.size();
    std::vector<double> of_P(keys);  // bounds of the errors of e_j
    double most = 0, of_lse = 0;     // max_j s_V·e_j, and the bound of LSE's error
    for (size_t j = 0; j < keys; ++j) most = std::max(most, s_V[j] * e[j]);
    for (size_t j = 0; j < keys; ++j) {
      const double *const q = &Q[r * columns], *const k = &K[j * columns];
      const double of_S = p.scale * sum_bound(columns, [&](size_t c) { return q[c] * k[c]; }) +
                          0x1p-22 * (std::abs(S[j]) + std::abs(m));  // float32's roundings
      of_lse += of_S * e[j] / l;
      of_P[j] = of_S * e[j] + std::max(0x1p-4 * e[j], std::exp2(-10 - p_exponent) * most / s_V[j]);
    }
    for (size_t c = 0; c < d; ++c) {
      const auto v = [&](size_t j) { return V[j * d + c]; };
      double all = 0, squares = 0;
      for (size_t j = 0; j < keys; ++j) {
        const double off = of_P[j] * std::abs(v(j));
        all += off;
        squares += off * off;
      }
      const double of_sum = std::min(all, 6 * std::sqrt(squares)) +
                            sum_bound(keys, [&](size_t j) { return e[j] * v(j); });
      plain_o[c] = o[c] + (of_sum / l + of_lse * std::abs(o[c])) / 2;
    }
    return of_lse / 2;
  }

  /// Adds all queries' contributions to dK and dV of key j, from element `at` on; reads all `rows`.
  void add_key(size_t j, size_t at) {
    for (size_t r = p.first_query(static_cast<int>(j)) - queries.front(); r < rows.size(); ++r) {
      const double S = score(r, j);
      const Element x = element(rows[r], std::exp(S - rows[r].m), S, dP(r, j));
      add(&out.dk.exact[at], p.scale * x.dS, &Q[r * d], d);
      add(&out.dk.plain[at], p.scale * x.plain_dS, &Q[r * d], d);
      add(&out.dv.exact[at], x.P, &dO[r * d], d);
      add(&out.dv.plain[at], x.plain_P, &dO[r * d], d);
    }
  }
};

/// Sets the outputs' names, rows, and values for queries that attend to no key: 0, or −∞ for LSE.
void expect_rows(const Problem& p, const RowsToCheck& choice, Reference& out) {
  const auto text = [](size_t rows, int of) { return fmt::format("{} of {} rows", rows, of); };
  std::vector<int64_t> rows, kv_rows;
  for (int head = 0; head < p.B * p.H; ++head)
    for (const int row : choice.rows) rows.push_back(p.q_row(head) + row);
  for (const int64_t head : choice.kv_heads)
    for (int j = 0; j < p.N_kv; ++j) kv_rows.push_back(head * p.N_kv + j);
  const std::string compared = text(choice.rows.size(), p.N);
  std::string kv_compared = text(p.N_kv, p.N_kv);
  if (std::ssize(choice.kv_heads) < p.B * p.Hk)
    kv_compared += fmt::format(", {} of {} heads", choice.kv_heads.size(), p.B * p.Hk);
  const auto expected = [&](const char* name, int columns, bool of_keys = false) -> ExpectedTensor {
    const std::vector<int64_t>& of = of_keys ? kv_rows : rows;
    const std::vector<double> zeros(of.size() * columns);
    return {name,
            of,
            columns,
            of_keys ? kv_compared : compared,
            zeros,
            zeros,
            0,
            0,
            of_keys ? p.N_kv : p.N};
  };
  out.o = expected("o", p.d);
  out.lse = expected("lse", 1);
  std::ranges::fill(out.lse.exact, -kInf);
  out.lse.relative = 0x1p-20 * std::max(1.0, std::sqrt(p.d) / 8);
  if (choice.kv_heads.empty()) return;
  out.dq = expected("dq", p.d);
  out.dk = expected("dk", p.d, true);
  out.dv = expected("dv", p.d, true);
}

/// Returns half a unit in the last place of the I/O type at x ≥ 0, capped at the type's maximum.
double half_ulp(DType dtype, double x) {
  const int mantissa = dtype == DType::fp16 ? 10 : 7;
  const int least = dtype == DType::fp16 ? -14 : -126;
  const int exponent = x > 0 ? std::clamp(std::ilogb(x), least, 1 - least) : least;
  return std::ldexp(0.5, exponent - mantissa);
}

/// Returns the ranges of heads, rows of a head, and columns with wrong elements: "first to last".
std::string place_of_errors(const ExpectedTensor& expected, const auto& out, double tolerance) {
  struct Range {
    int64_t first = std::numeric_limits<int64_t>::max(), last = -1;
    void add(int64_t i) { first = std::min(first, i), last = std::max(last, i); }
  } heads, rows, columns;
  for (int64_t i = 0; i < std::ssize(expected.exact); ++i) {
    const int64_t row = expected.rows[i / expected.columns], column = i % expected.columns;
    const double value = out[row * expected.columns + column], ref = expected.exact[i];
    if (std::bit_cast<uint64_t>(value) == std::bit_cast<uint64_t>(ref)) continue;
    if (is_finite(ref) && is_finite(value) && std::abs(value - ref) <= tolerance) continue;
    const int64_t of_head = expected.rows_of_head ? expected.rows_of_head : row + 1;
    heads.add(row / of_head), rows.add(row % of_head), columns.add(column);
  }
  return fmt::format("heads {} to {}, rows {} to {}, columns {} to {}", heads.first, heads.last,
                     rows.first, rows.last, columns.first, columns.last);
}

/// Compares each expected element with `out`. rounding(x) is what the tolerance allows for rounding
/// an output whose largest magnitude is x. The 1e-5 is the contract's absolute term.
TensorError compare_each(const ExpectedTensor& expected, const auto& out, auto rounding) {
  TensorError error{.name = expected.name, .compared = expected.compared};
  const int columns = expected.columns;
  double off = 0, difference2 = 0, reference2 = 0;  // max |plain − ref|, and sums of squares
  int64_t finite = 0;
  for (int64_t i = 0; i < std::ssize(expected.exact); ++i) {
    const double value = out[expected.rows[i / columns] * columns + i % columns];
    const double ref = expected.exact[i], plain = expected.plain[i];
    if (!is_finite(ref)) {
      if (std::bit_cast<uint64_t>(value) != std::bit_cast<uint64_t>(ref))
        error.max = std::numeric_limits<double>::infinity();  // not the same infinity
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
  if (!error.pass()) error.where = place_of_errors(expected, out, error.tolerance);
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

RowsToCheck to_check(const Problem& p, Check how, bool gradients) {
  // All cores' multiply-adds per second, per key and head, at about 2·10⁹ per core. Per key a row
  // needs `each`, or `of_dQ` in a sample of dQ, which is computed without dK and dV.
  const double in_a_second = 2e9 * host_cores() / (1.0 * p.B * p.H * p.N_kv);
  const double each = 10.0 * p.d + 80, of_dQ = 5.0 * p.d + 60;
  const bool all = how == Check::full || (how == Check::automatic && p.N <= in_a_second / each);
  const double some = std::clamp(in_a_second / (gradients ? of_dQ : each) / 4, 4.0, 256.0);
  const auto n = all ? p.N : static_cast<int64_t>(some);
  RowsToCheck choice;
  for (int64_t k = 0; k < n; ++k)
    choice.rows.push_back(static_cast<int>((p.N - 1) * k / std::max<int64_t>(1, n - 1)));
  choice.rows.erase(std::unique(choice.rows.begin(), choice.rows.end()), choice.rows.end());
  for (int head = all ? 0 : p.B * p.Hk - 1; head < p.B * p.Hk && gradients; ++head)
    choice.kv_heads.push_back(head);
  return choice;
}

Reference::Reference(const Problem& p, const Inputs& in, Rounding rounding,
                     const RowsToCheck& choice, const std::optional<Quantisation>& quantisation) {
  expect_rows(p, choice, *this);
  std::optional<QuantisedInputs> quantised;
  if (quantisation) quantised.emplace(p, *quantisation, in);
  const QuantisedInputs* const q = quantised ? &*quantised : nullptr;
  const auto d = static_cast<size_t>(p.d), columns = q ? static_cast<size_t>(q->Q.columns) : d;
  const bool gradients = !choice.kv_heads.empty();
  std::vector<int> all(p.N - p.first_query(0)), chosen = choice.rows;
  std::iota(all.begin(), all.end(), p.first_query(0));
  std::erase_if(chosen, [&](int i) { return p.keys(i) == 0; });
  // max_ij(P_ij·Σ_c|dO_ic·O_ic|), max |K| and max |Q| over the computed rows.
  double weight = 0, largest_k = 0, largest_q = 0;
  for (int head = 0; head < p.B * p.H; ++head) {
    const int kv_head = head / (p.H / p.Hk);
    const bool with_dk_dv = std::ranges::binary_search(choice.kv_heads, kv_head);
    const std::vector<int>& queries = with_dk_dv ? all : chosen;
    const auto n = std::ssize(queries);
    const int64_t first_query = p.q_row(head), first_key = int64_t{kv_head} * p.N_kv;
    const auto query = [&](int64_t r) { return first_query + queries[r]; };
    const auto key = [&](int64_t j) { return first_key + j; };
    Head of{p,
            rounding == Rounding::S_and_P_stored,
            *this,
            columns,
            queries,
            read_rows(in.Q, q ? &q->Q : nullptr, columns, n, query),
            read_rows(in.K, q ? &q->K : nullptr, columns, p.N_kv, key),
            read_rows(in.V, q ? &q->V : nullptr, d, p.N_kv, key)};
    if (gradients) of.dO = read_rows(in.dO, nullptr, d, n, query);
    if (q) {
      of.s_V = &q->V.scales[first_key];
      of.p_exponent = quantisation->p_exponent;
    }
    // Returns the row of the outputs for query queries[r], if that query is to be checked.
    const auto place = [&](int64_t r) -> std::optional<size_t> {
      const auto there = std::ranges::lower_bound(choice.rows, queries[r]);
      if (there == choice.rows.end() || *there != queries[r]) return {};
      return head * choice.rows.size() + (there - choice.rows.begin());
    };
    // Short rows are handed out up to 8 at a time, because handing out takes longer than a row.
    parallel_for(
        n, [&](int64_t r) { of.compute_row(r, place(r)); }, std::clamp(4096 / p.N_kv, 1, 8));
    for (const Row& row : of.rows) {
      weight = std::max(weight, row.weight);
      overflowing_rows += row.overflows;
    }
    for (const double x : of.Q) largest_q = std::max(largest_q, std::abs(x));
    for (const double x : of.K) largest_k = std::max(largest_k, std::abs(x));
    if (!with_dk_dv) continue;
    const int64_t of_head = int64_t{kv_head - choice.kv_heads.front()} * p.N_kv;
    parallel_for(
        p.N_kv, [&](int64_t j) { of.add_key(j, (of_head + j) * d); }, 16);
  }
  for (auto* x : {&dq, &dk, &dv})
    for (double& y : x->plain) y = rounded(p.dtype, y);
  // The largest change of scale·D_i that rounding O causes, in units of Σ_c|dO_ic·O_ic|.
  const double rounding_of_D = p.scale * (p.dtype == DType::fp16 ? 0x1p-11 : 0x1p-8);
  dq.extra = rounding_of_D * weight * largest_k;
  dk.extra = rounding_of_D * weight * largest_q;
}

}  // namespace ladder
