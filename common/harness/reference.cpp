#include "harness/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "harness/quantised.h"
#include "parallel.h"

namespace ladder {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// How many keys query i sees.
size_t keys_of(const Problem& p, int i) {
  return static_cast<size_t>(p.keys(i));
}

/// c += a·B, of n numbers; a has `inner`, which are `step` apart, and the rows of B are `pitch`
/// apart.
void add_product(double* c, const double* a, size_t step, const double* B, size_t pitch, size_t n,
                 size_t inner) {
  size_t k = 0;
  for (; k + 4 <= inner; k += 4) {  // four at once: c is read and written less often
    const double a0 = a[k * step], a1 = a[(k + 1) * step], a2 = a[(k + 2) * step],
                 a3 = a[(k + 3) * step];
    const double *b0 = B + k * pitch, *b1 = b0 + pitch, *b2 = b1 + pitch, *b3 = b2 + pitch;
    for (size_t j = 0; j < n; ++j) c[j] += (a0 * b0[j] + a1 * b1[j]) + (a2 * b2[j] + a3 * b3[j]);
  }
  for (; k < inner; ++k)
    for (size_t j = 0; j < n; ++j) c[j] += a[k * step] * B[k * pitch + j];
}

/// exp(S − m) of n numbers, at least one, to `to`; m, the largest, and their sum.
std::pair<double, double> exponentials(const double* S, size_t n, double* to) {
  const double m = *std::max_element(S, S + n);
  double l = 0;
  for (size_t j = 0; j < n; ++j) l += to[j] = std::exp(S[j] - m);
  return {m, l};
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

/// dS = P∘(dP − D) of one row, in the place of dP.
void softmax_gradient(const double* P, double* dP, size_t keys) {
  double delta = 0;
  for (size_t j = 0; j < keys; ++j) delta += P[j] * dP[j];
  for (size_t j = 0; j < keys; ++j) dP[j] = P[j] * (dP[j] - delta);
}

/// Q, K, V or dO: as given, or as quantised.
struct Operand {
  const Tensor& given;
  int columns;
  const QuantisedRows* quantised = nullptr;
  /// A row of those of all heads.
  void read(int64_t row, double* to) const {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = row * columns + c;
      to[c] = quantised ? double{quantised->values[i]} * quantised->scales[row] : given[i];
    }
  }
};

/// K or V of one head, as it is and transposed, so that every product runs along rows of its right
/// operand.
struct Matrix {
  std::vector<double> rows, transposed;
  Matrix(const Operand& from, int64_t first, int n)
      : rows(int64_t{n} * from.columns), transposed(rows.size()) {
    const int64_t columns = from.columns, pitch = n;
    const auto copy_row = [&](int64_t j) {
      from.read(first + j, &rows[j * columns]);
      for (int64_t c = 0; c < columns; ++c) transposed[c * pitch + j] = rows[j * columns + c];
    };
    parallel_for(n, copy_row, 64);
  }
};

/// Query rows of one head, of which it computes what the outputs have of them.
struct Block {
  const Problem& p;
  Rounding rounding;
  const Choice& choice;
  Operand of_Q, of_dO;
  Reference& out;
  const size_t d = size_t(p.d), N_kv = size_t(p.N_kv);
  const bool gradients = !choice.kv_heads.empty();
  const Matrix *K = nullptr, *V = nullptr;
  const float* s_V = nullptr;  // of V's rows, and
  int p_exponent = 0;          // of P, where they are quantised
  int head = 0;
  std::span<const int> rows;
  // Row by row: of Q and dO, and of P and dS, which are 0 where a query does not see a key.
  std::vector<double> Q, dO, P, dS, plain_P, plain_dS;
  std::vector<double> weight;  // max_j P_ij · Σ_c|dO_ic·O_ic|
  std::atomic<int64_t> overflowing = 0;

  /// Where rows[r] of the head is among those chosen of all heads, if it is.
  std::optional<size_t> place(size_t r) const {
    const auto at = std::lower_bound(choice.rows.begin(), choice.rows.end(), rows[r]);
    if (at == choice.rows.end() || *at != rows[r]) return {};
    return head * choice.rows.size() + (at - choice.rows.begin());
  }

  void round(const double* from, size_t n, double* to) const {
    std::transform(from, from + n, to, [&](double x) { return rounded(p.dtype, x); });
  }

  /// A row of O: P·V / divisor.
  void row_of_O(const double* P, size_t keys, double divisor, double* o) const {
    add_product(o, P, 1, V->rows.data(), d, d, keys);
    std::transform(o, o + d, o, [&](double x) { return x / divisor; });
  }

