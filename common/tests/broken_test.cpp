// Mistakes of the kind that one makes, planted in copies of kernels of 01, 05 and 06 (tests.cmake
// makes them, a variant each): each must be caught by the sim, and the copy without a mistake must
// not be. Built a second time with a mistake in the reference, where the sound kernel must come out
// wrong.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "harness/run.h"

namespace ladder {
namespace {

const Problem kProblems[] = {
    {.H = 2, .Hk = 1, .N = 37, .N_kv = 41, .d = 40},
    {.H = 2, .Hk = 2, .N = 130, .N_kv = 300, .d = 72, .causal = true, .dtype = DType::bf16},
};

const Schedule kSchedules[] = {
    {Schedule::Order::forward, 0}, {Schedule::Order::reverse, 0}, {Schedule::Order::random, 1}};

bool formula_is_count(const Report& r) {
  std::map<std::string, std::map<std::string, std::pair<int64_t, int64_t>>> counted, formula;
  for (const auto& k : r.kernels)
    for (const auto& [array, c] : k.counts->arrays)
      counted[k.name][array] = {c.requested_read, c.requested_write};
  for (const auto& k : *r.model)
    for (const auto& a : k.arrays)
      if (a.read || a.write) formula[k.kernel][a.array] = {a.read, a.write};
  return formula == counted;
}

/// How a variant is caught, over all problems and schedules; empty where nothing is wrong with it.
/// `fault` receives the last one's message.
std::set<std::string> caught(const Variant& variant, std::string* fault = nullptr) {
  std::set<std::string> how;
  for (const Problem& problem : kProblems) {
    std::set<std::vector<uint16_t>> results;
    for (const Schedule& schedule : kSchedules) {
      Options options;
      options.problem = problem;
      options.problem.scale = 1 / std::sqrt(static_cast<float>(problem.d));
      options.scale_given = true;
      options.check = Check::full;
      Outputs out;
      try {
        const auto reports = run_variant(*open_sim({.schedule = schedule}), variant, options, &out);
        for (const Report& report : reports) {
          if (!report.pass()) how.insert("wrong result");
          if (!formula_is_count(report)) how.insert("formula is not count");
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
    }
    if (results.size() > 1) how.insert("different bits");
  }
  return how;
}

Variant variant(const std::string& name) {
  for (const Variant& v : variants_for(DeviceKind::sim))
    if (v.name == name) return v;
  throw std::logic_error("no copy is called " + name);
}

#ifdef BROKEN_REFERENCE

TEST(Broken, ReferenceMakesASoundKernelWrong) {
  EXPECT_EQ(caught(variant("tile_sound")), std::set<std::string>{"wrong result"});
}

#else

TEST(Broken, CopiesWithoutAMistakeAreNotCaught) {
  for (const char* sound : {"tile_sound", "mma_sound", "stored_sound", "backward_sound",
                            "persistent_sound", "fp8_sound"})
    EXPECT_EQ(caught(variant(sound)), std::set<std::string>{}) << sound;
}

/// A copy, one of the ways in which it must be caught, and what the fault must say.
struct Mistake {
  const char* copy;
  const char* how;
  const char* says = "";
};
void PrintTo(const Mistake& m, std::ostream* out) {
  *out << m.copy;
}
const Mistake kMistakes[] = {
    {"tile_no_first_barrier", "fault"},  // reads what nobody wrote
    {"tile_no_second_barrier", "different bits"},
    {"tile_loads_past_the_end", "fault"},
    {"tile_stores_past_the_end", "fault"},
    {"tile_makes_rows_of_the_block_before", "fault", "wrote in the same kernel"},
    {"tile_formula_misses_the_last_tile", "formula is not count"},
    {"mma_waits_for_a_stage_too_few", "fault"},
    {"mma_no_barrier_in_the_loop", "fault"},
    {"mma_no_barrier_after_the_loop", "different bits"},
    {"mma_loads_past_the_end", "fault"},
    {"stored_forgets_D", "wrong result"},
    {"stored_forgets_the_group", "wrong result"},
    {"stored_formula_counts_blocks_of_queries", "formula is not count"},
    {"backward_adds_to_dQ_plainly", "fault", "in the same kernel"},
    {"persistent_counts_plainly", "fault", "in the same kernel"},
    {"fp8_keys_as_they_come", "wrong result"},
    {"fp8_forgets_the_scale_of_V", "wrong result"},
    {"fp8_forgets_that_the_scale_of_V_changes", "wrong result"},
    {"fp8_takes_another_tiles_scale", "wrong result"},
    {"fp8_takes_another_heads_scale", "wrong result"},
    {"fp8_transforms_Q_alone", "wrong result"},
    {"fp8_exchanges_neighbours_of_V", "wrong result"},
    {"fp8_transposes_without_a_barrier", "fault", "transposed"},
    {"fp8_forgets_the_scale_of_P", "wrong result"},
    {"fp8_swizzles_Q_and_K_by_128", "fault"},
    {"fp8_frees_K_too_early", "fault", "which a wgmma"},
};

class Mistakes : public ::testing::TestWithParam<Mistake> {};
TEST_P(Mistakes, AreCaught) {
  std::string fault;
  const auto how = caught(variant(GetParam().copy), &fault);
  std::string all;
  for (const std::string& h : how) all += (all.empty() ? "" : ", ") + h;
  printf("%s: caught by %s%s%s\n", GetParam().copy, all.empty() ? "nothing" : all.c_str(),
         fault.empty() ? "" : "; ", fault.c_str());
  EXPECT_TRUE(how.count(GetParam().how)) << "not by: " << GetParam().how << ", but by: " << all;
  EXPECT_NE(fault.find(GetParam().says), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(, Mistakes, ::testing::ValuesIn(kMistakes),
                         [](const auto& mistake) { return std::string(mistake.param.copy); });

// One OS thread runs block after block, and then even a plain addition gives the right sum: what
// finds these is that the sim knows which block touched what.
TEST(Broken, RacesBetweenBlocksAreFoundInEveryOrderOnOneThread) {
  const std::pair<const char*, const char*> races[] = {
      {"tile_makes_rows_of_the_block_before", " writes P["},
      {"backward_adds_to_dQ_plainly", " reads dQ_sum["},
      {"persistent_counts_plainly", " reads next[0]"},
  };
  Options options;
  options.problem = kProblems[1];
  for (const auto& [copy, does] : races)
    for (const Schedule& schedule : kSchedules) {
      SCOPED_TRACE(testing::Message() << copy << ", order " << static_cast<int>(schedule.order));
      try {
        const auto device = open_sim({.schedule = schedule, .threads = 1});
        run_variant(*device, variant(copy), options, nullptr);
        ADD_FAILURE() << "no fault";
      } catch (const Error& e) {
        const std::string said = e.what();
        EXPECT_NE(said.find(does), std::string::npos) << said;
        EXPECT_NE(said.find("wrote in the same kernel"), std::string::npos) << said;
      }
    }
}

TEST(Broken, EveryCopyIsTried) {
  EXPECT_EQ(variants_for(DeviceKind::sim).size(), 6 + std::size(kMistakes));
}

#endif

}  // namespace
}  // namespace ladder
