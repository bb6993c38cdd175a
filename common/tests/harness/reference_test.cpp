// Tests the float64 reference against common/CONTRACTS.md, "When a result counts as correct".
// results_of() is a short attention that shares no code with the reference or the kernels of 06.
#include "harness/workload.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "harness/quantised.h"
#include "parallel.h"

namespace ladder {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  const char* name;
  Problem p;
};

const Case kCases[] = {
    {"square", {.N = 6, .N_kv = 6, .d = 8}},
    {"causal", {.N = 7, .N_kv = 7, .d = 8, .causal = true}},
    {"more_keys", {.H = 1, .Hk = 1, .N = 3, .N_kv = 19, .d = 8, .causal = true}},
    {"blind_rows", {.N = 9, .N_kv = 4, .d = 8, .causal = true, .dtype = DType::bf16}},
    {"grouped_heads", {.B = 2, .H = 4, .Hk = 2, .N = 5, .N_kv = 6, .d = 8, .causal = true}},
    {"one_key", {.H = 2, .Hk = 1, .N = 3, .N_kv = 1, .d = 8}},
    {"one_key_bf16", {.H = 2, .Hk = 1, .N = 3, .N_kv = 1, .d = 8, .dtype = DType::bf16}},
    {"wide", {.H = 1, .Hk = 1, .N = 2, .N_kv = 300, .d = 16, .scale = 0.25f}},
    {"large_scale", {.N = 5, .N_kv = 6, .d = 8, .dtype = DType::bf16, .scale = 0.6f}},
    {"widest", {.H = 1, .Hk = 1, .N = 2, .N_kv = 3, .d = 256, .dtype = DType::bf16}},
};

Inputs inputs_of(const Problem& p) {
  return Workload({.problem = p, .seed = 3}).inputs(true);
}

std::vector<double> in_double(const Tensor& t) {
  const auto values = widen_all(t);
  return {values.begin(), values.end()};
}

struct Point {  // the inputs in float64
  std::vector<double> Q, K, V, dO;
  explicit Point(const Inputs& in)
      : Q(in_double(in.Q)), K(in_double(in.K)), V(in_double(in.V)), dO(in_double(in.dO)) {}
};

/// All outputs, row by row, and for each row i of O the weight max_j P_ij · Σ_c|dO_ic·O_ic|.
struct Results {
  std::vector<double> o, lse, dq, dk, dv, weight;
};

/// Computes attention in float64, with the unavoidable roundings if `rounding` is given.
Results results_of(const Problem& p, const Point& x, std::optional<Rounding> rounding) {
  const bool stored = rounding == Rounding::S_and_P_stored, any = rounding.has_value();
  const auto round = [&](bool when, double y) { return when ? rounded(p.dtype, y) : y; };
  const auto at = [&](int row, int c) { return static_cast<size_t>(row * p.d + c); };
  const auto rows = static_cast<size_t>(p.B * p.H * p.N);
  Results r{.lse = std::vector<double>(rows, -kInf), .weight = std::vector<double>(rows)};
  r.o.resize(x.Q.size());
  r.dq.resize(x.Q.size());
  r.dk.resize(x.K.size());
  r.dv.resize(x.K.size());
  for (int row = 0; row < p.B * p.H * p.N; ++row) {
    const int i = row % p.N, first = row / p.N / (p.H / p.Hk) * p.N_kv;
    const int keys = !p.causal ? p.N_kv : std::max(0, std::min(p.N_kv, i + p.N_kv - p.N + 1));
    if (keys == 0) continue;
    const auto n = static_cast<size_t>(keys);
    std::vector<double> S(n), dP(n), e(n), P(n);
    for (size_t j = 0; j < n; ++j) {
      for (int c = 0; c < p.d; ++c) {
        S[j] += x.Q[at(row, c)] * x.K[at(first + static_cast<int>(j), c)];
        dP[j] += x.dO[at(row, c)] * x.V[at(first + static_cast<int>(j), c)];
      }
      S[j] = round(stored, p.scale * S[j]);
      dP[j] = round(stored, dP[j]);
    }
    const double m = *std::max_element(S.begin(), S.end());
    double l = 0, delta = 0, sum = 0;
    for (size_t j = 0; j < n; ++j) l += e[j] = std::exp(S[j] - m);
    r.lse[static_cast<size_t>(row)] = m + std::log(l);
    for (size_t j = 0; j < n; ++j) delta += (P[j] = round(stored, e[j] / l)) * dP[j];
    for (int c = 0; c < p.d; ++c) {
      double& o = r.o[at(row, c)];
      for (size_t j = 0; j < n; ++j)
        o += (stored ? P[j] : round(any, e[j]) / l) * x.V[at(first + static_cast<int>(j), c)];
      sum += std::abs(x.dO[at(row, c)] * o);
      o = round(any, o);
    }
    r.weight[static_cast<size_t>(row)] = *std::max_element(P.begin(), P.end()) * sum;
    for (size_t j = 0; j < n; ++j) {
      const double dS = round(any, P[j] * (dP[j] - delta));
      for (int c = 0; c < p.d; ++c) {
        const size_t q = at(row, c), k = at(first + static_cast<int>(j), c);
        r.dq[q] += p.scale * dS * x.K[k];
        r.dk[k] += p.scale * dS * x.Q[q];
        r.dv[k] += round(any, P[j]) * x.dO[q];
      }
    }
  }
  for (auto* gradient : {&r.dq, &r.dk, &r.dv})
    for (double& value : *gradient) value = round(any, value);
  return r;
}