  void compute(size_t r) {
    for (auto* x : {&P, &dS, &plain_P, &plain_dS}) std::fill_n(&(*x)[r * N_kv], N_kv, 0.0);
    const size_t keys = keys_of(p, rows[r]);
    const auto product = [&](const Operand& from, std::vector<double>& left, const Matrix& right,
                             std::vector<double>& to) {
      const size_t inner = size_t(from.columns);
      from.read(p.q_row(head) + rows[r], &left[r * inner]);
      add_product(&to[r * N_kv], &left[r * inner], 1, right.transposed.data(), N_kv, keys, inner);
    };
    product(of_Q, Q, *K, plain_P);
    if (gradients) product(of_dO, dO, *V, dS);
    if (keys > 0) {
      const bool lost = forward(r, keys);
      if (gradients) backward(r, keys, lost);
    } else if (const auto to = place(r)) {
      out.lse.exact[*to] = -kInf;
    }
  }

  /// O, LSE and P of a row whose Q·Kᵀ is in the place of its plain P. Returned is whether float32
  /// cannot hold its scores; then nothing plain is finite.
  bool forward(size_t r, size_t keys) {
    double *const plain = &plain_P[r * N_kv], *const e = &P[r * N_kv];
    for (size_t j = 0; j < keys; ++j) plain[j] *= p.scale;
    const bool lost = leaves_float32(plain, keys, p.scale);
    const auto [m, l] = exponentials(plain, keys, e);
    const auto to = place(r);
    std::vector<double> o(d);
    row_of_O(e, keys, l, o.data());
    for (size_t c = 0; c < d && gradients; ++c) weight[r] += std::abs(dO[r * d + c] * o[c]) / l;
    if (to) {
      std::copy(o.begin(), o.end(), &out.o.exact[*to * d]);
      out.lse.exact[*to] = out.lse.plain[*to] = m + std::log(l);
      if (s_V) out.lse.plain[*to] += plain_in_e4m3(r, keys, m, l, *to * d);
    }
    double divisor = 1;
    if (rounding == Rounding::S_and_P_stored) {
      round(plain, keys, plain);
      const auto [stored_m, stored_l] = exponentials(plain, keys, plain);
      std::transform(plain, plain + keys, plain, [&](double x) { return x / stored_l; });
      // Bounds of float32's normal numbers, in logarithms.
      const double sum = stored_m + std::log(stored_l);
      if (to && (sum > std::log(3.4e38) || sum < std::log(1.2e-38))) ++overflowing;
      round(plain, keys, plain);
    } else {
      round(e, keys, plain);
      divisor = l;
    }
    if (lost) std::fill_n(plain, keys, kInf);
    if (to && lost) out.lse.plain[*to] = kInf;
    if (to && (lost || !s_V)) {
      double* const plain_o = &out.o.plain[*to * d];
      std::fill_n(plain_o, d, 0.0);
      row_of_O(plain, keys, divisor, plain_o);
      round(plain_o, d, plain_o);
    }
    std::transform(e, e + keys, e, [&](double x) { return x / l; });
    return lost;
  }

  /// The plain row of O in e4m3, which begins at element `at`, and returned that of LSE less
  /// `exact`: half of what they may be off by, since twice that is the tolerance. In the place of
  /// the row's P is e = exp(S − m), l their sum, and S in that of its plain P.
  ///
  /// What is rounded is 2^E·s_V·e_j and more, the largest of a row 2^E at least: off by 2⁻⁴ of
  /// itself, for 4 significant bits, or by 2⁻¹⁰ where it is below 2⁻⁶. A score off by t makes it
  /// off by t of itself. Keys' errors are independent, so that Hoeffding's bound holds for their
  /// sum too.
  double plain_in_e4m3(size_t r, size_t keys, double m, double l, size_t at) {
    const double *const e = &P[r * N_kv], *const S = &plain_P[r * N_kv];
    const auto columns = static_cast<size_t>(of_Q.columns);
    std::vector<double> of_P(keys);
    double most = 0, of_lse = 0;
    for (size_t j = 0; j < keys; ++j) most = std::max(most, s_V[j] * e[j]);
    for (size_t j = 0; j < keys; ++j) {
      const double *const q = &Q[r * columns], *const k = &K->rows[j * columns];
      const double of_S = p.scale * sum_bound(columns, [&](size_t c) { return q[c] * k[c]; }) +
                          0x1p-22 * (std::abs(S[j]) + std::abs(m));  // and float32's roundings
      of_lse += of_S * e[j] / l;
      of_P[j] = of_S * e[j] + std::max(0x1p-4 * e[j], std::exp2(-10 - p_exponent) * most / s_V[j]);
    }
    for (size_t c = 0; c < d; ++c) {
      const auto v = [&](size_t j) { return V->rows[j * d + c]; };
      double all = 0, squares = 0;
      for (size_t j = 0; j < keys; ++j) {
        const double off = of_P[j] * std::abs(v(j));
        all += off;
        squares += off * off;
      }
      const double exact = out.o.exact[at + c];
      const double of_sum = std::min(all, 6 * std::sqrt(squares)) +
                            sum_bound(keys, [&](size_t j) { return e[j] * v(j); });
      out.o.plain[at + c] = exact + (of_sum / l + of_lse * std::abs(exact)) / 2;
    }
    return of_lse / 2;
  }

