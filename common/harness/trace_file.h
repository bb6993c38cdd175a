// What --trace writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/run.h"
#include "machine/device.h"

namespace ladder {

/// Writes a trace. JSON, an object a line:
///   the run           rung, variant and shapes
///   the arrays        {"arrays": {name: bytes}, "block_q", "block_kv", "warps", "stages"}
///   launches          Trace::Launch's keys; "launch" is its number, "shared" has
///                     [name, begin, bytes]
///   events            TraceEvent's keys, those that are 0 or empty left out; they alone have "do",
///                     their `what`. "line" and "from" are places in the source; ranges are [begin,
///                     bytes, step, count], and of shared memory [array, 1 if written, ranges]
///   a fault           {"fault": message, "launch", "block", "thread", "line"}, if there was one
void write_trace(const std::string& path, const Variant& variant, const Outputs& run,
                 Device& device);

}  // namespace ladder
