// Implements Device for the GPU, and the functions of launch.h, with the CUDA runtime.
#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else  // without NVTX, profiles do not label rungs or kernels
inline void nvtxRangePushA(const char*) {}
inline void nvtxRangePop() {}
#endif

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>

#include "machine/device.h"
#include "machine/gpu/counters.h"
#include "machine/gpu/launch.h"
#include "machine/gpu/library.h"
#include "machine/gpu/sampling.h"

namespace ladder::gpu {
namespace {

/// Throws Error(no_device) unless the call succeeded; `doing` says what it was for.
void check(cudaError_t error, const std::string& doing) {
  if (error != cudaSuccess)
    no_device("{}: {} ({})", doing, cudaGetErrorString(error), cudaGetErrorName(error));
}

/// Times the work that is queued between start() and stop().
class Stopwatch {
 public:
  void start() { record(begin_); }
  void stop() { record(end_); }
  double ms() const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return ms;
  }

 private:
  using Event = std::shared_ptr<CUevent_st>;
  static Event create() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    return Event(event, cudaEventDestroy);
  }
  static void record(const Event& event) { check(cudaEventRecord(event.get()), "cudaEventRecord"); }

  Event begin_ = create(), end_ = create();
};

/// Opens an NVTX range, which ends when the returned pointer is destroyed.
std::shared_ptr<void> range(const char* name) {
  nvtxRangePushA(name);
  return {nullptr, [](void*) { nvtxRangePop(); }};
}

/// A function that is called instead of each launch and must call `queue`, which launches the
/// kernel. Its parameter `occupancy` is empty if the occupancy is unknown.
using Observer = std::function<void(const char* name, const std::function<void()>& queue,
                                    const std::function<Occupancy()>& occupancy)>;
Observer observer;
/// The percentage of an SM's cache that kernels prefer as shared memory; --sram sets it.
int carveout = cudaSharedmemCarveoutDefault;