  /// dS and dQ of a row whose dP is in the place of its dS.
  void backward(size_t r, size_t keys, bool lost) {
    double *const exact = &dS[r * N_kv], *const plain = &plain_dS[r * N_kv];
    double *const exact_P = &P[r * N_kv], *const stored_P = &plain_P[r * N_kv];
    if (rounding == Rounding::S_and_P_stored) {
      round(exact, keys, plain);
      softmax_gradient(stored_P, plain, keys);
      round(plain, keys, plain);
    }
    softmax_gradient(exact_P, exact, keys);
    if (rounding == Rounding::on_chip) {
      round(exact_P, keys, stored_P);
      round(exact, keys, plain);
    }
    if (lost)
      for (double* x : {stored_P, plain}) std::fill_n(x, keys, kInf);
    if (const auto to = place(r))
      for (auto [dS, dQ] : {std::pair{exact, &out.dq.exact}, {plain, &out.dq.plain}})
        add_product(&(*dQ)[*to * d], dS, 1, K->rows.data(), d, d, keys);
  }

  /// Adds to dK and dV of the head of K and V, which begin at element `at`.
  void add_dk_dv(size_t at) {
    parallel_for(
        p.N_kv,
        [&](int64_t j) {
          // From the first row on that sees the key; where dK is summed, all of the head's follow.
          const int64_t r = std::clamp<int64_t>(p.first_query(static_cast<int>(j)) - rows.front(),
                                                0, std::ssize(rows));
          const auto add = [&](std::vector<double>& sum, const std::vector<double>& left,
                               const std::vector<double>& right) {
            add_product(&sum[at + j * d], left.data() + r * N_kv + j, N_kv, right.data() + r * d, d,
                        d, rows.size() - r);
          };
          add(out.dk.exact, dS, Q);
          add(out.dk.plain, plain_dS, Q);
          add(out.dv.exact, P, dO);
          add(out.dv.plain, plain_P, dO);
        },
        16);
  }
};

/// Names the outputs and which rows of them are compared; all 0 at first.
void expect_rows(const Problem& p, const Choice& choice, Reference& out) {
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
  const auto expected = [](const char* name, const std::vector<int64_t>& of, int columns,
                           const std::string& which) -> ExpectedTensor {
    const std::vector<double> zeros(of.size() * columns);
    return {name, of, columns, which, zeros, zeros};
  };
  out.o = expected("o", rows, p.d, compared);
  out.lse = expected("lse", rows, 1, compared);
  out.lse.relative = 0x1p-20 * std::max(1.0, std::sqrt(p.d) / 8);
  if (choice.kv_heads.empty()) return;
  out.dq = expected("dq", rows, p.d, compared);
  out.dk = expected("dk", kv_rows, p.d, kv_compared);
  out.dv = expected("dv", kv_rows, p.d, kv_compared);
}

}  // namespace

Choice to_check(const Problem& p, Check how, bool gradients) {
  // Multiply-adds of a second for a key of every head, and what a row takes of them: where all are
  // checked; or of dQ, whose sample comes without its share of dK and dV.
  const double in_a_second = 2e9 * host_cores() / (1.0 * p.B * p.H * p.N_kv);
  const double each = 10.0 * p.d + 80, of_dQ = 5.0 * p.d + 60;
  const bool all = how == Check::full || (how == Check::automatic && p.N <= in_a_second / each);
  const double some = std::clamp(in_a_second / (gradients ? of_dQ : each) / 4, 4.0, 256.0);
  const auto n = all ? p.N : static_cast<int64_t>(some);
  Choice choice;
  for (int64_t k = 0; k < n; ++k)
    choice.rows.push_back(static_cast<int>((p.N - 1) * k / std::max<int64_t>(1, n - 1)));
  choice.rows.erase(std::unique(choice.rows.begin(), choice.rows.end()), choice.rows.end());
  for (int head = all ? 0 : p.B * p.Hk - 1; head < p.B * p.Hk && gradients; ++head)
    choice.kv_heads.push_back(head);
  return choice;
}

