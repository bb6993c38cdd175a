// What the GPU's hardware counters say of ranges of work, read with CUPTI's range profiler.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "machine/device.h"

struct CUpti_Profiler_Host_Object;
struct CUpti_RangeProfiler_Object;

namespace ladder::gpu {

/// One session of counting on the current device, until read(): where one fails, the program has no
/// counters any more. Everything that runs between begin and end is counted, whoever launched it,
/// so the GPU has to be idle at both.
class Counters {
 public:
  /// For at most `ranges` ranges. Throws Error(no_device) where the counters cannot be read: CUPTI
  /// is missing, or refuses; says why, and the way out.
  explicit Counters(int ranges);
  void begin(const std::string& range);
  void end();
  /// Ends the session: the counts of every range by its name.
  std::map<std::string, ReadWrite> read();

 private:
  CUpti_Profiler_Host_Object* host_ = nullptr;    // knows metrics
  CUpti_RangeProfiler_Object* target_ = nullptr;  // counts
  std::vector<uint8_t> config_, counts_;
};

/// Reads `bytes` (a multiple of 16) of poisoned global memory through L2 and so pushes out what is
/// there. Queued on the default stream. Defined in sweep.cu.
void queue_sweep(void* data, int64_t bytes);

/// The compute capability, such as 75, of the code that a GPU runs of this program: on any newer
/// one that of its PTX. 0 where there is none for it. Defined in sweep.cu too.
int compiled_capability();

}  // namespace ladder::gpu
