// Tests the command line: every option, its default, the messages of refusals, the chosen step and
// tile, and the .npy files of --load. The steps are made up, so that the rungs may change freely.
#include "harness/options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "choose_tile.h"
#include "harness/npy.h"
#include "harness/report.h"
#include "harness/run.h"
#include "harness/steps.h"
#include "tests/expected.h"

namespace ladder {
namespace {

const TileSize kWide[] = {{128, 128, 128}}, kSmall[] = {{128, 64, 64}, {256, 64, 64}};
const Setting kSettings[] = {{"scale", {"tile", "head"}, "what shares a scale"},
                             {"spread", {"on", "off"}, "whether"}};
constexpr auto kSim = DeviceKind::sim, kGpu = DeviceKind::gpu;

void add_all(const char* rung, const std::vector<Step>& steps, DeviceKind device = kSim) {
  for (Step step : steps) {
    step.rung = rung;
    step.shown.summary = fmt::format("what {} does", step.name);
    add_step(std::move(step), device, "");
  }
}

constexpr const char* kFlash = "05_test";
constexpr const char* kNaive = "00_test";
constexpr const char* kTiled = "01_test";

/// Runs `work` and returns "status: message" of its refusal, or "" if there is none.
std::string refusal(auto work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return fmt::format("{}: {}", static_cast<int>(error.status), error.what());
  }
}

class OptionsTest : public testing::Test {
 protected:
  void SetUp() override {
    all_steps().clear();
    for (const DeviceKind device : {kGpu, kSim}) {
      // A ladder like 05's, registered in arbitrary order: first - mma - copies - fast, with asides
      // eight_bits and, on the GPU only, alone. On Hopper `fast` is the GPU's default.
      std::vector<Step> steps = {
          {.name = "fast", .after = "copies", .is_default = device == kGpu},
          {.name = "eight_bits", .after = "fast", .aside = true, .settings = kSettings},
          {.name = "copies", .after = "mma"}};
      for (Step& for_hopper : steps) {
        for_hopper.needs.min_compute_capability = 90;
        for_hopper.needs.exact_architecture = true;
      }
      steps[0].tiles = kWide;
      add_all(kFlash, steps, device);
      add_all(kFlash,
              {{.name = "mma", .after = "first", .is_default = true},
               {.name = "first", .formerly = {"early"}, .tiles = kSmall}},
              device);
      add_all(kNaive, {{.name = "naive", .is_default = true}}, device);
      add_all(kTiled, {{.name = "mma", .after = "tile", .is_default = true}, {.name = "tile"}},
              device);
    }
    add_all(kFlash, {{.name = "alone", .after = "mma", .aside = true}}, kGpu);
  }

  /// Parses a command line, split at spaces, for the program of `rung`; '' is an empty argument.
  static std::optional<Options> parse(const std::string& rung, const std::string& line) {
    std::vector<std::string> words = {rung};
    std::istringstream stream(line);
    for (std::string word; stream >> word;) words.push_back(word == "''" ? "" : word);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    return parse_options(static_cast<int>(words.size()), argv.data(), rung);
  }

  static Options options(const std::string& line, const std::string& rung = kNaive) {
    return parse(rung, line).value();
  }

  static std::string workload(const std::string& line) {
    std::string json = to_json({.workload = options(line).workload});
    std::erase(json, '"');
    const size_t begin = json.find("batch");
    return json.substr(begin, json.find(", settings") - begin);
  }

  static void expect_bad(const std::string& rung, const std::string& line,
                         const std::string& message) {
    const std::string said = refusal([&] { parse(rung, line); });
    EXPECT_TRUE(said.starts_with("2: ") && said.find(message) != said.npos)
        << line << ": '" << said << "' lacks '" << message << "'";
  }

