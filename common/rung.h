// The contract between a rung and the harness. A rung says what it needs (plan), runs (forward,
// backward), and states its HBM traffic as a formula (traffic); the harness does the rest and knows
// no kernel. No CUDA types appear here: the same contract holds for both devices, gpu and sim.
// What is only declared here is in harness/steps.cpp, so that not each step's file compiles it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "quantisation.h"

namespace ladder {

/// What a program's exit status means; an Error carries the one it ends the program with.
enum class Exit { good = 0, wrong_result = 1, bad_usage = 2, no_device = 3 };

/// An error for the person at the keyboard: says what was wrong, the value, and the way out.
struct Error : std::runtime_error {
  Error(Exit status, const std::string& what) : std::runtime_error(what), status(status) {}
  Exit status;
};

enum class DType { fp16, bf16 };

/// One attention workload. Q, O: (B, H, N, d); K, V: (B, Hk, N_kv, d); LSE: (B, H, N); row-major.
/// Trivially copyable, so that a kernel can take it as a parameter.
struct Problem {
  int B = 1;       // batch
  int H = 2;       // query heads
  int Hk = 2;      // key/value heads; query head h uses K/V head ⌊h·Hk/H⌋
  int N = 256;     // queries
  int N_kv = 256;  // keys
  int d = 64;      // head size, a multiple of 8 up to 256
  bool causal = false;
  DType dtype = DType::fp16;  // of Q, K, V, O, and of S and P where they are stored
  float scale = 0.125f;       // S = scale·QKᵀ; positive and finite

  bool operator==(const Problem&) const = default;

  /// Whether query i sees key j: always, or under the causal mask aligned bottom-right.
  constexpr bool attends(int i, int j) const { return !causal || j - i <= N_kv - N; }
  /// How many keys query i sees: keys 0 … keys(i) − 1. Rows that a tile has past the last query see
  /// as many as that one does, so a tile's bound is the same with and without them.
  constexpr int keys(int i) const {
    const int64_t k = causal ? int64_t{i} + N_kv - N + 1 : N_kv;
    return static_cast<int>(k < 0 ? 0 : k < N_kv ? k : N_kv);
  }
  /// The first query that sees key j, N if none does; all after it see it too.
  constexpr int first_query(int j) const {
    const int64_t i = causal ? int64_t{j} - N_kv + N : 0;
    return static_cast<int>(i < 0 ? 0 : i < N ? i : N);
  }
  /// First row of Q (and O) and of K (and V) of the bh-th of the B·H heads, counted in rows of d.
  constexpr int64_t q_row(int bh) const { return int64_t{bh} * N; }
  constexpr int64_t kv_row(int bh) const { return (int64_t{bh / H} * Hk + kv_head(bh % H)) * N_kv; }
  /// The head of K and V of query head h: ⌊h·Hk/H⌋, and Hk divides H. (h·Hk may exceed 2³¹.)
  constexpr int kv_head(int h) const { return h / (H / Hk); }
};

/// Bytes of one element of the I/O type.
inline constexpr int64_t kIoBytes = 2;

enum class DeviceKind { gpu, sim };

/// What a plan may depend on, and what a report says of the device.
struct DeviceInfo {
  DeviceKind kind = DeviceKind::sim;
  std::string name;           // "NVIDIA H100 80GB HBM3", "sim on 2 cores"
  int64_t memory_bytes = 0;   // HBM in all; on the simulator the host's memory
  int64_t memory_free = 0;    // HBM that can still be allocated
  int64_t smem_bytes = 0;     // shared memory that one block can have
  int64_t l2_bytes = 0;       // 0 on the simulator
  int multiprocessors = 132;  // SMs; an H100's where no device is asked (--list)
  int compute_capability =
      0;  // 90 for 9.0; on the simulator 90: it runs every construct that rungs use
  bool has_bf16() const { return compute_capability >= 80; }
};

/// A named array in a device's HBM.
struct Array {
  std::string name;
  void* data = nullptr;
  int64_t bytes = 0;
};

/// The arrays of one run by the names the papers use: Q, K, V, O, LSE, …, and the workspace's.
class Arrays {
 public:
  /// Null where there is none of that name.
  Array* find(const std::string& name) const {
    for (auto* array : arrays_)
      if (array->name == name) return array;
    return nullptr;
  }
  Array& operator[](const std::string& name) const {
    if (Array* array = find(name)) return *array;
    throw std::logic_error("no array named " + name);
  }
  void add(Array* array) { arrays_.push_back(array); }
  const std::vector<Array*>& all() const { return arrays_; }

