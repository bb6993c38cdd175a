// Implements the simulator, a Device that runs kernels on the CPU. On each core an OS thread runs
// whole blocks (block.h), whose CUDA threads are fibers (fiber.h). Every access to memory is
// counted and checked against shadow bits, which record what is known about each byte
// (shared_memory.h), and in global memory also against other blocks' accesses (global_memory.h).
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <mutex>
#include <numeric>
#include <optional>

#include "machine/sim/sim_machine.h"
#include "parallel.h"

namespace ladder::sim {
namespace {

/// Returns the number of the block that is k-th (from 0) among n blocks in the schedule's order.
int64_t scheduled_block(const Schedule& schedule, int64_t k, int64_t n) {
  if (schedule.order == Schedule::Order::forward) return k;
  if (schedule.order == Schedule::Order::reverse) return n - 1 - k;
  // A stride that shares no factor with n visits every block once.
  uint64_t stride = mix(schedule.seed) % n | 1;
  while (std::gcd(stride, n) != 1) stride += 2;
  return static_cast<int64_t>(
      (static_cast<unsigned __int128>(stride) * k + mix(schedule.seed + 1)) % n);
}

class Sim* current_sim = nullptr;  // the simulator whose run() is active

/// The simulated machine: its arrays, its blocks and the reports of the current run.
class Sim : public Device {
 public:
  explicit Sim(const SimOptions& options) : options_(options) {
    // A single OS thread records a trace, so that its events are in one order.
    const int threads = options.trace ? 1 : options.threads ? options.threads : host_cores();
    for (int i = 0; i < threads; ++i)
      blocks_.push_back(std::make_unique<Block>(i, options.smem_bytes));
    if (options.trace) recorder_.emplace(blocks_[0]->counts);
    info_.kind = DeviceKind::sim;
    info_.name = fmt::format("sim on {} core{}", threads, threads == 1 ? "" : "s");
    info_.smem_bytes = options.smem_bytes;
    info_.multiprocessors = options.multiprocessors;
    info_.compute_capability = 90;  // so that the Hopper steps run, too
    info_.memory_free = info_.memory_bytes = host_memory();
    std::ifstream meminfo("/proc/meminfo");  // exists on Linux
    for (std::string line; std::getline(meminfo, line);)
      if (line.rfind("MemAvailable:", 0) == 0)
        info_.memory_free = std::min<int64_t>(info_.memory_bytes,
                                              std::strtoll(line.c_str() + 13, nullptr, 10) * 1024);
    info_.memory_bytes /= kBytesForEach;  // the host bytes per byte of an array
    info_.memory_free /= kBytesForEach;
  }

  const DeviceInfo& info() const override { return info_; }

  std::shared_ptr<Array> allocate(const std::string& name, int64_t bytes) override {
    const std::shared_ptr<TrackedArray> array(
        new TrackedArray(name, bytes, static_cast<int>(blocks_.size())),
        [this](TrackedArray* owned) {
          std::erase(arrays_, owned);
          delete owned;
        });
    arrays_.push_back(array.get());
    return array;
  }
  void upload(Array& array, const void* host) override {
    auto& tracked = static_cast<TrackedArray&>(array);
    std::memcpy(tracked.contents(), host, array.bytes);
    tracked.mark_written();
  }
  void download(void* host, const Array& array) override {
    std::memcpy(host, static_cast<const TrackedArray&>(array).contents(), array.bytes);
  }

  std::vector<KernelReport> run(const std::string& rung,
                                const std::function<void()>& work) override {
    rung_ = rung;
    reports_.clear();
    next_may_start_ = false;
    for (auto* a : arrays_) a->take_kernel_counts();  // drops the counts of a run that faulted
    for (auto& b : blocks_) b->counts = {};
    // Resets the pointer at the end of the scope, also after a throw.
    const std::shared_ptr<void> end(nullptr, [](void*) { current_sim = nullptr; });
    current_sim = this;
    work();
    return std::move(reports_);
  }

  /// Checks a launch, runs its blocks and adds its counts to the reports; run_kernel() calls it.
  void launch(Launch& launch) {
    launch.rung = rung_;
    launch.schedule = options_.schedule;
    launch.recorder = recorder_ ? &*recorder_ : nullptr;
    const dim3 grid = launch.grid, block = launch.block;
    if (recorder_)
      recorder_->start_launch(
          {launch.kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {}},
          launch.function);
    check(launch);
    if (options_.only_launches) return;
    for (auto* array : arrays_) array->start_kernel(launch.early);
    run_blocks(launch);
    // It must have waited, because a later kernel that waits for it relies on its predecessor, too.
    if (launch.early && !launch.waited)
      refuse(launch, "starts early, but no thread calls wait_for_kernel_before()");
    next_may_start_ = launch.lets_next_start;
    report(launch.kernel);
  }

