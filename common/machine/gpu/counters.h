// Reads the GPU's hardware counters for ranges of work, with CUPTI's range profiler.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "machine/device.h"

struct CUpti_Profiler_Host_Object;
struct CUpti_RangeProfiler_Object;

namespace ladder::gpu {

/// A counting session on the current device, which ends with read(). After a failed session the
/// program cannot count again. All work on the GPU between begin() and end() is counted, including
/// other programs' work, so the GPU must be idle at both calls.
class Counters {
 public:
  /// Starts a session for at most `ranges` ranges. Throws Error(no_device), with the reason and a
  /// remedy, if CUPTI is missing or refuses.
  explicit Counters(int ranges);
  /// Begin and end a range, which is named `range`. Ranges do not nest.
  void begin(const std::string& range);
  void end();
  /// Ends the session. Returns the bytes read from and written to DRAM, keyed by the range's name.
  /// Throws Error(no_device) if CUPTI lost counts.
  std::map<std::string, ReadWrite> read();

 private:
  CUpti_Profiler_Host_Object* host_ = nullptr;    // evaluates metrics
  CUpti_RangeProfiler_Object* target_ = nullptr;  // counts
  std::vector<uint8_t> config_, counts_;
};

/// Queues a kernel on the default stream that reads the `bytes` bytes (a multiple of 16) at `data`,
/// which must be poisoned (all 0xFF). The reads evict the contents of L2. Defined in sweep.cu.
void queue_sweep(void* data, int64_t bytes);

/// Returns the compute capability, such as 75, for which the program's code for the current GPU (or
/// its PTX) was compiled, or 0 if there is no such code. Defined in sweep.cu.
int compiled_capability();

}  // namespace ladder::gpu
