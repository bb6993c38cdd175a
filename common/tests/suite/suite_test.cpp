// The suite of every rung: tests each step of the rung that is linked with it, on both devices,
// forward and backward, with the cases of cases.h. Results must agree with float64, and on the
// simulator traffic() must equal the counts for each array, to the byte.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <tuple>

#include "harness/reference.h"
#include "harness/run.h"
#include "tests/expected.h"
#include "tests/suite/cases.h"

namespace ladder {

void PrintTo(const Step& step, std::ostream* out) {
  *out << step.rung << " " << step.name;
}

namespace {

/// Returns the steps for a device, except those linked only to lend this rung a forward pass.
std::vector<Step> steps_on(DeviceKind device) {
  std::vector<Step> all;
  for (const Step& step : all_steps()) {
    const bool lent = std::any_of(all_steps().begin(), all_steps().end(), [&](const Step& other) {
      return other.rung != step.rung && other.forward_of == step.rung + "/" + step.name;
    });
    if (step.device == device && !lent) all.push_back(step);
  }
  return all;
}

struct Param {
  DeviceKind device;
  Step step;
  Case shape;
};

/// Prints the options that rerun a case. (They cannot express constructed inputs.)
void PrintTo(const Param& p, std::ostream* out) {
  const Case& c = p.shape;
  *out << p.step.rung << " --step " << p.step.name << " --batch " << c.B << " --heads " << c.H
       << " --kv-heads " << c.Hk << " --seqlen " << c.N << " --seqlen-kv " << c.N_kv
       << " --head-dim " << c.d;
  *out << (c.causal ? " --causal" : "") << (c.dtype == bf ? " --dtype bf16" : "")
       << (c.input == Input::outliers ? " --input outliers" : "");
  if (c.scale != 1) *out << fmt::format(" --scale {:.6g}", spec_of(c).problem.scale);
  if (c.made) *out << ", with values of its own";
}

/// Returns every step of a device with every case that its rounding allows.
std::vector<Param> params(DeviceKind device) {
  std::vector<Param> all;
  DeviceInfo info;
  info.smem_bytes = SimOptions{}.smem_bytes;
  for (const Step& step : steps_on(device)) {
    // A GPU's sums of e4m3 products have too few bits for the cases with a tight tolerance.
    const bool coarse =
        device == DeviceKind::gpu && step.forward.plan({}, info, {}).quantisation.has_value();
    for (const Case& c : kCases)
      if (!coarse || !c.made || !c.made(c).tight) all.push_back({device, step, c});
  }
  return all;
}

std::string name_of(const ::testing::TestParamInfo<Param>& info) {
  return info.param.step.name + "_" + info.param.shape.name;
}

/// A test of the steps that the GPU supports, on the GPU, which is opened once for all tests.
template <class Test>
class OnGpu : public Test {
 protected:
  void SetUp() override {
    static std::string reason;
    static const std::unique_ptr<Device> gpu = [] {
      try {
        return open_gpu();
      } catch (const Error& e) {
        reason = std::string("not run here: ") + e.what();  // ctest recognises a skipped test by it
        return std::unique_ptr<Device>();
      }
    }();
    if (!gpu) GTEST_SKIP() << reason;
    device_ = gpu.get();
    for (const Step& step : steps_on(DeviceKind::gpu))
      if (step.runs_on(device_->info())) steps_.push_back(step);
  }
  Device* device_ = nullptr;
  std::vector<Step> steps_;
};
using GpuTest = OnGpu<::testing::Test>;
class GpuLarge : public GpuTest {};

int widest(const Step& step) {
  return step.tiles.empty() ? 256 : std::ranges::max(step.tiles, {}, &TileSize::max_d).max_d;
}

/// Returns whether a step refuses this case: the GPU has less shared memory than an H100; the step
/// is compiled only for narrower heads, so the message must name a step for wider ones; or
/// several parts are requested with a tile that blocks cannot share.
bool refuses(const Device& device, const Step& step, const Case& c, const TileRequest& tile = {}) {
  const bool narrow = c.d > (step.needs.exact_architecture ? 128 : widest(step));
  const bool shared = tile.block_q > 0 && tile.settings.contains("parts");
  if (device.info().smem_bytes >= SimOptions{}.smem_bytes && !narrow && !shared) return false;
  try {
    plan_run(step, spec_of(c).problem, tile, device.info());
  } catch (const Error& e) {
    const std::string said = e.what();
    const size_t others = said.find("; steps that fit: ");
    const char* const wide = step.needs.exact_architecture ? "sm90" : "large_tiles";
    EXPECT_TRUE(!narrow || (others != said.npos && said.find(wide, others) != said.npos)) << said;
    return e.status == Exit::bad_usage;
  }
  return false;
}

/// Expects that all outputs pass, and that each check decides, that is, would fail zeros. A check
/// need not decide for inputs that are scaled or constructed for another output, nor for steps that
/// quantise, nor if all values should be 0 (the tolerance is far smaller than terms that cancel).
void expect_pass(const Report& r, const Case& c) {
  for (const TensorError& e : r.errors.value()) {
    EXPECT_TRUE(e.pass()) << e.name << ": "
                          << (e.nonfinite ? fmt::format("{} not finite, ", e.nonfinite) : "")
                          << fmt::format("max error {:.3g}, tolerance {:.3g}, in {}", e.max,
                                         e.tolerance, e.where);
    EXPECT_TRUE(!e.undecided() || e.largest == 0 || c.made || c.scale != 1 || r.plan.quantisation)
        << e.name << " decides nothing";
  }
}

/// Expects that traffic() equals the counted bytes for each kernel and array, and that some kernel
/// writes every byte of each workspace array, so that none is larger than needed.
void expect_formula_is_count(const Report& r) {
  std::map<std::string, std::map<std::string, std::pair<int64_t, int64_t>>> formula, counted;
  for (const auto& k : r.kernels)
    for (const auto& [array, c] : k.counts->arrays)
      counted[k.name][array] = {c.requested.read, c.requested.write};
  for (const auto& k : r.predicted_traffic)
    for (const auto& a : k.arrays)
      if (a.read || a.write) formula[k.kernel][a.array] = {a.read, a.write};
  EXPECT_EQ(formula, counted) << r.rung << " " << r.step << " " << r.direction;
  for (const WorkspaceArray& array : r.plan.workspace) {
    int64_t written = 0;
    for (const auto& k : r.kernels)
      if (const auto count = k.counts->arrays.find(array.name); count != k.counts->arrays.end())
        written = std::max(written, count->second.distinct.write);
    EXPECT_EQ(written, array.bytes) << "workspace " << array.name << ": kernels write " << written
                                    << " of the " << array.bytes << " bytes that plan() asks for";
  }
}

void expect_right(const std::vector<Report>& reports, const Case& c) {
  for (const Report& r : reports) {
    expect_pass(r, c);
    if (r.device.kind == DeviceKind::sim) expect_formula_is_count(r);
  }
}

class Suite : public ::testing::TestWithParam<Param> {
 protected:
  void check(Device& device) {
    const auto& [kind, step, shape] = GetParam();
    if (refuses(device, step, shape)) return;
    Outputs out;
    const auto reports = run_case(device, step, shape, {}, &out);
    EXPECT_EQ(reports.size(), step.backward ? 2u : 1u);
    for (const Report& r : reports) {
      if (kind == DeviceKind::sim) expect_formula_is_count(r);
      ASSERT_TRUE(r.errors.has_value());
      // A rung that subtracts no maximum must fail exactly where the reference predicts a failure.
      if (!step.needs.max_subtracted_by.empty() && r.overflowing_rows > 0)
        EXPECT_EQ(r.pass(), false) << "rows whose sum overflows are correct";
      else
        expect_pass(r, shape);
    }
    // A query that attends to no key must have exactly O = 0 and dQ = 0.
    const Problem p = spec_of(shape).problem;
    for (const Tensor* t : {&out.O, &out.dQ})
      for (int64_t i = 0; i < t->size(); ++i)
        if (p.keys(static_cast<int>(i / p.d % p.N)) == 0) {
          ASSERT_EQ((*t)[i], 0) << "element " << i;
        }
  }
};

class Sim : public Suite {};
TEST_P(Sim, IsCorrectAndMatchesItsFormula) {
  check(*open_sim({}));
}
INSTANTIATE_TEST_SUITE_P(, Sim, ::testing::ValuesIn(params(DeviceKind::sim)), name_of);

class Gpu : public OnGpu<Suite> {};
TEST_P(Gpu, IsCorrect) {
  if (!GetParam().step.runs_on(device_->info()))
    GTEST_SKIP() << "needs a GPU other than " << device_->info().name;
  if (GetParam().shape.made && type_on(*device_, GetParam().shape.dtype) != GetParam().shape.dtype)
    GTEST_SKIP() << "its inputs are constructed for bf16";
  check(*device_);
}
INSTANTIATE_TEST_SUITE_P(, Gpu, ::testing::ValuesIn(params(DeviceKind::gpu)), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Gpu);

template <class Wanted>
auto steps(Wanted wanted) {
  std::vector<Step> all;
  for (const Step& step : steps_on(DeviceKind::sim))
    if (wanted(step)) all.push_back(step);
  return ::testing::ValuesIn(all);
}
const auto step_name = [](const auto& info) { return info.param.name; };
const auto every = [](const Step&) { return true; };

class Verification : public ::testing::TestWithParam<Step> {};
TEST_P(Verification, CoversAllOutputsWithTheStepsRoundings) {
  const Step& step = GetParam();
  for (const Check how : {Check::full, Check::automatic, Check::sampled}) {
    SCOPED_TRACE(testing::Message() << step.name << ", check " << static_cast<int>(how));
    WorkloadSpec spec = spec_of({"checked", 1, 2, 2, 300, 30, 16, true, bf});
    spec.check = how;
    Workload workload(spec);
    const Problem& p = workload.problem();
    Outputs out;
    const auto reports = run_step(*open_sim({}), step, {}, workload, &out);
    const auto& quantised = reports.front().plan.quantisation;
    std::vector<TensorError> got;
    for (const Report& r : reports) got.insert(got.end(), r.errors->begin(), r.errors->end());
    const Check quick = how == Check::sampled ? how : Check::full;
    const Inputs& in = workload.inputs(bool{step.backward});
    const RowsToCheck choice = to_check(p, quick, bool{step.backward});
    const Reference reference(p, in, step.rounding, choice, quantised);
    std::vector<TensorError> wanted = {compare(reference.o, out.O)};
    if (step.has_lse) wanted.push_back(compare(reference.lse, out.LSE));
    if (quantised) {
      wanted.push_back(
          compare_with_full_precision(Reference(p, in, step.rounding, choice).o, out.O));
      const float largest = std::exp2(quantised->p_exponent + quantised->slack);
      EXPECT_LE(largest, 448) << "P is above e4m3's largest";
      EXPECT_GT(2 * largest, 448) << "P leaves a bit of e4m3's range unused";
    }
    if (step.backward)
      for (const TensorError& e : {compare(reference.dq, out.dQ), compare(reference.dk, out.dK),
                                   compare(reference.dv, out.dV)})
        wanted.push_back(e);
    EXPECT_EQ(got, wanted);
  }
}
INSTANTIATE_TEST_SUITE_P(, Verification, steps(every), step_name);

// With less shared memory, as on smaller GPUs, a step takes a smaller tile, fewer warps or fewer
// stages, and each of these choices must be correct. Given exactly the bytes that its plan needs, a
// step must make the same plan, or choose another tile that fits twice.
// The 99 KB of compute capability 8.6, 8.9 and 12.0 suffice for all steps that run there (not
// Hopper's). The 64 KB of 7.5 may be too few for wide heads; the message then names steps that fit.
constexpr int64_t kOf86 = 101376, kOf75 = 65536;
class SmallerSharedMemory : public ::testing::TestWithParam<Step> {};
TEST_P(SmallerSharedMemory, TakesCorrectTiles) {
  const Step& step = GetParam();
  for (const int d : kAllHeadDims) {
    const Case c = {"tiles", 1, 1, 1, 90, 150, d, true};
    DeviceInfo info = open_sim({})->info();
    const auto plan_at = [&](int64_t sram) {  // the forward pass's tile and bytes
      info.smem_bytes = sram;
      const auto [forward, backward] = plan_run(step, spec_of(c).problem, {}, info);
      return std::pair(std::pair(forward.block_q, forward.block_kv),
                       std::max(forward.smem_bytes, backward.smem_bytes));
    };
    // Each round gives the step one byte less than its last plan needed.
    for (int64_t sram = SimOptions{}.smem_bytes, bytes = 0; sram > 0; sram = bytes - 1) {
      std::pair<int, int> tile;
      SCOPED_TRACE(testing::Message() << step.name << ", d " << d << ", " << sram << " bytes");
      try {
        std::tie(tile, bytes) = plan_at(sram);
      } catch (const Error& e) {
        EXPECT_EQ(e.status, Exit::bad_usage);
        for (DeviceInfo less = info; less.smem_bytes > 0; less.smem_bytes = less.smem_bytes * 3 / 4)
          EXPECT_THROW(plan_run(step, spec_of(c).problem, {}, less), Error) << less.smem_bytes;
        if (!step.needs.exact_architecture && d <= widest(step)) {
          EXPECT_LT(sram, d > 128 ? kOf86 : kOf75);
          const bool told = std::string(e.what()).find("; steps that fit: ") != std::string::npos;
          EXPECT_TRUE(sram < kOf75 || told || step.rung == "04_flash_v1") << e.what();
        }
        break;  // no tile fits here, nor in fewer bytes
      }
      if (bytes > 0) {
        const auto [other, less] = plan_at(bytes);
        EXPECT_TRUE(less == bytes || other != tile) << bytes << " bytes are not enough";
        if (less == bytes) sram = bytes;
      }
      expect_right(run_case(*open_sim({.smem_bytes = sram}), step, c), c);
    }
  }
}
/// Runs a case with a requested tile and settings. Results must be correct, and settings be kept.
void check_request(Device& device, const Step& step, const Case& c, const TileRequest& request) {
  std::string text;
  for (const auto& [name, value] : request.settings) text += " " + name + "=" + value;
  SCOPED_TRACE(testing::Message() << step.name << text << ", " << c.name << ", tile "
                                  << request.block_q << " " << request.block_kv);
  if (refuses(device, step, c, request)) return;
  const auto reports = run_case(device, step, c, request);
  expect_right(reports, c);
  for (const auto& [name, value] : request.settings) {
    EXPECT_EQ(reports.back().plan.settings.at(name), value);
    if (name == "parts") {
      EXPECT_EQ(reports.back().plan.parts, std::stoi(value));
    }
  }
}
// A tile must be correct for any shape, even if a step takes it only for some, or never by default.
// The first shape has one tile of Q and part of another, and more tiles of K and V than stages.
void check_tiles(Device& device, const Step& step, const Settings& settings = {}) {
  int last = 0;
  for (const auto& [d, Br, Bc] : step.tiles) {
    // A borrowed forward pass is tested by its own rung; here one tile per head size suffices.
    if (!step.forward_of.empty() && std::exchange(last, d) == d) continue;
    for (const Case& c : {Case{"ragged", 1, 2, 1, Br + 7, 3 * Bc + 21, d, true, bf},
                          Case{"short", 1, 1, 1, 70, 150, d - 8, false, fp}})
      check_request(device, step, c, {Br, Bc, settings});
  }
}
TEST_P(SmallerSharedMemory, EveryCompiledTileIsCorrect) {
  check_tiles(*open_sim({}), GetParam());
}
TEST_F(GpuTest, EveryCompiledTileIsCorrect) {
  for (const Step& step : steps_)
    if (step.needs.exact_architecture || !step.settings.empty()) check_tiles(*device_, step);
}
TEST_F(GpuTest, FitsIntoSharedMemoryOfSmallerGpus) {
  for (const int64_t sram : {kOf86, kOf75})
    for (const Step& step : steps_)
      for (const int d : {32, 64, 128, 256}) {
        if (step.needs.exact_architecture || d > widest(step) || sram > device_->info().smem_bytes)
          continue;
        SCOPED_TRACE(testing::Message() << step.name << ", d " << d << ", " << sram << " bytes");
        try {
          const Case c = {"small", 1, 1, 1, 35, 70, d, true};
          expect_right(run_case(*open_gpu(sram), step, c), c);
        } catch (const Error& e) {
          EXPECT_TRUE(sram == kOf75 && d == 256) << e.what();
        }
      }
}
INSTANTIATE_TEST_SUITE_P(, SmallerSharedMemory, steps(every), step_name);

// Tests each value of every setting alone, and all settings together, none with its default.
void check_settings(Device& device, const Step& step) {
  const Case kShapes[] = {
      {"ragged", 1, 4, 2, 113, 203, 80, true, fp},
      {"blind_rows", 1, 2, 1, 317, 128, 64, true, bf, Input::outliers},  // has whole tiles, too
      {"wide", 1, 2, 1, 70, 300, 256, false, fp, Input::outliers},
      {"wide_grouped", 1, 2, 1, 130, 100, 184, true, bf},
      {"narrow", 2, 2, 1, 33, 150, 16, false, bf},
      {"one_key", 1, 1, 1, 3, 1, 128, false, fp},
      {"many_heads", 1, 260, 1, 1, 64, 8, false, fp},  // more tiles than a block has threads
  };
  std::vector<Settings> each;
  Settings other;
  for (const Setting& setting : step.settings) {
    for (const char* value : setting.values)
      if (value != setting.values.front()) each.push_back({{setting.name, value}});
    other[setting.name] = setting.values.back();
  }
  if (other.size() > 1) each.push_back(other);
  // These inputs reveal roundings that settings add. They run only on the simulator: see params().
  std::vector<Case> shapes(std::begin(kShapes), std::end(kShapes));
  const bool decodes = step.device == DeviceKind::sim && step.shown.decoding;
  for (const Case& c : kCases)
    for (Maker* made : {tiles_that_cancel, tiles_that_rise, six_keys})
      if (step.device == DeviceKind::sim && c.made == made) shapes.push_back(c);
  if (decodes) {
    shapes.push_back(made_case("parts_that_rise", 3, 557, 16, parts_that_rise));
    // These need several parts, because a single part is not merged.
    shapes.push_back(made_case("shares_of_43", 2, 43, 16, shares_of_43));
  }
  for (const Settings& settings : each)
    for (const Case& c : shapes) check_request(device, step, c, {.settings = settings});
  if (decodes)
    check_request(device, step, made_case("rounds_that_rise", 1, 4224, 48, rounds_that_rise),
                  {.settings = {{"splits", "64"}}});
  check_tiles(device, step, other);
}
class EachSetting : public ::testing::TestWithParam<Step> {};
TEST_P(EachSetting, IsCorrectWithEachValue) {
  check_settings(*open_sim({}), GetParam());
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EachSetting);
INSTANTIATE_TEST_SUITE_P(, EachSetting,
                         steps([](const Step& step) { return !step.settings.empty(); }), step_name);

TEST_F(GpuTest, IsCorrectWithEachValueOfASetting) {
  for (const Step& step : steps_)
    if (!step.settings.empty()) check_settings(*device_, step);
}

void expect_same_bits(const Outputs& a, const Outputs& b, bool gradients_too) {
  EXPECT_EQ(a.O.bits, b.O.bits);
  ASSERT_EQ(a.LSE.size(), b.LSE.size());
  if (!a.LSE.empty()) {
    EXPECT_EQ(0, std::memcmp(a.LSE.data(), b.LSE.data(), a.LSE.size() * sizeof(float)));
  }
  if (!gradients_too) return;
  EXPECT_EQ(a.dQ.bits, b.dQ.bits);
  EXPECT_EQ(a.dK.bits, b.dK.bits);
  EXPECT_EQ(a.dV.bits, b.dV.bits);
}

// A correct kernel without float atomics gives the same bits in any order of threads. Gradients
// must do so only if the step is .deterministic. To save time, only small cases run.
class Schedules : public ::testing::TestWithParam<Step> {};
TEST_P(Schedules, GiveTheSameBits) {
  const Step& step = GetParam();
  uint64_t seed = 0;  // each case gets a different order
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  cases.push_back({"several_tiles", 1, 1, 1, 64, 300, 64, false, fp});
  for (const Case& c : cases) {
    if (c.made || c.scale != 1 || c.B > 1 || c.H * c.N * c.N_kv > 42000) continue;
    if (refuses(*open_sim({}), step, c)) continue;
    SCOPED_TRACE(testing::Message() << step.name << " " << c.name);
    std::vector<Outputs> seen;  // without forward order, which Sim uses for all cases
    for (const Schedule& schedule :
         {Schedule{Schedule::Order::reverse, 0}, Schedule{Schedule::Order::random, ++seed}})
      for (const Report& r :
           run_case(*open_sim({.schedule = schedule}), step, c, {}, &seen.emplace_back()))
        expect_pass(r, c);
    for (const Outputs& out : seen) expect_same_bits(out, seen.front(), step.deterministic);
  }
  // With 2 queries, some consumers have no rows. Few orders leave one warp of such a consumer far
  // behind the others, so this case runs in many orders.
  const Case few_rows = {"few_rows", 1, 1, 1, 2, 40, 136, false, fp};
  if (refuses(*open_sim({}), step, few_rows)) return;
  for (seed = 1; seed <= 16; ++seed) {
    SCOPED_TRACE(seed);
    for (const Report& r : run_case(*open_sim({.schedule = {Schedule::Order::random, seed}}), step,
                                    few_rows, {}, nullptr))
      expect_pass(r, few_rows);
  }
}
INSTANTIATE_TEST_SUITE_P(, Schedules, steps(every), step_name);

// On a GPU, blocks run in a different order each time if there are too many to run at once.
TEST_F(GpuTest, TwoRunsGiveTheSameBits) {
  for (const Step& step : steps_) {
    SCOPED_TRACE(step.name);
    WorkloadSpec spec =
        spec_of({"many_blocks", 2, 32, 16, 611, 833, 64, true, type_on(*device_, bf)});
    spec.check = Check::off;
    Workload workload(spec);
    Outputs first, second;
    run_step(*device_, step, quick(*device_), workload, &first);
    run_step(*device_, step, quick(*device_), workload, &second);
    expect_same_bits(first, second, step.deterministic);
  }
}

// Tests sizes whose product exceeds 31 bits, or whose byte offsets exceed 32, so that computing
// them in too few bits gives a wrong address. A step may refuse a size only as bad usage.
void check_large(Device& device, const std::vector<Step>& steps, Case c) {
  c.dtype = type_on(device, c.dtype);
  WorkloadSpec spec = spec_of(c);
  spec.check = Check::sampled;
  Workload workload(spec);  // caches a reference per rounding
  int ran = 0;
  for (const Step& step : steps) {
    SCOPED_TRACE(testing::Message() << step.name << " " << c.name);
    try {
      for (const Report& r : run_step(device, step, quick(device), workload)) expect_pass(r, c);
      ++ran;
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Exit::bad_usage) << e.what();
    }
  }
  EXPECT_GT(ran, 0);
}
TEST_F(GpuLarge, IsCorrect) {
  // 2³¹ elements of S. Half of the queries attend to no key, and d is 8: this saves time.
  check_large(*device_, steps_, {"elements_of_S", 1, 1, 1, 66000, 33000, 8, true, bf});
  // The product of the numbers of query heads and K/V heads exceeds 31 bits, or 32.
  check_large(*device_, steps_, {"heads_grouped", 1, 65540, 32770, 2, 3, 8, false, fp});
  check_large(*device_, steps_, {"heads", 1, 70000, 70000, 1, 1, 8, false, bf});
  // 2³¹ elements of Q, or 2³¹ bytes of K. The cases move gigabytes, so only the default steps run.
  std::erase_if(steps_, [](const Step& step) { return !step.is_default; });
  check_large(*device_, steps_, {"elements_of_Q", 1, 17, 17, 500000, 8, 256, false, bf});
  check_large(*device_, steps_, {"bytes_of_K", 1, 17, 17, 8, 250000, 256, false, fp});
  // The offset of the first query that attends to a key, in a group's second head, overflows.
  if (steps_.front().backward)
    check_large(*device_, steps_, {"blind_rows", 1, 2, 1, (1 << 26) + 256, 64, 8, true, bf});
}

static_assert(Problem{.H = 46400, .Hk = 46400}.kv_head(46399) == 46399 &&
              Problem{.H = 1 << 30, .Hk = 1 << 29}.kv_head((1 << 30) - 1) == (1 << 29) - 1);

// Tests plans and traffic() at sizes too large to run. Both must be proportional to the heads.
class Sizes : public ::testing::TestWithParam<Step> {};
TEST_P(Sizes, PlanAndFormulaAreProportionalToHeads) {
  const Step& step = GetParam();
  DeviceInfo info;
  info.smem_bytes = SimOptions{}.smem_bytes;
  info.multiprocessors = 1;  // one batch fills it, so that sm90 needs its counter in both plans
  constexpr int kBatch = (1 << 28) - 1;  // fp8 then launches 2³¹ − 8 blocks, one per tile
  const Problem p = {.B = 1, .H = 4, .Hk = 2, .N = 1, .N_kv = 1, .d = 8},
                many = {.B = kBatch, .H = 4, .Hk = 2, .N = 1, .N_kv = 1, .d = 8};
  for (const Pass& pass : {step.forward, step.backward}) {
    if (!pass) continue;
    const Plan one_plan = pass.plan(p, info, {}), many_plan = pass.plan(many, info, {});
    for (size_t i = 0; i < one_plan.workspace.size(); ++i)
      if (one_plan.workspace[i].name != "next") {
        EXPECT_EQ(many_plan.workspace[i].bytes, one_plan.workspace[i].bytes * kBatch);
      }
    const Traffic one = pass.traffic(p, one_plan), all = pass.traffic(many, many_plan);
    for (size_t k = 0; k < one.size(); ++k)
      for (size_t i = 0; i < one[k].arrays.size(); ++i) {
        const ArrayTraffic &a = one[k].arrays[i], &b = all[k].arrays[i];
        if (a.array == "next") continue;  // cleared once per run
        EXPECT_EQ(b.read, a.read * kBatch) << one[k].kernel << " " << a.array;
        EXPECT_EQ(b.write, a.write * kBatch) << one[k].kernel << " " << a.array;
      }
  }
}
// A launch must never refuse a plan that was accepted. The sizes have many heads, or as many
// queries or keys as 65,535 blocks cover, or one more.
TEST_P(Sizes, PlansRespectGridLimits) {
  const Step& step = GetParam();
  const auto device = open_sim({.only_launches = true});
  std::vector<Problem> problems = {{.H = 3 << 28, .Hk = 3 << 28, .N = 1, .N_kv = 1, .d = 8}};
  for (const int rows : {8, 16, 32, 64, 128})
    for (const int n : {65535 * rows, 65535 * rows + 1})
      problems.insert(problems.end(), {{.N = n, .N_kv = 1, .d = 96}, {.N = 1, .N_kv = n, .d = 96}});
  for (const Problem& p : problems) {
    Plans plans;
    try {
      plans = plan_run(step, p, {}, device->info());
    } catch (const Error&) {
      EXPECT_GT(int64_t{p.H} * p.N * p.N_kv, 65535 * 16);  // with two heads
      continue;
    }
    std::deque<Array> all = {{"Q"}, {"K"}, {"V"}, {"O"}, {"LSE"}, {"dO"}, {"dQ"}, {"dK"}, {"dV"}};
    for (const Plan* plan : {&plans.forward, &plans.backward})
      for (const WorkspaceArray& array : plan->workspace) all.push_back({array.name});
    Arrays arrays;
    for (Array& array : all) arrays.add(&array);
    EXPECT_NO_THROW(device->run("", [&] {
      step.forward.launch(p, plans.forward, arrays);
      if (step.backward) step.backward.launch(p, plans.backward, arrays);
    }));
  }
}
/// Returns for each pass its tile and the text more(plan), or "refused" if there is no plan.
template <class More>
std::string plans_text(const Step& step, const Problem& p, const DeviceInfo& info, More more) {
  try {
    const auto [forward, backward] = plan_run(step, p, {}, info);
    std::string text;
    for (const Plan* plan : {&forward, &backward})
      text += fmt::format("{}x{} {};", plan->block_q, plan->block_kv, more(*plan));
    return text;
  } catch (const Error&) {
    return "refused";
  }
}
// Compares the tile, warps, stages, parts and note of a step's plans for an H100 with plans.jsonl,
// so that no choice changes unnoticed. (A plan equal to the previous one is written as "".)
TEST_P(Sizes, PlansAreAsWritten) {
  const Step& step = GetParam();
  DeviceInfo info;
  info.multiprocessors = SimOptions{}.multiprocessors;
  std::string line, last;
  const auto add = [&](const Problem& p, int64_t smem_bytes) {
    info.smem_bytes = smem_bytes;
    const std::string plans = plans_text(step, p, info, [](const Plan& plan) {
      return fmt::format("{} {} {} {}", plan.warps, plan.stages, plan.parts, plan.note);
    });
    line += fmt::format("{}\"{}\"", line.empty() ? "" : ", ", plans == last ? "" : plans);
    last = plans;
  };
  const auto expect_line = [&](const std::string& what) {
    expect_in_file(std::filesystem::path(__FILE__).replace_filename("plans.jsonl"),
                   fmt::format("[\"{} {}\", {}, ", step.rung, step.name, what), line, "]\n");
    line = last = "";
  };
  for (const int d : {64, 96, 128, 200}) {
    for (const auto& [heads, kv_heads, N, N_kv] : {std::array{2, 2, 256, 256},
                                                   {1, 1, 70, 90},
                                                   {16, 2, 300, 200},
                                                   {32, 8, 1, 4096},
                                                   {8, 1, 1, 131072},
                                                   {64, 64, 1, 1000},
                                                   {8, 2, 16, 20000},
                                                   {66, 66, 128, 512},
                                                   {132, 66, 64, 128},
                                                   {32, 8, 1024, 1024},
                                                   {4, 1, 3000, 3000},
                                                   {8, 8, 16384, 16384}})
      for (const bool causal : {false, true})
        add({.H = heads, .Hk = kv_heads, .N = N, .N_kv = N_kv, .d = d, .causal = causal},
            SimOptions{}.smem_bytes);
    expect_line(fmt::format("{}", d));
  }
  for (const int kib : {64, 99, 163, 227}) {  // limits per block on various GPUs
    for (const int d : {32, 64, 72, 128, 256}) add({.d = d}, kib * 1024);
    expect_line(fmt::format("\"{} KiB\"", kib));
  }
}
// Compares a step's plans for six GPUs, without needing any, with gpu_plans.jsonl: tile, warps,
// parts and bytes of shared memory. Steps without settings need only the two shapes that cards.py
// shows in a table; the choices of the others depend on the whole shape and, in large_tiles, on a
// model of a GPU's time.
TEST_P(Sizes, GpuPlansAreAsWritten) {
  const Step& step = GetParam();
  if (step.needs.exact_architecture) return;
  const auto more = [](const Plan& plan) {
    return fmt::format("{} {} {}", plan.warps, plan.parts, plan.smem_bytes);
  };
  const std::vector<Problem> shapes = {
      {.B = 8, .H = 16, .Hk = 16, .N = 2048, .N_kv = 2048, .d = 64},
      {.B = 8, .H = 16, .Hk = 16, .N = 2048, .N_kv = 2048, .d = 128},
      {.B = 1, .H = 2, .Hk = 2, .N = 64, .N_kv = 64, .d = 64},
      {.B = 1, .H = 32, .Hk = 8, .N = 512, .N_kv = 512, .d = 128, .causal = true},
      {.B = 1, .H = 32, .Hk = 8, .N = 64, .N_kv = 16384, .d = 128, .causal = true},
      {.B = 1, .H = 16, .Hk = 16, .N = 64, .N_kv = 8192, .d = 192},
      {.B = 1, .H = 8, .Hk = 8, .N = 16, .N_kv = 131072, .d = 64},
      {.B = 1, .H = 16, .Hk = 1, .N = 256, .N_kv = 256, .d = 128},
      {.B = 2, .H = 71, .Hk = 1, .N = 2048, .N_kv = 2048, .d = 64, .causal = true},
      {.B = 1, .H = 16, .Hk = 1, .N = 2048, .N_kv = 2048, .d = 128, .causal = true},
      {.B = 1, .H = 8, .Hk = 2, .N = 1024, .N_kv = 1024, .d = 192, .causal = true},
      {.B = 1, .H = 4, .Hk = 4, .N = 16384, .N_kv = 16384, .d = 128, .causal = true},
      {.B = 1, .H = 8, .Hk = 4, .N = 16384, .N_kv = 16384, .d = 256},
      {.B = 1, .H = 24, .Hk = 24, .N = 64, .N_kv = 2048, .d = 32},
      {.B = 1, .H = 8, .Hk = 1, .N = 256, .N_kv = 256, .d = 256, .causal = true},
      {.B = 2, .H = 32, .Hk = 32, .N = 4096, .N_kv = 4096, .d = 80, .causal = true}};
  // A T4, A100, A40, RTX 4090, H100 and RTX 5090: capability, KiB of shared memory per block, SMs.
  for (const auto& [capability, kib, SMs] : {std::array{75, 64, 40},
                                             {80, 163, 108},
                                             {86, 99, 84},
                                             {89, 99, 128},
                                             {90, 227, 132},
                                             {120, 99, 170}}) {
    DeviceInfo info{.kind = DeviceKind::gpu, .smem_bytes = kib * 1024, .multiprocessors = SMs};
    info.compute_capability = capability;
    std::string line;
    for (const Problem& p : std::span(shapes).first(step.settings.empty() ? 2 : shapes.size()))
      line += fmt::format(", \"{}\"", plans_text(step, p, info, more));
    expect_in_file(std::filesystem::path(__FILE__).replace_filename("gpu_plans.jsonl"),
                   fmt::format("[\"{} {}\", \"{}.{}\", {}, {}", step.rung, step.name,
                               capability / 10, capability % 10, kib, SMs),
                   line, "]\n");
    // A request for a number of parts is met or refused, whichever tile is requested with it.
    for (const auto& [max_d, Br, Bc] : step.tiles) {
      if (step.settings.empty() || step.settings.front().name != std::string("parts")) break;
      const Problem p = {.N = 300, .N_kv = 900, .d = max_d};
      try {
        const auto [forward, backward] = plan_run(step, p, {Br, Bc, {{"parts", "16"}}}, info);
        EXPECT_EQ(std::max(forward.parts, backward.parts), 16);
      } catch (const Error& e) {
        EXPECT_EQ(e.status, Exit::bad_usage) << e.what();
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(, Sizes, steps(every), step_name);

}  // namespace
}  // namespace ladder
