// One run of a step: planned, executed, verified, measured, reported.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/choose.h"
#include "harness/report.h"
#include "harness/tensor.h"
#include "harness/workload.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

/// Outputs of a run on the host, and what was run, which is known also where the run fails.
struct Outputs {
  Plan plan;                                            // of the forward pass
  std::vector<std::pair<std::string, int64_t>> arrays;  // in the device's memory, with their bytes
  Tensor O;
  std::vector<float> LSE;  // empty where the rung writes none
  Tensor dQ, dK, dV;       // empty where the step has no backward pass
};

/// Plans, executes, verifies and measures one step: a report of the forward pass, then one of
/// the backward pass where there is one. `outputs` (may be null) receives what the step
/// computed. Throws Error: bad usage, too little memory (before anything is drawn), a fault.
std::vector<Report> run_step(Device& device, const Step& step, const RunOptions& options,
                             Workload& workload, Outputs* outputs = nullptr);

/// Writes a trace. JSON, an object a line:
///   the run           rung, step and workload
///   the arrays        {"arrays": {name: bytes}, "block_q", "block_kv", "warps", "stages"}
///   launches          Trace::Launch's keys; "launch" is its number, "shared" has
///                     [name, begin, bytes]
///   events            TraceEvent's members by their names; those that are 0 or empty are left
///                     out. Events alone have a "kind". "line" and "start_line" are sites, given
///                     as places in the source; ranges are [begin, bytes, stride, count], and of
///                     shared memory [array, 1 if written, ranges]
///   a fault           {"fault": message, "launch", "block", "thread", "line"}, if there was one
void write_trace(const std::string& path, const Step& step, const WorkloadSpec& workload,
                 const Outputs& run, Device& device);

}  // namespace ladder
