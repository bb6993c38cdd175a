// The command line of every rung's program.
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

/// How a step runs on the workload.
struct RunOptions {
  TileRequest tile;
  std::optional<float> time_ms;  // --time; empty: kTimingMs
  bool dram = false;
  bool verbose = false;
  std::string trace_file;  // --trace; empty: nothing is traced
  bool operator==(const RunOptions&) const = default;
};

struct Options {
  WorkloadSpec workload;
  RunOptions run;
  bool json = false;  // how reports are printed
  std::string save;   // directory, empty: do not save
  DeviceChoice device = DeviceChoice::automatic;
  std::string step;        // empty: the default; several: "A,B", of which each_step makes one
  int64_t smem_bytes = 0;  // what a block may have; 0: what the device has
  SimOptions sim;
  std::string sim_option;  // the last one given that only the simulator takes
  bool operator==(const Options&) const = default;
};

/// Parses the command line of the program of `rung`. --help prints to stdout and returns nothing:
/// the program then ends with status 0. Throws Error(bad_usage) for anything else that is not
/// right; whether the rung has such a step, tile or setting, choose_step knows.
std::optional<Options> parse_options(int argc, char** argv, const std::string& rung);

/// The same for each of the steps that they name.
std::vector<Options> each_step(const Options& options);

}  // namespace ladder
