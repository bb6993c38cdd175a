// The host's attention in e4m3, which steps with a quantisation are compared with: the transform
// against its matrix, and what some settings do to sums of a few terms. What shares a scale, the
// suite shows, by the kernel's own scales.

#include "harness/quantised.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "harness/reference.h"

namespace ladder {
namespace {

Tensor tensor(const std::vector<float>& values) {
  return round_all(DType::fp16, values);
}

Inputs inputs_of(const Problem& p) {
  Options options{.problem = p, .input = Input::outliers, .seed = 5};
  return make_inputs(options, false);
}

TEST(Hadamard, IsItsMatrix) {
  for (const int n : {32, 64, 128, 256}) {
    SCOPED_TRACE(n);
    // Column c of H·diag(±1)/√n: the transform of a row that is 1 at c alone. Columns of ±1/√n with
    // these signs are orthogonal.
    int negative = 0;
    for (int c = 0; c < n; ++c) {
      std::vector<float> x(static_cast<size_t>(n), 0.0f);
      x[static_cast<size_t>(c)] = 1;
      hadamard(x.data(), n);
      for (int i = 0; i < n; ++i) {
        const bool odd = std::popcount(static_cast<unsigned>(i & c)) % 2 != 0;
        const double expected = (odd != hadamard_sign(c) ? -1 : 1) / std::sqrt(n);
        EXPECT_NEAR(x[static_cast<size_t>(i)], expected, 1e-7);
      }
      negative += hadamard_sign(c);
    }
    EXPECT_GT(negative, n / 3);
    EXPECT_LT(negative, 2 * n / 3);
  }
}

TEST(Quantised, NothingStaysNothing) {
  const Problem p{.B = 1, .H = 1, .Hk = 1, .N = 1, .N_kv = 2, .d = 8};
  const Tensor zeros = tensor(std::vector<float>(8, 0)), two = tensor(std::vector<float>(16, 0));
  const QuantisedAttention attention(p, {}, {zeros, two, two, {}});
  EXPECT_EQ(attention.Q().scales[0], 1);
  EXPECT_EQ(attention.row(0, 0).o, std::vector<float>(8, 0.0f));
  EXPECT_NEAR(attention.row(0, 0).lse, std::log(2.0), 1e-6);
}

/// One query, keys with S = 0, −step, −step, …, V as given: one column.
QuantisedAttention::Row attend(float step, const std::vector<float>& v, const Quantisation& how) {
  const int keys = static_cast<int>(v.size());
  const Problem p{.B = 1, .H = 1, .Hk = 1, .N = 1, .N_kv = keys, .d = 8, .scale = step};
  std::vector<float> q(8, 0), k(static_cast<size_t>(8 * keys), 0), all(k.size(), 0);
  q[0] = 1;
  for (size_t j = 0; j < v.size(); ++j) {
    k[8 * j] = j ? -1 : 0;
    all[8 * j] = v[j];
  }
  return QuantisedAttention(p, how, {tensor(q), tensor(k), tensor(all), {}}).row(0, 0);
}

TEST(Quantised, PNeedsItsScale) {
  // Weights 1 and e⁻⁹: 0.00012 is less than half of e4m3's least, 2⁻⁹, and 256 times it is not.
  const float without = attend(9, {0, 448}, {}).o[0];
  const float with = attend(9, {0, 448}, {.p_exponent = 8}).o[0];
  const double exact = 448 * std::exp(-9.0) / (1 + std::exp(-9.0));
  EXPECT_EQ(without, 0);
  EXPECT_NEAR(with, exact, exact / 16);
  // The scale is undone in LSE.
  EXPECT_NEAR(attend(9, {0, 448}, {.p_exponent = 8}).lse, std::log1p(std::exp(-9.0)), 1e-6);
}

TEST(Quantised, TwoLevelsKeepWhatOneLoses) {
  // 2¹⁵ from the first tile's keys of 448·…, and from each further tile 2⁻¹⁴ of it: equal weights.
  std::vector<float> v(32 * 32, 0);
  v[0] = 256;
  for (size_t tile = 1; tile < 32; ++tile) v[32 * tile] = 0x1p-6f;
  const Quantisation one{.scope = Quantisation::Scope::tensor, .tile_kv = 32};
  Quantisation two = one;
  two.two_level = true;
  const double exact = (256 + 31 * 0x1p-6) / 1024;
  EXPECT_FLOAT_EQ(attend(1e-30f, v, one).o[0], 0.25f);
  EXPECT_NEAR(attend(1e-30f, v, two).o[0], exact, 1e-7);
}

TEST(Quantised, ReferenceJudgesByIt) {
  const Problem p{.B = 2, .H = 4, .Hk = 2, .N = 37, .N_kv = 30, .d = 40, .causal = true};
  const Inputs in = inputs_of(p);
  const Quantisation how{.hadamard = true, .p_exponent = 8};
  const Reference full(p, in, Rounding::on_chip, rows_to_check(p, Check::full));
  const Reference judge(p, in, Rounding::on_chip, rows_to_check(p, Check::full), how);
  const QuantisedAttention attention(p, how, in);
  std::vector<float> o, lse;
  for (int row = 0; row < p.B * p.H * p.N; ++row) {
    const auto [of_row, of_lse] = attention.row(row / p.N, row % p.N);
    o.insert(o.end(), of_row.begin(), of_row.end());
    lse.push_back(static_cast<float>(of_lse));
  }
  for (const QuantisedRows& rows : {attention.Q(), attention.K(), attention.V()})
    EXPECT_EQ(std::ranges::max(rows.values), 448);
  // Of the same numbers as its `plain`, the step's own arithmetic; that may be twice as far off.
  const TensorError ours = judge.check_o(tensor(o)), of_lse = judge.check_lse(lse);
  EXPECT_LT(ours.max, 0.1);
  EXPECT_NEAR(ours.tolerance, 2 * ours.max, 1e-2);
  EXPECT_NEAR(of_lse.tolerance, 2 * of_lse.max, 1e-4);
  EXPECT_TRUE(ours.pass() && of_lse.pass());
  // What was lost before is not held against it, but said.
  const TensorError beside = full.compare_with_full_precision(tensor(o));
  EXPECT_EQ(beside.name + ", " + beside.compared, "o_full, 37 of 37 rows in full precision");
  EXPECT_TRUE(beside.pass() && beside.rms > ours.rms && beside.max < 0.2);
  // A result of other inputs than those that were rounded fails.
  for (float& x : o) x *= 1.2f;
  EXPECT_FALSE(judge.check_o(tensor(o)).pass());
}

}  // namespace
}  // namespace ladder
