// The result of a run, as a line of JSON for programs and as a table for people.
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

/// The result of one step and direction.
struct Report {
  std::string rung, step, direction;  // direction: "fwd" or "bwd"
  WorkloadSpec workload = {};
  DeviceInfo device = {};
  Plan plan = {};
  std::vector<KernelReport> kernels = {};
  Traffic predicted_traffic = {};  // by Pass::traffic; in JSON model_*_bytes
  std::optional<Timing> timing = {};
  std::optional<ReadWrite> dram = {};  // of --dram
  int64_t workspace_bytes = 0;
  std::optional<std::vector<TensorError>> errors = {};  // none if nothing was checked
  int64_t overflowing_rows = 0;                         // see Reference

  bool backward() const { return direction == "bwd"; }
  /// False if an output is wrong; else null if a check decides nothing or nothing was checked.
  std::optional<bool> pass() const;
  /// The FLOPs of the workload as the papers count them: forward 4·N·N_kv·d·heads·batch, half of
  /// that under a causal mask; backward 2.5 times that.
  double flops() const;
};

/// Returns one line without a newline, with the keys of common/CONTRACTS.md; a value that does not
/// exist is null.
std::string to_json(const Report& report);
/// Returns a table of at most 100 columns, which ends with a newline.
std::string to_table(const Report& report);
/// Returns the text to print: a line of JSON or a table; with --verbose the table is followed by a
/// block's budget and the kernels' counts.
std::string to_text(const Report& report, const Options& options);

}  // namespace ladder
