// What of the steps' registrations is refused, and whose forward pass a step has.
#include "harness/steps.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ladder {
namespace {

const TileSize kWide[] = {{128, 128, 128}}, kSmall[] = {{128, 64, 64}};

void add_all(const char* rung, const std::vector<Variant>& steps,
             DeviceKind device = DeviceKind::sim) {
  for (Variant v : steps) {
    v.rung = rung;
    v.device = device;
    add_variant(v);
  }
}

/// The names of the steps in order, or why they make no ladder.
std::string order() {
  try {
    std::string names;
    for (const Variant* v : steps_of("06_test")) names += v->name + " ";
    return names;
  } catch (const std::logic_error& e) {
    return e.what();
  }
}

// Registrations, and the order that they have or why it is none.
TEST(Steps, ThatMakeNoLadderAreRefused) {
  const Variant unmarked{.name = "first"}, first{.name = "first", .is_default = true};
  const Variant second{.name = "second", .after = "first"},
      marked{.name = "second", .after = "first", .is_default = true};
  const Variant third{.name = "third", .after = "first"},
      aside{.name = "third", .after = "first", .aside = true};
  Variant for_hopper = marked;
  for_hopper.min_compute_capability = 90;
  const std::pair<std::vector<Variant>, const char*> ladders[] = {
      {{first, {.name = "second", .after = "frist"}},
       "second follows frist, which is not there or"},
      {{first, {.name = "second", .after = "third"}, {.name = "third", .after = "second"}},
       "second follows third, which"},
      {{{.name = "first", .after = "first", .is_default = true}}, "first follows first, which"},
      {{first, first}, "two are called first"},
      {{first, second, third}, "second and third both follow first; one of them must follow the "},
      {{first, second, aside}, "first third second "},
      {{first, {.name = "also_first"}}, "also_first and first both follow none"},
      {{unmarked, second}, "of those that every device runs none is marked .is_default"},
      {{unmarked, marked}, "first second "},
      {{first, marked}, "first and second are both marked .is_default"},
      {{first, for_hopper}, "first second "},
      {{unmarked, for_hopper}, "of those that every device runs none is marked .is_default"},
  };
  for (const auto& [steps, wanted] : ladders) {
    variants().clear();
    add_all("06_test", steps);
    EXPECT_NE(order().find(wanted), std::string::npos) << order() << wanted;
  }
}

TEST(Steps, AForwardPassIsOfAnotherStepOfThisRungOrAnEarlierOne) {
  const auto forward = [](const Problem&, const Plan&, const Arrays&) {};
  const Variant lent{.name = "first", .has_lse = true, .tiles = kWide, .forward = forward};
  variants().clear();
  // In any order; and another device's is none.
  add_all("06_test", {{.name = "third", .after = "second", .forward_of = "04_test/first"},
                      {.name = "second", .after = "first", .forward_of = "06_test/first"},
                      {.name = "first", .is_default = true, .tiles = kSmall, .forward = forward}});
  add_all("04_test", {lent}, DeviceKind::gpu);
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

}  // namespace
}  // namespace ladder
