// The command line: every option, its default, and what is refused in which words.
#include "harness/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <climits>
#include <cmath>

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

  static std::optional<Options> parse(const std::string& rung, std::vector<std::string> words) {
    words.insert(words.begin(), rung);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    return parse_options(static_cast<int>(words.size()), argv.data(), rung);
  }

  static Options options(std::vector<std::string> words, const std::string& rung = kNaive) {
    return parse(rung, std::move(words)).value();
  }

  /// The command line is refused, and the message holds all of these.
  static void expect_bad(const std::vector<std::string>& command,
                         const std::vector<std::string>& words, const std::string& rung = kNaive) {
    const std::string line = fmt::format("{}", fmt::join(command, " "));
    try {
      parse(rung, command);
      ADD_FAILURE() << "accepted: " << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.status, Exit::bad_usage) << line;
      for (const std::string& word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << line << ": '" << error.what() << "' lacks '" << word << "'";
    }
  }

  static std::string printed(const std::string& rung, const std::string& option) {
    testing::internal::CaptureStdout();
    EXPECT_FALSE(parse(rung, {option}));
    return testing::internal::GetCapturedStdout();
  }
};

TEST_F(OptionsTest, DefaultsAreTheContracts) {
  const Options o = options({});
  const Problem& p = o.problem;
  EXPECT_EQ(p.B, 1);
  EXPECT_EQ(p.H, 2);
  EXPECT_EQ(p.Hk, 2);
  EXPECT_EQ(p.N, 256);
  EXPECT_EQ(p.N_kv, 256);
  EXPECT_EQ(p.d, 64);
  EXPECT_EQ(p.dtype, DType::fp16);
  EXPECT_FALSE(p.causal);
  EXPECT_FALSE(o.deterministic);
  EXPECT_EQ(p.scale, 0.125f);
  EXPECT_FALSE(o.scale_given);
  EXPECT_EQ(o.input, Input::normal);
  EXPECT_EQ(o.seed, 0u);
  EXPECT_EQ(o.device, DeviceChoice::automatic);
  EXPECT_EQ(o.check, Check::automatic);
  EXPECT_EQ(o.sim.schedule.order, Schedule::Order::forward);
  EXPECT_EQ(o.sim.sram_bytes, 227 * 1024);
  EXPECT_EQ(o.tile.block_q, 0);
  EXPECT_EQ(o.tile.block_kv, 0);
  EXPECT_FALSE(o.time_ms);
  EXPECT_FALSE(o.warm || o.dram || o.json || o.verbose);
  for (const std::string& text : {o.load, o.save, o.variant, o.baseline, o.sim.trace_file})
    EXPECT_EQ(text, "");
}