class References : public ::testing::TestWithParam<Case> {};

/// Expects that the rows of a tensor equal those of results_of().
void expect_expected(const ExpectedTensor& expected, const std::vector<double>& exact,
                     const std::vector<double>& plain, const std::vector<int64_t>& rows,
                     int columns, const std::string& compared, double extra) {
  SCOPED_TRACE(expected.name);
  EXPECT_EQ(expected.rows, rows);
  EXPECT_EQ(expected.columns, columns);
  EXPECT_EQ(expected.compared, compared);
  EXPECT_NEAR(expected.extra, extra, 1e-9 * extra);
  double off = 0, wanted = 0;  // what `plain` adds to the tolerance
  size_t k = 0;
  for (const int64_t row : rows)
    for (int c = 0; c < columns; ++c, ++k) {
      const auto at = static_cast<size_t>(row * columns + c);
      if (std::isinf(exact[at])) {
        EXPECT_EQ(expected.exact[k], exact[at]);
        continue;
      }
      EXPECT_NEAR(expected.exact[k], exact[at], 1e-12);
      off = std::max(off, std::abs(expected.plain[k] - expected.exact[k]));
      wanted = std::max(wanted, std::abs(plain[at] - exact[at]));
    }
  EXPECT_EQ(k, expected.exact.size());
  EXPECT_NEAR(off, wanted, 1e-9 * wanted);
}

