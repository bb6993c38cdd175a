// Chooses the device, the step and its plans according to the options, and refuses what cannot run.
#include "harness/choose.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/messages.h"
#include "harness/steps.h"

namespace ladder {

std::unique_ptr<Device> open_device(const Options& options) {
  const bool automatic = options.device == DeviceChoice::automatic;
  SimOptions sim = options.sim;
  if (options.smem_bytes) sim.smem_bytes = options.smem_bytes;
  sim.trace = !options.run.trace_file.empty();
  if (options.device == DeviceChoice::sim) return open_sim(sim);
  if (automatic && !options.sim_option.empty()) {
    say(fmt::format("running on the simulator: --{} works only there", options.sim_option));
    return open_sim(sim);
  }
  try {
    return open_gpu(options.smem_bytes);
  } catch (const Error& e) {
    if (!automatic)
      throw Error(e.status, fmt::format("{}; --device sim runs on the CPU", e.what()));
    say(fmt::format("running on the simulator: {}", e.what()));
  }
  return open_sim(sim);
}

std::vector<Step> steps_for(DeviceKind device) {
  std::vector<Step> found;
  for (const Step* step : steps_of(all_steps().front().rung))
    if (step->device == device) found.push_back(*step);
  return found;
}

Step choose_step(const Options& options, const DeviceInfo& device) {
  if (options.workload.problem.dtype == DType::bf16 && !device.has_bf16())
    bad_usage(
        "--dtype bf16: the tensor cores of {} support only fp16 (bf16 needs compute capability "
        "8.0); use --dtype fp16",
        device.name);
  const TileRequest& asked = options.run.tile;
  const auto all = steps_for(device.kind);
  std::vector<const Step*> candidates;  // preferred first
  if (!options.step.empty()) {
    std::string names;
    for (const Step& step : all) {
      names += (names.empty() ? "" : ", ") + step.name;
      if (step.name == options.step) candidates = {&step};
      if (std::ranges::count(step.formerly, options.step))
        bad_usage("--step {0}: {1} has replaced this step; give --step {1}", options.step,
                  step.name);
    }
    if (candidates.empty())
      bad_usage("--step '{}': unknown on the {}; give one of {}", options.step,
                device.kind == DeviceKind::gpu ? "GPU" : "simulator", names);
    const Step& step = *candidates.front();
    if (!step.runs_on(device))
      throw Error(Exit::no_device,
                  fmt::format("step {} needs compute capability {}, but {} runs code for "
                              "{}.{}; --device sim runs it on the CPU",
                              step.name, step.needs.capability(), device.name,
                              device.compute_capability / 10, device.compute_capability % 10));
  }
  // Without --step, the candidates are the last supported default and all steps before it.
  for (auto step = all.rbegin(); step != all.rend() && candidates.empty(); ++step)
    if (step->is_default && step->runs_on(device)) candidates = back_to_the_first(*step);

  const auto chosen = std::ranges::find_if(candidates, [&](const Step* step) {
    const auto matches = [&](const TileSize& tile) { return asked.matches(tile); };
    return asked.is_empty() || std::ranges::any_of(step->tiles, matches);
  });
  if (chosen == candidates.end()) {
    std::string given;
    if (asked.block_q) given += fmt::format(" --block-q {}", asked.block_q);
    if (asked.block_kv) given += fmt::format(" --block-kv {}", asked.block_kv);
    const std::string tiles = tiles_text(candidates);
    bad_usage("no tile is compiled for{}; {}", given,
              tiles.empty() ? candidates.front()->name + " takes no tile size; leave the option out"
                            : "give one of " + tiles);
  }
  for (const auto& [name, value] : asked.settings) {
    std::string known;
    bool good = false;
    for (const Setting& setting : (*chosen)->settings) {
      known += (known.empty() ? "" : ", ") + setting_text(setting);
      good |= name == setting.name && std::ranges::count(setting.values, value) > 0;
    }
    if (!good)
      bad_usage("--set {}={}: {} takes {}", name, value, (*chosen)->name,
                known.empty() ? "no settings; leave it out or name a --step that has it" : known);
  }
  return **chosen;
}

Plans plan_run(const Step& step, const Problem& p, const TileRequest& tile,
               const DeviceInfo& device) {
  const auto plans = [&](const Step& candidate) -> Plans {
    Plans made{candidate.forward.plan(p, device, tile),
               candidate.backward ? candidate.backward.plan(p, device, {.settings = tile.settings})
                                  : Plan{}};
    const int64_t most = std::max(made.forward.smem_bytes, made.backward.smem_bytes);
    if (most > device.smem_bytes)
      bad_usage("shared memory: {} needs {} bytes per block at head-dim {}, and {} are available",
                candidate.name, most, p.d, device.smem_bytes);
    return made;
  };
  try {
    return plans(step);
  } catch (const Error& e) {
    std::string others;
    for (const Step& candidate : steps_for(device.kind)) {
      if (!candidate.runs_on(device)) continue;
      try {
        plans(candidate);
        others += (others.empty() ? "" : ", ") + candidate.name;
      } catch (const Error&) {
      }
    }
    if (others.empty()) throw;
    throw Error(e.status, fmt::format("{}; steps that fit: {}", e.what(), others));
  }
}

void require_memory(const Step& step, const Problem& p, const Plans& plans,
                    const DeviceInfo& device) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const double q = 1.0 * p.B * p.H * p.N * p.d * kIoBytes;
  const double kv = 1.0 * p.B * p.Hk * p.N_kv * p.d * kIoBytes;
  // Q and O, K and V; a backward pass adds the gradient of each. LSE has 4 bytes per row.
  double io = (2 * q + 2 * kv) * (step.backward ? 2 : 1), workspace = 0;
  if (step.has_lse) io += 4.0 * p.B * p.H * p.N;
  for (const Plan* plan : {&plans.forward, &plans.backward})
    for (const auto& array : plan->workspace) workspace += static_cast<double>(array.bytes);
  if (io + workspace <= static_cast<double>(device.memory_free)) return;
  std::string what =
      fmt::format("{} needs {:.1f} GiB of {}: {:.1f} for inputs and outputs", step.rung,
                  (io + workspace) / kGiB,
                  device.kind == DeviceKind::gpu
                      ? "GPU memory"
                      : "memory (a quarter of the host's: the simulator tracks every byte)",
                  io / kGiB);
  if (workspace > 0) what += fmt::format(", {:.1f} for its workspace", workspace / kGiB);
  if (step.rounding == Rounding::S_and_P_stored)
    what += step.backward ? " (S, P and dP)" : " (S and P)";
  what += fmt::format("; {:.1f} GiB of {:.1f} are free. ",
                      static_cast<double>(device.memory_free) / kGiB,
                      static_cast<double>(device.memory_bytes) / kGiB);
  what += step.needs.less_memory.empty()
              ? "Use a smaller --batch, --heads or --seqlen"
              : "Use " + step.needs.less_memory +
                    ", which store neither S nor P and need only O(N) beyond inputs and outputs";
  throw Error(Exit::no_device, what);
}

}  // namespace ladder