TEST_F(OptionsTest, ReadsEveryOption) {
  Options o =
      options({"--batch",  "3",        "--heads=8",   "--kv-heads", "4",
               "--seqlen", "100",      "--seqlen-kv", "77",         "--head-dim",
               "40",       "--causal", "--dtype",     "bf16",       "--scale",
               "0.5",      "--input",  "outliers",    "--seed",     "18446744073709551615"});
  EXPECT_EQ(o.problem.B, 3);
  EXPECT_EQ(o.problem.H, 8);
  EXPECT_EQ(o.problem.Hk, 4);
  EXPECT_EQ(o.problem.N, 100);
  EXPECT_EQ(o.problem.N_kv, 77);
  EXPECT_EQ(o.problem.d, 40);
  EXPECT_TRUE(o.problem.causal);
  EXPECT_EQ(o.problem.dtype, DType::bf16);
  EXPECT_EQ(o.problem.scale, 0.5f);
  EXPECT_TRUE(o.scale_given);
  EXPECT_EQ(o.input, Input::outliers);
  EXPECT_EQ(o.seed, UINT64_MAX);

  o = options({"--load", "in", "--save=out", "--device", "sim", "--variant", "naive", "--check",
               "sampled", "--schedule", "random:7", "--sram", "1024", "--trace", "t.json", "--json",
               "--verbose"});
  EXPECT_EQ(o.load, "in");
  EXPECT_EQ(o.save, "out");
  EXPECT_EQ(o.device, DeviceChoice::sim);
  EXPECT_EQ(o.variant, "naive");
  EXPECT_EQ(o.check, Check::sampled);
  EXPECT_EQ(o.sim.schedule.order, Schedule::Order::random);
  EXPECT_EQ(o.sim.schedule.seed, 7u);
  EXPECT_EQ(o.sim.sram_bytes, 1024);
  EXPECT_EQ(o.sim.trace_file, "t.json");
  EXPECT_TRUE(o.json);
  EXPECT_TRUE(o.verbose);

  o = options({"--device", "gpu", "--time", "12.5", "--warm", "--dram", "--check", "off"});
  EXPECT_EQ(o.device, DeviceChoice::gpu);
  EXPECT_EQ(o.time_ms, 12.5);
  EXPECT_TRUE(o.warm);
  EXPECT_TRUE(o.dram);
  EXPECT_EQ(o.check, Check::off);
  EXPECT_EQ(options({"--check", "full"}).check, Check::full);
  EXPECT_EQ(options({"--schedule", "reverse"}).sim.schedule.order, Schedule::Order::reverse);
  EXPECT_EQ(options({"--schedule", "random"}).sim.schedule.seed, 0u);

  o = options({"--block-q", "128", "--block-kv", "64", "--variant", "mma"}, kFlash);
  EXPECT_EQ(o.tile.block_q, 128);
  EXPECT_EQ(o.tile.block_kv, 64);
  EXPECT_TRUE(options({"--deterministic"}, kBackward).deterministic);
  EXPECT_TRUE(options({"--deterministic", "--variant", "stored"}, kBackward).deterministic);
  EXPECT_EQ(options({"--baseline", "library"}, kTiled).baseline, "library");
}

TEST_F(OptionsTest, DerivesWhatIsNotGiven) {
  const Options o = options({"--heads", "6", "--seqlen", "33", "--head-dim", "128"});
  EXPECT_EQ(o.problem.Hk, 6);
  EXPECT_EQ(o.problem.N_kv, 33);
  EXPECT_EQ(o.problem.scale, static_cast<float>(1 / std::sqrt(128.0)));
  EXPECT_EQ(options({"--seqlen", "5", "--seqlen", "6"}).problem.N, 6);  // the last one counts
  EXPECT_EQ(options({"--"}).problem.N, 256);
}

TEST_F(OptionsTest, RefusesWhatIsNoOption) {
  expect_bad({"--nonsense"}, {"unknown option '--nonsense'", "--help"});
  expect_bad({"--nonsense=3"}, {"unknown option '--nonsense'"});
  expect_bad({"-x"}, {"unknown option '-x'"});
  expect_bad({"-seqlen", "3"}, {"unknown option '-seqlen'", "--seqlen"});
  expect_bad({"stray"}, {"stray argument 'stray'"});
  expect_bad({"--json", "stray", "--batch", "x"}, {"stray argument 'stray'"});
  expect_bad({"--json", "-"}, {"stray argument '-'"});
  expect_bad({"--", "--json"}, {"stray argument '--json'"});
  expect_bad({""}, {"stray argument ''"});
  expect_bad({"--json=yes"}, {"--json takes no value"});
}

TEST_F(OptionsTest, RefusesAbbreviations) {
  // getopt_long would take the first three for --batch, --causal and --seqlen-kv.
  expect_bad({"--bat", "3"}, {"unknown option '--bat'", "--batch"});
  expect_bad({"--caus"}, {"unknown option '--caus'", "--causal"});
  expect_bad({"--seqlen-k=3"}, {"unknown option '--seqlen-k'", "--seqlen-kv"});
  expect_bad({"--seq", "3"}, {"unknown option '--seq'", "--seqlen or --seqlen-kv"});
  expect_bad({"--h"}, {"--heads, --head-dim or --help"});
}

TEST_F(OptionsTest, RefusesMissingAndEmptyValues) {
  for (const char* option : {"--batch", "--dtype", "--scale", "--load", "--trace", "--time"}) {
    expect_bad({option}, {option, "needs a value"});
    expect_bad({option, "--json"}, {option, "needs a value", "--json"});
    expect_bad({option, ""}, {option, "''"});
    expect_bad({std::string(option) + "="}, {option, "''"});
  }
  expect_bad({"--variant="}, {"--variant", "''"});
  EXPECT_EQ(options({"--save=--odd"}).save, "--odd");
}

