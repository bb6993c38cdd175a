#include "machine/sim/engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <fstream>
#include <future>
#include <numeric>

#include "host_cores.h"

namespace ladder::sim {
namespace {

Sim* current_sim = nullptr;  // the one whose run() is under way

std::string place(const std::source_location& where) {
  std::string file = where.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), where.line());
}

/// The k-th of n blocks in the schedule's order; every block once.
int64_t scheduled_block(const Schedule& schedule, int64_t k, int64_t n) {
  switch (schedule.order) {
    case Schedule::Order::forward:
      return k;
    case Schedule::Order::reverse:
      return n - 1 - k;
    case Schedule::Order::random:
      break;
  }
  // A step that shares no factor with n visits every block once.
  uint64_t step = mix(schedule.seed) % static_cast<uint64_t>(n) | 1;
  while (std::gcd(step, static_cast<uint64_t>(n)) != 1) step += 2;
  const auto wide =
      static_cast<unsigned __int128>(step) * static_cast<uint64_t>(k) + mix(schedule.seed + 1);
  return static_cast<int64_t>(static_cast<uint64_t>(wide % static_cast<uint64_t>(n)));
}

}  // namespace

void fault(const std::string& what) {
  if (!worker) throw Fault(what);
  worker->block().fault_in(worker->block().running(), what, true);
}

// ------------------------------------------------------------------------------------------ blocks

Worker::Worker(int index, int64_t sram_bytes) : block_(index), memory_(sram_bytes) {}

void Worker::thread_main(void* self) {
  auto& w = *static_cast<Worker*>(self);
  try {
    (*w.block_.launch().body)();
    w.memory_.end_thread(w.block_.running());
    if (w.async_) w.async_->end_thread();
  } catch (...) {
    w.failure_ = std::current_exception();
  }
  w.block_.end_thread();
}

void Worker::run_block(const Launch& launch, int64_t index) {
  const int n = launch.threads();
  async_.reset();
  meetings_.resize(static_cast<size_t>((n + 31) / 32));
  for (auto& m : meetings_) m.clear();
  at_barrier_ = 0;
  barriers_passed_ = 0;
  failure_ = nullptr;
  block_.start(launch, index, &Worker::thread_main, this);
  memory_.start(launch.shared_bytes, n, block_.recorder());

  std::vector<int> warps(meetings_.size()), lanes(32);
  std::iota(warps.begin(), warps.end(), 0);
  std::iota(lanes.begin(), lanes.end(), 0);
  if (launch.schedule.order == Schedule::Order::reverse) {
    std::reverse(warps.begin(), warps.end());
    std::reverse(lanes.begin(), lanes.end());
  }
  const bool random = launch.schedule.order == Schedule::Order::random;
  uint64_t number = mix(launch.schedule.seed ^ static_cast<uint64_t>(index) << 20);
  const auto shuffle = [&](std::vector<int>& order) {
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[(number = mix(number)) % (i + 1)]);
  };
  while (block_.ended() < n) {
    if (random) shuffle(warps);
    bool progress = false;
    barrier_passed_ = false;
    for (const int warp : warps) {
      // A warp runs on until it waits for other warps. If all went from collective to collective in
      // lockstep, the races that a missing barrier allows would never happen. Shuffled, it may lose
      // its turn at any collective.
      for (bool ran = true; ran && !barrier_passed_;) {
        if (random) shuffle(lanes);
        ran = run_warp(warp, lanes);
        progress |= ran;
        if (random && (number = mix(number)) % 2) break;
      }
      if (barrier_passed_) break;  // all leave it in the schedule's order
    }
    if (!progress && !(async_ && async_->deliver())) deadlock();
  }
  if (async_) async_->end_block();
}

bool Worker::run_warp(int warp, const std::vector<int>& lanes) {
  bool ran = false;
  for (const int lane : lanes) {
    const int t = 32 * warp + lane;
    if (t >= block_.threads() || !block_.resume(t)) continue;
    ran = true;
    if (failure_) std::rethrow_exception(failure_);
    if (barrier_passed_) break;
  }
  return ran;
}

