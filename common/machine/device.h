// Declares Device, the harness's interface to a machine that runs kernels, and the reports that it
// returns. machine/gpu/ and machine/sim/ implement it. Kernels use machine.h instead.
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

/// A pair of amounts, one read and one written; in bytes unless stated otherwise.
struct ReadWrite {
  int64_t read = 0, write = 0;

  bool operator==(const ReadWrite&) const = default;
  void operator+=(const ReadWrite& other) {
    read += other.read;
    write += other.write;
  }
};

/// The simulator's counts of accesses to global memory, in bytes and in sectors.
struct HbmCounts {
  ReadWrite requested;  // bytes of all lanes' accesses
  ReadWrite distinct;   // bytes, each counted once per kernel
  ReadWrite sectors;    // number of 32-byte sectors, summed over the warps' accesses

  void operator+=(const HbmCounts& other) {
    requested += other.requested;
    distinct += other.distinct;
    sectors += other.sectors;
  }
};

/// The simulator's counts for one kernel. Launches under the same name count as one kernel.
struct Counts : Amounts {
  HbmCounts hbm;
  std::map<std::string, HbmCounts> arrays;  // `hbm` of each array, keyed by name

  Counts& operator+=(const Counts& other);
};

/// Bytes that DRAM served according to the GPU's hardware counters. A whole run can move fewer
/// bytes than its kernels together, because each kernel is counted with an initially empty L2,
/// while in the run it may find data there.
struct DramReport {
  ReadWrite all;                             // of a whole run
  std::map<std::string, ReadWrite> kernels;  // by kernel name
};

/// How a kernel's blocks fill a GPU.
struct Occupancy {
  int registers = 0;      // per thread
  int blocks_per_sm = 0;  // concurrently, limited by registers, threads and shared memory
  int64_t blocks = 0;     // in the grid
};

/// The measurements of one kernel of a run. The simulator fills in `counts`. The GPU fills in the
/// occupancy if it is known (not for cuBLAS's kernels); the harness adds time_kernels()'s median
/// and, with --dram, the bytes that the counters show.
struct KernelReport {
  std::string name;
  std::optional<Counts> counts = {};
  std::optional<double> time_ms = {};
  std::optional<ReadWrite> dram = {};
  std::optional<Occupancy> occupancy = {};
};

/// GPU times of `samples` repeated runs.
struct Timing {
  double median_ms = 0;
  double min_ms = 0;
  double max_ms = 0;
  int samples = 0;
};

/// Default time of a measurement in ms, flushes of L2 included; its warm-up takes about as long.
inline constexpr double kTimingMs = 200;

/// The order in which the simulator runs blocks, and threads between barriers. CUDA defines none.
struct Schedule {
  enum class Order { forward, reverse, random } order = Order::forward;
  uint64_t seed = 0;  // of random orders
  bool operator==(const Schedule&) const = default;
};

struct SimOptions {
  Schedule schedule;
  int64_t smem_bytes = 227 * 1024;  // per block, as on an H100
  int multiprocessors = 132;        // SMs that plans assume, as on an H100
  int threads = 0;                  // OS threads; 0: one per core
  bool only_launches = false;       // for tests: check launches without running kernels
  bool trace = false;               // record events for take_trace(), on one OS thread
  bool operator==(const SimOptions&) const = default;
};

/// A machine that holds arrays and runs kernels: the GPU or the simulator.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  /// Returns a new array of `bytes` bytes, all 0xFF, which is NaN in each float type. The device
  /// must outlive the array. Throws Error(no_device) if memory runs out.
  virtual std::shared_ptr<Array> allocate(const std::string& name, int64_t bytes) = 0;
  // Copy array.bytes bytes from the host to the array, and back.
  virtual void upload(Array& array, const void* host) = 0;
  virtual void download(void* host, const Array& array) = 0;

  /// Runs `work` (which launches kernels) once, waits, and returns reports on its kernels in the
  /// order of their first launch. Faults and NVTX ranges are labelled with `rung`.
  virtual std::vector<KernelReport> run(const std::string& rung,
                                        const std::function<void()>& work) = 0;
  /// Runs `work` again and again for about `budget_ms` ms, overwriting L2 before each run, and
  /// returns the runs' GPU times. Returns nothing on the simulator.
  virtual std::optional<Timing> time(const std::function<void()>&, double /*budget_ms*/) {
    return {};
  }
  /// Returns the median GPU time in ms of each kernel that `work` launches, with L2 as the kernel
  /// finds it in a run; nothing on the simulator.
  virtual std::map<std::string, double> time_kernels(const std::function<void()>&) { return {}; }

  /// Runs `work` three times and returns the bytes that DRAM serves for it, according to the GPU's
  /// counters. L2 is emptied before each count and written back within it. Throws Error(no_device)
  /// with the reason if the counters are missing or may not be read, and on the simulator.
  virtual DramReport dram(const std::function<void()>&) = 0;

  /// Returns the events traced since the last call; empty unless SimOptions::trace is set.
  virtual Trace take_trace() { return {}; }
};

/// Opens the GPU. Plans may give a block up to `smem_bytes` bytes of shared memory (0: as much as
/// the GPU allows). Throws Error(no_device) with the reason if no GPU can be used, and
/// Error(bad_usage) if the GPU allows less than `smem_bytes`.
std::unique_ptr<Device> open_gpu(int64_t smem_bytes = 0);
/// Opens a simulator. Several may exist, but only one may run at a time.
std::unique_ptr<Device> open_sim(const SimOptions& options);

/// Returns the size of the host's physical memory in bytes.
int64_t host_memory();

}  // namespace ladder
