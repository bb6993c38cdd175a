#include "harness/steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

namespace ladder {
namespace {

using Steps = std::vector<const Variant*>;

[[noreturn]] void refuse(const std::string& what) {
  throw std::logic_error("its steps make no ladder: " + what);
}

/// The steps of a rung by name, of each the GPU's first.
std::map<std::string, Steps> by_name(const std::string& rung) {
  std::map<std::string, Steps> found;
  for (const DeviceKind device : {DeviceKind::gpu, DeviceKind::sim})
    for (const Variant& v : variants())
      if (v.rung == rung && v.device == device) {
        Steps& step = found[v.name];
        if (!step.empty() && step.back()->device == device)
          refuse(fmt::format("two are called {}", v.name));
        step.push_back(&v);
      }
  return found;
}

void check_defaults(const Steps& steps) {
  std::map<std::pair<DeviceKind, std::string>, const Variant*> defaults;
  for (const Variant* step : steps) {
    if (!step->is_default) continue;
    const auto [other, first] =
        defaults.try_emplace({step->device, step->needed_capability()}, step);
    if (!first)
      refuse(fmt::format("{} and {} are both marked .is_default", other->second->name, step->name));
  }
  for (const Variant* step : steps)
    if (!defaults.count({step->device, Variant{}.needed_capability()}))
      refuse("of those that every device runs none is marked .is_default");
}

}  // namespace

Steps steps_of(const std::string& rung) {
  const auto named = by_name(rung);
  Steps order;
  const auto add_followers_of = [&](const auto& self, const std::string& before) -> void {
    Steps followers;
    for (const auto& [name, step] : named)
      if (step.front()->after == before) followers.push_back(step.front());
    std::ranges::stable_partition(followers, [](const Variant* v) { return v->aside; });
    for (const Variant* v : followers) {
      if (const Variant& last = *followers.back(); !v->aside && v != &last)
        refuse(fmt::format("{} and {} both {}; one of them must follow the other, or be an .aside",
                           v->name, last.name,
                           before.empty() ? "follow none" : "follow " + before));
      order.insert(order.end(), named.at(v->name).begin(), named.at(v->name).end());
      self(self, v->name);
    }
  };
  add_followers_of(add_followers_of, "");
  for (const auto& [name, step] : named) {
    const Variant& v = *step.front();
    if (!v.forward_of.empty() && !v.forward)
      refuse(
          fmt::format("{} names the forward pass of {}, which is not linked", name, v.forward_of));
    if (std::find(order.begin(), order.end(), &v) == order.end())
      refuse(fmt::format("{} follows {}, which is not there or leads back to no first one", name,
                         v.after));
  }
  check_defaults(order);
  return order;
}

Steps back_to_the_first(const Variant& step) {
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

bool by_name_only(const Variant& step) {
  for (const Variant* other : steps_of(step.rung)) {
    if (!other->is_default || other->device != step.device) continue;
    for (const Variant* on_the_way : back_to_the_first(*other))
      if (on_the_way->name == step.name) return false;
  }
  return true;
}

std::string tiles_text(const Steps& steps) {
  std::vector<std::string> names;
  for (const Variant* step : steps)
    for (const TileSize& tile : step->tiles) {
      const std::string name = fmt::format("{}x{}", tile.block_q, tile.block_kv);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string setting_text(const Setting& setting) {
  return fmt::format("{}={}", setting.name, fmt::join(setting.values, "|"));
}

}  // namespace ladder
