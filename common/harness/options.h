// The command line of every rung's program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "machine/device.h"
#include "rung.h"

namespace ladder {
namespace json {
class Members;
}

enum class Input { normal, outliers };
enum class Check { automatic, full, sampled, off };
enum class DeviceChoice { automatic, gpu, sim };

struct Options {
  Problem problem;  // shapes; after --load replaced by the files'
  Input input = Input::normal;
  uint64_t seed = 0;
  std::string load;            // directory, empty: generate
  std::string save;            // directory, empty: do not save
  std::optional<float> scale;  // of problem; empty: 1/√d, see complete()
  DeviceChoice device = DeviceChoice::automatic;
  std::string variant;  // empty: the default; several: "A,B", of which each_variant makes one
  TileRequest tile;
  int64_t sram_bytes = 0;  // what a block may have; 0: what the device has
  SimOptions sim;
  std::string sim_option;  // the last one given that only the sim takes
  Check check = Check::automatic;
  std::optional<float> time_ms;  // --time; empty: kTimingMs
  bool dram = false;
  bool json = false;
  bool verbose = false;
};

/// Prints to stdout. Throws Error(bad_usage) where that cannot be written to.
void print(const std::string& text);
/// Prints a line to stderr. Where that is closed or full there is nobody to tell.
void say(const std::string& line);

/// Parses the command line of the program of `rung`. --help prints to stdout and returns nothing:
/// the program then ends with status 0. Throws Error(bad_usage) for anything else that is not
/// right; whether the rung has such a variant, tile or setting, choose_variant knows.
std::optional<Options> parse_options(int argc, char** argv, const std::string& rung);

/// Adds the workload as it was asked for, or loaded: shapes, type, scale, input and seed.
void add_workload(json::Members& members, const Options& options);

/// The same for each of the variants that they name.
std::vector<Options> each_variant(const Options& options);

/// Derives the problem's scale from its sizes, and refuses those with more rows, of all heads, than
/// an int counts. Also called after --load. Throws Error(bad_usage).
void complete(Options& options);

}  // namespace ladder
