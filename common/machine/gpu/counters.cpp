// CUPTI is opened at run time, by this file alone, so programs start even where it is missing.
#include "machine/gpu/counters.h"

#include <fmt/format.h>

#ifdef LADDER_CUPTI_FOLDER  // the Toolkit of the build had CUPTI's headers

#include <cuda_runtime.h>
#include <cupti_profiler_host.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>
#include <dlfcn.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

namespace ladder::gpu {
namespace {

/// Calls a function of CUPTI, whose name is without the underscore, with a structure that has these
/// members, and returns that structure.
#define LADDER_CUPTI(function, ...) \
  Cupti::instance().call(           \
      #function,                    \
      CUpti_##function##_Params{.structSize = CUpti_##function##_Params_STRUCT_SIZE, __VA_ARGS__})

/// In the order of DramCounts; they fit one pass, so that no kernel has to run again.
constexpr std::array kMetrics = {"dram__bytes_read.sum", "dram__bytes_write.sum",
                                 "lts__t_bytes.sum", "l1tex__t_bytes.sum"};

[[noreturn]] void fail(const std::string& what) {
  throw Error(Exit::no_device, what);
}

class Cupti {
 public:
  /// Opened and initialised once; it hooks itself into the driver and stays there.
  static const Cupti& instance() {
    static const Cupti cupti;
    return cupti;
  }
  const std::string& path() const { return path_; }

  template <class Params>
  Params call(const std::string& function, Params params) const {
    const std::string name = "cupti" + without_underscores(function);
    const auto f = find<CUptiResult(Params*)>(name.c_str());
    if (!f) fail(fmt::format("{} has no {}; a newer CUPTI does", path_, name));
    const CUptiResult result = f(&params);
    if (result != CUPTI_SUCCESS)
      fail(fmt::format("{}: {}; {}", name, name_of(result), way_out(result)));
    return params;
  }

 private:
  Cupti() {
    // The Toolkit's own first: the loader may know of another version. CUPTI's major version is the
    // Toolkit's.
    const std::string name = fmt::format("libcupti.so.{}", CUDART_VERSION / 1000);
    std::string why;
    for (const char* folder : {LADDER_CUPTI_FOLDER, LADDER_CUPTI_EXTRAS_FOLDER, ""}) {
      path_ = *folder ? fmt::format("{}/{}", folder, name) : name;
      library_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library_) break;
      why += fmt::format("{}{}", why.empty() ? "" : "; ", dlerror());
    }
    if (!library_)
      fail(fmt::format(
          "CUPTI is not there ({}); it comes with the CUDA Toolkit, and LD_LIBRARY_PATH "
          "can name its folder",
          why));
    call("Profiler_Initialize",
         CUpti_Profiler_Initialize_Params{CUpti_Profiler_Initialize_Params_STRUCT_SIZE});
  }

  static std::string without_underscores(std::string name) {
    std::erase(name, '_');
    return name;
  }
  template <class Function>
  Function* find(const char* name) const noexcept {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  std::string name_of(CUptiResult result) const {
    const char* text = nullptr;
    const auto function = find<CUptiResult(CUptiResult, const char**)>("cuptiGetResultString");
    if (!function || function(result, &text) != CUPTI_SUCCESS || !text)
      return fmt::format("CUPTI's error {}", static_cast<int>(result));
    return text;
  }
  static const char* way_out(CUptiResult result) {
    switch (result) {
      case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
        return "the driver lets administrators alone read counters: run as root (a container needs "
               "--cap-add=SYS_ADMIN), or have one allow it to everybody: "
               "https://developer.nvidia.com/ERR_NVGPUCTRPERM";
      case CUPTI_ERROR_HARDWARE_BUSY:
      case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
        return "another profiler or monitor (ncu, nsys, DCGM) has the counters; end it and try "
               "again";
      case CUPTI_ERROR_INVALID_METRIC_NAME:
        return "this GPU does not count DRAM bytes";
      default:
        return "ncu --metrics dram__bytes_read.sum,dram__bytes_write.sum may read them";
    }
  }

  void* library_ = nullptr;
  std::string path_;
};

/// The current context, from the driver that the runtime has opened.
CUcontext current_context() {
  CUcontext context = nullptr;
  if (void* driver = dlopen("libcuda.so.1", RTLD_NOW)) {
    using Get = CUresult(CUcontext*);
    if (const auto get = reinterpret_cast<Get*>(dlsym(driver, "cuCtxGetCurrent"))) get(&context);
    dlclose(driver);
  }
  if (!context) fail("the driver has no current context");
  return context;
}

const char** metrics() {
  return const_cast<const char**>(kMetrics.data());
}

}  // namespace

/// Ends what it has begun where it fails: by then there is an object.
Counters::Counters(int ranges) : Counters() {
  int device = 0;
  cudaGetDevice(&device);
  const char* const chip =
      LADDER_CUPTI(Device_GetChipName, .deviceIndex = static_cast<size_t>(device)).pChipName;
  source_ = fmt::format("{}, chip {}", Cupti::instance().path(), chip);
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
    fail(fmt::format("{} counts these metrics in {} passes, not in one; ncu can do that", chip,
                     passes));

  target_ = LADDER_CUPTI(RangeProfiler_Enable, .ctx = current_context()).pRangeProfilerObject;
  counts_.resize(LADDER_CUPTI(RangeProfiler_GetCounterDataSize, .pRangeProfilerObject = target_,
                              .pMetricNames = metrics(), .numMetrics = kMetrics.size(),
                              .maxNumOfRanges = size_t(ranges),
                              .maxNumRangeTreeNodes = uint32_t(ranges))
                     .counterDataSize);
  LADDER_CUPTI(RangeProfiler_CounterDataImage_Initialize, .pRangeProfilerObject = target_,
               .counterDataSize = counts_.size(), .pCounterData = counts_.data());
  // Ranges that we push and pop, none inside another, in a pass that we run.
  LADDER_CUPTI(RangeProfiler_SetConfig, .pRangeProfilerObject = target_,
               .configSize = config_.size(), .pConfig = config_.data(),
               .counterDataImageSize = counts_.size(), .pCounterDataImage = counts_.data(),
               .range = CUPTI_UserRange, .replayMode = CUPTI_UserReplay,
               .maxRangesPerPass = size_t(ranges), .numNestingLevels = 1, .minNestingLevel = 1,
               .passIndex = 0, .targetNestingLevel = 1);
  LADDER_CUPTI(RangeProfiler_Start, .pRangeProfilerObject = target_);
  started_ = true;
}

Counters::~Counters() {
  const std::function<void()> steps[] = {
      [&] {
        if (in_range_) LADDER_CUPTI(RangeProfiler_PopRange, .pRangeProfilerObject = target_);
      },
      [&] {
        if (started_) LADDER_CUPTI(RangeProfiler_Stop, .pRangeProfilerObject = target_);
      },
      [&] {
        if (target_) LADDER_CUPTI(RangeProfiler_Disable, .pRangeProfilerObject = target_);
      },
      [&] {
        if (host_) LADDER_CUPTI(Profiler_Host_Deinitialize, .pHostObject = host_);
      }};
  for (const auto& step : steps) try {
      step();
    } catch (const Error&) {  // a second error is not news
    }
}

void Counters::begin(const std::string& range) {
  LADDER_CUPTI(RangeProfiler_PushRange, .pRangeProfilerObject = target_,
               .pRangeName = range.c_str());
  in_range_ = true;
}

void Counters::end() {
  in_range_ = false;
  LADDER_CUPTI(RangeProfiler_PopRange, .pRangeProfilerObject = target_);
}

std::map<std::string, DramCounts> Counters::read() {
  started_ = false;
  const bool all =
      LADDER_CUPTI(RangeProfiler_Stop, .pRangeProfilerObject = target_).isAllPassSubmitted;
  const size_t dropped =
      LADDER_CUPTI(RangeProfiler_DecodeData, .pRangeProfilerObject = target_).numOfRangeDropped;
  if (!all || dropped)
    fail(fmt::format("CUPTI lost {} ranges{}", dropped, all ? "" : " and wants another pass"));

  const size_t ranges =
      LADDER_CUPTI(RangeProfiler_GetCounterDataInfo, .pCounterDataImage = counts_.data(),
                   .counterDataImageSize = counts_.size())
          .numTotalRanges;
  std::map<std::string, DramCounts> counts;
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
        fail(fmt::format("CUPTI gave no number for {} of {}", kMetrics[m], name));
    counts[name] = {std::llround(values[0]), std::llround(values[1]), std::llround(values[2]),
                    std::llround(values[3])};
  }
  return counts;
}

}  // namespace ladder::gpu

#endif