class Gpu : public Device {
 public:
  explicit Gpu(int64_t smem_bytes) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver)
      no_device(
          "no GPU: no usable NVIDIA driver (none, or older than this program's CUDA runtime)");
    if (error != cudaSuccess || count == 0)
      no_device("no GPU: {}", cudaGetErrorString(error ? error : cudaErrorNoDevice));
    check(cudaSetDevice(0), "cudaSetDevice");
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    info_.kind = DeviceKind::gpu;
    info_.name = properties.name;
    info_.smem_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    info_.l2_bytes = properties.l2CacheSize;
    info_.multiprocessors = properties.multiProcessorCount;
    const int capability = properties.major * 10 + properties.minor;
    if (capability < 75)
      no_device("{} has compute capability {}.{}, but 7.5 is the minimum", info_.name,
                properties.major, properties.minor);
    const int compiled = compiled_capability();
    if (!compiled)
      no_device(
          "this program cannot run on {}: it was built for {}, and this is {}; scripts/run builds "
          "it for this GPU",
          info_.name, LADDER_ARCHITECTURES, capability);
    info_.compute_capability = std::min(capability, compiled);
    // A program that contains only PTX for 7.5 runs on any GPU as it would on a 7.5, which has at
    // most 64 KB of shared memory per block.
    if (!info_.has_bf16()) info_.smem_bytes = std::min<int64_t>(info_.smem_bytes, 64 * 1024);
    if (smem_bytes > info_.smem_bytes)
      throw Error(Exit::bad_usage, fmt::format("--sram {}: a block on {} can have at most {} bytes",
                                               smem_bytes, info_.name, info_.smem_bytes));
    if (smem_bytes) {
      // An SM's shared memory is 1 KiB larger than a block's limit. With this carveout the SM runs
      // as many blocks as one whose blocks are limited to smem_bytes.
      info_.smem_bytes = smem_bytes;
      carveout = static_cast<int>(100 * (smem_bytes + 1024) /
                                  static_cast<int64_t>(properties.sharedMemPerMultiprocessor));
    }
    size_t free_bytes = 0, total = 0;
    check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    info_.memory_bytes = static_cast<int64_t>(total);
    info_.memory_free = static_cast<int64_t>(free_bytes);
  }

  const DeviceInfo& info() const override { return info_; }

  std::shared_ptr<Array> allocate(const std::string& name, int64_t bytes) override {
    const std::shared_ptr<Array> array(new Array{name, nullptr, bytes}, [](Array* owned) {
      cudaFree(owned->data);
      delete owned;
    });
    const cudaError_t error = cudaMalloc(&array->data, std::max<int64_t>(bytes, 1));
    if (error != cudaSuccess) cudaGetLastError();  // clears the error, which later calls would see
    check(error, fmt::format("allocating {} bytes for {}", bytes, name));
    check(cudaMemset(array->data, 0xff, bytes), "cudaMemset");
    return array;
  }
  void upload(Array& array, const void* host) override {
    check(cudaMemcpy(array.data, host, array.bytes, cudaMemcpyHostToDevice), "copying to the GPU");
  }
  void download(void* host, const Array& array) override {
    check(cudaMemcpy(host, array.data, array.bytes, cudaMemcpyDeviceToHost),
          "copying from the GPU");
  }

  std::vector<KernelReport> run(const std::string& rung,
                                const std::function<void()>& work) override {
    rung_ = rung;
    std::vector<KernelReport> reports;
    observe(work, [&](const char* name, const auto& queue, const auto& occupancy) {
      if (std::none_of(reports.begin(), reports.end(),
                       [&](const KernelReport& r) { return r.name == name; })) {
        reports.push_back({.name = name});
        if (occupancy) reports.back().occupancy = occupancy();
      }
      queue();
    });
    wait();
    return reports;
  }

  std::optional<Timing> time(const std::function<void()>& work, double budget_ms) override {
    const double once = batch(work, 2).back();  // ms; a batch of `size` runs takes about 20 ms
    const int size = std::clamp(static_cast<int>(20 / std::max(once, 1e-3)), 3, 50);
    const std::vector<double> samples = sample(
        budget_ms, [&] { return batch(work, size); },
        [] {
          const auto now = std::chrono::steady_clock::now().time_since_epoch();
          return std::chrono::duration<double, std::milli>(now).count();
        });
    const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
    return Timing{median(samples), *least, *most, static_cast<int>(samples.size())};
  }

  std::map<std::string, double> time_kernels(const std::function<void()>& work) override {
    std::map<std::string, std::vector<double>> samples;
    for (int i = 0; i < 11; ++i) {  // one run to warm up and ten samples
      std::vector<std::pair<std::string, Stopwatch>> launches;
      flush();
      observe(work, [&](const char* name, const auto& queue, const auto&) {
        Stopwatch& watch = launches.emplace_back(name, Stopwatch()).second;
        watch.start();
        queue();
        watch.stop();
      });
      wait();
      if (i == 0) continue;
      std::map<std::string, double> one;
      for (const auto& [name, watch] : launches) one[name] += watch.ms();
      for (const auto& [name, ms] : one) samples[name].push_back(ms);
    }
    std::map<std::string, double> medians;
    for (const auto& [name, ms] : samples) medians[name] = median(ms);
    return medians;
  }

