#include "harness/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "harness/quantised.h"
#include "parallel.h"

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

/// Whether float32 cannot hold a row of S, or QKᵀ or S·log2(e) on the way: then there is no P.
bool leaves_float32(const double* S, size_t keys, float scale) {
  const double most = std::numeric_limits<float>::max() * std::min(double{scale}, std::log(2.0));
  return std::any_of(S, S + keys, [&](double x) { return std::abs(x) > most; });
}

/// How far float64's sum of n terms may be from the tensor cores' sum of products of e4m3. They add
/// 32 at a time to the sum so far; each of these loses less than 2⁻¹³ of the largest, and so does
/// the sum again (hopper_test measures it). The products' losses have either sign: by Hoeffding's
/// inequality they make more than 6·√n of them in 3 of 10⁸ cases. The sums' may all have one.
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

/// `plain` of a row of O in e4m3, and returned that of LSE less `exact`: half of what they may be
/// off by, since twice that is the tolerance. The row's P_j is e[j]/l, and its score off by
/// of_S[j].
///
/// What is rounded is 2^E·s_V·e_j and more, the largest of a row 2^E at least: off by 2⁻⁴ of
/// itself, for 4 significant bits, or by 2⁻¹⁰ where it is below 2⁻⁶. A score off by t makes it off
/// by t of itself. Keys' errors are independent, so that Hoeffding's bound holds for their sum too.
double plain_in_e4m3(const std::vector<double>& e, double l, const std::vector<double>& of_S,
                     const float* s_V, int E, const double* V, const double* exact, double* plain,
                     size_t d) {
  std::vector<double> of_P(e.size());
  double most = 0, of_lse = 0;
  for (size_t j = 0; j < e.size(); ++j) most = std::max(most, s_V[j] * e[j]);
  for (size_t j = 0; j < e.size(); ++j) {
    of_lse += of_S[j] * e[j] / l;
    of_P[j] = of_S[j] * e[j] + std::max(0x1p-4 * e[j], std::exp2(-10 - E) * most / s_V[j]);
  }
  for (size_t c = 0; c < d; ++c) {
    double all = 0, squares = 0;
    for (size_t j = 0; j < e.size(); ++j) {
      const double off = of_P[j] * std::abs(V[j * d + c]);
      all += off;
      squares += off * off;
    }
    const double of_sum = std::min(all, 6 * std::sqrt(squares)) +
                          sum_bound(e.size(), [&](size_t j) { return e[j] * V[j * d + c]; });
    plain[c] = exact[c] + (of_sum / l + of_lse * std::abs(exact[c])) / 2;
  }
  return of_lse / 2;
}

/// dS = P∘(dP − D) of one row, in the place of dP.
void softmax_gradient(const double* P, double* dP, size_t keys) {
  double delta = 0;
  for (size_t j = 0; j < keys; ++j) delta += P[j] * dP[j];
  for (size_t j = 0; j < keys; ++j) dP[j] = P[j] * (dP[j] - delta);
}

/// Element c of a row of a tensor.
double element(const Tensor& tensor, int d, int64_t row, size_t c) {
  return tensor[row * d + static_cast<int64_t>(c)];
}

/// K and V of one head, as they are and transposed, so that every product runs along rows of its
/// right operand. `columns`: of K. k(row, c), v(row, c): elements of the rows of all heads.
struct KeysAndValues {
  std::vector<double> K, Kt, V, Vt;
  KeysAndValues(const Problem& p, int head, size_t columns, auto k, auto v) {
    const auto N_kv = static_cast<size_t>(p.N_kv), d = static_cast<size_t>(p.d);
    for (auto* x : {&K, &Kt}) x->resize(N_kv * columns);
    for (auto* x : {&V, &Vt}) x->resize(N_kv * d);
    const auto copy_row = [&](int64_t row) {
      const auto j = static_cast<size_t>(row);
      const int64_t of_all = p.kv_row(head) + row;
      for (size_t c = 0; c < columns; ++c) K[j * columns + c] = Kt[c * N_kv + j] = k(of_all, c);
      for (size_t c = 0; c < d; ++c) V[j * d + c] = Vt[c * N_kv + j] = v(of_all, c);
    };
    parallel_for(p.N_kv, copy_row, 64);
  }
};

