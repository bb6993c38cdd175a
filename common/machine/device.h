// The harness's view of a device: memory, running, timing. gpu/ and sim/ implement it; kernels use
// machine.h instead.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "machine/trace.h"
#include "rung.h"

namespace ladder {

/// An amount that was read and one that was written, mostly in bytes.
struct ReadWrite {
  int64_t read = 0, write = 0;

  bool operator==(const ReadWrite&) const = default;
  void operator+=(const ReadWrite& other) {
    read += other.read;
    write += other.write;
  }
};

/// The simulator's counts of a kernel's accesses to global memory, in bytes and in sectors.
struct HbmCounts {
  ReadWrite requested;  // every lane's bytes
  ReadWrite distinct;   // each byte once per kernel
  ReadWrite sectors;    // 32-byte sectors that each access of a warp touches

  void operator+=(const HbmCounts& other) {
    requested += other.requested;
    distinct += other.distinct;
    sectors += other.sectors;
  }
};

/// The simulator's counts of one kernel. Launches of the same name add up.
struct Counts : Amounts {
  HbmCounts hbm;
  std::map<std::string, HbmCounts> arrays;  // hbm by array

  Counts& operator+=(const Counts& other);
};

/// Bytes that DRAM served, by the GPU's hardware counters: for a whole run, and for each kernel by
/// name. The run can be less than the sum of its kernels, because each kernel alone starts with an
/// empty L2, while in the run it may find data there that the previous kernel left.
struct DramReport {
  ReadWrite all;
  std::map<std::string, ReadWrite> kernels;
};

/// How a kernel's blocks fill a GPU.
struct Occupancy {
  int registers = 0;      // per thread
  int blocks_per_sm = 0;  // at once, limited by registers, threads and shared memory
  int64_t blocks = 0;     // in the grid
};

/// One kernel of a run. The simulator fills in counts; the GPU its median time, occupancy if it is
/// known (not for cuBLAS's kernels), and with --dram the counters.
struct KernelReport {
  std::string name;
  std::optional<Counts> counts = {};
  std::optional<double> time_ms = {};
  std::optional<ReadWrite> dram = {};
  std::optional<Occupancy> occupancy = {};
};

/// GPU times of repeated runs.
struct Timing {
  double median_ms = 0;
  double min_ms = 0;
  double max_ms = 0;
  int samples = 0;
};

/// Default time of a measurement in ms, L2 flushes included; warming up takes about the same again.
inline constexpr double kTimingMs = 200;

/// How the simulator orders what CUDA leaves unordered: blocks, and threads between barriers.
struct Schedule {
  enum class Order { forward, reverse, random } order = Order::forward;
  uint64_t seed = 0;
  bool operator==(const Schedule&) const = default;
};

struct SimOptions {
  Schedule schedule;
  int64_t smem_bytes = 227 * 1024;  // per block, as on an H100
  int multiprocessors = 132;        // SMs that plans assume, as on an H100
  int threads = 0;                  // OS threads; 0: one per core
  bool only_launches = false;       // for a test: checks launches and runs no kernel
  bool trace = false;               // record events for take_trace()
  bool operator==(const SimOptions&) const = default;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  /// Returns a new array with poisoned contents: every byte is 0xFF, which is NaN in every float
  /// type. The device must outlive it. Throws Error(no_device) if memory runs out.
  virtual std::shared_ptr<Array> allocate(const std::string& name, int64_t bytes) = 0;
  virtual void upload(Array& array, const void* host) = 0;  // array.bytes bytes
  virtual void download(void* host, const Array& array) = 0;

  /// Runs `work` (which launches kernels) once, waits, and returns reports of its kernels in the
  /// order of their first launch. Faults and NVTX ranges call it `rung`.
  virtual std::vector<KernelReport> run(const std::string& rung,
                                        const std::function<void()>& work) = 0;
  /// Returns the GPU time of `work`, measured for about `budget_ms`; nothing on the simulator.
  virtual std::optional<Timing> time(const std::function<void()>&, double /*budget_ms*/) {
    return {};
  }
  /// Returns the median GPU time in ms of each kernel that `work` launches, with L2 as in the run;
  /// nothing on the simulator.
  virtual std::map<std::string, double> time_kernels(const std::function<void()>&) { return {}; }

  /// Returns the bytes that DRAM serves for `work`, by the GPU's counters. L2 is empty before, and
  /// is written back after. Runs `work` three times. Throws Error(no_device) with the reason if the
  /// counters are missing or may not be read.
  virtual DramReport dram(const std::function<void()>&) = 0;

  /// Returns what was traced since the last call; empty unless SimOptions::trace is set.
  virtual Trace take_trace() { return {}; }
};

/// Opens the GPU. Plans may give a block `smem_bytes` of shared memory (0: all that the GPU
/// allows). Throws Error(no_device) with the reason if no GPU can be used, and Error(bad_usage) if
/// it allows less.
std::unique_ptr<Device> open_gpu(int64_t smem_bytes = 0);
std::unique_ptr<Device> open_sim(const SimOptions& options);

/// Returns the bytes of the host's memory.
int64_t host_memory();

}  // namespace ladder