void Worker::deadlock() {
  using Thread = Block::Thread;
  // Who waits for what, where something of async_ is waited for.
  struct Waiting {
    std::string what;
    int first, threads;
  };
  std::vector<Waiting> all;
  bool async = false;
  for (int t = 0; t < block_.threads(); ++t) {
    const Thread& thread = block_.thread(t);
    if (thread.state != Thread::State::waiting) continue;
    std::string what = async_ ? async_->waits_for(t) : "";
    async |= !what.empty();
    what = fmt::format("{} ({})", what.empty() ? thread.waits_at : what, place(thread.where));
    if (all.empty() || all.back().what != what) all.push_back({what, t, 0});
    ++all.back().threads;
  }
  const int first = all.front().first;
  if (async) {
    std::string who_waits;
    for (const Waiting& w : all)
      who_waits +=
          fmt::format("{}{}{} for {}", who_waits.empty() ? "" : "; ", block_.name_of(w.first),
                      w.threads > 1 ? fmt::format(" and {} after it", w.threads - 1) : "", w.what);
    block_.fault_in(first, fmt::format("deadlock: {} of {} threads have ended, the others wait: {}",
                                       block_.ended(), block_.threads(), who_waits));
  }
  // Name the first thread that waits, what it waits at, and the first that never came.
  const auto waits = [](const Thread& thread) {
    return fmt::format("waits at {} ({})", thread.waits_at, place(thread.where));
  };
  std::string why = "deadlock: " + waits(block_.thread(first));
  for (int t = 0; t < block_.threads(); ++t) {
    const Thread& absent = block_.thread(t);
    const bool ended = absent.state == Thread::State::done;
    if (!ended && std::strcmp(absent.waits_at, block_.thread(first).waits_at) == 0) continue;
    why += fmt::format(", which {} never reaches: it {}", block_.name_of(t),
                       ended ? "has ended" : waits(absent));
    break;
  }
  block_.fault_in(first,
                  fmt::format("{}; {} of {} threads wait, {} have ended", why,
                              block_.threads() - block_.ended(), block_.threads(), block_.ended()));
}

// --------------------------------------------------------------------------- barriers, collectives

void Worker::syncthreads(std::source_location where) {
  if (at_barrier_ == 0) {
    barrier_where_ = where;
  } else if (where.line() != barrier_where_.line() || where.column() != barrier_where_.column() ||
             std::strcmp(where.file_name(), barrier_where_.file_name()) != 0) {
    fault(
        fmt::format("__syncthreads at {} while other threads wait at the one at {}: a barrier in "
                    "a branch that not all threads take",
                    place(where), place(barrier_where_)));
  }
  block_.trace_event_of_warp("__syncthreads", "", barriers_passed_);
  if (++at_barrier_ < block_.threads()) return block_.wait("__syncthreads", where);
  at_barrier_ = 0;
  ++counts().barriers;
  for (int t = 0; t < block_.threads(); ++t) {
    memory_.publish(t);
    block_.wake(t);
  }
  ++barriers_passed_;
  barrier_passed_ = true;
  block_.yield();
}

bool Worker::meet(const char* word, unsigned mask, void* mine, std::source_location where,
                  Meeting*& meeting) {
  mask &= block_.warp_lanes();
  const int lane = block_.lane();
  const unsigned self = 1u << lane;
  if (!(mask & self)) fault(fmt::format("{}: the mask {:#010x} leaves out the caller", word, mask));
  auto& open = meetings_[static_cast<size_t>(block_.running() / 32)];
  Meeting* m = nullptr;
  for (Meeting& other : open) {
    if (!(other.mask & mask)) continue;
    if (other.mask != mask || (other.word != word && std::strcmp(other.word, word) != 0))
      fault(
          fmt::format("lanes disagree: {} with mask {:#010x} at {}, while lanes {:#010x} of this "
                      "warp are at {} with mask {:#010x}",
                      word, mask, place(where), other.arrived, other.word, other.mask));
    m = &other;
  }
  if (!m) {
    // Room for all lanes from the start: a Meeting must not move while lanes point at it.
    if (open.capacity() < 32) open.reserve(32);
    m = &open.emplace_back();
    m->word = word;
    m->mask = mask;
  }
  m->lanes[lane] = mine;
  m->arrived |= self;
  if (m->arrived == m->mask) {
    meeting = m;
    return true;
  }
  block_.wait(word, where);
  return false;
}

void Worker::release(Meeting& meeting) {
  if (Recorder* const r = block_.recorder()) [[unlikely]]
    r->collective(meeting.word, meeting.mask);
  const int warp = block_.running() / 32;
  for (unsigned left = meeting.mask; left; left &= left - 1)
    block_.wake(warp * 32 + std::countr_zero(left));
  auto& open = meetings_[static_cast<size_t>(warp)];
  if (&meeting != &open.back()) meeting = open.back();
  open.pop_back();
  // The last to come takes its place in the schedule's order again.
  block_.yield();
}

void Worker::publish(unsigned mask) {
  const int warp = block_.running() / 32;
  for (unsigned left = mask; left; left &= left - 1)
    memory_.publish(warp * 32 + std::countr_zero(left));
}

// --------------------------------------------------------------------------------------------- Sim

