// The float64 gradients against central differences of L = Σ dO∘O, which an attention of a few
// lines computes that shares no code with the reference. Built a second time with a mistake in the
// reference, which the differences must find.

#include "harness/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ladder {
namespace {

struct Case {
  const char* name;
  Problem p;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const Case kCases[] = {
    {"square", {.N = 6, .N_kv = 6, .d = 8}},
    {"causal", {.N = 7, .N_kv = 7, .d = 8, .causal = true}},
    {"more_keys", {.H = 1, .Hk = 1, .N = 3, .N_kv = 19, .d = 8, .causal = true}},
    {"blind_rows", {.N = 9, .N_kv = 4, .d = 8, .causal = true, .dtype = DType::bf16}},
    {"grouped_heads", {.B = 2, .H = 4, .Hk = 2, .N = 5, .N_kv = 6, .d = 8, .causal = true}},
    {"one_key", {.H = 2, .Hk = 1, .N = 3, .N_kv = 1, .d = 8}},
    {"several_blocks", {.H = 1, .Hk = 1, .N = 300, .N_kv = 7, .d = 8, .causal = true}},
    {"wide", {.H = 1, .Hk = 1, .N = 2, .N_kv = 300, .d = 16, .scale = 0.25f}},
    {"large_scale", {.N = 5, .N_kv = 6, .d = 8, .dtype = DType::bf16, .scale = 0.5f}},
};

Inputs inputs_of(const Problem& p) {
  Options options;
  options.problem = p;
  options.seed = 3;
  return make_inputs(options, true);
}

std::vector<double> in_double(const Tensor& t) {
  const auto values = widen_all(t);
  return {values.begin(), values.end()};
}

/// What the loss depends on.
struct Point {
  std::vector<double> Q, K, V, dO;
  explicit Point(const Inputs& in)
      : Q(in_double(in.Q)), K(in_double(in.K)), V(in_double(in.V)), dO(in_double(in.dO)) {}
};

/// The part of L = Σ dO∘O that one row of O contributes, row by row of (B, H, N).
double loss_of_row(const Problem& p, const Point& x, int row) {
  const int i = row % p.N, h = row / p.N % p.H, b = row / p.N / p.H;
  const int kv_row = (b * p.Hk + h / (p.H / p.Hk)) * p.N_kv;
  const auto at = [&](const std::vector<double>& t, int r, int c) {
    return t[static_cast<size_t>(r) * static_cast<size_t>(p.d) + static_cast<size_t>(c)];
  };
  double sum = 0, weighted = 0;
  for (int j = 0; j < p.N_kv; ++j) {
    if (p.causal && j > i + p.N_kv - p.N) continue;
    double s = 0, dp = 0;
    for (int c = 0; c < p.d; ++c) {
      s += at(x.Q, row, c) * at(x.K, kv_row + j, c);
      dp += at(x.dO, row, c) * at(x.V, kv_row + j, c);
    }
    const double e = std::exp(p.scale * s);
    sum += e;
    weighted += e * dp;
  }
  return sum > 0 ? weighted / sum : 0;
}
double loss(const Problem& p, const Point& x) {
  double L = 0;
  for (int row = 0; row < p.B * p.H * p.N; ++row) L += loss_of_row(p, x, row);
  return L;
}

/// The largest difference between a gradient and central differences along each element of `by`.
double worst(const Problem& p, Point& x, std::vector<double>& by,
             const std::vector<double>& gradient) {
  EXPECT_EQ(by.size(), gradient.size());
  constexpr double h = 1e-5;
  double most = 0;
  for (size_t k = 0; k < by.size(); ++k) {
    const double was = by[k];
    // An element of Q moves one row of O alone.
    const auto L = [&](double value) {
      by[k] = value;
      return &by == &x.Q ? loss_of_row(p, x, static_cast<int>(k) / p.d) : loss(p, x);
    };
    const double difference = (L(was + h) - L(was - h)) / (2 * h);
    by[k] = was;
    most = std::max(most, std::abs(difference - gradient[k]));
  }
  return most;
}

class Gradients : public ::testing::TestWithParam<Case> {};

#ifdef BROKEN_REFERENCE

TEST_P(Gradients, WithoutDAreNotTheCentralDifferences) {
  const Problem& p = GetParam().p;
  const Inputs in = inputs_of(p);
  const GradientReference reference(p, in, Rounding::on_chip, all_gradients(p));
  Point x(in);
  EXPECT_GT(worst(p, x, x.Q, reference.dq()), 1e-3);
  EXPECT_GT(worst(p, x, x.K, reference.dk()), 1e-3);
  EXPECT_LT(worst(p, x, x.V, reference.dv()), 1e-8);  // where D has no part
}

#else

TEST_P(Gradients, AreTheCentralDifferences) {
  const Problem& p = GetParam().p;
  const Inputs in = inputs_of(p);
  const GradientReference reference(p, in, Rounding::on_chip, all_gradients(p));
  Point x(in);
  EXPECT_LT(worst(p, x, x.Q, reference.dq()), 1e-8);
  EXPECT_LT(worst(p, x, x.K, reference.dk()), 1e-8);
  EXPECT_LT(worst(p, x, x.V, reference.dv()), 1e-8);
}

TEST_P(Gradients, OfASampleAreThoseOfTheWhole) {
  const Problem& p = GetParam().p;
  const Inputs in = inputs_of(p);
  const GradientChoice some{{0, p.N - 1}, {p.B * p.Hk - 1}};
  const GradientReference all(p, in, Rounding::on_chip, all_gradients(p));
  const GradientReference sample(p, in, Rounding::on_chip, some);
  const auto d = static_cast<size_t>(p.d), N = static_cast<size_t>(p.N);
  for (size_t head = 0; head < static_cast<size_t>(p.B * p.H); ++head)
    for (size_t c = 0; c < d; ++c) {
      EXPECT_NEAR(sample.dq()[2 * head * d + c], all.dq()[head * N * d + c], 1e-12);
      EXPECT_NEAR(sample.dq()[(2 * head + 1) * d + c], all.dq()[((head + 1) * N - 1) * d + c],
                  1e-12);
    }
  const size_t kv = static_cast<size_t>(p.N_kv) * d;
  ASSERT_EQ(sample.dk().size(), kv);
  for (size_t k = 0; k < kv; ++k) {
    EXPECT_NEAR(sample.dk()[k], all.dk()[all.dk().size() - kv + k], 1e-12);
    EXPECT_NEAR(sample.dv()[k], all.dv()[all.dv().size() - kv + k], 1e-12);
  }
}

TEST_P(Gradients, PassRoundedAndNoFurtherAway) {
  const Problem& p = GetParam().p;
  const Inputs in = inputs_of(p);
  for (const Rounding rounding : {Rounding::on_chip, Rounding::S_and_P_stored}) {
    const GradientReference reference(p, in, rounding, all_gradients(p));
    const auto try_out = [&](const std::vector<double>& exact, auto check) {
      Tensor t = round_all(p.dtype, {exact.begin(), exact.end()});
      const TensorError error = check(t);
      EXPECT_TRUE(error.pass()) << error.name << ": " << error.max << " > " << error.tolerance;
      EXPECT_LT(error.tolerance, 0.5) << error.name;
      Tensor off = t;
      off.bits.back() = round_to(p.dtype, static_cast<float>(exact.back() + 3 * error.tolerance));
      EXPECT_FALSE(check(off).pass()) << error.name;
      t.bits.back() = round_to(p.dtype, std::numeric_limits<float>::quiet_NaN());
      EXPECT_EQ(check(t).nonfinite, 1) << error.name;
      EXPECT_FALSE(check(t).pass()) << error.name;
    };
    try_out(reference.dq(), [&](const Tensor& t) { return reference.check_dq(t); });
    try_out(reference.dk(), [&](const Tensor& t) { return reference.check_dk(t); });
    try_out(reference.dv(), [&](const Tensor& t) { return reference.check_dv(t); });
  }
}

TEST(OneKey, HasNoGradientOfQAndK) {
  // P is 1, whatever Q and K are.
  const Problem p{.B = 2, .H = 4, .Hk = 2, .N = 5, .N_kv = 1, .d = 16};
  const Inputs in = inputs_of(p);
  const GradientReference reference(p, in, Rounding::on_chip, all_gradients(p));
  for (const double x : reference.dq()) EXPECT_EQ(x, 0);
  for (const double x : reference.dk()) EXPECT_EQ(x, 0);
}

TEST(BlindRows, HaveNoGradient) {
  const Problem p{.N = 9, .N_kv = 4, .d = 8, .causal = true};
  Inputs in = inputs_of(p);
  const GradientReference reference(p, in, Rounding::on_chip, all_gradients(p));
  for (size_t head = 0; head < 2; ++head)
    for (size_t k = 0; k < 9 * 8; ++k)
      EXPECT_EQ(reference.dq()[head * 9 * 8 + k] == 0, k < 6 * 8) << k;  // the sixth sees one
  // Nor do dK and dV depend on their dO.
  for (size_t k = 0; k < 5 * 8; ++k) in.dO.bits[k] = round_to(p.dtype, 100);
  const GradientReference other(p, in, Rounding::on_chip, all_gradients(p));
  EXPECT_EQ(other.dk(), reference.dk());
  EXPECT_EQ(other.dv(), reference.dv());
}

#endif

INSTANTIATE_TEST_SUITE_P(, Gradients, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ladder
