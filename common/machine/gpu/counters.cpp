// Implements Counters with CUPTI, which it opens at run time, so that programs start without it.
#include "machine/gpu/counters.h"

#include <fmt/format.h>

#ifdef LADDER_CUPTI_FOLDER  // the build found CUPTI's headers

#include <cuda_runtime.h>
#include <cupti_profiler_host.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

#include <array>
#include <cmath>

#include "machine/gpu/library.h"

namespace ladder::gpu {
namespace {

/// Calls CUPTI's function of this name (without the underscore) with a parameter structure that has
/// these members, and returns the structure.
#define LADDER_CUPTI(function, ...) \
  Cupti::instance().call(           \
      #function,                    \
      CUpti_##function##_Params{.structSize = CUpti_##function##_Params_STRUCT_SIZE, __VA_ARGS__})

/// The metrics, in the order of ReadWrite. One pass counts both, so no kernel has to run again.
constexpr std::array kMetrics = {"dram__bytes_read.sum", "dram__bytes_write.sum"};

class Cupti {
 public:
  /// Opens and initialises CUPTI on the first call. It hooks into the driver and stays there.
  static const Cupti& instance() {
    static const Cupti cupti;
    return cupti;
  }

  template <class Params>
  Params call(const std::string& function, Params params) const {
    std::string name = "cupti" + function;
    std::erase(name, '_');
    const CUptiResult result = library_.function<CUptiResult(Params*)>(name)(&params);
    if (result == CUPTI_SUCCESS) return params;
    const char* text = "unknown error";
    library_.function<CUptiResult(CUptiResult, const char**)>("cuptiGetResultString")(result,
                                                                                      &text);
    no_device(
        "{}: {}; the driver may reserve counters for administrators: run as root (a container "
        "needs --cap-add=SYS_ADMIN), or have an administrator open them to all users "
        "(https://developer.nvidia.com/ERR_NVGPUCTRPERM); or another profiler (ncu, nsys, DCGM) "
        "may be using them: end it",
        name, text);
  }

 private:
  Cupti() {
    call("Profiler_Initialize",
         CUpti_Profiler_Initialize_Params{CUpti_Profiler_Initialize_Params_STRUCT_SIZE});
  }

  // The Toolkit's folders come first, because the system's loader may find another version. CUPTI's
  // major version equals the Toolkit's.
  const Library library_{"CUPTI",
                         fmt::format("libcupti.so.{}", CUDART_VERSION / 1000),
                         {LADDER_CUPTI_FOLDER, LADDER_CUPTI_EXTRAS_FOLDER, ""}};
};

const char** metrics() {
  return const_cast<const char**>(kMetrics.data());
}

}  // namespace

Counters::Counters(int ranges) {
  int device = 0;
  cudaGetDevice(&device);
  const char* const chip =
      LADDER_CUPTI(Device_GetChipName, .deviceIndex = static_cast<size_t>(device)).pChipName;
  host_ = LADDER_CUPTI(Profiler_Host_Initialize, .profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER,
                       .pChipName = chip)
              .pHostObject;
  LADDER_CUPTI(Profiler_Host_ConfigAddMetrics, .pHostObject = host_, .ppMetricNames = metrics(),
               .numMetrics = kMetrics.size());
  config_.resize(
      LADDER_CUPTI(Profiler_Host_GetConfigImageSize, .pHostObject = host_).configImageSize);
  LADDER_CUPTI(Profiler_Host_GetConfigImage, .pHostObject = host_,
               .configImageSize = config_.size(), .pConfigImage = config_.data());
  const size_t passes =
      LADDER_CUPTI(Profiler_Host_GetNumOfPasses, .configImageSize = config_.size(),
                   .pConfigImage = config_.data())
          .numOfPasses;
  if (passes != 1)
    no_device("{} needs {} passes to count these metrics, and this program makes one; use ncu",
              chip, passes);

  CUcontext context = nullptr;
  driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent")(&context);
  target_ = LADDER_CUPTI(RangeProfiler_Enable, .ctx = context).pRangeProfilerObject;
  counts_.resize(LADDER_CUPTI(RangeProfiler_GetCounterDataSize, .pRangeProfilerObject = target_,
                              .pMetricNames = metrics(), .numMetrics = kMetrics.size(),
                              .maxNumOfRanges = size_t(ranges),
                              .maxNumRangeTreeNodes = uint32_t(ranges))
                     .counterDataSize);
  LADDER_CUPTI(RangeProfiler_CounterDataImage_Initialize, .pRangeProfilerObject = target_,
               .counterDataSize = counts_.size(), .pCounterData = counts_.data());
  // The program pushes and pops the ranges, which do not nest, in a single pass.
  LADDER_CUPTI(RangeProfiler_SetConfig, .pRangeProfilerObject = target_,
               .configSize = config_.size(), .pConfig = config_.data(),
               .counterDataImageSize = counts_.size(), .pCounterDataImage = counts_.data(),
               .range = CUPTI_UserRange, .replayMode = CUPTI_UserReplay,
               .maxRangesPerPass = size_t(ranges), .numNestingLevels = 1, .minNestingLevel = 1,
               .passIndex = 0, .targetNestingLevel = 1);
  LADDER_CUPTI(RangeProfiler_Start, .pRangeProfilerObject = target_);
}

void Counters::begin(const std::string& range) {
  LADDER_CUPTI(RangeProfiler_PushRange, .pRangeProfilerObject = target_,
               .pRangeName = range.c_str());
}

void Counters::end() {
  LADDER_CUPTI(RangeProfiler_PopRange, .pRangeProfilerObject = target_);
}

std::map<std::string, ReadWrite> Counters::read() {
  const bool all =
      LADDER_CUPTI(RangeProfiler_Stop, .pRangeProfilerObject = target_).isAllPassSubmitted;
  const size_t dropped =
      LADDER_CUPTI(RangeProfiler_DecodeData, .pRangeProfilerObject = target_).numOfRangeDropped;
  if (!all || dropped)
    no_device("CUPTI dropped {} ranges{}", dropped, all ? "" : " and asks for another pass");

  const size_t ranges =
      LADDER_CUPTI(RangeProfiler_GetCounterDataInfo, .pCounterDataImage = counts_.data(),
                   .counterDataImageSize = counts_.size())
          .numTotalRanges;
  std::map<std::string, ReadWrite> counts;
  for (size_t i = 0; i < ranges; ++i) {
    const std::string name =
        LADDER_CUPTI(RangeProfiler_CounterData_GetRangeInfo, .pCounterDataImage = counts_.data(),
                     .counterDataImageSize = counts_.size(), .rangeIndex = i, .rangeDelimiter = "/")
            .rangeName;
    std::array<double, kMetrics.size()> values{};
    LADDER_CUPTI(Profiler_Host_EvaluateToGpuValues, .pHostObject = host_,
                 .pCounterDataImage = counts_.data(), .counterDataImageSize = counts_.size(),
                 .rangeIndex = i, .ppMetricNames = metrics(), .numMetrics = kMetrics.size(),
                 .pMetricValues = values.data());
    for (size_t m = 0; m < values.size(); ++m)
      if (!std::isfinite(values[m]))
        no_device("CUPTI returned no number for {} of {}", kMetrics[m], name);
    counts[name] = {std::llround(values[0]), std::llround(values[1])};
  }
  LADDER_CUPTI(RangeProfiler_Disable, .pRangeProfilerObject = target_);
  LADDER_CUPTI(Profiler_Host_Deinitialize, .pHostObject = host_);
  return counts;
}

}  // namespace ladder::gpu

#endif
