// The order of a rung's steps, what is refused of it, and which step runs where none is named.
#include "harness/steps.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/run.h"

namespace ladder {
namespace {

constexpr const char* kRung = "05_test";
const TileSize kWide[] = {{128, 128, 128}}, kSmall[] = {{128, 64, 64}};
const Setting kSettings[] = {{"scale", {"tile", "head"}, ""}, {"spread", {"on", "off"}, ""}};

class Steps : public testing::Test {
 protected:
  void SetUp() override { variants().clear(); }
  void TearDown() override { variants().clear(); }

  static Variant& add(const char* name, const char* after, DeviceKind device = DeviceKind::sim) {
    Variant v;
    v.rung = kRung;
    v.name = name;
    v.after = after;
    v.device = device;
    return variants().emplace_back(v);
  }

  /// A ladder as 05's, in no order: an aside, and steps for Hopper that are the default there.
  static void make_ladder() {
    for (const DeviceKind device : {DeviceKind::gpu, DeviceKind::sim}) {
      const auto for_hopper = [](Variant& v) -> Variant& {
        v.min_compute_capability = 90;
        v.exact_architecture = true;
        return v;
      };
      for_hopper(add("fast", "copies", device)).is_default = device == DeviceKind::gpu;
      for_hopper(add("eight_bits", "fast", device)).aside = true;
      variants().back().settings = kSettings;
      add("mma", "first", device).is_default = true;
      for_hopper(add("copies", "mma", device));
      add("first", "", device).tiles = kSmall;
      add("alone", "mma", device).aside = true;
      variants().back().deterministic = true;
      for (Variant& v : variants())
        if (v.name == "fast") v.tiles = kWide;
    }
    add("library", "").baseline = true;
  }

  static std::string refusal() {
    try {
      std::string names;
      for (const Variant* v : steps_of(kRung)) names += v->name + " ";
      return "none: " + names;
    } catch (const std::logic_error& e) {
      return e.what();
    }
  }

