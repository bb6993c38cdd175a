// The order of a rung's steps, what is refused of it, and which step runs where none is named.
#include "harness/steps.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

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

TEST_F(Steps, OneThatFollowsNoStepThatIsThereIsRefused) {
  add("first", "").is_default = true;
  add("second", "frist");
  expect_holds(refusal(), {"second follows frist, which is not there"});
}

TEST_F(Steps, TwoThatFollowTheSameOneAreRefusedUnlessOneIsAnAside) {
  add("first", "").is_default = true;
  add("second", "first");
  Variant& third = add("third", "first");
  expect_holds(refusal(), {"second and third both follow first", "aside"});
  third.aside = true;
  EXPECT_EQ(refusal(), "none: first third second ");
  add("also_first", "");
  expect_holds(refusal(), {"also_first and first both follow none"});
}

TEST_F(Steps, ACircleIsRefused) {
  add("first", "").is_default = true;
  add("second", "third");
  add("third", "second");
  expect_holds(refusal(), {"from second no way leads back"});
  variants().clear();
  add("first", "first").is_default = true;
  expect_holds(refusal(), {"from first no way leads back"});
}

TEST_F(Steps, TwoOfANameAreRefused) {
  add("first", "").is_default = true;
  add("first", "", DeviceKind::gpu).is_default = true;
  EXPECT_EQ(refusal(), "none: first first ");
  add("first", "");
  expect_holds(refusal(), {"two are called first"});
}

TEST_F(Steps, AForwardPassIsOfAnotherStepOfThisRungOrAnEarlierOne) {
  const auto nothing = [](const Problem&, const Plan&, const Arrays&) {};
  Variant first, lent, second, third;
  first.rung = second.rung = third.rung = kRung;
  first.name = "first";
  first.is_default = true;
  first.tiles = kSmall;
  first.forward = nothing;
  second.name = "second";
  second.after = "first";
  second.forward_of = "05_test/first";
  third.name = "third";
  third.after = "second";
  third.forward_of = "04_test/first";
  lent.rung = "04_test";
  lent.name = "first";
  lent.tiles = kWide;
  lent.has_lse = true;
  lent.forward = nothing;

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
