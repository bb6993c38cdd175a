// Chooses a device, a step and its plans as the options specify. A program calls open_device(),
// then choose_step(); run_step() then calls plan_run() and require_memory().
#pragma once

#include <memory>
#include <vector>

#include "harness/options.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

/// Opens the device of --device. `auto` opens the GPU if one answers; otherwise it opens the
/// simulator and prints the reason to stderr. `gpu` throws Error(no_device) if there is no GPU.
std::unique_ptr<Device> open_device(const Options& options);

/// Returns this program's steps that are compiled for a device, in the order of the rung.
std::vector<Step> steps_for(DeviceKind device);

/// Returns the step that options.step names. If it is empty, returns the last default step that the
/// device supports or, if that is not compiled for the requested tile, the closest earlier step
/// that is. Throws Error(no_device) if the device cannot run the named step, and Error(bad_usage)
/// if the rung lacks such a step, tile or setting, or the device lacks bf16.
Step choose_step(const Options& options, const DeviceInfo& device);

/// The plans of a run; `backward` is empty without a backward pass.
struct Plans {
  Plan forward, backward;
};
/// Plans both passes: the forward pass with `tile`, both with its settings. Throws Error(bad_usage)
/// if the step lacks the tile or shared memory is too small; the message names the steps that fit.
Plans plan_run(const Step& step, const Problem& p, const TileRequest& tile,
               const DeviceInfo& device);
/// Throws Error(no_device) if inputs, outputs and workspace exceed the device's free memory.
void require_memory(const Step& step, const Problem& p, const Plans& plans,
                    const DeviceInfo& device);

}  // namespace ladder