  static std::string printed(const std::string& rung, const std::string& option) {
    testing::internal::CaptureStdout();
    EXPECT_FALSE(parse(rung, option));
    return testing::internal::GetCapturedStdout();
  }
};

// Giving an option the default that --help states must change nothing.
TEST_F(OptionsTest, DefaultsAreAsDocumented) {
  std::istringstream help(printed(kNaive, "--help"));
  int checked = 0;
  for (std::string line; std::getline(help, line);) {
    const size_t begin = line.find("(default ");
    if (!line.starts_with("  --") || begin == line.npos) continue;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    const std::string value =
        line.substr(begin + 9, line.find_first_of(" )", begin + 9) - begin - 9);
    Options given = options(name + "=" + value);
    given.sim_option = "";  // says only that the option was given
    EXPECT_TRUE(given == options("")) << line;
    ++checked;
  }
  EXPECT_GT(checked, 5);
}

TEST_F(OptionsTest, ReadsValuesOfEveryKind) {
  EXPECT_EQ(workload("--batch 3 --heads=8 --kv-heads 4 --seqlen 100 --seqlen-kv 77 --head-dim 40 "
                     "--causal --dtype bf16 --scale 0.5 --input outliers "
                     "--seed 18446744073709551615"),
            "batch: 3, heads: 8, kv_heads: 4, seqlen: 100, seqlen_kv: 77, head_dim: 40, "
            "causal: true, dtype: bf16, scale: 0.5, input: outliers, seed: 18446744073709551615");
  EXPECT_NE(workload("--load in").find("input: load"), std::string::npos);
  EXPECT_GT(options("--scale 1e-45").workload.problem.scale, 0);
  const Options o = options("--load in --save=--odd --schedule random:7 --trace t --time 12.5");
  EXPECT_EQ(o.workload.load + " " + o.save + " " + o.run.trace_file, "in --odd t");
  EXPECT_EQ(o.sim_option, "trace");  // the last one given
  EXPECT_EQ(o.sim.schedule, (Schedule{Schedule::Order::random, 7}));
  EXPECT_EQ(options("--schedule reverse").sim.schedule.order, Schedule::Order::reverse);
  EXPECT_EQ(options("--check full").workload.check, Check::full);
  EXPECT_EQ(o.run.time_ms, 12.5);
  EXPECT_TRUE(options("--dram").run.dram && options("--verbose").run.verbose);
  EXPECT_EQ(options("--device sim").device, DeviceChoice::sim);
  EXPECT_EQ(options("--set scale=tile,scale=head --set=spread=off", kFlash).run.tile.settings,
            (Settings{{"scale", "head"}, {"spread", "off"}}));
  const auto each = each_step(options("--step tile,mma --json", kTiled));
  ASSERT_EQ(each.size(), 2u);
  EXPECT_TRUE(each[0].step == "tile" && each[1].step == "mma" && each[1].json);
}

TEST_F(OptionsTest, DerivesOmittedValues) {
  const Problem p = options("--heads 6 --seqlen 33 --head-dim 128").workload.problem;
  EXPECT_EQ(p.Hk, 6);
  EXPECT_EQ(p.N_kv, 33);
  EXPECT_EQ(p.scale, static_cast<float>(1 / std::sqrt(128.0)));
  EXPECT_EQ(options("--seqlen 5 --seqlen 6").workload.problem.N, 6);  // the last one counts
  // Memory limits the largest size, not the command line.
  EXPECT_EQ(options("--heads 1 --seqlen 1073741824").workload.problem.N, 1 << 30);
}

// options.md contains command lines, each followed by its refusal or the chosen step.
TEST_F(OptionsTest, CommandLinesAreAnsweredAsWritten) {
  const auto path = std::filesystem::path(__FILE__).replace_filename("options.md");
  std::ifstream file(path);
  std::string all, line;
  while (std::getline(file, line) && line != "```") continue;
  while (std::getline(file, line) && line != "```") {
    const size_t prompt = line.find("$ "), options = line.find(' ', prompt + 2);
    if (prompt != line.npos) {
      const bool gpu = line.starts_with("gpu ");
      std::string chosen;
      const std::string refused = refusal([&] {
        const DeviceInfo device = {.kind = gpu ? kGpu : kSim,
                                   .name = "a card",
                                   .compute_capability = gpu ? std::stoi(line.substr(4)) : 90};
        const std::string rung = line.substr(prompt + 2, options - prompt - 2);
        const Step step =
            choose_step(*parse(rung, options == line.npos ? "" : line.substr(options)), device);
        EXPECT_EQ(step.device, device.kind);
        chosen = step.name;
      });
      all += line + "\n" + chosen + refused + "\n";
    } else if (line.empty() || line.starts_with("#")) {
      all += line + "\n";
    }
  }
  EXPECT_FALSE(all.empty());
  expect_in_file(path, "\n\n```\n", all, "```\n");
}

TEST_F(OptionsTest, RefusesBadNumbers) {
  const auto all_bad = [](const std::string& option, const std::string& values,
                          const std::string& accepted) {
    std::istringstream stream(values);
    for (std::string value; stream >> value;)
      expect_bad(kNaive, fmt::format("--{}={}", option, value),
                 fmt::format("--{} '{}': give {}", option, value, accepted));
  };
  for (const std::string option :
       {"batch", "heads", "kv-heads", "seqlen", "seqlen-kv", "head-dim"}) {
    all_bad(option, "0 -1 -99999999999999999999 2147483648 x +5 nan - １ 8x 8.0 8e0 8, 0x10",
            "a whole number from 1 to 2147483647");
    expect_bad(kNaive, fmt::format("--{} 8 --load in", option), option + " cannot be combined");
  }
  for (const std::string option : {"scale", "time"})
    all_bad(option, "0 -0 -0.125 nan inf -inf 1e999 3.5e38 1e-46 1x 0.5.5 1,5 x -",
            "a finite number above 0 that a float holds");
}

TEST_F(OptionsTest, HelpIsAsWritten) {
  expect_in_file(std::filesystem::path(__FILE__).replace_filename("help.md"), "\n\n```\n",
                 printed(kFlash, "--help"), "```\n");
}

// ------------------------------------------------------------------------------------------- steps

TEST_F(OptionsTest, FillsInUnsetSettings) {
  EXPECT_EQ(choose_settings(kSettings, {{"scale", "head"}}),
            (Settings{{"scale", "head"}, {"spread", "on"}}));
  // --sms selects the simulator, and it and --sram set the limits that plans read.
  testing::internal::CaptureStderr();
  const DeviceInfo sim = open_device(options("--sram 4096 --sms 7"))->info();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "running on the simulator: --sms works only there\n");
  EXPECT_TRUE(sim.smem_bytes == 4096 && sim.multiprocessors == 7);
}