/// A row of O: P·V / divisor.
void row_of_O(double* o, const std::vector<double>& P, const std::vector<double>& V, size_t d,
              double divisor) {
  add_product(o, d, {P.data(), P.size()}, {V.data(), d}, 1, d, P.size());
  std::transform(o, o + d, o, [&](double x) { return x / divisor; });
}

/// `plain` of a row of O whose scores are S, e_j = exp(S_j − m), l their sum; all infinite where
/// the scores are `lost`. Returned is the logarithm of Σ exp(S), S rounded to the I/O type.
double plain_row(double* plain, DType dtype, Rounding rounding, const std::vector<double>& S,
                 const std::vector<double>& e, double l, bool lost, const std::vector<double>& V,
                 size_t d) {
  const bool P_stored = rounding == Rounding::S_and_P_stored;
  std::vector<double> stored(S.size()), P(S.size());
  for (size_t j = 0; j < S.size(); ++j) stored[j] = rounded(dtype, S[j]);
  const double m = *std::max_element(stored.begin(), stored.end());
  double stored_l = 0;
  for (const double x : stored) stored_l += std::exp(x - m);
  for (size_t j = 0; j < S.size(); ++j)
    P[j] = lost ? kInf : rounded(dtype, P_stored ? std::exp(stored[j] - m) / stored_l : e[j]);
  row_of_O(plain, P, V, d, P_stored ? 1 : l);
  std::transform(plain, plain + d, plain, [&](double x) { return rounded(dtype, x); });
  return m + std::log(stored_l);
}

}  // namespace

std::vector<int> rows_to_check(const Problem& p, Check how) {
  // Multiply-adds for one query row of every head.
  const double cost = 3.0 * p.B * p.H * p.N_kv * (p.d + 8);
  const double in_a_second = 6e8 * host_cores() / cost;
  return rows_of(p, checks_all(p, how, in_a_second), in_a_second);
}

GradientChoice gradients_to_check(const Problem& p, Check how) {
  // Rows of every head that a second is enough for with their share of dK and dV, and without.
  const double in_a_second = 2e9 * host_cores() / (1.0 * p.B * p.H * p.N_kv);
  const bool all = checks_all(p, how, in_a_second / (9.0 * p.d + 60));
  GradientChoice choice{rows_of(p, all, in_a_second / (5.0 * p.d + 60)), {}};
  for (int head = all ? 0 : p.B * p.Hk - 1; head < p.B * p.Hk; ++head)
    choice.kv_heads.push_back(head);
  return choice;
}

Reference::Reference(const Problem& p, const Inputs& in, Rounding rounding,
                     const std::vector<int>& rows, const std::optional<Quantisation>& quantisation)
    : d_(p.d) {
  const int heads = p.B * p.H;
  const auto N_kv = static_cast<size_t>(p.N_kv), d = static_cast<size_t>(p.d);
  const std::vector<int64_t> tensor_rows = rows_of_heads(heads, p.N, rows);
  o_ = expected("o", tensor_rows, p.d, rows_text(rows.size(), p.N));
  lse_ = expected("lse", tensor_rows, 1, o_.compared);
  std::optional<QuantisedInputs> quantised;
  if (quantisation) quantised.emplace(p, *quantisation, in);
  const auto columns = quantised ? static_cast<size_t>(quantised->Q.columns) : d;
  // Elements of Q, K or V: as given, or as quantised.
  const auto operand = [&](const Tensor& given, auto rows_of) {
    return [&, rows_of](int64_t row, size_t c) {
      if (!quantised) return element(given, p.d, row, c);
      const QuantisedRows& from = (*quantised).*rows_of;
      return double{from.values[static_cast<size_t>(row * from.columns) + c]} *
             from.scales[static_cast<size_t>(row)];
    };
  };
  const auto Q = operand(in.Q, &QuantisedInputs::Q);
  std::atomic<int64_t> overflowing{0};

  for (int head = 0; head < heads; ++head) {
    const KeysAndValues kv(p, head, columns, operand(in.K, &QuantisedInputs::K),
                           operand(in.V, &QuantisedInputs::V));
    parallel_for(std::ssize(rows), [&](int64_t r) {
      const int i = rows[static_cast<size_t>(r)];
      const size_t at = static_cast<size_t>(head) * rows.size() + static_cast<size_t>(r);
      double* const plain = &o_.plain[at * d];
      const auto keys = static_cast<size_t>(p.keys(i));
      if (keys == 0) {  // sees no key: O = 0, LSE = −∞
        lse_.exact[at] = -kInf;
        return;
      }
      std::vector<double> q(columns), S(keys), e(keys);
      for (size_t c = 0; c < columns; ++c) q[c] = Q(p.q_row(head) + i, c);
      add_product(S.data(), keys, {q.data(), columns}, {kv.Kt.data(), N_kv}, 1, keys, columns);
      for (double& x : S) x *= p.scale;

      const double m = *std::max_element(S.begin(), S.end());
      double l = 0;
      for (size_t j = 0; j < keys; ++j) l += e[j] = std::exp(S[j] - m);
      lse_.exact[at] = m + std::log(l);
      row_of_O(&o_.exact[at * d], e, kv.V, d, l);
      const bool lost = leaves_float32(S.data(), keys, p.scale);
      lse_.plain[at] = lost ? kInf : lse_.exact[at];
      if (quantised) {
        std::vector<double> of_S(keys);
        for (size_t j = 0; j < keys; ++j) {
          const double* const k = &kv.K[j * columns];
          of_S[j] = p.scale * sum_bound(columns, [&](size_t c) { return q[c] * k[c]; }) +
                    0x1p-22 * (std::abs(S[j]) + std::abs(m));  // and float32's roundings
        }
        lse_.plain[at] +=
            plain_in_e4m3(e, l, of_S, &quantised->V.scales[static_cast<size_t>(p.kv_row(head))],
                          quantisation->p_exponent, kv.V.data(), &o_.exact[at * d], plain, d);
        if (lost) std::fill_n(plain, d, kInf);
        return;
      }
      const double sum = plain_row(plain, p.dtype, rounding, S, e, l, lost, kv.V, d);
      // Bounds of float32's normal numbers, in logarithms.
      if (sum > std::log(3.4e38) || sum < std::log(1.2e-38)) ++overflowing;
    });
  }
  overflowing_ = overflowing;
}

