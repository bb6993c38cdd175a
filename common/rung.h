// Defines the contract between a rung's steps and the harness. A step (Step, Pass) plans a run,
// launches its kernels and predicts the bytes that they request; the harness does everything else
// and knows no kernel. The contract is the same for both devices, gpu and sim, so no CUDA types
// appear. harness/steps.cpp defines the functions that are only declared here.
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

/// The exit statuses of a program. An Error carries the status that the program ends with.
enum class Exit { good = 0, wrong_result = 1, bad_usage = 2, no_device = 3 };

/// An error shown to the user. Its text names the bad value, the allowed values and a remedy.
struct Error : std::runtime_error {
  Error(Exit status, const std::string& what) : std::runtime_error(what), status(status) {}
  Exit status;
};

enum class DType { fp16, bf16 };

/// One attention workload. Row-major: Q, O (B, H, N, d); K, V (B, Hk, N_kv, d); LSE (B, H, N).
struct Problem {
  int B = 1;       // batch
  int H = 2;       // query heads
  int Hk = 2;      // key/value heads; query head h uses K/V head ⌊h·Hk/H⌋
  int N = 256;     // queries
  int N_kv = 256;  // keys
  int d = 64;      // head size, a multiple of 8 from 8 to 256
  bool causal = false;
  DType dtype = DType::fp16;  // of Q, K, V, O, and of stored S and P
  float scale = 0.125f;       // S = scale·QKᵀ; positive and finite

  bool operator==(const Problem&) const = default;

  /// Whether query i attends to key j. Under the causal mask the last query attends to all keys.
  constexpr bool attends(int i, int j) const { return !causal || j - i <= N_kv - N; }
  /// Returns how many keys query i attends to: keys [0, keys(i)). An i beyond N counts as the last.
  constexpr int keys(int i) const {
    const int64_t k = causal ? int64_t{i} + N_kv - N + 1 : N_kv;
    return static_cast<int>(k < 0 ? 0 : k < N_kv ? k : N_kv);
  }
  /// Returns the first query that attends to key j (all later ones do, too), or N if none does.
  constexpr int first_query(int j) const {
    const int64_t i = causal ? int64_t{j} - N_kv + N : 0;
    return static_cast<int>(i < 0 ? 0 : i < N ? i : N);
  }
  /// Return the first row of head bh (in [0, B·H)) in Q and O, or in K and V. Rows have d elements.
  constexpr int64_t q_row(int bh) const { return int64_t{bh} * N; }
  constexpr int64_t kv_row(int bh) const { return (int64_t{bh / H} * Hk + kv_head(bh % H)) * N_kv; }
  /// Returns the K/V head of query head h, ⌊h·Hk/H⌋. (It divides by H/Hk; h·Hk may exceed 2³¹.)
  constexpr int kv_head(int h) const { return h / (H / Hk); }
};

/// Bytes per element of the I/O type (fp16 or bf16), which Q, K, V, O and their gradients have.
inline constexpr int64_t kIoBytes = 2;

enum class DeviceKind { gpu, sim };

/// The properties of a device that plans may depend on and reports print.
struct DeviceInfo {
  DeviceKind kind = DeviceKind::sim;
  std::string name;           // "NVIDIA H100 80GB HBM3", "sim on 2 cores"
  int64_t memory_bytes = 0;   // all HBM; on the simulator the host's memory
  int64_t memory_free = 0;    // HBM that can still be allocated
  int64_t smem_bytes = 0;     // shared memory that a block may use
  int64_t l2_bytes = 0;       // 0 on the simulator
  int multiprocessors = 132;  // SMs; an H100's if there is no device (--list)
  /// 90 for 9.0. The simulator's is 90, because it runs every construct that rungs use.
  int compute_capability = 0;
  bool has_bf16() const { return compute_capability >= 80; }
  /// Returns how many blocks fit into an SM's shared memory if each takes `bytes`. From compute
  /// capability 8.0 on, CUDA reserves another 1,024 bytes per block.
  int64_t blocks_per_sm(int64_t bytes) const {
    const int64_t reserved = compute_capability >= 80 ? 1024 : 0;
    return (smem_bytes + reserved) / (bytes + reserved);
  }
};

/// A named array in a device's HBM.
struct Array {
  std::string name;
  void* data = nullptr;
  int64_t bytes = 0;
};

