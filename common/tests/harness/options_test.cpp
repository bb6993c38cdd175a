// The command line: every option, its default, and what is refused in which words.
#include "harness/options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <sstream>

#include "harness/report.h"
#include "tiles.h"

namespace ladder {
namespace {

// Rungs with the variants that the tests need.
constexpr const char* kNaive = "00_test";
constexpr const char* kTiled = "01_test";
constexpr const char* kFlash = "05_test";
constexpr const char* kBackward = "06_test";

class OptionsTest : public testing::Test {
 protected:
  void SetUp() override {
    static constexpr TileSize kTiles[] = {{128, 64, 64}, {128, 128, 64}, {256, 64, 64}};
    static constexpr TileSize kWide[] = {{128, 128, 128}};
    variants().clear();
    const auto add = [](const char* rung, const char* name, const char* after, DeviceKind device,
                        std::span<const TileSize> tiles) -> Variant& {
      Variant v;
      v.rung = rung;
      v.name = name;
      v.summary = fmt::format("what {} does", name);
      v.after = after;
      v.device = device;
      v.tiles = tiles;
      return variants().emplace_back(v);
    };
    const std::span all(kTiles);
    for (const DeviceKind device : {DeviceKind::sim, DeviceKind::gpu}) {
      add(kNaive, "naive", "", device, {}).is_default = true;
      add(kTiled, "mma", "tile", device, {}).is_default = true;
      add(kTiled, "tile", "", device, {});
      add(kTiled, "library", "", device, {}).baseline = true;
      add(kFlash, "swap", "", device, all.first(1));
      add(kFlash, "mma", "swap", device, all).is_default = true;
      add(kBackward, "stored", "", device, {}).deterministic = true;
      add(kBackward, "mma", "stored", device, all.first(1)).is_default = true;
    }
    add(kFlash, "gpu_only", "mma", DeviceKind::gpu, kWide);
    static const Setting kSettings[] = {{"scale", {"tile", "head"}, "what shares a scale"},
                                        {"spread", {"on", "off"}, "whether"}};
    for (const DeviceKind device : {DeviceKind::sim, DeviceKind::gpu})
      add(kFlash, "eight", "gpu_only", device, {}).settings = kSettings;
  }
  void TearDown() override { variants().clear(); }

  /// A line's words; '' stands for an empty one.
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

  /// The workload as the JSON has it.
  static std::string workload(const std::string& line) {
    std::string json = to_json({.options = options(line)});
    std::erase(json, '"');
    const size_t begin = json.find("dtype");
    return json.substr(begin, json.find(", deterministic") - begin);
  }

  /// The line is refused, and the message has this in it.
  static void expect_bad(const std::string& rung, const std::string& line,
                         const std::string& message) {
    try {
      parse(rung, line);
      ADD_FAILURE() << "accepted: " << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.status, Exit::bad_usage) << line;
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
          << line << ": '" << error.what() << "' lacks '" << message << "'";
    }
  }

