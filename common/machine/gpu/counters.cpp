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
#include <vector>

namespace ladder::gpu {
namespace {

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

  /// CUPTI's functions take one structure of parameters each, whose first member is its size.
  template <class Params>
  void call(const char* name, Params& params) const {
    const auto function = find<CUptiResult(Params*)>(name);
    if (!function) fail(fmt::format("{} has no {}; a newer CUPTI does", path_, name));
    const CUptiResult result = function(&params);
    if (result != CUPTI_SUCCESS)
      fail(fmt::format("{}: {}; {}", name, name_of(result), way_out(result)));
  }
  /// For cleaning up after an error: a second error is not news.
  template <class Params>
  void try_call(const char* name, Params& params) const noexcept {
    if (const auto function = find<CUptiResult(Params*)>(name)) function(&params);
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
    CUpti_Profiler_Initialize_Params params{CUpti_Profiler_Initialize_Params_STRUCT_SIZE};
    call("cuptiProfilerInitialize", params);
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

}  // namespace

struct Counters::Session {
  const Cupti& cupti = Cupti::instance();
  std::string source;
  CUpti_Profiler_Host_Object* host = nullptr;    // knows metrics
  CUpti_RangeProfiler_Object* target = nullptr;  // counts
  std::vector<uint8_t> config, counts;
  bool started = false, in_range = false;
  auto metrics() const { return const_cast<const char**>(kMetrics.data()); }

  explicit Session(size_t ranges) {
    try {
      open_host();
      open_target(ranges);
    } catch (...) {
      close();
      throw;
    }
  }
  ~Session() { close(); }

  void open_host() {
    CUpti_Device_GetChipName_Params chip{CUpti_Device_GetChipName_Params_STRUCT_SIZE};
    int device = 0;
    cudaGetDevice(&device);
    chip.deviceIndex = static_cast<size_t>(device);
    cupti.call("cuptiDeviceGetChipName", chip);
    source = fmt::format("{}, chip {}", cupti.path(), chip.pChipName);

    CUpti_Profiler_Host_Initialize_Params init{CUpti_Profiler_Host_Initialize_Params_STRUCT_SIZE};
    init.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    init.pChipName = chip.pChipName;
    cupti.call("cuptiProfilerHostInitialize", init);
    host = init.pHostObject;

    CUpti_Profiler_Host_ConfigAddMetrics_Params add{
        CUpti_Profiler_Host_ConfigAddMetrics_Params_STRUCT_SIZE};
    add.pHostObject = host;
    add.ppMetricNames = metrics();
    add.numMetrics = kMetrics.size();
    cupti.call("cuptiProfilerHostConfigAddMetrics", add);

    CUpti_Profiler_Host_GetConfigImageSize_Params size{
        CUpti_Profiler_Host_GetConfigImageSize_Params_STRUCT_SIZE};
    size.pHostObject = host;
    cupti.call("cuptiProfilerHostGetConfigImageSize", size);
    config.resize(size.configImageSize);
    CUpti_Profiler_Host_GetConfigImage_Params image{
        CUpti_Profiler_Host_GetConfigImage_Params_STRUCT_SIZE};
    image.pHostObject = host;
    image.configImageSize = config.size();
    image.pConfigImage = config.data();
    cupti.call("cuptiProfilerHostGetConfigImage", image);

    CUpti_Profiler_Host_GetNumOfPasses_Params passes{
        CUpti_Profiler_Host_GetNumOfPasses_Params_STRUCT_SIZE};
    passes.configImageSize = config.size();
    passes.pConfigImage = config.data();
    cupti.call("cuptiProfilerHostGetNumOfPasses", passes);
    if (passes.numOfPasses != 1)
      fail(fmt::format("{} counts these metrics in {} passes, not in one; ncu can do that",
                       chip.pChipName, passes.numOfPasses));
  }