TEST_P(References, FollowTheContract) {
  const Problem& p = GetParam().p;
  Inputs in = inputs_of(p);
  // The largest magnitude must be found even if the value is negative, or below 1 (column 0).
  for (Tensor* t : {&in.Q, &in.K})
    for (int64_t i = 0; i < t->size(); ++i) {
      const float factor = p.causal ? -1 : p.N_kv > 1 ? 1 : i % p.d ? 0.05f : 0.25f;
      t->bits[static_cast<size_t>(i)] = round_to(p.dtype, factor * (*t)[i]);
    }
  const RowsToCheck some{{p.N / 3, p.N - 1}, {p.B * p.Hk - 1}};
  const Point x(in);
  const Results exact = results_of(p, x, {});
  for (const Rounding rounding : {Rounding::on_chip, Rounding::S_and_P_stored})
    for (const RowsToCheck& choice : {to_check(p, Check::full, true), some}) {
      const Results plain = results_of(p, x, rounding);
      // The compared rows, and the tolerances' maxima over them and over all rows that dK needs.
      std::vector<int64_t> rows, kv_rows;
      double weight = 0, largest_q = 0, largest_k = 0;
      for (int row = 0; row < p.B * p.H * p.N; ++row) {
        const int i = row % p.N, kv_head = row / p.N / (p.H / p.Hk);
        const bool compared = std::ranges::count(choice.rows, i) > 0;
        if (compared) rows.push_back(row);
        if (p.keys(i) == 0 || (!compared && std::ranges::count(choice.kv_heads, kv_head) == 0))
          continue;
        weight = std::max(weight, exact.weight[static_cast<size_t>(row)]);
        for (int c = 0; c < p.d; ++c)
          largest_q = std::max<double>(largest_q, std::abs(in.Q[row * p.d + c]));
      }
      for (const float k : widen_all(in.K)) largest_k = std::max<double>(largest_k, std::abs(k));
      for (const int head : choice.kv_heads)
        for (int j = 0; j < p.N_kv; ++j) kv_rows.push_back(head * p.N_kv + j);
      const double u = (p.dtype == DType::fp16 ? 1.0 / 2048 : 1.0 / 256) * p.scale;
      const std::string of_rows = fmt::format("{} of {} rows", choice.rows.size(), p.N);
      std::string of_keys = fmt::format("{} of {} rows", p.N_kv, p.N_kv);
      if (std::ssize(choice.kv_heads) < p.B * p.Hk)
        of_keys += fmt::format(", {} of {} heads", choice.kv_heads.size(), p.B * p.Hk);
      const Reference reference(p, in, rounding, choice);
      expect_expected(reference.o, exact.o, plain.o, rows, p.d, of_rows, 0);
      expect_expected(reference.lse, exact.lse, exact.lse, rows, 1, of_rows, 0);
      EXPECT_EQ(reference.lse.relative, std::max(1.0, std::sqrt(p.d) / 8) / (1 << 20));
      expect_expected(reference.dq, exact.dq, plain.dq, rows, p.d, of_rows, u * weight * largest_k);
      expect_expected(reference.dk, exact.dk, plain.dk, kv_rows, p.d, of_keys,
                      u * weight * largest_q);
      expect_expected(reference.dv, exact.dv, plain.dv, kv_rows, p.d, of_keys, 0);
    }
}

// Rows 0 and 2 of three are compared; one expected element is −∞. Errors were computed by hand.
TEST(Compare, FollowsTheContract) {
  const ExpectedTensor expected{"x",  {0, 2}, 2, "2 of 3 rows", {1, -4, -kInf, 2}, {1.5, -4, 0, 2},
                                0.25, 0.125};
  const auto error = [&](float a, float b, float blind, float c) {
    const std::vector<float> out = {a, b, 100, 100, blind, c};
    const TensorError in_float = compare(expected, out);
    TensorError in_half = compare(expected, round_all(DType::fp16, out));
    in_half.tolerance -= 0x1p-9;  // half the distance between fp16 numbers at 4
    EXPECT_EQ(in_half, in_float);
    return in_float;
  };
  const TensorError good = error(1.5f, -4.25f, -kInf, 2);
  EXPECT_EQ(good.name + ", " + good.compared, "x, 2 of 3 rows");
  EXPECT_EQ(good.max, 0.5);
  EXPECT_DOUBLE_EQ(good.rms, std::sqrt(0.3125 / 3));
  EXPECT_DOUBLE_EQ(good.rel, std::sqrt(0.3125 / 21));
  EXPECT_EQ(good.tolerance, 2 * 0.5 + 1e-5 + 0.25 + 0.125 * 4);
  EXPECT_TRUE(good.pass());
  EXPECT_FALSE(error(1, -4, -kInf, 3.78125f).pass());
  EXPECT_EQ(error(1, -4, -kInf, 3.78125f).where, "heads 0 to 0, rows 2 to 2, columns 1 to 1");
  EXPECT_EQ(good.where, "");
  ExpectedTensor of_heads = expected;
  of_heads.rows_of_head = 2;
  EXPECT_EQ(compare(of_heads, std::vector<float>{9, -4, 100, 100, 0, 2}).where,
            "heads 0 to 1, rows 0 to 0, columns 0 to 0");
  for (const float wrong : {0.0f, -6e4f, kNan, kInf}) EXPECT_FALSE(error(1, -4, wrong, 2).pass());
  for (const float wrong : {kNan, kInf, -kInf}) {
    const TensorError bad = error(1.5f, wrong, -kInf, 2);
    EXPECT_EQ(bad.nonfinite, 1);
    EXPECT_EQ(bad.max, 0.5);
    EXPECT_DOUBLE_EQ(bad.rms, 0.5 / std::sqrt(2));
    EXPECT_TRUE(bad.wrong() && !bad.pass());
  }
  EXPECT_EQ(error(kNan, kNan, kNan, kNan).rms, 0);
  EXPECT_EQ(compare(ExpectedTensor{"x", {0}, 1, "", {0}, {0}}, {0.5f}).rel, 0);
}