 private:
  std::vector<Array*> arrays_;
};

/// Device memory that a rung needs beyond inputs and outputs.
struct WorkspaceArray {
  std::string name;
  int64_t bytes;
};

/// A tile that a step is compiled for, for heads padded to max_d: the smallest that holds them.
struct TileSize {
  int max_d;     // one of kHeadDims or kAllHeadDims
  int block_q;   // Br, rows of Q
  int block_kv;  // Bc, rows of K and V
  bool operator==(const TileSize&) const = default;
};

/// A choice that a step leaves to who runs it, --set NAME=VALUE.
struct Setting {
  const char* name;
  std::vector<const char*> values;  // the default first
  const char* summary;              // one line for --help
};

/// What is chosen: a setting's name → one of its values.
using Settings = std::map<std::string, std::string>;

/// Of each of a step's settings what was asked for, else its default.
Settings choose_settings(std::span<const Setting> settings, const Settings& asked);

/// Tile sizes asked for with --block-q and --block-kv, 0 leaving the choice to the step, and
/// settings with --set.
struct TileRequest {
  int block_q = 0;
  int block_kv = 0;
  Settings settings = {};
  bool operator==(const TileRequest&) const = default;
  bool is_empty() const { return block_q == 0 && block_kv == 0; }  // of tile sizes
  bool matches(const TileSize& tile) const {
    return (block_q == 0 || block_q == tile.block_q) &&
           (block_kv == 0 || block_kv == tile.block_kv);
  }
};

/// Everything that a run's counts depend on, fixed before it starts. 0 means: this rung has none.
struct Plan {
  int block_q = 0;   // Br, rows of Q in a tile
  int block_kv = 0;  // Bc, rows of K and V in a tile
  int head_dim = 0;  // d padded on chip
  int warps = 0;     // of a block
  int stages = 0;    // of asynchronous copies
  int parts = 1;     // blocks that share the work on one tile, where a step does that
  int64_t smem_bytes = 0;
  std::vector<WorkspaceArray> workspace = {};
  Settings settings = {};                         // of the step, all of them
  std::optional<Quantisation> quantisation = {};  // what the reference has to do too
  std::string note = {};  // a choice worth a line under --verbose, such as a smaller tile that fits
};

/// Bytes of global memory that one kernel requests of one array.
struct ArrayTraffic {
  std::string array;
  int64_t read = 0;
  int64_t write = 0;
};

struct KernelTraffic {
  std::string kernel;
  std::vector<ArrayTraffic> arrays;
};

/// A run's requested HBM traffic by formula, kernel by kernel in launch order: exact to the byte.
using Traffic = std::vector<KernelTraffic>;

/// Where an algorithm must round to the I/O type, which decides how large an error is acceptable.
enum class Rounding {
  S_and_P_stored,  // S, P and O
  on_chip          // P (and dS) as matrix operands, and the outputs
};

/// Longest N at which scripts/figures measures a step on FlashAttention-2's workload; 0: no limit.
struct GridLimit {
  int full = 0;    // without a mask
  int causal = 0;  // with it
};

/// The count that a step's idea is about, and what becomes of it against the step before: a key of
/// JSON ("requested_bytes", "hbm_sectors" and the like: read and written together), and "less",
/// "more", "to 0" or "from 0".
struct Change {
  std::string count = {};
  std::string how = {};
  std::string on = {};  // options of the workload where it shows; empty: any
};

/// How figures, tables and --help show a step.
struct Shown {
  std::string idea = {};      // in at most three words, for the table of scripts/run
  Change change = {};         // of its idea, held by a test; empty: nothing comes before it
  std::string summary = {};   // one line for --help
  std::string colour = {};    // of the rung in figures, "#5a5a5a"
  bool decoding = false;      // for few queries: no part of the grids that are measured
  GridLimit grid_limit = {};  // of a step that is slow
};

/// What a step needs of a GPU and of the workload.
struct Needs {
  int min_compute_capability = 75;
  bool exact_architecture = false;  // on GPUs of that major number only (code for sm_90a)
  // The rung named in the error when this limit is met. Empty: it has no such limit.
  std::string max_subtracted_by = {};  // the rung that subtracts the row maximum
  std::string less_memory = {};        // the one that stores neither S nor P