TEST_F(OptionsTest, RefusesBadWholeNumbers) {
  for (const std::string option :
       {"--batch", "--heads", "--kv-heads", "--seqlen", "--seqlen-kv", "--head-dim", "--sram"}) {
    const std::string most = option == "--head-dim" ? "256" : "2147483647";
    for (const std::string value : {"0", "-1", "-99999999999999999999", "2147483648",
                                    "99999999999999999999", "9223372036854775808"})
      expect_bad({option, value}, {option, "'" + value + "'", "out of range", most});
    for (const std::string value : {"x", "+5", " 5", "0x", "nan", "inf", "-", "１"})
      expect_bad({option, value}, {option, value, most});
    for (const std::string value : {"8x", "8.0", "8 ", "8e0", "8,", "0x10"})
      expect_bad({option, value}, {option, value, "follows the number", most});
  }
}

TEST_F(OptionsTest, RefusesBadSeeds) {
  expect_bad({"--seed", "-1"}, {"--seed", "'-1'", "out of range", "18446744073709551615"});
  expect_bad({"--seed", "18446744073709551616"}, {"--seed", "out of range"});
  expect_bad({"--seed", "1.5"}, {"--seed", "'.5' follows"});
  expect_bad({"--seed", "today"}, {"--seed", "not a number"});
}

TEST_F(OptionsTest, RefusesBadRealNumbers) {
  for (const std::string option : {"--scale", "--time"}) {
    for (const std::string value : {"nan", "inf", "-inf", "infinity"})
      expect_bad({option, value}, {option, value, "not finite"});
    for (const std::string value : {"1e999", "1e-999"})
      expect_bad({option, value}, {option, value, "out of range"});
    for (const std::string value : {"1x", "1e5 ", "0.5.5", "1,5", "0x1p3"})
      expect_bad({option, value}, {option, value, "follows the number"});
    expect_bad({option, "x"}, {option, "not a number"});
  }
  for (const std::string value : {"3.5e38", "0", "-0", "-0.125", "1e-46"})
    expect_bad({"--scale", value}, {"--scale", value, "out of range", "above 0"});
  EXPECT_GT(options({"--scale", "1e-45"}).problem.scale, 0);
  for (const std::string value : {"0", "-1", "3600001"})
    expect_bad({"--time", value}, {"--time", value, "above 0", "3600000"});
}

TEST_F(OptionsTest, RefusesSizesThatDoNotGoTogether) {
  expect_bad({"--head-dim", "60"}, {"--head-dim", "'60'", "multiple of 8"});
  expect_bad({"--head-dim", "264"}, {"--head-dim", "'264'", "multiple of 8", "256"});
  expect_bad({"--heads", "4", "--kv-heads", "3"}, {"kv-heads 3", "heads 4"});
  expect_bad({"--kv-heads", "4"}, {"kv-heads 4", "heads 2"});
  expect_bad({"--batch", "65536", "--heads", "65536"}, {"65536", "grid"});
  // Q: 2·2³¹·2³¹·… is beyond 2⁶³ before S is.
  expect_bad(
      {"--batch", "1073741824", "--heads", "1", "--seqlen", "2147483647", "--seqlen-kv", "1"},
      {"Q", "2⁶³"});
  expect_bad(
      {"--batch", "1073741824", "--heads", "1", "--seqlen-kv", "2147483647", "--seqlen", "1"},
      {"K", "2⁶³"});
  expect_bad({"--heads", "4", "--seqlen", "2147483647"}, {"S", "2⁶³"});
  // The largest that is allowed is a matter of memory, not of the command line.
  EXPECT_EQ(options({"--heads", "1", "--seqlen", "2147483647"}).problem.N, INT_MAX);
}

