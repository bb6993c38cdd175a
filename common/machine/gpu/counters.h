// Reads the GPU's hardware counters for ranges of work, with CUPTI's range profiler.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "machine/device.h"

struct CUpti_Profiler_Host_Object;
struct CUpti_RangeProfiler_Object;

namespace ladder::gpu {

/// A session of counting on the current device, which ends with read(). After a failed session the
/// program cannot count any more. Everything that runs between begin() and end() is counted, also
/// other programs' work, so the GPU must be idle at both.
class Counters {
 public:
  /// Starts a session for at most `ranges` ranges. Throws Error(no_device), with the reason and the
  /// way out, if CUPTI is missing or refuses.
  explicit Counters(int ranges);
  void begin(const std::string& range);
  void end();
  /// Ends the session. Returns the bytes that DRAM read and wrote in each range, by name.
  std::map<std::string, ReadWrite> read();

 private:
  CUpti_Profiler_Host_Object* host_ = nullptr;    // evaluates metrics
  CUpti_RangeProfiler_Object* target_ = nullptr;  // counts
  std::vector<uint8_t> config_, counts_;
};

/// Queues a kernel on the default stream that reads `bytes` (a multiple of 16) of poisoned global
/// memory, which evicts the contents of L2. Defined in sweep.cu.
void queue_sweep(void* data, int64_t bytes);

/// Returns the compute capability, such as 75, of the program's code that the current GPU runs (if
/// it is PTX, that of the PTX), or 0 if none runs. Defined in sweep.cu.
int compiled_capability();

}  // namespace ladder::gpu
