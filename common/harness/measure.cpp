// What a run takes: time, and what DRAM served.

#include <fmt/format.h>

#include "harness/messages.h"
#include "harness/run.h"

namespace ladder {
namespace {

/// Adds what HBM served to the reports; a line on stderr where that cannot be counted.
void count_dram(Device& device, std::vector<PassRun>& passes) {
  try {
    const Progress progress("counting DRAM bytes");
    for (auto& [launch, r] : passes) {
      const DramReport dram = device.dram(launch);
      r.dram = dram.all;
      for (auto& kernel : r.kernels) kernel.dram = dram.kernels.at(kernel.name);
    }
  } catch (const Error& e) {
    if (e.status != Exit::no_device) throw;
    say(fmt::format("--dram: no DRAM bytes: {}", e.what()));
  }
}

}  // namespace

void measure(Device& device, const RunOptions& options, std::vector<PassRun>& passes) {
  const bool timed = device.info().kind == DeviceKind::gpu;
  if (options.time_ms && !timed) say("--time: the sim is not timed, only counted");
  for (auto& [launch, r] : passes) {
    if (!timed) continue;
    const Progress progress(fmt::format("timing {}{}", r.step, r.backward() ? " backward" : ""));
    r.timing = device.time(launch, options.time_ms.value_or(kTimingMs));
    const auto times = device.time_kernels(launch);
    for (auto& kernel : r.kernels) kernel.time_ms = times.at(kernel.name);
  }
  // Counters come last: CUPTI stays in the driver, where it could be in the way of timing.
  if (options.dram) count_dram(device, passes);
}

}  // namespace ladder
