// What the harness sees of a device: memory, running, timing. gpu/ and sim/ implement it; the
// kernels see the device through machine.h instead.
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

/// So much was read, and so much written.
struct ReadWrite {
  int64_t read = 0, write = 0;

  bool operator==(const ReadWrite&) const = default;
  void operator+=(const ReadWrite& other) {
    read += other.read;
    write += other.write;
  }
};

/// What a kernel moved between HBM and the SMs, as counted.
struct HbmCounts {
  ReadWrite requested;  // every lane's bytes
  ReadWrite distinct;   // each byte once per kernel
  ReadWrite sectors;    // of 32 bytes, that each access of a warp touches

  void operator+=(const HbmCounts& other) {
    requested += other.requested;
    distinct += other.distinct;
    sectors += other.sectors;
  }
};

/// What the simulator counts of one kernel. Launches of the same name add up.
struct Counts : Amounts {
  HbmCounts hbm;
  std::map<std::string, HbmCounts> arrays;  // hbm, split by array

  Counts& operator+=(const Counts& other);
};

/// Bytes that HBM itself served, below the SMs' requests, as a GPU's hardware counters saw: of a
/// run, and of each of its kernels by name. The run need not be the sum of its kernels: what one
/// leaves in L2 the next may find there, but each kernel alone is counted from an empty L2.
struct DramReport {
  ReadWrite all;
  std::map<std::string, ReadWrite> kernels;
};

/// How a kernel's blocks fill a GPU.
struct Occupancy {
  int registers = 0;      // of a thread
  int blocks_per_sm = 0;  // that registers, threads and shared memory allow at once
  int64_t blocks = 0;     // of the grid
};

/// One kernel of a run: counts on the simulator; on the gpu median time, counters where asked for,
/// and occupancy where it is known (not of cuBLAS's kernels).
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

/// Time that a measurement takes unless told, L2 flushes included; about as much goes before it.
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
  int multiprocessors = 132;        // SMs that plans reckon with, as an H100 has
  int threads = 0;                  // OS threads; 0: one a core
  bool only_launches = false;       // are checked, for a test, and no kernel runs
  bool trace = false;               // take_trace() has what was done
  bool operator==(const SimOptions&) const = default;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  /// New array with poisoned contents (every byte 0xFF: NaN in every float type), which the device
  /// has to outlive. Throws Error(no_device) when memory is short.
  virtual std::shared_ptr<Array> allocate(const std::string& name, int64_t bytes) = 0;
  virtual void upload(Array& array, const void* host) = 0;  // array.bytes bytes
  virtual void download(void* host, const Array& array) = 0;

  /// Runs `work` (which launches kernels) once, waits, and reports its kernels in the order of
  /// first launch. `rung` names it in faults and NVTX ranges.
  virtual std::vector<KernelReport> run(const std::string& rung,
                                        const std::function<void()>& work) = 0;
  /// GPU time of `work`, measured for about `budget_ms`; nothing on the simulator.
  virtual std::optional<Timing> time(const std::function<void()>&, double /*budget_ms*/) {
    return {};
  }
  /// Median GPU time of each kernel launched by `work`, L2 as within the run; none on the
  /// simulator.
  virtual std::map<std::string, double> time_kernels(const std::function<void()>&) { return {}; }

  /// What HBM serves of `work`, by the GPU's counters: with L2 emptied before and what is left
  /// there written back after. Runs `work` three times. Throws Error(no_device) with the reason
  /// where there are no counters or they may not be read.
  virtual DramReport dram(const std::function<void()>&) = 0;

  /// What was traced since the last call; only on the simulator with SimOptions::trace set.
  virtual Trace take_trace() { return {}; }
};

/// The GPU, or Error(no_device) with the reason there is none. A plan may give a block
/// `smem_bytes` of shared memory (0: what there is; Error(bad_usage) where that is less).
std::unique_ptr<Device> open_gpu(int64_t smem_bytes = 0);
std::unique_ptr<Device> open_sim(const SimOptions& options);

/// Bytes of the host's memory.
int64_t host_memory();

}  // namespace ladder
