// What the options choose: a device, a step, and its plans.
#pragma once

#include <memory>
#include <vector>

#include "harness/options.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

/// The device that the options choose. `--device auto` takes the GPU if one answers, else the
/// simulator, and says so with the reason on stderr. Throws Error(no_device).
std::unique_ptr<Device> open_device(const Options& options);

/// The steps linked into this program for a device, in the order of the steps.
std::vector<Step> steps_for(DeviceKind device);

/// The step that the options name, else the default, or of the steps that lead to it the last
/// that has the tile asked for.
/// Throws Error(no_device) for one that the device cannot run, and Error(bad_usage) where the rung
/// has no such step, or none with what was asked for.
Step choose_step(const Options& options, const DeviceInfo& device);

/// The plans of a run; `backward` is empty where the step has no backward pass.
struct Plans {
  Plan forward, backward;
};
/// Throws Error(bad_usage) for tile sizes that the step lacks, or too little shared memory.
Plans plan_run(const Step& step, const Problem& p, const TileRequest& tile,
               const DeviceInfo& device);
/// Throws Error(no_device) where inputs, outputs and workspace do not fit into the device's memory.
void require_memory(const Step& step, const Problem& p, const Plans& plans,
                    const DeviceInfo& device);

}  // namespace ladder
