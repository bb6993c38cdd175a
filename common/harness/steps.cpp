// Stores the steps that register themselves before main() starts, and orders those of a rung.
#include "harness/steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

namespace ladder {
namespace {

using Steps = std::vector<const Step*>;

[[noreturn]] void refuse(const std::string& what) {
  throw std::logic_error("the steps of this rung do not form a ladder: " + what);
}

/// Returns the steps of a rung, keyed by name; under each name the step for the GPU comes first.
std::map<std::string, Steps> by_name(const std::string& rung) {
  std::map<std::string, Steps> found;
  for (const DeviceKind device : {DeviceKind::gpu, DeviceKind::sim})
    for (const Step& step : all_steps())
      if (step.rung == rung && step.device == device) {
        Steps& of_name = found[step.name];
        if (!of_name.empty() && of_name.back()->device == device)
          refuse(fmt::format("two steps are named {}", step.name));
        of_name.push_back(&step);
      }
  return found;
}

void check_defaults(const Steps& steps) {
  std::map<std::pair<DeviceKind, std::string>, const Step*> defaults;
  for (const Step* step : steps) {
    if (!step->is_default) continue;
    const auto [other, first] =
        defaults.try_emplace({step->device, step->needs.capability()}, step);
    if (!first)
      refuse(fmt::format("{} and {} are both marked .is_default", other->second->name, step->name));
  }
  for (const Step* step : steps)
    if (!defaults.count({step->device, Step{}.needs.capability()}))
      refuse("no step that runs on every device is marked .is_default");
}

}  // namespace

Settings choose_settings(std::span<const Setting> settings, const Settings& asked) {
  Settings chosen;
  for (const Setting& setting : settings) {
    const auto found = asked.find(setting.name);
    chosen[setting.name] = found != asked.end() ? found->second : setting.values.front();
  }
  return chosen;
}

std::deque<Step>& all_steps() {
  static std::deque<Step> all;
  return all;
}

void add_step(Step&& added, DeviceKind device, std::string file) {
  added.device = device;
  added.source = file.erase(0, file.rfind(added.rung + "/"));
  all_steps().push_back(std::move(added));
  // The lender may register before or after the borrower, so all pairs are tried every time.
  for (Step& step : all_steps())
    for (const Step& from : all_steps())
      if (step.forward_of == from.rung + "/" + from.name && step.device == from.device) {
        step.has_lse = from.has_lse;
        step.tiles = from.tiles;
        step.forward = from.forward;
      }
}

Steps steps_of(const std::string& rung) {
  const auto named = by_name(rung);
  Steps order;
  // Appends the steps that follow `before` ("": the rung's first), each with its own followers.
  const auto add_followers_of = [&](const auto& self, const std::string& before) -> void {
    Steps followers;
    for (const auto& [name, of_name] : named)
      if (of_name.front()->after == before) followers.push_back(of_name.front());
    std::ranges::stable_partition(followers, &Step::aside);
    for (const Step* step : followers) {
      if (const Step& last = *followers.back(); !step->aside && step != &last)
        refuse(fmt::format("{} and {} {}; one must follow the other, or be marked .aside",
                           step->name, last.name,
                           before.empty() ? "are both first steps" : "both follow " + before));
      order.insert(order.end(), named.at(step->name).begin(), named.at(step->name).end());
      self(self, step->name);
    }
  };
  add_followers_of(add_followers_of, "");
  for (const auto& [name, of_name] : named) {
    const Step& step = *of_name.front();
    if (!step.forward_of.empty() && !step.forward)
      refuse(fmt::format("{} names the forward pass of {}, which is not linked", name,
                         step.forward_of));
    if (std::ranges::count(order, &step) == 0)
      refuse(
          fmt::format("{} follows {}, which does not exist or does not lead back to a first step",
                      name, step.after));
  }
  check_defaults(order);
  return order;
}

Steps back_to_the_first(const Step& step) {
  const Steps all = steps_of(step.rung);
  Steps path;
  std::string name = step.name;
  for (auto at = all.rbegin(); at != all.rend(); ++at)
    if ((*at)->device == step.device && (*at)->name == name) {
      path.push_back(*at);
      name = (*at)->after;
    }
  return path;
}

bool by_name_only(const Step& step) {
  for (const Step* other : steps_of(step.rung)) {
    if (!other->is_default || other->device != step.device) continue;
    for (const Step* on_the_way : back_to_the_first(*other))
      if (on_the_way->name == step.name) return false;
  }
  return true;
}

std::string tiles_text(const Steps& steps) {
  std::vector<std::string> names;
  for (const Step* step : steps)
    for (const TileSize& tile : step->tiles) {
      const std::string name = fmt::format("{}x{}", tile.block_q, tile.block_kv);
      if (std::ranges::count(names, name) == 0) names.push_back(name);
    }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string setting_text(const Setting& setting) {
  return fmt::format("{}={}", setting.name, fmt::join(setting.values, "|"));
}

}  // namespace ladder
