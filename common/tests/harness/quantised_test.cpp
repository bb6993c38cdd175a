// The host's quantised inputs and how far from exact attention of them a step may be: the transform
// against its matrix, and the tolerance. What shares a scale, the suite shows, by the kernel's own.

#include "harness/quantised.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "harness/workload.h"

namespace ladder {
namespace {

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

// 448 is e4m3's largest and 2⁻⁴ what its rounding may cost: the OCP's standard, not our constants.
TEST(Quantised, ReferenceJudgesByIt) {
  const Problem p{.B = 2, .H = 4, .Hk = 2, .N = 37, .N_kv = 30, .d = 40, .causal = true};
  const Inputs in = Workload({.problem = p, .input = Input::outliers, .seed = 5}).inputs(false);
  const Quantisation how{.hadamard = true, .p_exponent = 5};
  const Choice all = to_check(p, Check::full, false);
  const Reference full(p, in, Rounding::on_chip, all);
  const Reference judge(p, in, Rounding::on_chip, all, how);
  const QuantisedInputs of(p, how, in);
  for (const QuantisedRows& operand : {of.Q, of.K, of.V})
    EXPECT_EQ(std::ranges::max(operand.values), 448);
  std::vector<float> o(judge.o.exact.begin(), judge.o.exact.end());
  const std::vector<float> lse(judge.lse.exact.begin(), judge.lse.exact.end());
  // A row with one key has its own error alone, and a row that sees many the average of theirs.
  const TensorError exact = compare(judge.o, round_all(p.dtype, o)),
                    of_lse = compare(judge.lse, lse);
  EXPECT_LT(exact.max, 1e-3);
  const float most =
      std::abs(*std::ranges::max_element(o, {}, [](float x) { return std::abs(x); }));
  EXPECT_GT(exact.tolerance, most / 16);
  EXPECT_LT(exact.tolerance, most / 6);
  EXPECT_LT(of_lse.max, 1e-5);
  EXPECT_LT(of_lse.tolerance, 0.05);
  EXPECT_TRUE(exact.pass() && of_lse.pass());
  // What was lost before is not held against it, but said.
  const TensorError beside = compare_with_full_precision(full.o, round_all(p.dtype, o));
  EXPECT_EQ(beside.name + ", " + beside.compared, "o_full, 37 of 37 rows in full precision");
  EXPECT_TRUE(beside.pass() && beside.rms > exact.rms && beside.max < 0.2);
  // A result of other inputs than those that were rounded fails.
  for (float& x : o) x *= 1.2f;
  EXPECT_FALSE(compare(judge.o, round_all(p.dtype, o)).pass());
}

}  // namespace
}  // namespace ladder