#ifdef LADDER_CUPTI_FOLDER  // the build found CUPTI's headers
  DramReport dram(const std::function<void()>& work) override {
    // A sweep reads twice as many bytes as L2 holds, which empties it. (Overwriting L2 would leave
    // lines whose later write-back would be counted.) Each range ends with a second sweep, which
    // forces the work's own lines to be written back; it reads the buffer's other half, so that
    // none of its reads hits L2. The bytes of a sweep alone (a median of three) are subtracted.
    const int64_t half = 2 * info_.l2_bytes;
    const auto swept = allocate("swept", 2 * half);
    const auto sweep = [&](int64_t from) {
      queue_sweep(static_cast<char*>(swept->data) + from, half);
      check(cudaGetLastError(), "launching the sweep of L2");
    };
    int launches = 0;
    observe(work, [&](const char*, const auto& queue, const auto&) { ++launches, queue(); });
    wait();
    constexpr int kSweeps = 3;
    Counters counters(launches + 1 + kSweeps);
    const auto count = [&](const std::string& range, const std::function<void()>& queue) {
      sweep(0);
      wait();
      counters.begin(range);
      queue();
      sweep(half);
      wait();
      counters.end();
    };
    const auto sweep_name = [](int i) { return fmt::format("sweep {}", i); };
    for (int i = 0; i < kSweeps; ++i) count(sweep_name(i), []{});
    count("all", work);
    std::vector<std::string> names;
    observe(work, [&](const char* name, const auto& queue, const auto&) {
      names.push_back(name);
      count(fmt::format("launch {}", names.size() - 1), queue);
    });

    const auto ranges = counters.read();
    constexpr int64_t ReadWrite::*kMembers[] = {&ReadWrite::read, &ReadWrite::write};
    ReadWrite own;  // bytes that a sweep alone moves
    for (const auto member : kMembers) {
      std::vector<double> samples;
      for (int i = 0; i < kSweeps; ++i)
        samples.push_back(static_cast<double>(ranges.at(sweep_name(i)).*member));
      own.*member = static_cast<int64_t>(median(samples));
    }
    const auto add = [&](ReadWrite& sum, const std::string& range) {
      for (const auto member : kMembers)
        sum.*member += std::max<int64_t>(0, ranges.at(range).*member - own.*member);
    };
    DramReport report;
    add(report.all, "all");
    for (size_t i = 0; i < names.size(); ++i)
      add(report.kernels[names[i]], fmt::format("launch {}", i));
    return report;
  }
#else
  DramReport dram(const std::function<void()>&) override {
    no_device(
        "this program was built without CUPTI: its headers (cupti_range_profiler.h, since CUDA "
        "12.6) were not in the Toolkit; install them and build again");
  }
#endif

 private:
  /// Queues `size` timed runs, each after a flush of L2, and waits once at the end, so that the
  /// GPU's work hides the host's launch time. Returns the runs' times in ms.
  std::vector<double> batch(const std::function<void()>& work, int size) {
    std::vector<Stopwatch> watches(size);
    for (Stopwatch& watch : watches) {
      flush();
      watch.start();
      work();
      watch.stop();
    }
    wait();
    std::vector<double> ms;
    for (const Stopwatch& watch : watches) ms.push_back(watch.ms());
    return ms;
  }

  void flush() {  // queues a memset of twice L2's size, which evicts everything else
    const size_t bytes = 2 * static_cast<size_t>(info_.l2_bytes);
    if (!flush_) flush_ = allocate("flush", static_cast<int64_t>(bytes));
    check(cudaMemsetAsync(flush_->data, 0, bytes), "overwriting L2");
  }

  /// Calls `work` with `by` as the observer of its launches.
  void observe(const std::function<void()>& work, Observer by) {
    const auto of_rung = range(rung_.c_str());
    // Resets the observer at the end of the scope, also after a throw.
    const std::shared_ptr<void> end(nullptr, [](void*) { observer = nullptr; });
    observer = std::move(by);
    work();
  }

  /// Waits for the GPU. Throws Error(wrong_result) if a kernel failed.
  void wait() {
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess)
      throw Error(Exit::wrong_result,
                  fmt::format("rung {} failed on the GPU: {} ({}); "
                              "run compute-sanitizer to locate the error",
                              rung_, cudaGetErrorString(error), cudaGetErrorName(error)));
  }

  DeviceInfo info_;
  std::string rung_;
  std::shared_ptr<Array> flush_;  // the buffer that flush() overwrites
};

}  // namespace

