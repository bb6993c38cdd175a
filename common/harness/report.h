// Holds the result of a run, and formats it as a line of JSON for programs or a table for people.
// run_step() fills in reports; main.cpp prints them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/json.h"
#include "harness/reference.h"
#include "harness/workload.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

struct Options;

/// The result of running one step in one direction (forward or backward pass).
struct Report {
  std::string rung, step, direction;  // direction: "fwd" or "bwd"
  WorkloadSpec workload = {};
  DeviceInfo device = {};
  Plan plan = {};
  std::vector<KernelReport> kernels = {};
  Traffic predicted_traffic = {};      // from Pass::traffic; model_*_bytes in JSON
  std::optional<Timing> timing = {};   // nullopt on the simulator
  std::optional<ReadWrite> dram = {};  // bytes of the whole pass, counted with --dram
  int64_t workspace_bytes = 0;         // allocated for this pass
  std::optional<std::vector<TensorError>> errors = {};  // per output; nullopt: not checked
  int64_t overflowing_rows = 0;  // rows whose Σ exp(S) leaves float32's range; see Reference

  bool backward() const { return direction == "bwd"; }
  /// Returns false if an output fails its check, nullopt if a check is inconclusive or nothing was
  /// checked, and true if all outputs pass.
  std::optional<bool> pass() const;
  /// Returns the FLOPs of the workload as the papers count them: forward 4·N·N_kv·d·heads·batch,
  /// half of that under a causal mask; backward 2.5 times as many.
  double flops() const;
};

/// Returns one line of JSON, without a newline. common/CONTRACTS.md documents its keys; a value
/// that does not exist is null.
std::string to_json(const Report& report);
/// Returns a table at most 100 characters wide, which ends with a newline.
std::string to_table(const Report& report);
/// Returns the text to print, with a final newline: with --json a line of JSON, otherwise a table.
/// With --verbose, a block's shared memory and registers and all counts follow the table.
std::string to_text(const Report& report, const Options& options);

}  // namespace ladder
