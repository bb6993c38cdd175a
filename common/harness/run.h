// One run of a program, from options to reports and a trace.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/options.h"
#include "harness/reference.h"
#include "harness/report.h"
#include "harness/tensor.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

/// The device that the options choose. `--device auto` takes the GPU if one answers, else the sim,
/// and says so with the reason on stderr. Throws Error(no_device).
std::unique_ptr<Device> open_device(const Options& options);

/// The variants linked into this program for a device, in the order of the steps.
std::vector<Variant> variants_for(DeviceKind device);

/// The variant that the options name, else the default, or of the steps that lead to it the last
/// that has the tile asked for.
/// Throws Error(no_device) for one that the device cannot run, and Error(bad_usage) where the rung
/// has no such variant, or none with what was asked for.
Variant choose_variant(const Options& options, const DeviceInfo& device);

/// The plans of a run; `backward` is empty where the variant has no backward pass.
struct Plans {
  Plan forward, backward;
};
/// Throws Error(bad_usage) for tile sizes that the variant does not have, and where it needs more
/// shared memory than there is.
Plans plan_run(const Variant& variant, const Options& options, const DeviceInfo& device);

/// Outputs of a run on the host, and what was run, which is known also where the run fails.
struct Outputs {
  Options options;                                      // with the shapes of what was loaded
  Plan plan;                                            // of the forward pass
  std::vector<std::pair<std::string, int64_t>> arrays;  // in the device's memory, with their bytes
  Tensor O;
  std::vector<float> LSE;  // empty where the rung writes none
  Tensor dQ, dK, dV;       // empty where the variant has no backward pass
};

/// What runs on one workload have in common, each made when it is first needed: the inputs, and the
/// references for each way of rounding and quantising.
struct Workload {
  std::optional<Problem> problem;  // once there are inputs
  Inputs inputs;
  std::map<std::pair<Rounding, std::optional<Quantisation>>, Reference> references;
  std::map<Rounding, GradientReference> gradient_references;
};

/// Plans, runs, verifies and times one variant: a report of the forward pass, then one of the
/// backward pass where there is one.
/// `outputs` (may be null) receives what the variant computed; `workload` (may be null) has or
/// receives what other runs with the same options need too.
/// Throws Error: bad usage, too little memory (before anything is drawn), a fault.
std::vector<Report> run_variant(Device& device, const Variant& variant, Options options,
                                Outputs* outputs, Workload* workload = nullptr);

/// Writes a trace. JSON, an object a line:
///   the run           rung, variant and workload
///   the arrays        {"arrays": {name: bytes}, "block_q", "block_kv", "warps", "stages"}
///   launches          Trace::Launch's keys; "launch" is its number, "shared" has
///                     [name, begin, bytes]
///   events            TraceEvent's keys, those that are 0 or empty left out; they alone have "do",
///                     their `what`. "line" and "from" are places in the source; ranges are [begin,
///                     bytes, stride, count], and of shared memory [array, 1 if written, ranges]
///   a fault           {"fault": message, "launch", "block", "thread", "line"}, if there was one
void write_trace(const std::string& path, const Variant& variant, const Outputs& run,
                 Device& device);

}  // namespace ladder