TEST(Compare, AllowsHalfAnUlp) {
  const struct {
    DType dtype;
    double largest, half;
  } cases[] = {{DType::fp16, 1, 0x1p-11},    {DType::fp16, 0.999, 0x1p-12},
               {DType::fp16, -3, 0x1p-10},   {DType::fp16, 1e-7, 0x1p-25},
               {DType::fp16, 0, 0x1p-25},    {DType::fp16, 1e5, 16},
               {DType::bf16, 1.99, 0x1p-8},  {DType::bf16, 200, 0.5},
               {DType::bf16, 1e39, 0x1p119}, {DType::bf16, 1e-39, 0x1p-134}};
  for (const auto& [dtype, largest, half] : cases) {
    const ExpectedTensor expected{"o", {0}, 1, "", {largest}, {largest}};
    EXPECT_EQ(compare(expected, round_all(dtype, {0})).tolerance, 1e-5 + half) << largest;
  }
}

// A correct result may overflow the I/O type, but this must not widen the tolerance.
TEST(Compare, NonfiniteDoesNotWidenTolerance) {
  const ExpectedTensor expected{"o", {0}, 2, "", {1e5, 1}, {kInf, 1}};
  const auto error = [&](float x, float y) {
    return compare(expected, round_all(DType::fp16, {x, y}));
  };
  EXPECT_EQ(error(65504, 1).tolerance, 16 + 1e-5);
  EXPECT_EQ(error(kInf, 1).out_of_range, 1);
  EXPECT_EQ(error(kInf, 1).largest, 1e5);
  EXPECT_FALSE(error(kInf, 1).pass() || error(kInf, 1).wrong());
  EXPECT_TRUE(error(kInf, kNan).wrong() && error(kInf, 20).wrong());
}

TEST(Parallel, RethrowsAnExceptionFromAnyThread) {
  for (const int64_t thrower : {0, 1, 3}) {
    const auto work = [&](int64_t i) { i == thrower ? throw i : void(); };
    EXPECT_THROW(on_threads(4, work), int64_t);
    EXPECT_THROW(parallel_for(4, work), int64_t);
  }
}

// Hashes of the bits of Q, K, V and dO, which committed results depend on.
TEST(Inputs, AreTheSameOnEveryPlatform) {
  const Problem p{.N_kv = 1, .d = 256, .dtype = DType::bf16};
  const WorkloadSpec spec{.problem = p, .input = Input::outliers, .seed = 123456789012345};
  const Inputs in = Workload(spec).inputs(true);
  std::string hashes;
  for (const Tensor* t : {&in.Q, &in.K, &in.V, &in.dO}) {
    uint64_t hash = 0;
    for (const uint16_t bits : t->bits) hash = 31 * hash + bits;
    hashes += fmt::format("{:x} ", hash);
  }
  EXPECT_EQ(hashes, "f739cb82d110bb11 2b8b11996d7cb532 add9fdccf0cab867 81739ec66f4b4ac9 ");
}