  void open_target(size_t ranges) {
    CUpti_RangeProfiler_Enable_Params enable{CUpti_RangeProfiler_Enable_Params_STRUCT_SIZE};
    enable.ctx = current_context();
    cupti.call("cuptiRangeProfilerEnable", enable);
    target = enable.pRangeProfilerObject;

    CUpti_RangeProfiler_GetCounterDataSize_Params size{
        CUpti_RangeProfiler_GetCounterDataSize_Params_STRUCT_SIZE};
    size.pRangeProfilerObject = target;
    size.pMetricNames = metrics();
    size.numMetrics = kMetrics.size();
    size.maxNumOfRanges = ranges;
    size.maxNumRangeTreeNodes = static_cast<uint32_t>(ranges);
    cupti.call("cuptiRangeProfilerGetCounterDataSize", size);
    counts.resize(size.counterDataSize);
    CUpti_RangeProfiler_CounterDataImage_Initialize_Params image{
        CUpti_RangeProfiler_CounterDataImage_Initialize_Params_STRUCT_SIZE};
    image.pRangeProfilerObject = target;
    image.counterDataSize = counts.size();
    image.pCounterData = counts.data();
    cupti.call("cuptiRangeProfilerCounterDataImageInitialize", image);

    // Ranges that we push and pop, none inside another, in a pass that we run.
    CUpti_RangeProfiler_SetConfig_Params set{CUpti_RangeProfiler_SetConfig_Params_STRUCT_SIZE};
    set.pRangeProfilerObject = target;
    set.configSize = config.size();
    set.pConfig = config.data();
    set.counterDataImageSize = counts.size();
    set.pCounterDataImage = counts.data();
    set.range = CUPTI_UserRange;
    set.replayMode = CUPTI_UserReplay;
    set.maxRangesPerPass = ranges;
    set.numNestingLevels = 1;
    set.minNestingLevel = 1;
    set.passIndex = 0;
    set.targetNestingLevel = 1;
    cupti.call("cuptiRangeProfilerSetConfig", set);

    CUpti_RangeProfiler_Start_Params start{CUpti_RangeProfiler_Start_Params_STRUCT_SIZE};
    start.pRangeProfilerObject = target;
    cupti.call("cuptiRangeProfilerStart", start);
    started = true;
  }

