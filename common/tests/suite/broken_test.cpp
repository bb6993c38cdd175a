// Mistakes of the kind that one makes, planted in kernels of 01, 05 and 06 and in the reference:
// each must be caught on the sim, and the steps without a mistake must not be.

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

/// How a variant is caught, over all problems and schedules, up to the first way; or, where one is
/// looked for, up to `expected` by a fault's message with `says` in it, if it is a fault. Empty
/// where nothing is wrong. `fault` receives the last one's message.
std::set<std::string> caught(const Variant& variant, const std::string& expected = "",
                             const std::string& says = "", std::string* fault = nullptr) {
  std::set<std::string> how;
  const auto is_enough = [&] {
    return expected.empty() ? !how.empty()
                            : how.count(expected) && fault->find(says) != std::string::npos;
  };
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
          if (!report.pass()) how.insert("wrong result");
          const auto [formula, counted] = formula_and_count(report);
          if (formula != counted) how.insert("formula is not count");
        }
        // Atomic additions to dQ may come in any order.
        if (!variant.deterministic) out.dQ.bits.clear();
        std::vector<uint16_t> bits;
        for (const Tensor* t : {&out.O, &out.dQ, &out.dK, &out.dV})
          bits.insert(bits.end(), t->bits.begin(), t->bits.end());
        results.insert(bits);
      } catch (const Error& e) {
        EXPECT_EQ(e.status, Exit::wrong_result) << e.what();
        how.insert("fault");
        if (fault) *fault = e.what();
      }
      if (results.size() > 1) how.insert("different bits");
      if (is_enough()) return how;
    }
  }
  return how;
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
  std::string fault;
  const auto how = caught(variant(m.rung, m.step), m.how, m.says, &fault);
  mutant::active = -1;
  std::string all;
  for (const std::string& h : how) all += (all.empty() ? "" : ", ") + h;
  printf("%s: caught by %s%s%s\n", m.name, all.empty() ? "nothing" : all.c_str(),
         fault.empty() ? "" : "; ", fault.c_str());
  EXPECT_TRUE(how.count(m.how)) << "not by: " << m.how << ", but by: " << all;
  EXPECT_NE(fault.find(m.says), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(, Mistakes, ::testing::ValuesIn(mistakes_in_steps()),
                         [](const auto& mistake) { return std::string(mistake.param.name); });

}  // namespace
}  // namespace ladder