  static std::string chosen(DeviceKind kind, int compute_capability, Options options = {}) {
    DeviceInfo device;
    device.kind = kind;
    device.compute_capability = compute_capability;
    const Variant variant = choose_variant(options, device);
    EXPECT_EQ(variant.device, kind);
    return variant.name;
  }
};

void expect_holds(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST_F(Steps, FollowOneAnotherHoweverTheyAreRegistered) {
  make_ladder();
  std::vector<std::string> order;
  for (const Variant* v : steps_of(kRung))
    order.push_back(fmt::format("{}{}", v->name, v->device == DeviceKind::sim ? "" : "+"));
  EXPECT_EQ(order, (std::vector<std::string>{"first+", "first", "mma+", "mma", "alone+", "alone",
                                             "copies+", "copies", "fast+", "fast", "eight_bits+",
                                             "eight_bits"}));
  EXPECT_TRUE(steps_of("06_test").empty());
}

TEST_F(Steps, RunByThemselvesWhereTheyLeadToADefault) {
  make_ladder();
  std::string sim, gpu;
  for (const Variant* v : steps_of(kRung))
    if (!by_name_only(*v)) (v->device == DeviceKind::sim ? sim : gpu) += v->name + " ";
  EXPECT_EQ(sim, "first mma ");
  EXPECT_EQ(gpu, "first mma copies fast ");
}

TEST_F(Steps, TheDefaultIsTheOneMarkedThatTheDeviceRuns) {
  make_ladder();
  EXPECT_EQ(chosen(DeviceKind::sim, 90), "mma");
  EXPECT_EQ(chosen(DeviceKind::gpu, 80), "mma");
  EXPECT_EQ(chosen(DeviceKind::gpu, 90), "fast");
  EXPECT_EQ(chosen(DeviceKind::gpu, 100), "mma");
  EXPECT_EQ(chosen(DeviceKind::gpu, 90, {.tile = {.block_q = 64}}), "first");
  EXPECT_EQ(chosen(DeviceKind::gpu, 90, {.deterministic = true}), "alone");
  EXPECT_EQ(chosen(DeviceKind::gpu, 90, {.variant = "eight_bits"}), "eight_bits");
  EXPECT_EQ(chosen(DeviceKind::gpu, 90, {.variant = "alone", .deterministic = true}), "alone");
  const Settings settings = {{"scale", "head"}};
  EXPECT_EQ(chosen(DeviceKind::sim, 90, {.variant = "eight_bits", .tile = {.settings = settings}}),
            "eight_bits");
  EXPECT_EQ(choose_settings(kSettings, settings), (Settings{{"scale", "head"}, {"spread", "on"}}));
}

TEST_F(Steps, WhatNoneHasIsRefused) {
  make_ladder();
  const auto asked = [](const char* name, const char* value) {
    return TileRequest{.settings = {{name, value}}};
  };
  const std::pair<Options, const char*> refused[] = {
      {{.variant = "quick"},
       "--variant 'quick': unknown on the gpu; give one of first, mma, alone, "},
      {{.variant = "library"}, "--variant 'library': unknown"},
      {{.variant = "mma", .deterministic = true}, "the gradients of mma differ from run to run"},
      {{.tile = {.block_q = 48}},
       "no tile is compiled for --block-q 48; give one of 128x128, 64x64"},
      {{.variant = "first", .tile = {.block_q = 64, .block_kv = 128}},
       "no tile is compiled for --block-q 64 --block-kv 128; give one of 64x64"},
      {{.variant = "mma", .tile = {.block_kv = 64}}, "for --block-kv 64; mma takes no tile size"},
      {{.variant = "eight_bits", .tile = asked("size", "3")},
       "--set size=3: eight_bits takes scale=tile|head, spread=on|off"},
      {{.variant = "eight_bits", .tile = asked("scale", "on")}, "--set scale=on: eight_bits takes"},
      {{.tile = asked("scale", "tile")}, "--set scale=tile: fast takes no settings; name a --var"},
  };
  for (const auto& [options, message] : refused) {
    try {
      ADD_FAILURE() << chosen(DeviceKind::gpu, 90, options) << ", not " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.status, Exit::bad_usage);
      expect_holds(error.what(), {message});
    }
  }
  // What this GPU does not run.
  try {
    ADD_FAILURE() << chosen(DeviceKind::gpu, 80, {.variant = "fast"});
  } catch (const Error& error) {
    EXPECT_EQ(error.status, Exit::no_device);
    expect_holds(error.what(), {"variant fast needs compute capability 9.x, and", "has 8.0"});
  }
}

TEST_F(Steps, ThatDoNotFollowOneAnotherAreRefused) {
  const auto refusal_of = [](std::initializer_list<std::array<const char*, 2>> steps) {
    variants().clear();
    for (const auto& [name, after] : steps) add(name, after).is_default = variants().empty();
    return refusal();
  };
  expect_holds(refusal_of({{"first", ""}, {"second", "frist"}}),
               {"second follows frist, which is not there"});
  expect_holds(refusal_of({{"first", ""}, {"second", "third"}, {"third", "second"}}),
               {"from second no way leads back"});
  expect_holds(refusal_of({{"first", "first"}}), {"from first no way leads back"});
  expect_holds(refusal_of({{"first", ""}, {"first", ""}}), {"two are called first"});
  expect_holds(refusal_of({{"first", ""}, {"second", "first"}, {"third", "first"}}),
               {"second and third both follow first", "aside"});
  variants().back().aside = true;
  EXPECT_EQ(refusal(), "none: first third second ");
  add("also_first", "");
  expect_holds(refusal(), {"also_first and first both follow none"});
  variants().clear();
  for (const DeviceKind device : {DeviceKind::sim, DeviceKind::gpu})
    add("first", "", device).is_default = true;
  EXPECT_EQ(refusal(), "none: first first ");
}

TEST_F(Steps, AForwardPassIsOfAnotherStepOfThisRungOrAnEarlierOne) {
  const auto add_step = [](const char* rung, const char* name, const char* after) {
    Variant v;
    v.rung = rung;
    v.name = name;
    v.after = after;
    return v;
  };
  Variant first = add_step(kRung, "first", ""), second = add_step(kRung, "second", "first"),
          third = add_step(kRung, "third", "second"), lent = add_step("04_test", "first", "");
  first.is_default = lent.has_lse = true;
  first.tiles = kSmall;
  lent.tiles = kWide;
  first.forward = lent.forward = [](const Problem&, const Plan&, const Arrays&) {};
  second.forward_of = "05_test/first";
  third.forward_of = "04_test/first";

  // In any order; and another device's is none.
  add_variant(third);
  add_variant(second);
  add_variant(first);
  lent.device = DeviceKind::gpu;
  add_variant(lent);
  expect_holds(refusal(), {"third names the forward pass of 04_test/first, which is not linked"});
  lent.device = DeviceKind::sim;
  add_variant(lent);
  EXPECT_EQ(refusal(), "none: first second third ");
  const auto steps = steps_of(kRung);
  EXPECT_EQ(steps[1]->tiles.data(), kSmall);
  EXPECT_EQ(steps[2]->tiles.data(), kWide);
  EXPECT_FALSE(steps[1]->has_lse);
  EXPECT_TRUE(steps[2]->has_lse);
}

TEST_F(Steps, ADefaultForEveryDeviceIsNeededAndOneOnly) {
  Variant& first = add("first", "");
  Variant& second = add("second", "first");
  expect_holds(refusal(), {"every device", "none is marked .is_default"});
  second.is_default = true;
  EXPECT_EQ(refusal(), "none: first second ");
  first.is_default = true;
  expect_holds(refusal(), {"first and second are both marked .is_default"});
  second.min_compute_capability = 90;
  EXPECT_EQ(refusal(), "none: first second ");
  first.is_default = false;
  expect_holds(refusal(), {"every device", "none is marked .is_default"});
}

}  // namespace
}  // namespace ladder
