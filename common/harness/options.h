// Parses the command line, whose options are the same for every rung's program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/workload.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {
enum class DeviceChoice { automatic, gpu, sim };

/// Options for running a step on the workload.
struct RunOptions {
  TileRequest tile;
  std::optional<float> time_ms;  // --time, in ms; empty: kTimingMs
  bool dram = false;
  bool verbose = false;
  std::string trace_file;  // --trace; empty: no trace is written
  bool operator==(const RunOptions&) const = default;
};

struct Options {
  WorkloadSpec workload;
  RunOptions run;
  bool json = false;  // print reports as JSON
  std::string save;   // --save; empty: nothing is saved
  DeviceChoice device = DeviceChoice::automatic;
  std::string step;        // --step; empty: the default; each_step() splits "A,B"
  int64_t smem_bytes = 0;  // --sram; 0: the device's limit
  SimOptions sim;
  std::string sim_option;  // the last simulator-only option given
  bool operator==(const Options&) const = default;
};

/// Parses the command line of the program of `rung`. If --help is given, prints the help to stdout
/// and returns nothing; the program then ends with status 0. Throws Error(bad_usage) for unknown
/// options and bad values. (choose_step() checks whether the rung has the step, tile and settings.)
std::optional<Options> parse_options(int argc, char** argv, const std::string& rung);

/// Returns one copy of the options for each step that they name. Throws Error(bad_usage) for an
/// empty name.
std::vector<Options> each_step(const Options& options);

}  // namespace ladder