/// A run's arrays: inputs and outputs by the papers' names (Q, K, V, O, LSE, …), and the workspace.
class Arrays {
 public:
  /// Returns the array with this name, or null; operator[] throws std::logic_error instead.
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

/// A tile size that a step is compiled for, for head sizes that are padded to max_d.
struct TileSize {
  int max_d;     // one of kHeadDims or kAllHeadDims
  int block_q;   // Br, rows of Q
  int block_kv;  // Bc, rows of K and V
  bool operator==(const TileSize&) const = default;
};

/// A choice that a step leaves to the user: --set NAME=VALUE.
struct Setting {
  const char* name;
  std::vector<const char*> values;  // the default first
  const char* summary;              // one line for --help
};

/// The chosen value of each setting, keyed by the setting's name.
using Settings = std::map<std::string, std::string>;

/// Returns a value for each setting: the one in `asked`, or else the setting's default.
Settings choose_settings(std::span<const Setting> settings, const Settings& asked);

/// The tile sizes from --block-q and --block-kv (0: the step chooses) and the settings from --set.
struct TileRequest {
  int block_q = 0;
  int block_kv = 0;
  Settings settings = {};
  bool operator==(const TileRequest&) const = default;
  bool is_empty() const { return block_q == 0 && block_kv == 0; }  // names no tile size
  bool matches(const TileSize& tile) const {
    return (block_q == 0 || block_q == tile.block_q) &&
           (block_kv == 0 || block_kv == tile.block_kv);
  }
};

/// Everything that a run's counts depend on, fixed before it starts. 0: there is no such quantity.
struct Plan {
  int block_q = 0;         // Br, rows of Q in a tile
  int block_kv = 0;        // Bc, rows of K and V in a tile
  int head_dim = 0;        // d as padded on chip
  int warps = 0;           // per block
  int stages = 0;          // places in shared memory for the tiles of asynchronous copies
  int parts = 1;           // blocks that share the work on one tile
  int64_t smem_bytes = 0;  // shared memory per block, in the kernel that takes most
  std::vector<WorkspaceArray> workspace = {};
  Settings settings = {};                         // a value for each of the step's settings
  std::optional<Quantisation> quantisation = {};  // the reference applies it too
  std::string note = {};  // a line for --verbose, such as the choice of a smaller tile
};

/// The bytes that a kernel's lanes request from one array in global memory, repeats included.
struct ArrayTraffic {
  std::string array;
  int64_t read = 0;
  int64_t write = 0;
};

struct KernelTraffic {
  std::string kernel;
  std::vector<ArrayTraffic> arrays;
};

/// The predicted requests of a run, per kernel in launch order. They are exact to the byte.
using Traffic = std::vector<KernelTraffic>;

/// The values that an algorithm must round to the I/O type; they determine the tolerance.
enum class Rounding {
  S_and_P_stored,  // S and P (and dP, dS), which are stored in HBM, and the outputs
  on_chip          // P (and dS) as matrix operands, and the outputs
};

/// The largest N at which scripts/figures measures a step on its grid of workloads; 0: no limit.
struct GridLimit {
  int full = 0;    // without a mask
  int causal = 0;  // with the causal mask
};

/// How a step's idea changes a count, compared with the previous step. `count` is a key of the JSON
/// report; a name without a direction, such as "requested_bytes" or "hbm_sectors", stands for the
/// sum of reads and writes. `how` is "less", "more", "to 0" or "from 0".
struct Change {
  std::string count = {};
  std::string how = {};
  std::string on = {};  // options of a workload that shows the change; empty: any workload
};

/// How figures, tables and --help show a step.
struct Shown {
  std::string idea = {};      // at most three words, for the table of scripts/run
  Change change = {};         // tested; empty for a rung's first step
  std::string summary = {};   // one line for --help
  std::string colour = {};    // the rung's colour in figures, "#5a5a5a"
  bool decoding = false;      // for few queries; not measured on the usual grids
  GridLimit grid_limit = {};  // bounds the measurements of a slow step
};

/// The requirements of a step: a GPU's compute capability, and limits of the workload.
struct Needs {
  int min_compute_capability = 75;
  bool exact_architecture = false;  // runs only on this major version (code for sm_90a)
  // The harness recommends these rungs if the step reaches its limit. Empty: it has no such limit.
  std::string max_subtracted_by = {};  // for exponentials that overflow: subtracts the row maximum
  std::string less_memory = {};        // for memory that runs out: stores neither S nor P