TEST(Overflow, RowSumLeavesFloat32) {
  // A row's score, and whether its exponential leaves float32's range, from e^−87.32 to e^88.72.
  // Two such keys double the sum. From 64 to 128, fp16 numbers are 1/16 apart.
  const std::pair<float, bool> rows[] = {
      {88.6875f, false},  {88.75f, true},    // exact
      {88.71f, false},    {88.7225f, true},  // rounded down and up
      {-87.3125f, false}, {-87.375f, true},  // the same for underflow
      {-87.34f, false},   {-87.346f, true}, {0, false},
  };
  const int N = std::size(rows);
  for (const int keys : {1, 2}) {
    const Problem p{.B = 1, .H = 2, .Hk = 1, .N = N, .N_kv = keys, .d = 8, .scale = 1};
    std::vector<float> q(static_cast<size_t>(2 * N * 8), 0), k(static_cast<size_t>(keys * 8), 1);
    for (size_t row = 0; row < 2 * std::size(rows); ++row) {
      // A second column holds the part of the score that is too fine for fp16.
      const float logit = rows[row % std::size(rows)].first;
      q[8 * row] = widen(p.dtype, round_to(p.dtype, logit));
      q[8 * row + 1] = logit - q[8 * row];
    }
    const Inputs in{round_all(p.dtype, q), round_all(p.dtype, k), round_all(p.dtype, k), {}};
    for (int i = 0; i < N; ++i) {
      const auto [logit, leaves] = rows[i];
      const bool twice_leaves = logit > 88.05f;
      EXPECT_EQ(Reference(p, in, Rounding::S_and_P_stored, {{i}, {}}).overflowing_rows,
                2 * (keys == 1 ? leaves : twice_leaves))
          << logit << ", " << keys;
    }
  }
  const Problem blind{.H = 1, .Hk = 1, .N = 3, .N_kv = 1, .d = 8, .causal = true};
  const RowsToCheck all = to_check(blind, Check::full, false);
  EXPECT_EQ(Reference(blind, inputs_of(blind), Rounding::S_and_P_stored, all).overflowing_rows, 0);
}

TEST(Overflow, ScoreOrIntermediateExceedsFloat32) {
  // Q·K is 2^127 or 2^128, and S·log2(e) is just below or above 2^128; S itself stays below it.
  for (const auto& [q, scale, lost] : {std::tuple(0x1p63f, 0.25f, false),
                                       {0x1p64f, 0.25f, true},
                                       {-0x1p64f, 0.25f, true},
                                       {0x1p63f, 1.375f, false},
                                       {0x1p63f, 1.5f, true}}) {
    const Problem p{
        .H = 1, .Hk = 1, .N = 1, .N_kv = 1, .d = 8, .dtype = DType::bf16, .scale = scale};
    const std::vector<float> Q = {q, 0, 0, 0, 0, 0, 0, 0}, K = {0x1p64f, 0, 0, 0, 0, 0, 0, 0};
    const Inputs in{round_all(p.dtype, Q), round_all(p.dtype, K), round_all(p.dtype, K), {}};
    const Reference reference(p, in, Rounding::on_chip, {{0}, {}});
    EXPECT_EQ(std::isinf(reference.lse.plain[0]), lost) << q << ", " << scale;
  }
}

TEST(Samples, AreEvenlySpacedFromFirstToLastRow) {
  const auto both = [](int N, int N_kv, int H) {
    const Problem p{.B = 2, .H = H, .Hk = H / 2, .N = N, .N_kv = N_kv, .d = 256};
    const RowsToCheck choice = to_check(p, Check::sampled, true);
    EXPECT_EQ(choice.kv_heads, std::vector<int>{2 * p.Hk - 1});
    EXPECT_EQ(choice.rows, to_check(p, Check::sampled, false).rows);
    return choice.rows;
  };
  // There are at least 4 rows for any amount of work, or all if there are fewer, and at most 256.
  EXPECT_EQ(both(1 << 28, 1 << 28, 64), (std::vector<int>{0, 89478485, 178956970, (1 << 28) - 1}));
  EXPECT_EQ(both(1, 1 << 28, 64), std::vector<int>{0});
  EXPECT_EQ(both(2, 1 << 28, 64), (std::vector<int>{0, 1}));
  EXPECT_EQ(both(200, 1, 2), to_check({.N = 200}, Check::full, false).rows);
  const std::vector<int> many = both(10000, 1, 2);
  ASSERT_EQ(many.size(), 256u);
  EXPECT_EQ(many.front(), 0);
  EXPECT_EQ(many.back(), 9999);
  for (size_t k = 1; k < many.size(); ++k) EXPECT_NEAR(many[k] - many[k - 1], 39.2, 1);
  // By default all rows of a small workload are checked, and a sample of a large one.
  const RowsToCheck all = to_check({.N = 512, .N_kv = 512}, Check::automatic, true);
  EXPECT_EQ(std::pair(all.rows.size(), all.kv_heads.size()), std::pair(size_t{512}, size_t{2}));
  const Problem slow{.H = 64, .N = 1 << 20, .N_kv = 1 << 20};
  EXPECT_LE(to_check(slow, Check::automatic, true).rows.size(), 256u);
}

