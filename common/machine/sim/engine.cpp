#include "machine/sim/engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <numeric>

#include "parallel.h"

namespace ladder::sim {
namespace {

Sim* current_sim = nullptr;  // the one whose run() is under way

/// The k-th of n blocks in the schedule's order; every block once.
int64_t scheduled_block(const Schedule& schedule, int64_t k, int64_t n) {
  if (schedule.order == Schedule::Order::forward) return k;
  if (schedule.order == Schedule::Order::reverse) return n - 1 - k;
  // A stride that shares no factor with n visits every block once.
  uint64_t stride = mix(schedule.seed) % n | 1;
  while (std::gcd(stride, n) != 1) stride += 2;
  return static_cast<int64_t>(
      (static_cast<unsigned __int128>(stride) * k + mix(schedule.seed + 1)) % n);
}

}  // namespace

Sim::Sim(const SimOptions& options) : options_(options) {
  // A trace tells one story, so one thread writes it.
  const int threads = !options.trace_file.empty() ? 1
                      : options.threads           ? options.threads
                                                  : host_cores();
  for (int i = 0; i < threads; ++i)
    blocks_.push_back(std::make_unique<Block>(i, options.sram_bytes));
  if (!options.trace_file.empty()) recorder_.emplace(blocks_[0]->counts);
  info_.kind = DeviceKind::sim;
  info_.name = fmt::format("sim on {} core{}", threads, threads == 1 ? "" : "s");
  info_.sram_bytes = options.sram_bytes;
  info_.multiprocessors = options.multiprocessors;
  info_.compute_capability = 90;
  const int64_t page = sysconf(_SC_PAGESIZE);
  info_.memory_free = info_.memory_bytes = page * sysconf(_SC_PHYS_PAGES);
  std::ifstream meminfo("/proc/meminfo");  // Linux's
  for (std::string line; std::getline(meminfo, line);)
    if (line.rfind("MemAvailable:", 0) == 0)
      info_.memory_free = std::strtoll(line.c_str() + 13, nullptr, 10) * 1024;
  info_.memory_bytes /= kBytesForEach;
  info_.memory_free /= kBytesForEach;
}

Sim& Sim::current() {
  if (!current_sim) throw std::logic_error("launch outside Device::run");
  return *current_sim;
}

Array* Sim::allocate(const std::string& name, int64_t bytes) {
  arrays_.push_back(std::make_unique<Tracked>(name, bytes, static_cast<int>(blocks_.size())));
  return arrays_.back().get();
}

void Sim::release(Array* array) noexcept {
  std::erase_if(arrays_, [&](const auto& a) { return a.get() == array; });
}

void Sim::upload(Array& array, const void* host) {
  std::memcpy(array.data, host, array.bytes);
  static_cast<Tracked&>(array).mark_written();
}

void Sim::download(void* host, const Array& array) {
  std::memcpy(host, array.data, array.bytes);
}

std::vector<KernelReport> Sim::run(const std::string& rung, const std::function<void()>& work) {
  rung_ = rung;
  reports_.clear();
  next_may_start_ = false;
  current_sim = this;
  try {
    work();
  } catch (...) {
    current_sim = nullptr;
    // The next run must not inherit what this one counted.
    for (auto& a : arrays_) a->take_kernel_counts();
    for (auto& b : blocks_) b->counts = {};
    throw;
  }
  current_sim = nullptr;
  return std::move(reports_);
}

void Sim::launch(const char* kernel, dim3 grid, dim3 block, int64_t shared_bytes,
                 const void* function, const std::function<void()>& body, bool early) {
  const Launch launch{rung_,
                      kernel,
                      grid,
                      block,
                      shared_bytes,
                      &body,
                      options_.schedule,
                      recorder_ ? &*recorder_ : nullptr,
                      early};
  if (recorder_)
    recorder_->start_launch({kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {}},
                            function);
  const auto refuse = [&](const std::string& why) {
    const std::string message = fmt::format("rung {}, kernel {}: {}", rung_, kernel, why);
    if (recorder_) recorder_->fault(message, -1, false);
    throw Fault(message);
  };
  const int64_t threads = int64_t{block.x} * block.y * block.z;
  if (threads < 1 || threads > kMaxThreads || block.z > 64)
    refuse(fmt::format("a block of ({},{},{}) threads: at most 1024", block.x, block.y, block.z));
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535)
    refuse(fmt::format("a grid of ({},{},{}) blocks: at most (2147483647,65535,65535)", grid.x,
                       grid.y, grid.z));
  if (shared_bytes > options_.sram_bytes)
    refuse(fmt::format("{} bytes of shared memory for a block, more than the {} there are (--sram)",
                       shared_bytes, options_.sram_bytes));

  if (early && !next_may_start_)
    refuse("starts early, but the kernel before never calls let_next_kernel_start()");
  for (auto& array : arrays_) array->start_kernel(early);

  const int64_t count = int64_t{grid.x} * grid.y * grid.z;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  struct Failure {
    int64_t k = INT64_MAX;
    std::exception_ptr what;
  };
  std::vector<Failure> failures(blocks_.size());
  on_threads(std::min(count, std::ssize(blocks_)), [&](int64_t i) {
    this_block = blocks_[i].get();
    for (int64_t k; !stop && (k = next++) < count;) {
      try {
        this_block->run(launch, scheduled_block(launch.schedule, k, count));
      } catch (...) {
        failures[i] = {k, std::current_exception()};
        stop = true;
      }
      this_block->count_accesses(0, this_block->warps());
      if (recorder_) recorder_->end_block(this_block->memory.regions());
    }
    this_block = nullptr;
  });
  const auto first = std::min_element(failures.begin(), failures.end(),
                                      [](const auto& a, const auto& b) { return a.k < b.k; });
  if (first->what) std::rethrow_exception(first->what);
  // A later kernel waits for this one alone, and must find the one before this ended too.
  if (early && !launch.waited) refuse("starts early, and no thread calls wait_for_kernel_before()");
  next_may_start_ = launch.lets_next_start;

  auto report = std::find_if(reports_.begin(), reports_.end(),
                             [&](const KernelReport& r) { return r.name == kernel; });
  if (report == reports_.end())
    report = reports_.insert(reports_.end(), KernelReport{kernel, Counts{}, std::nullopt});
  Counts& counts = *report->counts;
  for (auto& array : arrays_) {
    const HbmCounts c = array->take_kernel_counts();
    if (c.requested_read == 0 && c.requested_write == 0) continue;
    counts.hbm += c;
    counts.arrays[array->name] += c;
  }
  for (auto& b : blocks_) counts += std::exchange(b->counts, {});
}

}  // namespace ladder::sim

namespace ladder {

std::unique_ptr<Device> open_sim(const SimOptions& options) {
  return std::make_unique<sim::Sim>(options);
}

}  // namespace ladder