TensorError Reference::compare_with_full_precision(const Tensor& O) const {
  TensorError error = check_o(O);
  error.name = "o_full";
  error.compared += " in full precision";
  error.tolerance = kInf;
  return error;
}

// --------------------------------------------------------------------------------------- gradients

namespace {

/// Query rows of one head: what their rows of P and dS are, exactly and plainly.
struct Block {
  const Problem& p;
  const Inputs& in;
  Rounding rounding;
  const KeysAndValues* kv = nullptr;
  int head = 0;
  const int* first = nullptr;  // the block's query rows
  // Row by row: of Q and dO, and of P and dS, which are 0 where a query does not see a key.
  std::vector<double> Q, dO, P, dS, plain_P, plain_dS;
  std::vector<double> weight;  // max_j P_ij · Σ_c|dO_ic·O_ic|
};

/// Computes rows begin … end − 1 of the block.
void compute_rows(Block& b, size_t begin, size_t end) {
  const Problem& p = b.p;
  const auto N_kv = static_cast<size_t>(p.N_kv), d = static_cast<size_t>(p.d);
  const size_t rows = end - begin;
  for (auto* x : {&b.P, &b.dS, &b.plain_P, &b.plain_dS})
    std::fill_n(x->data() + begin * N_kv, rows * N_kv, 0.0);
  for (size_t r = begin; r < end; ++r)
    for (size_t c = 0; c < d; ++c) {
      const int64_t row = p.q_row(b.head) + b.first[r];
      b.Q[r * d + c] = element(b.in.Q, p.d, row, c);
      b.dO[r * d + c] = element(b.in.dO, p.d, row, c);
    }
  // S and dP first, in the place of P and dS; as far as the last of the rows sees, which sees most.
  const auto all_keys = static_cast<size_t>(p.keys(b.first[end - 1]));
  add_product(&b.P[begin * N_kv], N_kv, {&b.Q[begin * d], d}, {b.kv->Kt.data(), N_kv}, rows,
              all_keys, d);
  add_product(&b.dS[begin * N_kv], N_kv, {&b.dO[begin * d], d}, {b.kv->Vt.data(), N_kv}, rows,
              all_keys, d);
  const auto round = [&](double* x, const double* y, size_t n) {
    for (size_t j = 0; j < n; ++j) x[j] = rounded(p.dtype, y[j]);
  };
  for (size_t r = begin; r < end; ++r) {
    const auto keys = static_cast<size_t>(p.keys(b.first[r]));
    double *P = &b.P[r * N_kv], *dS = &b.dS[r * N_kv];
    double *plain_P = &b.plain_P[r * N_kv], *plain_dS = &b.plain_dS[r * N_kv];
    std::fill(P + keys, P + all_keys, 0.0);
    std::fill(dS + keys, dS + all_keys, 0.0);
    if (keys == 0) continue;
    for (size_t j = 0; j < keys; ++j) P[j] *= p.scale;
    const bool lost = leaves_float32(P, keys, p.scale);
    if (b.rounding == Rounding::S_and_P_stored) {
      round(plain_P, P, keys);
      softmax(plain_P, keys);
      round(plain_P, plain_P, keys);
      round(plain_dS, dS, keys);
      softmax_gradient(plain_P, plain_dS, keys);
      round(plain_dS, plain_dS, keys);
    }
    softmax(P, keys);
    softmax_gradient(P, dS, keys);
    if (b.rounding == Rounding::on_chip) {
      round(plain_P, P, keys);
      round(plain_dS, dS, keys);
    }
    if (lost)
      for (double* x : {plain_P, plain_dS}) std::fill_n(x, keys, kInf);
  }

  std::vector<double> O(rows * d);
  add_product(O.data(), d, {&b.P[begin * N_kv], N_kv}, {b.kv->V.data(), d}, rows, d, all_keys);
  for (size_t r = begin; r < end; ++r) {
    double sum = 0;
    for (size_t c = 0; c < d; ++c) sum += std::abs(b.dO[r * d + c] * O[(r - begin) * d + c]);
    b.weight[r] = *std::max_element(&b.P[r * N_kv], &b.P[r * N_kv] + N_kv) * sum;
  }
}

/// dQ of the block's row r, to be added to a row of it.
void add_dq(const Block& b, size_t r, ExpectedTensor& dq, size_t to) {
  const auto N_kv = static_cast<size_t>(b.p.N_kv), d = static_cast<size_t>(b.p.d);
  const auto keys = static_cast<size_t>(b.p.keys(b.first[r]));
  const View K{b.kv->K.data(), d};
  add_product(&dq.exact[to * d], d, {&b.dS[r * N_kv], N_kv}, K, 1, d, keys);
  add_product(&dq.plain[to * d], d, {&b.plain_dS[r * N_kv], N_kv}, K, 1, d, keys);
}

/// What the block's n rows add to dK and dV of its head of K and V, which begin at element `at`.
void add_dk_dv(const Block& b, size_t n, ExpectedTensor& dk, ExpectedTensor& dv, size_t at) {
  const auto N_kv = static_cast<size_t>(b.p.N_kv), d = static_cast<size_t>(b.p.d);
  constexpr size_t kKeys = 16;  // that one core takes at a time
  parallel_for(ceil_div(b.p.N_kv, kKeys), [&](int64_t i) {
    const size_t j = static_cast<size_t>(i) * kKeys, keys = std::min(kKeys, N_kv - j);
    // The block's rows from the first on that sees one of these keys.
    const int* seeing = std::partition_point(
        b.first, b.first + n, [&](int row) { return static_cast<size_t>(b.p.keys(row)) <= j; });
    const auto r = static_cast<size_t>(seeing - b.first);
    const auto add = [&](std::vector<double>& sum, const std::vector<double>& left,
                         const std::vector<double>& right) {
      add_product(&sum[at + j * d], d, {left.data() + r * N_kv + j, 1, N_kv},
                  {right.data() + r * d, d}, keys, d, n - r);
    };
    add(dk.exact, b.dS, b.Q);
    add(dk.plain, b.plain_dS, b.Q);
    add(dv.exact, b.P, b.dO);
    add(dv.plain, b.plain_P, b.dO);
  });
}
}  // namespace

