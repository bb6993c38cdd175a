// Parses the command line. Every rung's program has the same options; --help lists them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/workload.h"
#include "machine/device.h"
#include "rung.h"

namespace ladder {
enum class DeviceChoice { automatic, gpu, sim };  // --device

/// The options that run_step() reads.
struct RunOptions {
  TileRequest tile;              // --block-q, --block-kv and --set
  std::optional<float> time_ms;  // --time, in ms; empty: kTimingMs
  bool dram = false;             // --dram: count the bytes that DRAM serves
  bool verbose = false;          // --verbose: print the plans' notes and a block's budget
  std::string trace_file;        // --trace; empty: no trace is written
  bool operator==(const RunOptions&) const = default;
};

struct Options {
  WorkloadSpec workload;
  RunOptions run;
  bool json = false;  // print reports as JSON
  std::string save;   // --save; empty: nothing is saved
  DeviceChoice device = DeviceChoice::automatic;
  std::string step;        // --step; empty: the default; each_step() splits "A,B"
  int64_t smem_bytes = 0;  // --sram, bytes per block; 0: the device's limit
  SimOptions sim;
  std::string sim_option;  // the last given option that only the simulator has; empty: none
  bool operator==(const Options&) const = default;
};

/// Parses the command line of the program of `rung`. If --help is given, prints the help to stdout
/// and returns nullopt; the program then ends with status 0. Throws Error(bad_usage) for unknown
/// options, bad values, and options that exclude each other. (choose_step() checks --step.)
std::optional<Options> parse_options(int argc, char** argv, const std::string& rung);

/// Returns one copy of the options for each step that --step A,B names, with one name in .step.
/// Without --step, returns a single copy. Throws Error(bad_usage) for an empty name.
std::vector<Options> each_step(const Options& options);

}  // namespace ladder