void launch_erased(const KernelName& name, const void* kernel, dim3 grid, dim3 block,
                   int64_t smem_bytes, void** arguments, Start start) {
  const auto require = [&](cudaError_t error) {
    if (error == cudaSuccess) return;
    std::string file = name.where.file_name();
    cudaGetLastError();
    throw Error(Exit::wrong_result,
                fmt::format("kernel {} ({}:{}) cannot be launched with grid ({},{},{}), block "
                            "({},{},{}), {} bytes of shared memory: {} ({})",
                            name.name, file.substr(file.rfind('/') + 1), name.where.line(), grid.x,
                            grid.y, grid.z, block.x, block.y, block.z, smem_bytes,
                            cudaGetErrorString(error), cudaGetErrorName(error)));
  };
  if (carveout != cudaSharedmemCarveoutDefault)
    require(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout));
  // Above 48 KiB of dynamic shared memory, CUDA requires that the kernel's limit be raised first.
  if (smem_bytes > 48 * 1024) {
    static std::map<const void*, int64_t> raised;
    int64_t& limit = raised[kernel];
    if (smem_bytes > limit) {
      require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(smem_bytes)));
      limit = smem_bytes;
    }
  }
  const auto occupancy = [&] {
    Occupancy o{.blocks = int64_t{grid.x} * grid.y * grid.z};
    cudaFuncAttributes attributes;
    require(cudaFuncGetAttributes(&attributes, kernel));
    o.registers = attributes.numRegs;
    require(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &o.blocks_per_sm, kernel, static_cast<int>(block.x * block.y * block.z), smem_bytes));
    return o;
  };
  const auto queue = [&] {
    bool start_early = false;
    if (start == Start::early) {
      // In code for less than 9.0 wait_for_kernel_before() does nothing, even on a newer GPU.
      cudaFuncAttributes attributes;
      require(cudaFuncGetAttributes(&attributes, kernel));
      start_early = attributes.ptxVersion >= 90;
    }
    cudaLaunchAttribute early{.id = cudaLaunchAttributeProgrammaticStreamSerialization};
    early.val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t config{.gridDim = grid,
                                    .blockDim = block,
                                    .dynamicSmemBytes = static_cast<size_t>(smem_bytes),
                                    .attrs = &early,
                                    .numAttrs = start_early ? 1u : 0u};
    require(cudaLaunchKernelExC(&config, kernel, arguments));
  };
  const auto of_kernel = range(name.name);
  observer ? observer(name.name, queue, occupancy) : queue();
}

TensorMap encode_tensor_map(const Array& array, int element_bytes,
                            const std::array<int64_t, 4>& extents, int box_rows, int box_bytes) {
  cuuint64_t sizes[4], strides[4];  // strides in bytes, to the next row, head, batch
  for (int i = 0; i < 4; ++i) {
    sizes[i] = static_cast<cuuint64_t>(extents[i]);
    strides[i] = (i == 0 ? static_cast<cuuint64_t>(element_bytes) : strides[i - 1]) * sizes[i];
  }
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(box_bytes / element_bytes),
                             static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t apart[4] = {1, 1, 1, 1};
  // A copy does no arithmetic, so only the size of the elements matters, not their type.
  const auto type =
      element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  CUtensorMap map;
  const CUresult result =
      driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled")(
          &map, type, 4, array.data, sizes, strides, box, apart, CU_TENSOR_MAP_INTERLEAVE_NONE,
          box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
          CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(
        Exit::wrong_result,
        fmt::format(
            "cannot make a tensor map of {} ({},{},{},{}) in boxes of {} rows: CUDA error {}",
            array.name, extents[3], extents[2], extents[1], extents[0], box_rows,
            static_cast<int>(result)));
  return std::bit_cast<TensorMap>(map);
}

}  // namespace ladder::gpu

namespace ladder {

std::unique_ptr<Device> open_gpu(int64_t smem_bytes) {
  return std::make_unique<gpu::Gpu>(smem_bytes);
}

}  // namespace ladder