  static std::string printed(const std::string& rung, const std::string& option) {
    testing::internal::CaptureStdout();
    EXPECT_FALSE(parse(rung, option));
    return testing::internal::GetCapturedStdout();
  }
};

TEST_F(OptionsTest, DefaultsAreTheContracts) {
  EXPECT_EQ(workload(""),
            "dtype: fp16, input: normal, seed: 0, batch: 1, heads: 2, kv_heads: 2, seqlen: 256, "
            "seqlen_kv: 256, head_dim: 64, causal: false, scale: 0.125");
  const Options o = options("");
  EXPECT_EQ(o.device, DeviceChoice::automatic);
  EXPECT_EQ(o.check, Check::automatic);
  EXPECT_EQ(o.sim.schedule.order, Schedule::Order::forward);
  EXPECT_EQ(o.sim.sram_bytes, 227 * 1024);
  EXPECT_TRUE(o.tile.any());
  EXPECT_FALSE(o.time_ms || o.scale || o.deterministic || o.warm || o.dram || o.json || o.verbose);
  EXPECT_EQ(o.load + o.save + o.variant + o.baseline + o.sim.trace_file + o.sim_option, "");
}

TEST_F(OptionsTest, ReadsEveryOption) {
  EXPECT_EQ(workload("--batch 3 --heads=8 --kv-heads 4 --seqlen 100 --seqlen-kv 77 --head-dim 40 "
                     "--causal --dtype bf16 --scale 0.5 --input outliers "
                     "--seed 18446744073709551615"),
            "dtype: bf16, input: outliers, seed: 18446744073709551615, batch: 3, heads: 8, "
            "kv_heads: 4, seqlen: 100, seqlen_kv: 77, head_dim: 40, causal: true, scale: 0.5");
  Options o = options(
      "--scale 1e-45 --load in --save=--odd --device sim --schedule random:7 "
      "--sram 1000 --trace t --check sampled --json --verbose");
  EXPECT_GT(o.problem.scale, 0);
  EXPECT_EQ(o.scale, o.problem.scale);
  EXPECT_EQ(workload("--load in").substr(0, 24), "dtype: fp16, input: load");
  EXPECT_EQ(o.load, "in");
  EXPECT_EQ(o.save, "--odd");
  EXPECT_EQ(o.device, DeviceChoice::sim);
  EXPECT_EQ(o.sim.schedule.order, Schedule::Order::random);
  EXPECT_EQ(o.sim.schedule.seed, 7u);
  EXPECT_EQ(o.sim.sram_bytes, 1000);
  EXPECT_EQ(o.sim.trace_file, "t");
  EXPECT_EQ(o.sim_option, "trace");  // the last of them
  EXPECT_EQ(o.check, Check::sampled);
  EXPECT_TRUE(o.json && o.verbose);

  o = options("--device gpu --time 12.5 --warm --dram --check off");
  EXPECT_EQ(o.device, DeviceChoice::gpu);
  EXPECT_EQ(o.time_ms, 12.5);
  EXPECT_TRUE(o.warm && o.dram);
  EXPECT_EQ(o.check, Check::off);
  EXPECT_EQ(options("--check full").check, Check::full);
  EXPECT_EQ(options("--schedule reverse").sim.schedule.order, Schedule::Order::reverse);
  EXPECT_EQ(options("--schedule random").sim.schedule.seed, 0u);

  o = options(
      "--block-q 128 --block-kv 64 --variant mma --set scale=head --set=spread=off,scale=tile",
      kFlash);
  EXPECT_EQ(o.tile.block_q, 128);
  EXPECT_EQ(o.tile.block_kv, 64);
  EXPECT_EQ(o.variant, "mma");
  const Settings settings = {{"scale", "tile"}, {"spread", "off"}};
  EXPECT_EQ(o.tile.settings, settings);
  EXPECT_TRUE(options("--deterministic", kBackward).deterministic);
  EXPECT_EQ(options("--baseline library", kTiled).baseline, "library");
  const auto each = each_variant(options("--variant tile,mma --json", kTiled));
  ASSERT_EQ(each.size(), 2u);
  EXPECT_TRUE(each[0].variant == "tile" && each[1].variant == "mma" && each[1].json);
}

TEST_F(OptionsTest, DerivesWhatIsNotGiven) {
  const Problem p = options("--heads 6 --seqlen 33 --head-dim 128").problem;
  EXPECT_EQ(p.Hk, 6);
  EXPECT_EQ(p.N_kv, 33);
  EXPECT_EQ(p.scale, static_cast<float>(1 / std::sqrt(128.0)));
  EXPECT_EQ(options("--seqlen 5 --seqlen 6").problem.N, 6);  // the last one counts
  // The largest that is allowed is a matter of memory, not of the command line.
  EXPECT_EQ(options("--heads 1 --seqlen 2147483647").problem.N, INT_MAX);
}

struct Refusal {
  const char *rung, *line, *message;
};
const Refusal kRefused[] = {
    // What is no option.
    {kNaive, "--nonsense=3", "unknown option '--nonsense'; --help lists all"},
    {kNaive, "--Workload", "unknown option '--Workload';"},
    {kNaive, "-x", "unknown option '-x'"},
    {kNaive, "++json", "unknown option '++json'"},
    {kNaive, "-seqlen 3", "unknown option '-seqlen'"},
    {kNaive, "--bat 3", "unknown option '--bat'"},
    {kNaive, "--json stray --batch x", "unknown option 'stray'"},
    {kNaive, "-- --json", "unknown option '--'"},
    {kNaive, "''", "unknown option ''"},
    // A value too few or too many.
    {kNaive, "--json=yes", "--json takes no value, but '--json=yes' was given"},
    {kNaive, "--batch", "--batch needs a value: --batch B"},
    {kNaive, "--dtype --json", "--dtype needs a value: --dtype TYPE"},
    {kNaive, "--load ''", "--load needs a value: --load DIR"},
    {kNaive, "--save=", "--save needs a value: --save DIR"},
    // Numbers; of those that count something see below.
    {kNaive, "--head-dim 60", "head-dim 60: give a multiple of 8 from 8 to 256"},
    {kNaive, "--head-dim 264", "head-dim 264: give"},
    {kNaive, "--seed -1", "--seed '-1': give a whole number from 0 to 18446744073709551615"},
    {kNaive, "--seed 18446744073709551616", "'18446744073709551616': give"},
    {kNaive, "--seed 1.5", "--seed '1.5': give"},
    // One of several.
    {kNaive, "--dtype fp32", "--dtype 'fp32': give one of fp16, bf16"},
    {kNaive, "--dtype FP16", "--dtype 'FP16': give"},
    {kNaive, "--input uniform", "--input 'uniform': give one of normal, outliers"},
    {kNaive, "--device tpu", "--device 'tpu': give one of auto, gpu, sim"},
    {kNaive, "--check some", "--check 'some': give one of full, sampled, off"},
    {kNaive, "--schedule sideways", "'sideways': give one of forward, reverse, random"},
    {kNaive, "--schedule forward:1", "'forward:1': give one of"},
    {kNaive, "--schedule random:", "--schedule '': give random:SEED, SEED a whole number"},
    {kNaive, "--schedule random:x", "--schedule 'x': give random:SEED"},
    {kTiled, "--baseline mma", "--baseline 'mma': unknown"},
    {kFlash, "--set scale", "--set 'scale': give NAME=VALUE,..."},
    // What no step of the rung has.
    {kNaive, "--block-q 64", "00_test does not take --block-q, which needs a step with tile sizes"},
    {kTiled, "--block-kv 64", "--block-kv, which needs a step with tile sizes to choose from"},
    {kFlash, "--deterministic", "needs a step whose gradients have the same bits on every run"},
    {kFlash, "--baseline library", "needs a step with a library baseline"},
    {kNaive, "--set scale=tile", "does not take --set, which needs a step with settings"},
    // What does not go together.
    {kTiled, "--variant tile,mma --save out", "--save is for one variant, and --variant tile,mma"},
    {kTiled, "--variant tile,mma --trace x.json --device sim", "--trace is for one variant"},
    {kTiled, "--variant tile,mma --baseline library", "--baseline is for one variant"},
    {kNaive, "--heads 4 --kv-heads 3", "kv-heads 3 does not divide heads 4; give a divisor of 4"},
    {kNaive, "--kv-heads 4", "kv-heads 4 does not divide heads 2"},
    {kNaive, "--batch 65536 --heads 65536", "batch 65536 x heads 65536 is too large: a grid has"},
    {kNaive, "--batch 1073741824 --heads 1 --seqlen 2147483647 --seqlen-kv 1", "Q would take 5.9"},
    {kNaive, "--batch 1073741824 --heads 1 --seqlen 1 --seqlen-kv 2147483647", "K would take 5.9"},
    {kNaive, "--heads 4 --seqlen 2147483647", "S would take 3.69e+19 bytes, which exceeds 2⁶³"},
    {kNaive, "--load in --heads 8 --batch 8",
     "--heads cannot be combined with --load: the files "
     "of 'in' give the shapes"},
    {kNaive, "--device gpu --trace t", "--trace is for the sim and --device gpu for a GPU; leave"},
    {kNaive, "--device gpu --sram 1", "--sram is for the sim"},
    {kNaive, "--device gpu --schedule reverse", "--schedule is for the sim"},
    {kTiled, "--device sim --baseline library", "--device sim is for the sim and --baseline libr"},
    {kTiled, "--sram 1000 --baseline library", "--sram is for the sim and --baseline library for"},
};

TEST_F(OptionsTest, Refuses) {
  for (const Refusal& r : kRefused) expect_bad(r.rung, r.line, r.message);
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

TEST_F(OptionsTest, HelpShowsEveryOptionAndDefault) {
  const std::string words = fmt::format(
      "--batch B |--heads H |--kv-heads HK |--seqlen N |--seqlen-kv N_KV |--head-dim D |--causal |"
      "--dtype TYPE |--scale X |--input KIND |--seed S |--load DIR |--save DIR |--device DEVICE |"
      "--variant NAME |--block-q BR |--block-kv BC |--set NAME=VALUE,... |--deterministic |"
      "--schedule ORDER |--sram BYTES |--trace FILE |--check HOW |--time MS |--warm |--dram |"
      "--baseline NAME |--json |--verbose |--help |--version |(default 1)|(default 2)|"
      "(default 256)|(default 64)|(default fp16)|1/sqrt|(default 0)|(default auto)|default normal|"
      "default forward|\nWorkload\n|\nOn the sim\n|\nExamples\n|\nExit status|(default {}:|"
      "(default {})",
      SimOptions{}.sram_bytes, TimingOptions{}.budget_ms);
  for (const std::string rung : {kNaive, kTiled, kFlash, kBackward}) {
    const std::string help = printed(rung, "--help");
    for (size_t at = 0, end = 0; end != words.npos; at = end + 1) {
      end = words.find('|', at);
      EXPECT_NE(help.find(words.substr(at, end - at)), help.npos) << words.substr(at);
    }
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST_F(OptionsTest, HelpListsVariantsDevicesAndTiles) {
  const std::string help = printed(kFlash, "--help"), naive = printed(kNaive, "--help");
  for (const char* line :
       {"what swap does [gpu, sim]", "what mma does [gpu, sim]", "what gpu_only does [gpu]",
        "tiles BRxBC: 64x64, 128x64\n", "128x128", " default [gpu, sim]\n", " only by name [gpu]\n",
        "--set scale=tile|head            what shares a scale"})
    EXPECT_NE(help.find(line), std::string::npos) << line;
  EXPECT_LT(help.find("what swap"), help.find("what mma"));
  EXPECT_EQ(help.find("stored"), std::string::npos);  // another rung's
  for (const char* line : {"--deterministic        needs a step", "--block-q BR           needs a"})
    EXPECT_NE(naive.find(line), std::string::npos) << naive;
  EXPECT_EQ(naive.find("Baselines"), std::string::npos) << naive;
  EXPECT_NE(printed(kTiled, "--help").find("library                what library does\n\nVar"),
            std::string::npos);
  EXPECT_EQ(printed(kNaive, "--version"),
            fmt::format("00_test of the kernel ladder, version {}\n", LADDER_VERSION));
}

// Which of its tiles a step takes.
TEST(Tiles, TheFirstThatFitsIsTakenAndOneThatFitsToTheByteDoes) {
  constexpr TileSize kTiles[] = {{64, 128, 64}, {64, 64, 64}, {128, 64, 32}};
  const auto chosen = [&](int head_dim, int64_t sram, const TileRequest& request = {}) {
    Plan plan{.head_dim = head_dim};
    choose_tile(plan, kTiles, request, sram, [](int Br, int Bc) { return int64_t{Br} * Bc; });
    EXPECT_EQ(plan.smem_bytes, int64_t{plan.block_q} * plan.block_kv);
    return fmt::format("{}×{} {}", plan.block_q, plan.block_kv, plan.note);
  };
  EXPECT_EQ(chosen(64, 8192), "128×64 ");
  EXPECT_EQ(chosen(64, 8191), "64×64 tile 64×64: 128×64 needs 8192 bytes; there are 8191");
  EXPECT_EQ(chosen(32, 4096), "64×64 tile 64×64: 128×64 needs 8192 bytes; there are 4096");
  EXPECT_EQ(chosen(128, 2048), "64×32 ");
  EXPECT_EQ(chosen(64, 8192, {.block_q = 64}), "64×64 ");
  const auto refused = [&](int head_dim, int64_t sram, const TileRequest& request) {
    try {
      return chosen(head_dim, sram, request);
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Exit::bad_usage);
      return std::string(e.what());
    }
  };
  EXPECT_EQ(refused(64, 4095, {}),
            "shared memory: 128×64 needs 8192 bytes; 64×64 needs 4096 bytes; there are 4095; sizes "
            "that fit: none");
  EXPECT_EQ(refused(64, 8192, {.block_q = 32}),
            "--block-q 32 --block-kv 0 (0: any): not compiled for this head size; sizes that fit: "
            "128×64, 64×64");
}

}  // namespace
}  // namespace ladder
