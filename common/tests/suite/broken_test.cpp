// Mistakes of the kind that one makes, planted in kernels of 01, 05 and 06 and in the reference:
// each must be caught on the sim, and the steps without a mistake must not be.

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/run.h"
#include "mistakes.h"
#include "tests/suite/formula.h"

namespace ladder {
namespace {

const Problem kProblems[] = {
    {.H = 2, .Hk = 1, .N = 37, .N_kv = 41, .d = 40},
    {.H = 2, .Hk = 2, .N = 130, .N_kv = 300, .d = 72, .causal = true, .dtype = DType::bf16},
};

/// Whether one of the ways in which a variant is caught is `how`, with `says` in it.
bool has(const std::set<std::string>& ways, const std::string& how, const std::string& says) {
  return std::any_of(ways.begin(), ways.end(), [&](const std::string& way) {
    return way.starts_with(how) && way.find(says) != way.npos;
  });
}

/// How a variant is caught, over all problems and schedules, up to the first way that is wanted. Of
/// a fault, its message too. Empty where nothing is wrong.
std::set<std::string> caught(const Variant& variant, const std::string& how = "",
                             const std::string& says = "") {
  std::set<std::string> ways;
  for (const Problem& problem : kProblems) {
    std::set<std::vector<uint16_t>> results;
    for (const Schedule& schedule : kSchedules) {
      Options options;
      options.problem = problem;
      options.problem.scale = 1 / std::sqrt(static_cast<float>(problem.d));
      options.scale = options.problem.scale;
      options.check = Check::full;
      Outputs out;
      try {
        const auto reports = run_variant(*open_sim({.schedule = schedule}), variant, options, &out);
        for (const Report& report : reports) {
          if (!report.pass()) ways.insert("wrong result");
          const auto [formula, counted] = formula_and_count(report);
          if (formula != counted) ways.insert("formula is not count");
        }
        // Atomic additions to dQ may come in any order.
        if (!variant.deterministic) out.dQ.bits.clear();
        std::vector<uint16_t> bits;
        for (const Tensor* t : {&out.O, &out.dQ, &out.dK, &out.dV})
          bits.insert(bits.end(), t->bits.begin(), t->bits.end());
        results.insert(bits);
      } catch (const Error& e) {
        EXPECT_EQ(e.status, Exit::wrong_result) << e.what();
        ways.insert(std::string("fault: ") + e.what());
      }
      if (results.size() > 1) ways.insert("different bits");
      if (has(ways, how, says)) return ways;
    }
  }
  return ways;
}

Variant variant(const std::string& rung, const std::string& step) {
  for (const Variant& v : variants())
    if (v.rung == rung && v.name == step) return v;
  throw std::logic_error("no step is called " + rung + "/" + step);
}

TEST(Broken, StepsWithoutAMistakeAreNotCaught) {
  for (const Variant& v : variants())
    EXPECT_EQ(caught(v), std::set<std::string>{}) << v.rung << " " << v.name;
}

std::vector<Mistake> mistakes_in_steps() {
  std::vector<Mistake> all;
  std::copy_if(std::begin(kMistakes), std::end(kMistakes), std::back_inserter(all),
               [](const Mistake& m) { return *m.step; });
  return all;
}
class Mistakes : public ::testing::TestWithParam<Mistake> {};
TEST_P(Mistakes, AreCaught) {
  const Mistake& m = GetParam();
  mutant::active = m.number;
  const auto ways = caught(variant(m.rung, m.step), m.how, m.says);
  mutant::active = -1;
  const std::string all = fmt::format("{}", fmt::join(ways, ", "));
  fmt::print("{}: caught by {}\n", m.name, all);
  EXPECT_TRUE(has(ways, m.how, m.says))
      << "not by: " << m.how << " " << m.says << ", but by: " << all;
}
INSTANTIATE_TEST_SUITE_P(, Mistakes, ::testing::ValuesIn(mistakes_in_steps()),
                         [](const auto& mistake) { return std::string(mistake.param.name); });

}  // namespace
}  // namespace ladder