  /// Returns the capability as text: "7.5" (or newer), or "9.x" for an exact architecture.
  std::string capability() const {
    return std::to_string(min_compute_capability / 10) + "." +
           (exact_architecture ? "x" : std::to_string(min_compute_capability % 10));
  }
};

/// The forward or backward pass of a step. If the functions are null, the step has no such pass.
struct Pass {
  /// Plans the pass. Throws Error(bad_usage) for a tile that is not compiled or does not fit. (A
  /// backward pass chooses its own tile; its request contains only the settings.)
  Plan (*plan)(const Problem&, const DeviceInfo&, const TileRequest&) = nullptr;
  /// Launches the kernels without waiting for them. The forward pass reads Q, K, V and writes O
  /// (and LSE). The backward pass runs after it, reads Q, K, V, O, LSE and dO, may read the forward
  /// pass's workspace, and writes dQ, dK, dV.
  void (*launch)(const Problem&, const Plan&, const Arrays&) = nullptr;
  /// Predicts the bytes that launch() requests, per kernel and array.
  Traffic (*traffic)(const Problem&, const Plan&) = nullptr;
  explicit operator bool() const { return launch != nullptr; }
};

/// One step of a rung, compiled for one device: its functions, its requirements and how figures
/// show it. The harness and the scripts know a step only through this structure, never by name.
struct Step {
  std::string rung;                        // "00_naive"
  std::string name;                        // --step NAME
  std::string after = {};                  // the step that it follows; empty for the rung's first
  bool aside = false;                      // a branch: another step may follow the same step
  std::vector<std::string> formerly = {};  // names of former steps that it replaced
  /// Whether the step runs if --step names none; of several, the last that the device supports.
  bool is_default = false;
  Shown shown = {};
  Needs needs = {};

  Rounding rounding = Rounding::on_chip;
  bool has_lse = false;                    // writes LSE
  bool deterministic = false;              // gradients have the same bits in every run
  std::span<const TileSize> tiles = {};    // compiled tiles; empty: --block-* is refused
  std::span<const Setting> settings = {};  // for --set
  /// A step, such as "05_flash_v2/sm90", whose forward pass and tiles this one uses; empty: it has
  /// its own. If that step belongs to another rung, add_rung() in CMakeLists.txt names its file.
  std::string forward_of = {};
  Pass forward = {}, backward = {};

  DeviceKind device = DeviceKind::sim;  // set by Register
  std::string source = {};              // its file, "05_flash_v2/rows.cu"; set by Register

  bool runs_on(const DeviceInfo& info) const {
    const int least = needs.min_compute_capability;
    return least <= info.compute_capability &&
           (!needs.exact_architecture || least / 10 == info.compute_capability / 10);
  }
};

/// Returns all steps linked into this program, of every rung and device. The first belongs to the
/// program's rung. (A deque, because readers keep pointers into it while it grows.)
std::deque<Step>& all_steps();

/// Registers a step that is compiled for `device` from source `file`. A step with .forward_of gets
/// that forward pass once both steps are registered.
void add_step(Step&& added, DeviceKind device, std::string file);

/// Returns ⌈a/b⌉ for a ≥ 0 and b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// The head sizes that most kernels are compiled for; a rung's last steps use kAllHeadDims.
inline constexpr int kHeadDims[] = {32, 64, 128, 256};
inline constexpr int kAllHeadDims[] = {32, 64, 96, 128, 192, 256};

/// Returns head size d as padded on chip: the smallest of `sizes` that is at least d; one must be.
template <const auto& sizes = kHeadDims>
constexpr int padded_head_dim(int d) {
  return *std::ranges::find_if(sizes, [d](int size) { return size >= d; });
}

/// Returns how many blocks, with `tile` rows each, cover `length` rows along grid.y or grid.z.
/// Plans call it, too, because it throws Error(bad_usage) beyond CUDA's limit of 65,535 blocks.
inline unsigned grid_blocks(int64_t length, int64_t tile) {
  const int64_t blocks = ceil_div(length, tile);
  if (blocks > 65535)
    throw Error(Exit::bad_usage, "a length of " + std::to_string(length) +
                                     " is too large for this step's grid; give at most " +
                                     std::to_string(65535 * tile));
  return static_cast<unsigned>(blocks);
}

}  // namespace ladder
