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
  Options options;
  options.tile = {.block_q = 64};
  EXPECT_EQ(chosen(DeviceKind::gpu, 90, options), "first");
  options.tile = {.block_q = 256};  // plan() refuses it, in the default's words
  EXPECT_EQ(chosen(DeviceKind::gpu, 90, options), "fast");
  options = {};
  options.deterministic = true;
  EXPECT_EQ(chosen(DeviceKind::gpu, 90, options), "alone");
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
