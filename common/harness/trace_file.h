// Writes the file of --trace. scripts/ladder/trace/read.py reads it, and scripts/explore shows it.
#pragma once

#include <string>

#include "harness/workload.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {

/// Writes the events of the device's last run to `path` as JSON, one object per line. `plan` is the
/// plan of the forward pass. Throws Error(bad_usage) if the file cannot be written. The lines are:
///   the run           rung, step, workload and "counts", the keys of all counts
///   the arrays        {"arrays": {name: bytes}, "block_q", "block_kv", "warps", "stages"}
///   launches          Trace::Launch's members; "launch" is its number, "shared" contains
///                     [name, begin, bytes]
///   events            TraceEvent's members under their names, without those that are 0 or
///                     empty. No other line contains "kind". "line" and "start_line" are the
///                     sites as "file:line". Ranges are [begin, end) in bytes; an entry in
///                     "shared" is [array, 1 if written else 0, ranges]
///   a fault           {"fault": message, "launch", "block", "thread", "line"}, if one occurred
void write_trace(const std::string& path, const Step& step, const WorkloadSpec& workload,
                 const Plan& plan, const Arrays& arrays, Device& device);

}  // namespace ladder
