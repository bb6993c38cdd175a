// Writes the file of --trace.
#pragma once

#include <string>

#include "harness/workload.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

/// Writes the events of the device's last run as JSON, one object per line. `plan` is that of the
/// forward pass. Throws Error(bad_usage) if the file cannot be written. The lines:
///   the run           rung, step and workload
///   the arrays        {"arrays": {name: bytes}, "block_q", "block_kv", "warps", "stages"}
///   launches          Trace::Launch's keys; "launch" is its number, "shared" has
///                     [name, begin, bytes]
///   events            TraceEvent's members by their names; those that are 0 or empty are left
///                     out. No other line contains "kind". "line" and "start_line" are sites, given
///                     as places in the source; ranges are [begin, end], and of shared memory
///                     [array, 1 if written, ranges]
///   a fault           {"fault": message, "launch", "block", "thread", "line"}, if there was one
void write_trace(const std::string& path, const Step& step, const WorkloadSpec& workload,
                 const Plan& plan, const Arrays& arrays, Device& device);

}  // namespace ladder
