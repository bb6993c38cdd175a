// One run of a step: planned, executed, verified, measured, reported.
#pragma once

#include <vector>

#include "harness/choose.h"
#include "harness/report.h"
#include "harness/tensor.h"
#include "harness/workload.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

/// Outputs of a run on the host.
struct Outputs {
  Tensor O;
  std::vector<float> LSE;  // empty where the rung writes none
  Tensor dQ, dK, dV;       // empty where the step has no backward pass
};

/// Plans, executes, verifies and measures one step: a report of the forward pass, then one of
/// the backward pass where there is one. `outputs` (may be null) receives what the step
/// computed. Throws Error: bad usage, too little memory (before anything is drawn), a fault. What
/// --trace asks for is written also where a fault ends the run.
std::vector<Report> run_step(Device& device, const Step& step, const RunOptions& options,
                             Workload& workload, Outputs* outputs = nullptr);

}  // namespace ladder