  /// "7.5" and up, or "9.x" and no other.
  std::string capability() const {
    return std::to_string(min_compute_capability / 10) + "." +
           (exact_architecture ? "x" : std::to_string(min_compute_capability % 10));
  }
};

/// A pass of a step, forward or backward; one that is not there has no functions.
struct Pass {
  /// Throws Error(bad_usage) for tile sizes that are not compiled or do not fit. (A backward pass
  /// takes no request: its tiles are its own.)
  Plan (*plan)(const Problem&, const DeviceInfo&, const TileRequest&) = nullptr;
  /// The forward pass reads Q, K, V and writes O (and LSE); the backward pass reads Q, K, V, O,
  /// LSE, dO and writes dQ, dK, dV, after a run of the forward pass, whose workspace is still
  /// there. Launches only, does not wait.
  void (*launch)(const Problem&, const Plan&, const Arrays&) = nullptr;
  Traffic (*traffic)(const Problem&, const Plan&) = nullptr;
  explicit operator bool() const { return launch != nullptr; }
};

/// One step of a rung, compiled for one device. It says here what it can do, what it needs and how
/// figures show it; the harness and the scripts know no step by name.
struct Step {
  std::string rung;        // "00_naive"
  std::string name;        // --step NAME
  std::string after = {};  // the step that it follows; empty: it is the rung's first
  bool aside = false;      // a branch of its own: another step may follow the same one
  std::vector<std::string> formerly = {};  // names of earlier steps that this one now contains
  /// What a run takes that names no step; of several, the last that the device runs.
  bool is_default = false;
  Shown shown = {};
  Needs needs = {};

  Rounding rounding = Rounding::on_chip;
  bool has_lse = false;                    // writes LSE
  bool deterministic = false;              // its gradients have the same bits on every run
  std::span<const TileSize> tiles = {};    // compiled; empty: --block-* not taken
  std::span<const Setting> settings = {};  // that --set takes
  /// Another step, "05_flash_v2/sm90", whose forward pass, tiles and all, is this one's. Where it
  /// is of another rung, add_rung() in CMakeLists.txt names its file. Empty: its own.
  std::string forward_of = {};
  Pass forward = {}, backward = {};

  DeviceKind device = DeviceKind::sim;  // set by Register
  std::string source = {};              // its file, "05_flash_v2/rows.cu": set by Register

  bool runs_on(const DeviceInfo& info) const {
    const int least = needs.min_compute_capability;
    return least <= info.compute_capability &&
           (!needs.exact_architecture || least / 10 == info.compute_capability / 10);
  }
};

/// All steps linked into this program, of every rung and device; the first is of the program's
/// rung. (A deque: registrations hold no pointers into it, but readers do.)
std::deque<Step>& all_steps();

/// Puts a step on the list: of a file, compiled for a device. A forward pass that one names becomes
/// its own once both are there.
void add_step(Step&& added, DeviceKind device, std::string file);

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// The head sizes that most kernels are compiled for, and those of a rung's last steps.
inline constexpr int kHeadDims[] = {32, 64, 128, 256};
inline constexpr int kAllHeadDims[] = {32, 64, 96, 128, 192, 256};

/// d padded on chip, to the smallest of `sizes` that holds it.
template <const auto& sizes = kHeadDims>
constexpr int padded_head_dim(int d) {
  return *std::ranges::find_if(sizes, [d](int size) { return size >= d; });
}

/// Blocks of `tile` that cover `length`, along grid.y or grid.z, which hold 65,535 at most. Throws
/// Error(bad_usage) where that is not enough, so that plans call it too.
inline unsigned grid_blocks(int64_t length, int64_t tile) {
  const int64_t blocks = ceil_div(length, tile);
  if (blocks > 65535)
    throw Error(Exit::bad_usage, "a length of " + std::to_string(length) +
                                     " is too large for this step's grid; give at most " +
                                     std::to_string(65535 * tile));
  return static_cast<unsigned>(blocks);
}

}  // namespace ladder