  void close() noexcept {
    CUpti_RangeProfiler_PopRange_Params pop{CUpti_RangeProfiler_PopRange_Params_STRUCT_SIZE};
    pop.pRangeProfilerObject = target;
    if (in_range) cupti.try_call("cuptiRangeProfilerPopRange", pop);
    CUpti_RangeProfiler_Stop_Params stop{CUpti_RangeProfiler_Stop_Params_STRUCT_SIZE};
    stop.pRangeProfilerObject = target;
    if (started) cupti.try_call("cuptiRangeProfilerStop", stop);
    CUpti_RangeProfiler_Disable_Params disable{CUpti_RangeProfiler_Disable_Params_STRUCT_SIZE};
    disable.pRangeProfilerObject = target;
    if (target) cupti.try_call("cuptiRangeProfilerDisable", disable);
    CUpti_Profiler_Host_Deinitialize_Params deinit{
        CUpti_Profiler_Host_Deinitialize_Params_STRUCT_SIZE};
    deinit.pHostObject = host;
    if (host) cupti.try_call("cuptiProfilerHostDeinitialize", deinit);
  }
};

Counters::Counters(int ranges) : session_(new Session(static_cast<size_t>(ranges))) {}

void Counters::begin(const std::string& range) {
  CUpti_RangeProfiler_PushRange_Params push{CUpti_RangeProfiler_PushRange_Params_STRUCT_SIZE};
  push.pRangeProfilerObject = session_->target;
  push.pRangeName = range.c_str();
  session_->cupti.call("cuptiRangeProfilerPushRange", push);
  session_->in_range = true;
}

void Counters::end() {
  CUpti_RangeProfiler_PopRange_Params pop{CUpti_RangeProfiler_PopRange_Params_STRUCT_SIZE};
  pop.pRangeProfilerObject = session_->target;
  session_->in_range = false;
  session_->cupti.call("cuptiRangeProfilerPopRange", pop);
}

std::map<std::string, DramCounts> Counters::read() {
  Session& s = *session_;
  CUpti_RangeProfiler_Stop_Params stop{CUpti_RangeProfiler_Stop_Params_STRUCT_SIZE};
  stop.pRangeProfilerObject = s.target;
  s.started = false;
  s.cupti.call("cuptiRangeProfilerStop", stop);
  CUpti_RangeProfiler_DecodeData_Params decode{CUpti_RangeProfiler_DecodeData_Params_STRUCT_SIZE};
  decode.pRangeProfilerObject = s.target;
  s.cupti.call("cuptiRangeProfilerDecodeData", decode);
  if (!stop.isAllPassSubmitted || decode.numOfRangeDropped)
    fail(fmt::format("CUPTI lost {} ranges{}", decode.numOfRangeDropped,
                     stop.isAllPassSubmitted ? "" : " and wants another pass"));

  CUpti_RangeProfiler_GetCounterDataInfo_Params info{
      CUpti_RangeProfiler_GetCounterDataInfo_Params_STRUCT_SIZE};
  info.pCounterDataImage = s.counts.data();
  info.counterDataImageSize = s.counts.size();
  s.cupti.call("cuptiRangeProfilerGetCounterDataInfo", info);
  std::map<std::string, DramCounts> counts;
  for (size_t i = 0; i < info.numTotalRanges; ++i) {
    CUpti_RangeProfiler_CounterData_GetRangeInfo_Params range{
        CUpti_RangeProfiler_CounterData_GetRangeInfo_Params_STRUCT_SIZE};
    range.pCounterDataImage = s.counts.data();
    range.counterDataImageSize = s.counts.size();
    range.rangeIndex = i;
    range.rangeDelimiter = "/";
    s.cupti.call("cuptiRangeProfilerCounterDataGetRangeInfo", range);

    std::array<double, kMetrics.size()> values{};
    CUpti_Profiler_Host_EvaluateToGpuValues_Params evaluate{
        CUpti_Profiler_Host_EvaluateToGpuValues_Params_STRUCT_SIZE};
    evaluate.pHostObject = s.host;
    evaluate.pCounterDataImage = s.counts.data();
    evaluate.counterDataImageSize = s.counts.size();
    evaluate.rangeIndex = i;
    evaluate.ppMetricNames = s.metrics();
    evaluate.numMetrics = kMetrics.size();
    evaluate.pMetricValues = values.data();
    s.cupti.call("cuptiProfilerHostEvaluateToGpuValues", evaluate);
    for (size_t m = 0; m < values.size(); ++m)
      if (!std::isfinite(values[m]))
        fail(fmt::format("CUPTI gave no number for {} of {}", kMetrics[m], range.rangeName));
    counts[range.rangeName] = {std::llround(values[0]), std::llround(values[1]),
                               std::llround(values[2]), std::llround(values[3])};
  }
  return counts;
}

const std::string& Counters::source() const {
  return session_->source;
}

}  // namespace ladder::gpu

#else

namespace ladder::gpu {

struct Counters::Session {
  std::string source;
};
Counters::Counters(int) {
  throw Error(Exit::no_device,
              "this program was built without CUPTI: its headers (cupti_range_profiler.h, since "
              "CUDA 12.6) were not in the Toolkit; install them and build again");
}
void Counters::begin(const std::string&) {}
void Counters::end() {}
std::map<std::string, DramCounts> Counters::read() {
  return {};
}
const std::string& Counters::source() const {
  return session_->source;
}

}  // namespace ladder::gpu

#endif

namespace ladder::gpu {

Counters::~Counters() = default;

}  // namespace ladder::gpu