TEST(Hadamard, KeepsLengths) {
  for (const int n : {32, 64, 128, 256}) {
    std::vector<float> x(static_cast<size_t>(n), 0.0f);
    x.back() = 1;
    hadamard(x.data(), n);
    for (const float y : x) EXPECT_NEAR(std::abs(y), 1 / std::sqrt(n), 1e-7) << n;
  }
}

// The OCP FP8 specification gives 448 as e4m3's largest value and implies 2⁻⁴ as its largest
// relative rounding error; neither is taken from our code.
TEST(Quantised, ReferenceUsesQuantisedInputs) {
  const Problem p{.B = 2, .H = 4, .Hk = 2, .N = 37, .N_kv = 30, .d = 40, .causal = true};
  const Inputs in = Workload({.problem = p, .input = Input::outliers, .seed = 5}).inputs(false);
  const Quantisation how{.hadamard = true, .p_exponent = 5};
  const RowsToCheck all = to_check(p, Check::full, false);
  const Reference full(p, in, Rounding::on_chip, all);
  const Reference judge(p, in, Rounding::on_chip, all, how);
  const QuantisedInputs of(p, how, in);
  for (const QuantisedRows& operand : {of.Q, of.K, of.V})
    EXPECT_EQ(std::ranges::max(operand.values), 448);
  std::vector<float> o(judge.o.exact.begin(), judge.o.exact.end());
  const std::vector<float> lse(judge.lse.exact.begin(), judge.lse.exact.end());
  // The tolerances below were noted once, so that no change of the bound goes unnoticed.
  const TensorError exact = compare(judge.o, round_all(p.dtype, o)),
                    of_lse = compare(judge.lse, lse);
  EXPECT_LT(exact.max, 1e-3);
  const float most =
      std::abs(*std::ranges::max_element(o, {}, [](float x) { return std::abs(x); }));
  EXPECT_NEAR(exact.tolerance / most, 0.08802, 1e-5);  // includes 2⁻⁴ for the largest P
  // With a smaller scale, more values of P are below e4m3's normal numbers.
  const Reference unscaled(p, in, Rounding::on_chip, all, Quantisation{.hadamard = true});
  EXPECT_NE(unscaled.o.plain, judge.o.plain);
  EXPECT_LT(of_lse.max, 1e-5);
  EXPECT_NEAR(of_lse.tolerance, 0.025363, 1e-6);
  EXPECT_TRUE(exact.pass() && of_lse.pass());
  // The error relative to full precision is reported, but must not fail the check.
  const TensorError beside = compare_with_full_precision(full.o, round_all(p.dtype, o));
  EXPECT_EQ(beside.name + ", " + beside.compared, "o_full, 37 of 37 rows in full precision");
  EXPECT_TRUE(beside.pass() && beside.rms > exact.rms && beside.max < 0.2);
  // A result for inputs other than the rounded ones must fail.
  for (float& x : o) x *= 1.2f;
  EXPECT_FALSE(compare(judge.o, round_all(p.dtype, o)).pass());
}

INSTANTIATE_TEST_SUITE_P(, References, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ladder