Sim::Sim(const SimOptions& options) : options_(options) {
  // A trace tells one story, so one worker writes it.
  const int threads = !options.trace_file.empty() ? 1
                      : options.threads           ? options.threads
                                                  : host_cores();
  for (int i = 0; i < threads; ++i)
    workers_.push_back(std::make_unique<Worker>(i, options.sram_bytes));
  if (!options.trace_file.empty()) recorder_.emplace(workers_.front()->counts());
  info_.kind = DeviceKind::sim;
  info_.name = fmt::format("sim on {} core{}", threads, threads == 1 ? "" : "s");
  info_.sram_bytes = options.sram_bytes;
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

Sim::~Sim() = default;

Sim& Sim::current() {
  if (!current_sim) throw std::logic_error("launch outside Device::run");
  return *current_sim;
}

Array* Sim::allocate(const std::string& name, int64_t bytes) {
  arrays_.push_back(std::make_unique<Tracked>(name, bytes, static_cast<int>(workers_.size())));
  return arrays_.back().get();
}

void Sim::release(Array* array) noexcept {
  std::erase_if(arrays_, [&](const auto& a) { return a.get() == array; });
}

void Sim::poison(Array& array) {
  static_cast<Tracked&>(array).forget();
}

void Sim::upload(Array& array, const void* host) {
  std::memcpy(array.data, host, static_cast<size_t>(array.bytes));
  static_cast<Tracked&>(array).mark_written();
}

void Sim::download(void* host, const Array& array) {
  std::memcpy(host, array.data, static_cast<size_t>(array.bytes));
}

std::vector<KernelReport> Sim::run(const std::string& rung, const std::function<void()>& work) {
  rung_ = rung;
  reports_.clear();
  current_sim = this;
  try {
    work();
  } catch (...) {
    current_sim = nullptr;
    // The next run must not inherit what this one counted.
    for (auto& a : arrays_) a->take_kernel_counts();
    for (auto& w : workers_) w->counts() = {};
    throw;
  }
  current_sim = nullptr;
  return std::move(reports_);
}

void Sim::launch(const char* kernel, dim3 grid, dim3 block, int64_t shared_bytes,
                 const void* function, const std::function<void()>& body) {
  const Launch launch{rung_,
                      kernel,
                      grid,
                      block,
                      shared_bytes,
                      &body,
                      options_.schedule,
                      recorder_ ? &*recorder_ : nullptr};
  if (recorder_)
    recorder_->start_launch({kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {}},
                            function);
  const auto refuse = [&](const std::string& why) {
    const std::string message = fmt::format("rung {}, kernel {}: {}", rung_, kernel, why);
    if (recorder_) recorder_->fault(message, -1, false);
    throw Fault(message);
  };
  const int64_t threads = int64_t{block.x} * block.y * block.z;
  if (threads < 1 || threads > 1024 || block.z > 64)
    refuse(fmt::format("a block of ({},{},{}) threads: at most 1024", block.x, block.y, block.z));
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535)
    refuse(fmt::format("a grid of ({},{},{}) blocks: at most (2147483647,65535,65535)", grid.x,
                       grid.y, grid.z));
  if (shared_bytes > options_.sram_bytes)
    refuse(fmt::format("{} bytes of shared memory for a block, more than the {} there are (--sram)",
                       shared_bytes, options_.sram_bytes));

  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  struct Failure {
    int64_t k = INT64_MAX;
    std::exception_ptr what;
  };
  std::vector<Failure> failures(workers_.size());
  const auto work = [&](Worker& w) {
    worker = &w;
    for (int64_t k; !stop && (k = next++) < blocks;) {
      try {
        w.run_block(launch, scheduled_block(launch.schedule, k, blocks));
      } catch (...) {
        failures[static_cast<size_t>(w.block().worker())] = {k, std::current_exception()};
        stop = true;
      }
      if (recorder_) recorder_->end_block(w.memory().regions());
    }
    worker = nullptr;
  };
  {
    std::vector<std::future<void>> helpers;  // each waits for its thread when it is destroyed
    const auto wanted = static_cast<size_t>(std::min<int64_t>(blocks, std::ssize(workers_)));
    for (size_t i = 1; i < wanted; ++i)
      helpers.push_back(std::async(std::launch::async, work, std::ref(*workers_[i])));
    work(*workers_[0]);
  }
  const auto first = std::min_element(failures.begin(), failures.end(),
                                      [](const auto& a, const auto& b) { return a.k < b.k; });
  if (first->what) std::rethrow_exception(first->what);

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
  for (auto& w : workers_) counts += std::exchange(w->counts(), {});
}

}  // namespace ladder::sim

namespace ladder {

std::unique_ptr<Device> open_sim(const SimOptions& options) {
  return std::make_unique<sim::Sim>(options);
}

}  // namespace ladder
