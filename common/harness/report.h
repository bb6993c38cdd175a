// What a run found, as a JSON line for programs and as a table for people.
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

/// One rung, step and direction.
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
  std::optional<std::vector<TensorError>> errors = {};  // none where nothing was checked
  int64_t overflowing_rows = 0;                         // see Reference

  bool backward() const { return direction == "bwd"; }
  /// False where an output is wrong; else null where a check decides nothing, or there is none.
  std::optional<bool> pass() const;
  /// Papers' FLOPs of the workload: forward 4·N·N_kv·d·heads·batch, half of that under a causal
  /// mask; backward 2.5 times as many.
  double flops() const;
};

/// One line, no newline: the keys of the programs' contract, null for what does not exist.
std::string to_json(const Report& report);
/// A table within 100 columns, newline at the end.
std::string to_table(const Report& report);
/// What is printed: a line of JSON, or a table; verbose: a block's budget and kernels' counts too.
std::string to_text(const Report& report, const Options& options);

}  // namespace ladder