TEST_F(OptionsTest, ListsTheKnownWhereAValueIsUnknown) {
  expect_bad({"--dtype", "fp32"}, {"--dtype", "'fp32'", "fp16 or bf16"});
  expect_bad({"--dtype", "FP16"}, {"'FP16'"});
  expect_bad({"--input", "uniform"}, {"--input", "'uniform'", "normal or outliers"});
  expect_bad({"--device", "tpu"}, {"--device", "'tpu'", "auto, gpu or sim"});
  expect_bad({"--check", "some"}, {"--check", "'some'", "full, sampled or off"});
  expect_bad({"--schedule", "sideways"}, {"'sideways'", "forward, reverse or random[:SEED]"});
  expect_bad({"--schedule", "random:"}, {"--schedule", "not a number"});
  expect_bad({"--schedule", "random:x"}, {"--schedule", "'x'"});
  expect_bad({"--schedule", "forward:1"}, {"--schedule", "'forward:1'"});
  expect_bad({"--variant", "fast"}, {"--variant", "'fast'", "tile or mma"}, kTiled);
  expect_bad({"--baseline", "mma"}, {"--baseline", "'mma'", "library"}, kTiled);
  expect_bad({"--variant", "library"}, {"--variant", "'library'", "tile or mma"}, kTiled);
}

TEST_F(OptionsTest, SaysWhatAnOptionNeedsOfARung) {
  expect_bad({"--block-q", "64"}, {"00_test does not take --block-q", "with tile sizes"});
  expect_bad({"--block-kv", "64"}, {"--block-kv", "with tile sizes"}, kTiled);
  expect_bad({"--deterministic"}, {"--deterministic", "same bits"}, kFlash);
  expect_bad({"--baseline", "library"}, {"--baseline", "a library's version"}, kFlash);
  expect_bad({"--baseline"}, {"does not take --baseline"});
}

TEST_F(OptionsTest, RefusesTilesThatAreNotCompiled) {
  expect_bad({"--block-q", "48"}, {"--block-q 48", "64x64", "128x64", "128x128"}, kFlash);
  expect_bad({"--block-q", "128", "--variant", "swap"}, {"--block-q 128", "one of 64x64"}, kFlash);
  expect_bad({"--block-q", "64", "--block-kv", "128"}, {"--block-q 64 --block-kv 128"}, kFlash);
  expect_bad({"--block-kv", "64", "--variant", "stored"}, {"stored takes no tile"}, kBackward);
  expect_bad({"--block-q", "0"}, {"--block-q", "out of range"}, kFlash);
}

TEST_F(OptionsTest, RefusesAnotherStepThanADeterministicOne) {
  expect_bad({"--deterministic", "--variant", "mma"}, {"--deterministic", "mma", "stored"},
             kBackward);
}

TEST_F(OptionsTest, RefusesContradictions) {
  for (const std::string option :
       {"--batch", "--heads", "--kv-heads", "--seqlen", "--seqlen-kv", "--head-dim"}) {
    expect_bad({option, "8", "--load", "in"}, {option, "--load"});
    expect_bad({"--load", "in", option, "8"}, {option, "--load"});
  }
  const Options o = options({"--load", "in", "--dtype", "bf16", "--scale", "2", "--causal"});
  EXPECT_EQ(o.problem.dtype, DType::bf16);
  expect_bad({"--device", "gpu", "--trace", "t"}, {"--trace", "--device gpu"});
  expect_bad({"--device", "gpu", "--sram", "1"}, {"--sram", "--device gpu"});
  expect_bad({"--device", "gpu", "--schedule", "reverse"}, {"--schedule", "--device gpu"});
  expect_bad({"--device", "sim", "--baseline", "library"}, {"--baseline", "--device sim"}, kTiled);
  expect_bad({"--sram", "1000", "--baseline", "library"}, {"--baseline", "--sram"}, kTiled);
  expect_bad({"--device", "sim", "--variant", "gpu_only"}, {"gpu_only", "--device sim"}, kFlash);
  EXPECT_EQ(options({"--variant", "gpu_only"}, kFlash).variant, "gpu_only");
}

