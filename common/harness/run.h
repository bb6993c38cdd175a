// Runs a step, for programs and tests: plans, executes, verifies, measures and reports it.
#pragma once

#include <vector>

#include "harness/choose.h"
#include "harness/report.h"
#include "harness/tensor.h"
#include "harness/workload.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

/// The outputs of a run, copied to the host. Problem gives their shapes; dQ has Q's, and so on.
struct Outputs {
  Tensor O;
  std::vector<float> LSE;  // empty if the step writes none
  Tensor dQ, dK, dV;       // empty without a backward pass
};

/// Plans, executes, verifies and measures one step; only a GPU's runs are timed. Returns a report
/// on the forward pass and then, if the step has one, on the backward pass. `outputs`, which may be
/// null, receives the step's outputs. Throws Error for bad usage, for too little memory (before the
/// inputs are drawn) and for a fault; after a fault the file of --trace is still written.
std::vector<Report> run_step(Device& device, const Step& step, const RunOptions& options,
                             Workload& workload, Outputs* outputs = nullptr);

}  // namespace ladder