GradientReference::GradientReference(const Problem& p, const Inputs& in, Rounding rounding,
                                     const GradientChoice& choice) {
  const auto N_kv = static_cast<size_t>(p.N_kv), d = static_cast<size_t>(p.d);
  const int group = p.H / p.Hk, kv_heads = p.B * p.Hk;
  dq_ = expected("dq", rows_of_heads(p.B * p.H, p.N, choice.rows), p.d,
                 rows_text(choice.rows.size(), p.N));
  std::vector<int64_t> kv_rows;
  for (const int64_t head : choice.kv_heads)
    for (int j = 0; j < p.N_kv; ++j) kv_rows.push_back(head * p.N_kv + j);
  std::string compared = rows_text(N_kv, p.N_kv);
  if (std::ssize(choice.kv_heads) < kv_heads)
    compared += fmt::format(", {} of {} heads", choice.kv_heads.size(), kv_heads);
  dk_ = expected("dk", kv_rows, p.d, compared);
  dv_ = expected("dv", kv_rows, p.d, compared);
  std::vector<int> place(static_cast<size_t>(p.N), -1);  // of a query row among choice.rows
  for (size_t r = 0; r < choice.rows.size(); ++r)
    place[static_cast<size_t>(choice.rows[r])] = static_cast<int>(r);
  // max_ij(P_ij·Σ_c|dO_ic·O_ic|) over the rows of dQ and those that dK sums, and max |K|, |Q|.
  double dq_weight = 0, dk_weight = 0, largest_k = 0, largest_q = 0;

  const std::vector<int> every_row = rows_of(p, true);
  const size_t block_rows = std::clamp<size_t>((size_t{1} << 20) / N_kv, 16, 256);
  // One for all: fresh memory for each costs more than what is done with it.
  Block block{p, in, rounding};
  for (auto* x : {&block.Q, &block.dO}) x->resize(block_rows * d);
  for (auto* x : {&block.P, &block.dS, &block.plain_P, &block.plain_dS})
    x->resize(block_rows * N_kv);
  size_t at = 0;  // of the next of the chosen heads in dK and dV
  for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
    const auto of = [&](const Tensor& t) {
      return [&](int64_t row, size_t c) { return element(t, p.d, row, c); };
    };
    const KeysAndValues kv(p, kv_head * group, d, of(in.K), of(in.V));
    for (const double k : kv.K) largest_k = std::max(largest_k, std::abs(k));
    const bool with_dk_dv =
        std::binary_search(choice.kv_heads.begin(), choice.kv_heads.end(), kv_head);
    const std::vector<int>& rows = with_dk_dv ? every_row : choice.rows;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (size_t first = 0; first < rows.size(); first += block_rows) {
        const size_t n = std::min(block_rows, rows.size() - first);
        if (p.keys(rows[first + n - 1]) == 0) continue;  // none of these sees a key: dQ = 0
        block.kv = &kv;
        block.head = head;
        block.first = &rows[first];
        block.weight.assign(n, 0);
        constexpr size_t kRows = 8;  // that one core takes at a time
        parallel_for(ceil_div(std::ssize(block.weight), kRows), [&](int64_t i) {
          const size_t begin = static_cast<size_t>(i) * kRows, end = std::min(n, begin + kRows);
          compute_rows(block, begin, end);
          for (size_t r = begin; r < end; ++r) {
            const int to = place[static_cast<size_t>(block.first[r])];
            if (to >= 0) add_dq(block, r, dq_, static_cast<size_t>(head) * choice.rows.size() + to);
          }
        });
        for (size_t r = 0; r < n; ++r)
          if (place[static_cast<size_t>(block.first[r])] >= 0)
            dq_weight = std::max(dq_weight, block.weight[r]);
        if (!with_dk_dv) continue;
        add_dk_dv(block, n, dk_, dv_, at);
        for (const double w : block.weight) dk_weight = std::max(dk_weight, w);
        // Of the rows that see a key, like the weights: what the blocks are does not matter.
        for (size_t r = 0; r < n; ++r)
          for (size_t c = 0; c < d && p.keys(block.first[r]) > 0; ++c)
            largest_q = std::max(largest_q, std::abs(block.Q[r * d + c]));
      }
    if (with_dk_dv) at += N_kv * d;
  }
  for (auto* x : {&dq_, &dk_}) {
    for (double& y : x->exact) y *= p.scale;
    for (double& y : x->plain) y *= p.scale;
  }
  for (auto* x : {&dq_, &dk_, &dv_})
    for (double& y : x->plain) y = rounded(p.dtype, y);
  // What rounding O moves scale·D_i by at most, in units of Σ_c|dO_ic·O_ic|.
  const double rounding_of_D = p.scale * (p.dtype == DType::fp16 ? 0x1p-11 : 0x1p-8);
  dq_.extra = rounding_of_D * dq_weight * largest_k;
  dk_.extra = rounding_of_D * dk_weight * largest_q;
}

}  // namespace ladder