Reference::Reference(const Problem& p, const Inputs& in, Rounding rounding, const Choice& choice,
                     const std::optional<Quantisation>& quantisation) {
  expect_rows(p, choice, *this);
  std::optional<QuantisedInputs> quantised;
  if (quantisation) quantised.emplace(p, *quantisation, in);
  const auto operand = [&](const Tensor& given, auto rows_of) -> Operand {
    if (!quantised) return {given, p.d};
    const QuantisedRows& rows = (*quantised).*rows_of;
    return {given, rows.columns, &rows};
  };
  Block block{p, rounding, choice, operand(in.Q, &QuantisedInputs::Q), {in.dO, p.d}, *this};
  const Choice all = to_check(p, Check::full, false);
  const size_t most = (block.gradients ? all : choice).rows.size();
  const size_t block_rows =
      std::min(most, std::clamp<size_t>((size_t{1} << 20) / block.N_kv, 16, 256));
  // One for all: fresh memory for each costs more than what is done with it.
  for (auto* x : {&block.Q, &block.dO}) x->resize(block_rows * block.of_Q.columns);
  for (auto* x : {&block.P, &block.dS, &block.plain_P, &block.plain_dS})
    x->resize(block_rows * block.N_kv);
  // max_ij(P_ij·Σ_c|dO_ic·O_ic|) over the rows of dQ and those that dK sums, and max |K|, |Q|.
  double dq_weight = 0, dk_weight = 0, largest_k = 0, largest_q = 0;
  size_t at = 0;  // of the next of the chosen heads in dK and dV
  for (int kv_head = 0; kv_head < p.B * p.Hk; ++kv_head) {
    const int64_t first_key = int64_t{kv_head} * p.N_kv;
    const Matrix K(operand(in.K, &QuantisedInputs::K), first_key, p.N_kv);
    const Matrix V(operand(in.V, &QuantisedInputs::V), first_key, p.N_kv);
    for (const double k : K.rows) largest_k = std::max(largest_k, std::abs(k));
    block.K = &K;
    block.V = &V;
    if (quantised) {
      block.s_V = &quantised->V.scales[first_key];
      block.p_exponent = quantisation->p_exponent;
    }
    const bool with_dk_dv =
        std::binary_search(choice.kv_heads.begin(), choice.kv_heads.end(), kv_head);
    const std::span<const int> rows = with_dk_dv ? all.rows : choice.rows;
    for (int i = 0; i < p.H / p.Hk; ++i)
      for (size_t first = 0; first < rows.size(); first += block_rows) {
        block.head = kv_head * (p.H / p.Hk) + i;
        block.rows = rows.subspan(first, std::min(block_rows, rows.size() - first));
        const size_t n = block.rows.size();
        block.weight.assign(n, 0);
        // Several rows at a time where they are short: starting a thread takes longer.
        parallel_for(
            std::ssize(block.rows), [&](int64_t r) { block.compute(r); },
            std::clamp(4096 / p.N_kv, 1, 8));
        for (size_t r = 0; r < n; ++r)
          if (block.place(r)) dq_weight = std::max(dq_weight, block.weight[r]);
        if (!with_dk_dv) continue;
        block.add_dk_dv(at);
        dk_weight = std::max(dk_weight, std::ranges::max(block.weight));
        // Of the rows that see a key, like the weights: what the blocks are does not matter.
        for (size_t r = 0; r < n; ++r)
          for (size_t c = 0; c < block.d && keys_of(p, block.rows[r]) > 0; ++c)
            largest_q = std::max(largest_q, std::abs(block.Q[r * block.d + c]));
      }
    if (with_dk_dv) at += block.N_kv * block.d;
  }
  overflowing_rows = block.overflowing;
  for (auto* x : {&dq, &dk}) {
    for (double& y : x->exact) y *= p.scale;
    for (double& y : x->plain) y *= p.scale;
  }
  for (auto* x : {&dq, &dk, &dv})
    for (double& y : x->plain) y = rounded(p.dtype, y);
  // What rounding O moves scale·D_i by at most, in units of Σ_c|dO_ic·O_ic|.
  const double rounding_of_D = p.scale * (p.dtype == DType::fp16 ? 0x1p-11 : 0x1p-8);
  dq.extra = rounding_of_D * dq_weight * largest_k;
  dk.extra = rounding_of_D * dk_weight * largest_q;
}

}  // namespace ladder