  DramReport dram(const std::function<void()>&) override {
    throw Error(Exit::no_device,
                "only a GPU has these counters; the simulator counts requested and distinct bytes");
  }
  Trace take_trace() override { return recorder_ ? recorder_->take() : Trace{}; }

 private:
  /// Throws a Fault for a launch that breaks a rule, and records it in the trace.
  [[noreturn]] void refuse(const Launch& launch, const std::string& why) {
    const std::string message = fmt::format("rung {}, kernel {}: {}", rung_, launch.kernel, why);
    if (recorder_) recorder_->fault(message, -1, false);
    throw Fault(message);
  }
  /// Faults if the launch exceeds one of CUDA's limits or --sram, or must not start early.
  void check(const Launch& launch) {
    const dim3 grid = launch.grid, block = launch.block;
    const int64_t threads = int64_t{block.x} * block.y * block.z;
    if (threads < 1 || threads > kMaxThreads || block.z > 64)
      refuse(launch, fmt::format("a block of ({},{},{}) threads: at most 1024, and at most 64 in z",
                                 block.x, block.y, block.z));
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535)
      refuse(launch, fmt::format("a grid of ({},{},{}) blocks: at most (2147483647,65535,65535)",
                                 grid.x, grid.y, grid.z));
    if (launch.smem_bytes > options_.smem_bytes)
      refuse(launch, fmt::format("{} bytes of shared memory per block, more than the {} that "
                                 "--sram allows",
                                 launch.smem_bytes, options_.smem_bytes));
    if (launch.early && !next_may_start_ && !options_.only_launches)
      refuse(launch, "starts early, but the previous kernel never calls let_next_kernel_start()");
  }
  /// Runs the blocks on all OS threads. If several fault, throws the first one in schedule order.
  void run_blocks(Launch& launch) {
    const int64_t count = int64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    std::atomic<int64_t> next{0};
    std::atomic<bool> stop{false};
    std::map<int64_t, std::exception_ptr> failures;  // keyed by the block's place in the schedule
    std::mutex of_failures;
    on_threads(std::min(count, std::ssize(blocks_)), [&](int64_t i) {
      this_block = blocks_[i].get();
      for (int64_t k; !stop && (k = next++) < count;) {
        try {
          this_block->run(launch, scheduled_block(launch.schedule, k, count));
        } catch (...) {
          const std::lock_guard lock(of_failures);
          failures[k] = std::current_exception();
          stop = true;
        }
        this_block->count_accesses(0, this_block->warps());  // also after a fault, to empty lists
        if (recorder_) recorder_->end_block(this_block->memory.regions());
      }
      this_block = nullptr;
    });
    if (!failures.empty()) std::rethrow_exception(failures.begin()->second);
  }
  /// Moves the counts of arrays and blocks to the kernel's report.
  void report(const std::string& kernel) {
    auto report = std::ranges::find(reports_, kernel, &KernelReport::name);
    if (report == reports_.end())
      report = reports_.insert(reports_.end(), KernelReport{kernel, Counts{}, std::nullopt});
    Counts& counts = *report->counts;
    for (auto* array : arrays_) {
      const HbmCounts c = array->take_kernel_counts();
      if (c.requested == ReadWrite{}) continue;
      counts.hbm += c;
      counts.arrays[array->name] += c;
    }
    for (auto& b : blocks_) counts += std::exchange(b->counts, {});
  }

  SimOptions options_;
  DeviceInfo info_;
  std::string rung_;
  std::vector<TrackedArray*> arrays_;           // all arrays that exist
  std::vector<std::unique_ptr<Block>> blocks_;  // one per OS thread
  std::optional<Recorder> recorder_;
  std::vector<KernelReport> reports_;
  // Whether the next kernel may start early: the previous one called let_next_kernel_start().
  bool next_may_start_ = false;
};

}  // namespace

void run_kernel(Launch&& launch) {
  if (!current_sim) throw std::logic_error("launch outside Device::run");
  current_sim->launch(launch);
}

}  // namespace ladder::sim

namespace ladder {

Counts& Counts::operator+=(const Counts& other) {
  hbm += other.hbm;
  for (const auto& [name, counts] : other.arrays) arrays[name] += counts;
  add(other);
  return *this;
}

int64_t host_memory() {
  return int64_t{sysconf(_SC_PAGESIZE)} * sysconf(_SC_PHYS_PAGES);
}

std::unique_ptr<Device> open_sim(const SimOptions& options) {
  return std::make_unique<sim::Sim>(options);
}

}  // namespace ladder