TEST(Memory, PerBlockIsCheckedForBothPasses) {
  Step step{.name = "both", .is_default = true};
  step.forward = {.plan = [](auto& p, auto&, auto&) -> Plan { return {.smem_bytes = p.N}; },
                  .launch = [](auto&, auto&, auto&) {}};
  step.backward = step.forward;
  step.backward.plan = [](auto& p, auto&, auto&) -> Plan { return {.smem_bytes = p.N_kv}; };
  all_steps().clear();
  add_all("06_test", {step});
  for (const Problem& p : {Problem{.N = 100, .N_kv = 50}, {.N = 50, .N_kv = 100}}) {
    EXPECT_NO_THROW(plan_run(step, p, {}, {.smem_bytes = 100}));
    EXPECT_THROW(plan_run(step, p, {}, {.smem_bytes = 99}), Error);
  }
}

/// Returns the names of the steps in order, or the reason why they do not form a ladder.
std::string order() {
  try {
    std::string names;
    for (const Step* step : steps_of("06_test")) names += step->name + " ";
    return names;
  } catch (const std::logic_error& e) {
    return e.what();
  }
}

// A run is refused if it needs a byte more than is free: 4 bytes per element of LSE, 2 per element
// of Q, O, K, V and their gradients, and the workspace of both passes.
TEST(Memory, IncludesAllArraysOfBothPasses) {
  const Problem p{.B = 2, .H = 6, .Hk = 3, .N = 10, .N_kv = 7, .d = 8};
  Step step{.has_lse = true};
  Plans plans;
  plans.forward.workspace = {{"one", 1000}, {"two", 1}};
  plans.backward.workspace = {{"three", 50'000}};
  const int64_t q = 2 * 6 * 10 * 8 * 2, kv = 2 * 3 * 7 * 8 * 2, rest = 2 * 6 * 10 * 4 + 51'001;
  for (const int64_t bytes : {2 * q + 2 * kv + rest, 4 * q + 4 * kv + rest}) {
    EXPECT_NO_THROW(require_memory(step, p, plans, {.memory_free = bytes}));
    const DeviceInfo less = {.memory_bytes = int64_t{1} << 32, .memory_free = bytes - 1};
    EXPECT_NE(refusal([&] { require_memory(step, p, plans, less); }).find("0.0 GiB of 4.0 are"),
              std::string::npos);
    step.backward.launch = [](const Problem&, const Plan&, const Arrays&) {};
  }
}

// Each set of registrations is listed with the order that it gives, or why it has none.
TEST(Steps, RefusesInvalidLadders) {
  const Step unmarked{.name = "first"}, first{.name = "first", .is_default = true};
  const Step second{.name = "second", .after = "first"},
      marked{.name = "second", .after = "first", .is_default = true};
  const Step third{.name = "third", .after = "first"},
      aside{.name = "third", .after = "first", .aside = true};
  Step for_hopper = marked;
  for_hopper.needs.min_compute_capability = 90;
  const std::pair<std::vector<Step>, const char*> ladders[] = {
      {{first, {.name = "second", .after = "frist"}},
       "second follows frist, which does not exist or"},
      {{first, {.name = "second", .after = "third"}, {.name = "third", .after = "second"}},
       "second follows third, which"},
      {{{.name = "first", .after = "first", .is_default = true}}, "first follows first, which"},
      {{first, first}, "two steps are named first"},
      {{first, second, third},
       "second and third both follow first; one must follow the other, or be marked .aside"},
      {{first, second, aside}, "first third second "},
      {{first, {.name = "also_first"}}, "also_first and first are both first steps; one must"},
      {{unmarked, second}, "no step that runs on every device is marked .is_default"},
      {{unmarked, marked}, "first second "},
      {{first, marked}, "first and second are both marked .is_default"},
      {{first, for_hopper}, "first second "},
      {{unmarked, for_hopper}, "no step that runs on every device is marked .is_default"},
  };
  for (const auto& [steps, wanted] : ladders) {
    all_steps().clear();
    add_all("06_test", steps);
    EXPECT_NE(order().find(wanted), std::string::npos) << order() << wanted;
  }
}

TEST(Steps, AStepMayBorrowAnEarlierForwardPass) {
  const Pass forward = {.launch = [](const Problem&, const Plan&, const Arrays&) {}};
  const Step lent{.name = "first", .has_lse = true, .tiles = kWide, .forward = forward};
  all_steps().clear();
  // The order of registration must not matter, nor may a step for another device count.
  add_all("06_test", {{.name = "third", .after = "second", .forward_of = "04_test/first"},
                      {.name = "second", .after = "first", .forward_of = "06_test/first"},
                      {.name = "first", .is_default = true, .tiles = kSmall, .forward = forward}});
  add_all("04_test", {lent}, kGpu);
  EXPECT_NE(order().find("third names the forward pass of 04_test/first, which is not"),
            std::string::npos);
  add_all("04_test", {lent});
  EXPECT_EQ(order(), "first second third ");
  const auto steps = steps_of("06_test");
  EXPECT_EQ(steps[1]->tiles.data(), kSmall);
  EXPECT_EQ(steps[2]->tiles.data(), kWide);
  EXPECT_FALSE(steps[1]->has_lse);
  EXPECT_TRUE(steps[2]->has_lse);
}

TEST(Tiles, TakesTheFirstThatFits) {
  constexpr TileSize kTiles[] = {{64, 128, 64}, {64, 64, 64}, {128, 64, 32}};
  // Returns the chosen tile and the plan's note; each tile takes Br · Bc bytes.
  const auto chosen = [&](int head_dim, int64_t sram, const TileRequest& request = {},
                          int blocks = 1) {
    Plan plan{.head_dim = head_dim};
    choose_tile(
        plan, kTiles, request, sram, [](int Br, int Bc) { return int64_t{Br} * Bc; }, blocks);
    EXPECT_EQ(plan.smem_bytes, int64_t{plan.block_q} * plan.block_kv);
    return fmt::format("{}×{} {}", plan.block_q, plan.block_kv, plan.note);
  };
  EXPECT_EQ(chosen(64, 8192), "128×64 ");
  EXPECT_EQ(chosen(64, 8191), "64×64 tile 64×64: 128×64 needs 8192 bytes; available: 8191");
  EXPECT_EQ(chosen(32, 4096), "64×64 tile 64×64: 128×64 needs 8192 bytes; available: 4096");
  EXPECT_EQ(chosen(128, 2048), "64×32 ");
  EXPECT_EQ(chosen(64, 8192, {.block_q = 64}), "64×64 ");
  // The same for two blocks per SM. If no tile fits twice, or a tile is requested, one suffices.
  EXPECT_EQ(chosen(64, 16384, {}, 2), "128×64 ");
  EXPECT_EQ(chosen(64, 16383, {}, 2),
            "64×64 tile 64×64: 128×64 needs 8192 bytes; available: 16383 for 2 blocks");
  EXPECT_EQ(chosen(64, 8191, {}, 2), "64×64 tile 64×64: 128×64 needs 8192 bytes; available: 8191");
  EXPECT_EQ(chosen(64, 8192, {.block_q = 128}, 2), "128×64 ");
  EXPECT_EQ(refusal([&] { chosen(64, 4095); }),
            "2: shared memory: 128×64 needs 8192 bytes; 64×64 needs 4096 bytes; available: 4095; "
            "sizes that fit: none; try a smaller --head-dim, or another rung");
  EXPECT_EQ(refusal([&] { chosen(64, 8192, {.block_q = 32}); }),
            "2: --block-q 32 --block-kv 0 (0: any): not compiled for this head size; sizes that "
            "fit: 128×64, 64×64");
  // The limit of blocks along one dimension of the grid.
  EXPECT_EQ(grid_blocks(65535 * 16 - 15, 16), 65535u);
  EXPECT_EQ(refusal([] { grid_blocks(65535 * 16 + 1, 16); }),
            "2: a length of 1048561 is too large for this step's grid; give at most 1048560");
}

// ------------------------------------------------------------------------------------- .npy files

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string npy(const std::string& header, const std::string& values) {
  const std::string length{static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
  return std::string("\x93NUMPY\1\0", 8) + length + header + values;
}

std::string header_of(const std::string& descr, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n";
}

NpyArray parse(const std::string& file) {
  // The copy has exactly the file's size, so that the address sanitizer finds reads past its end.
  const std::vector<unsigned char> bytes(file.begin(), file.end());
  return parse_npy("x.npy", bytes.data(), bytes.size());
}

const std::vector<float> kSix = {1, -2, 0.5f, 0, 65504, 1e-7f};
const std::string kValues = bytes_of(kSix);
// 1, −2, the smallest subnormal, the largest finite value.
const std::string kHalves("\x00\x3c\x00\xc0\x01\x00\xff\x7b", 8);
const std::string kGood = npy(header_of("'<f4'", "(2, 3)"), kValues);

const std::pair<std::string, const char*> kBad[] = {
    {"\x92" + kGood.substr(1), "is not a .npy file"},
    {std::string("\x93NUMPY\2\0", 8) + kGood.substr(8), "is not a .npy file of version 1.0"},
    {npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", kValues), "header"},
    {npy("{'descr': '<f4', 'shape': (6,)}", kValues), "header \"{'descr': '<f4', 'shape': (6,)}\""},
    {npy(header_of("'<f4'", "(2,)"), bytes_of({1, INFINITY})), "holds inf as number 2 of 2"},
    {npy(header_of("'<f2'", "(2,)"), std::string("\x00\x00\x00\xfc", 4)), "-inf as number 2 of 2"},
};
constexpr const char* kBadTypes[] = {"'>f4'", "'<f8'", "'\x1b[2J'"};
// Shapes that replace (6,), each with a part of the refusal's message.
constexpr std::pair<const char*, const char*> kBadShapes[] = {
    {"(5,)", "is too long: shape (5,) needs 20 bytes of values, and the file has 24"},
    {"(7,)", "is truncated: shape (7,) needs 28"},
    {"()", "shape () needs 4 bytes"},
    {"(2, 0, 3)", "shape (2, 0, 3): sizes must be at least 1, and all bytes fewer than 2⁶³"},
    {"(, 6)", "sizes must be at least 1"},
    {"(-6,)", "header"},
    {"(99999999999999999999,)", "fewer than 2⁶³"},
    {"(4611686018427387910,)", "fewer than 2⁶³"},  // wraps to 24 bytes in 64 bits
};

TEST(Npy, ReadsWhatNumPyWrites) {
  EXPECT_EQ(parse(kGood).shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(parse(kGood).values, kSix);
  EXPECT_EQ(parse(npy(header_of("'<f2'", "(4,)"), kHalves)).values,
            (std::vector<float>{1, -2, 0x1p-24f, 65504}));
  const std::string bare = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}   \n";
  EXPECT_EQ(parse(npy(bare, kValues)).values, kSix);
  const NpyArray single = parse(npy(header_of("'<f4'", "()"), bytes_of({7})));
  EXPECT_TRUE(single.shape.empty());
  EXPECT_EQ(single.values, (std::vector<float>{7}));
}

TEST(Npy, RefusesEverythingElse) {
  const auto refuses = [](const std::string& file, const std::string& words) {
    const std::string said = refusal([&] { parse(file); });
    EXPECT_TRUE(said.starts_with("2: 'x.npy' ") && said.find(words) != said.npos)
        << said << "\nlacks\n"
        << words;
    // Messages quote parts of the file and reach a terminal, so control characters must be escaped.
    EXPECT_TRUE(std::ranges::none_of(said, [](char c) { return 0 <= c && c < ' '; })) << said;
  };
  for (const auto& [file, words] : kBad) refuses(file, words);
  for (const char* type : kBadTypes) refuses(npy(header_of(type, "(6,)"), kValues), "header");
  for (const auto& [shape, words] : kBadShapes)
    refuses(npy(header_of("'<f4'", shape), kValues), words);
  for (size_t size = 1; size < kGood.size(); ++size)
    refuses(kGood.substr(0, size), size < 10 ? "is not a .npy file" : "truncated");
  for (int length = 0; length < 256; ++length) {
    std::string file = kGood;
    file[8] = static_cast<char>(length);  // the header's length
    EXPECT_EQ(refusal([&] { parse(file); }).empty(), file == kGood) << length;
  }
}

}  // namespace
}  // namespace ladder