TEST_F(OptionsTest, HelpShowsEveryOptionAndDefault) {
  for (const std::string rung : {kNaive, kTiled, kFlash, kBackward}) {
    const std::string help = printed(rung, "--help");
    for (const char* word :
         {"--batch",     "--heads",     "--kv-heads",      "--seqlen",       "--seqlen-kv",
          "--head-dim",  "--causal",    "--dtype",         "--scale",        "--input",
          "--seed",      "--load",      "--save",          "--device",       "--variant",
          "--block-q",   "--block-kv",  "--deterministic", "--schedule",     "--sram",
          "--trace",     "--check",     "--time",          "--warm",         "--dram",
          "--baseline",  "--json",      "--verbose",       "--help",         "--version",
          "(default 1)", "(default 2)", "(default 256)",   "(default 64)",   "(default fp16)",
          "1/sqrt",      "(default 0)", "(default auto)",  "default normal", "default forward",
          "Examples",    "Exit status"})
      EXPECT_NE(help.find(word), std::string::npos) << rung << " lacks " << word;
    EXPECT_NE(help.find(fmt::format("(default {}", SimOptions{}.sram_bytes)), std::string::npos);
    EXPECT_NE(help.find(fmt::format("(default {})", TimingOptions{}.budget_ms)), std::string::npos);
    size_t column = 0;
    for (const char c : help) {
      column = c == '\n' ? 0 : column + 1;
      ASSERT_LE(column, 100u) << help;
    }
  }
}

TEST_F(OptionsTest, HelpListsVariantsDevicesAndTiles) {
  const std::string help = printed(kFlash, "--help");
  for (const char* line :
       {"what swap does [gpu, sim]", "what mma does [gpu, sim]", "what gpu_only does [gpu]",
        "64x64, 128x64\n", "128x128", " default [gpu, sim]\n", " only by name [gpu]\n"})
    EXPECT_NE(help.find(line), std::string::npos) << line;
  EXPECT_LT(help.find("what swap"), help.find("what mma"));
  EXPECT_EQ(help.find("stored"), std::string::npos);  // another rung's
  const std::string naive = printed(kNaive, "--help");
  EXPECT_NE(naive.find("--deterministic        needs a step"), std::string::npos) << naive;
  EXPECT_NE(naive.find("--block-q BR           needs a step"), std::string::npos) << naive;
  EXPECT_EQ(naive.find("Baselines"), std::string::npos) << naive;
  EXPECT_NE(printed(kTiled, "--help").find("library                what library does"),
            std::string::npos);
}

TEST_F(OptionsTest, SettingsAreThoseOfTheStep) {
  const Settings chosen =
      options({"--variant", "eight", "--set", "scale=head", "--set=spread=off,scale=tile"}, kFlash)
          .tile.settings;
  EXPECT_EQ(chosen, (Settings{{"scale", "tile"}, {"spread", "off"}}));
  const std::span<const Setting> all = variants().back().settings;
  EXPECT_EQ(choose_settings(all, {{"spread", "off"}}),
            (Settings{{"scale", "tile"}, {"spread", "off"}}));
  EXPECT_NE(printed(kFlash, "--help").find("--set scale=tile|head            what shares a scale"),
            std::string::npos);

  const auto bad = [](const char* value, const std::vector<std::string>& words,
                      const char* variant = "eight") {
    expect_bad({"--variant", variant, "--set", value}, words, kFlash);
  };
  bad("size=3", {"'size'", "scale or spread"});
  bad("scale=row", {"'scale=row'", "tile or head"});
  for (const char* no_pair : {"scale", "scale=", "=tile", "", "scale=tile,", ",scale=tile"})
    bad(no_pair, {"is no NAME=VALUE"});
  bad("scale=tile", {"--set scale: mma has no settings", "--variant eight"}, "mma");
  expect_bad({"--set", "scale=tile"}, {"the default step has no settings", "eight"}, kFlash);
  expect_bad({"--set", "scale=tile"}, {"does not take --set", "with settings"}, kNaive);
}

TEST_F(OptionsTest, PrintsItsVersion) {
  const std::string text = printed(kNaive, "--version");
  EXPECT_NE(text.find(kNaive), std::string::npos);
  EXPECT_NE(text.find("version"), std::string::npos);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST_F(OptionsTest, ChecksSizesThatComeFromFiles) {
  Problem p;
  EXPECT_NO_THROW(check_sizes(p));
  p.d = 12;
  EXPECT_THROW(check_sizes(p), Error);
  p.d = 264;
  EXPECT_THROW(check_sizes(p), Error);
  p.d = 64;
  p.Hk = 3;
  EXPECT_THROW(check_sizes(p), Error);
  p.Hk = 2;
  p.B = INT_MAX;
  EXPECT_THROW(check_sizes(p), Error);
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
