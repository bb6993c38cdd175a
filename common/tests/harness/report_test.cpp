// Tests the reports of made-up runs, on a GPU and on the simulator, against report.md, and when a
// measurement ends, with a simulated clock.
#include "harness/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "harness/options.h"
#include "machine/gpu/sampling.h"
#include "tests/expected.h"

namespace ladder {
namespace {

/// Returns a report with a value in every field that a GPU fills in.
Report on_the_gpu() {
  Report r{.rung = "01_test", .step = "tile", .direction = "fwd"};
  r.workload.problem = {.H = 4, .Hk = 2, .N = 1024, .N_kv = 512, .causal = true};
  r.device = {.kind = DeviceKind::gpu, .name = "a \"GPU\"\n", .compute_capability = 90};
  r.plan = {.block_q = 64, .block_kv = 32, .warps = 4, .smem_bytes = 40960};
  r.plan.settings = {{"scale", "tile"}};
  r.kernels = {{.name = "scores", .time_ms = 0.5}, {.name = "output", .time_ms = 1}};
  r.kernels[0].dram = ReadWrite{100, 50};
  r.predicted_traffic =
      Traffic{{"scores", {{"Q", 1000, 0}, {"S", 0, 2'500'000}}}, {"output", {{"S", 30, 5}}}};
  r.timing = Timing{2, 1, 4000, 7};
  r.dram = ReadWrite{1500, 50};
  r.workspace_bytes = 999'600;
  r.errors = {{.name = "o", .max = 0.5, .rel = 0.25, .rms = 0.125, .tolerance = 1, .largest = 3},
              {.name = "lse", .max = 0.5, .tolerance = 1, .largest = 3},
              {.name = "o_full", .max = 0.5, .tolerance = INFINITY, .largest = 3}};
  for (TensorError& e : *r.errors) e.compared = "all";
  return r;
}

void expect_in(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks\n" << part;
}

void expect_report(const std::string& name, const std::string& text) {
  expect_written(std::filesystem::path(__FILE__).replace_filename("report.md"), name, text);
}

// 4 · 1024 · 512 · 64 · 4 FLOPs, half of them masked, in 2 ms are 0.134 TFLOP/s.
TEST(Report, GpuRunIsAsWritten) {
  Report r = on_the_gpu();
  expect_report("JSON", to_json(r));
  expect_report("Table", to_table(r));
  r.dram = {};
  r.direction = "bwd";
  expect_report("Table of a backward pass", to_table(r));
  EXPECT_EQ(r.flops(), 2.5 * on_the_gpu().flops());
  EXPECT_EQ(json::value("\"\\ \x1f"), R"("\"\\ \u001f")");
}

// Every count, for the run, a kernel or an array, must appear under its name and in its column.
TEST(Report, SimulatorCountsAreAsWritten) {
  Report r{.rung = "01_test", .step = "tile", .direction = "fwd"};
  Counts c;
  c.hbm = {{9'996, 99'960}, {8, 9}, {}}, c.arrays = {{"K", {{10, 11}, {12, 13}, {14, 15}}}};
  for (const Amount& amount : kAmounts) c.*amount.member = 21 + (&amount - kAmounts);
  r.kernels = {{.name = "scores", .counts = c}, {.name = "output", .counts = c}};
  r.predicted_traffic = {{"scores", {{"K", 1, 2}}}};
  expect_report("JSON of a run on the simulator", to_json(r));
  expect_report("Table of a run on the simulator", to_table(r));
}

TEST(Report, PassesOnlyIfEveryTensorDoes) {
  Report r = on_the_gpu();
  EXPECT_EQ(r.pass(), true);
  // A check decides if tolerance < largest / 2, or if all values should be 0 and are exactly 0.
  for (const auto& [largest, max, decides] :
       {std::tuple(2.0, 0.0, false), {2.001, 0.5, true}, {0, 0, true}, {0, 1e-30, false}}) {
    (*r.errors)[1] = {.name = "lse", .max = max, .tolerance = 1, .largest = largest};
    EXPECT_EQ(r.pass(), decides ? std::optional(true) : std::nullopt) << largest << ", " << max;
  }
  expect_in(to_json(r), {"\"nonfinite\": 0, \"decides\": false}", "\"pass\": null"});
  expect_in(to_table(r), {"lse   undecided: ", "tolerance 1.00e+00, largest value 0.00e"});
  (*r.errors)[0].max = 1.5;  // a wrong output outweighs an undecided check
  EXPECT_EQ(r.pass(), false);
  (*r.errors)[0].max = 0.5;
  (*r.errors)[1] = {.name = "lse", .max = NAN, .tolerance = 1, .nonfinite = 3};
  EXPECT_EQ(r.pass(), false);
  expect_in(to_json(r), {"\"lse\": {\"max\": null", "\"nonfinite\": 3", "\"pass\": false"});
  expect_in(to_table(r), {"o     pass: ", "lse   FAIL: ", ", 3 not finite"});
  r.errors = {};
  expect_in(to_json(r), {"\"errors\": null, \"pass\": null"});
}

// On a GPU the driver gives the blocks per SM; the rest follows from plan, traffic() and device.
TEST(Report, BudgetOfABlockIsAsWritten) {
  Options options;
  Report r = on_the_gpu();
  r.device.smem_bytes = 100'000, r.device.multiprocessors = 10;
  r.plan.head_dim = 64, r.plan.stages = 2;
  r.kernels[0].occupancy = Occupancy{.registers = 168, .blocks_per_sm = 2, .blocks = 30};
  EXPECT_EQ(to_text(r, options), to_table(r));
  options.run.verbose = true;
  expect_report("Budget", to_text(r, options));
  r.predicted_traffic.back().arrays.push_back({"LSE", 0, 8});
  // Without a driver the blocks per SM are limited by shared memory, 64 warps or 65,536 registers.
  r.kernels[1].counts = Counts{};
  r.kernels[1].counts->matmul_flops = 1, r.kernels[1].counts->blocks = 30;
  for (const auto& [warps, bytes] : {std::pair{4, 40960}, {16, 100}, {4, 100}}) {
    r.plan.warps = warps, r.plan.smem_bytes = bytes;
    expect_report(fmt::format("Budget of {} warps, {} B", warps, bytes), to_text(r, options));
  }
  Report other = r;
  other.errors = {}, other.plan.stages = 1, other.plan.quantisation = Quantisation{};
  other.kernels[0] = {.name = "scores", .counts = Counts{{16, 0, 8}, {{3, 4}, {}, {}}, {}}};
  expect_report("Budget of e4m3 and one stage", to_text(other, options));
  other.direction = "bwd";
  expect_report("Budget of a backward pass", to_text(other, options));
}

TEST(Sampling, MedianIgnoresOrder) {
  EXPECT_EQ(gpu::median({3}), 3);
  EXPECT_EQ(gpu::median({5, 1, 3}), 3);
  EXPECT_EQ(gpu::median({4, 1, 3, 2}), 2.5);
}

// sampling.h documents the rules. Run i (from 0) takes ms(i) ms, a batch is four runs, and the
// clock shows the sum of all runs so far.
TEST(Sampling, EndsAsDocumented) {
  const struct {
    const char* name;
    double budget_ms;
    std::function<double(int)> ms;
    int runs;  // in warm-up and samples together
    size_t samples;
  } cases[] = {
      {"steady runs warm up and are measured for as long as asked", 100, [](int) { return 1; },
       100 + 100, 100},
      // From 1 to 0.25 ms after 60 ms, in fractions whose sums are exact in any order.
      {"warm-up goes on while runs get faster", 50,
       [](int i) { return i < 96 ? 1 - i / 128.0 : 0.25; }, 104 + 200, 200},
      // Batches get more than 1% faster for the first 138 ms; after 100 ms a run takes e⁻¹ ms.
      {"warm-up ends even if runs get ever faster", 50, [](int i) { return 1 / (1 + 0.01 * i); },
       172 + 948, 948},
      // Warm after 20 runs; then come 30 ever slower runs, then steady ones.
      {"goes on while the median moves", 20,
       [](int i) { return 1 + 0.01 * std::clamp(i - 20, 0, 30); }, 20 + 52, 52},
      {"goes on until three consecutive batches leave the median", 20,
       [](int i) { return 1 + i / 8 / 32.0; }, 20 + 52, 52},
      {"ends after 20 ms and 3 · 20 ms even if the median keeps moving", 20,
       [](int i) { return 1 + 0.01 * i; }, 20 + 44, 44},
      {"a run longer than the whole budget is measured once", 1, [](int) { return 500; }, 4 + 4, 4},
  };
  for (const auto& c : cases) {
    double clock = 0;
    int runs = 0;
    const auto batch = [&] {
      std::vector<double> times;
      for (int i = 0; i < 4; ++i) clock += times.emplace_back(c.ms(runs++));
      return times;
    };
    EXPECT_EQ(gpu::sample(c.budget_ms, batch, [&] { return clock; }).size(), c.samples) << c.name;
    EXPECT_EQ(runs, c.runs) << c.name;
  }
}

}  // namespace
}  // namespace ladder
