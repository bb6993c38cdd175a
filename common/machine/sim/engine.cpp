#include "machine/sim/engine.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>

namespace ladder::sim {
namespace {

Sim* current_sim = nullptr;  // the one whose run() is under way

std::string place(const std::source_location& where) {
  std::string file = where.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), where.line());
}

uint3 block_index(const Launch& launch, int64_t block) {
  const int64_t x = launch.grid.x, y = launch.grid.y;
  return {static_cast<unsigned>(block % x), static_cast<unsigned>(block / x % y),
          static_cast<unsigned>(block / x / y)};
}

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
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

void* map_memory(int64_t bytes) {
  void* p = mmap(nullptr, static_cast<size_t>(std::max<int64_t>(bytes, 1)), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

void unmap_memory(void* p, int64_t bytes) {
  if (p) munmap(p, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
}

}  // namespace

void fault(const std::string& what) {
  throw Fault(worker ? fmt::format("{}: {}", worker->who(), what) : what);
}

// ---------------------------------------------------------------------------------- global memory

Tracked::Tracked(const std::string& array_name, int64_t size, int workers)
    : shadow_(nullptr), counts_(static_cast<size_t>(workers)) {
  name = array_name;
  bytes = size;
  data = map_memory(size);
  shadow_ = static_cast<uint8_t*>(map_memory(size));
  if (!data || !shadow_) {
    unmap_memory(data, bytes);
    unmap_memory(shadow_, bytes);
    throw Error(Exit::no_device,
                fmt::format("the host has no {} bytes left for {} and its shadow", size, name));
  }
  std::memset(data, 0xff, static_cast<size_t>(bytes));
}

Tracked::~Tracked() {
  unmap_memory(data, bytes);
  unmap_memory(shadow_, bytes);
}

void Tracked::fail(const char* what, int64_t at, int64_t element) const {
  fault(fmt::format("{} {}[{}] (element of {} bytes; the array has {})", what, name,
                    at >= 0 ? at / element : -((-at + element - 1) / element), element,
                    bytes / element));
}

void Tracked::forget() {
  std::memset(data, 0xff, static_cast<size_t>(bytes));
  std::memset(shadow_, 0, static_cast<size_t>(bytes));
}

void Tracked::mark_written() {
  std::memset(shadow_, kWritten, static_cast<size_t>(bytes));
}

HbmCounts Tracked::take_kernel_counts() {
  HbmCounts sum;
  for (auto& c : counts_) {
    sum.requested_read += c.read;
    sum.requested_write += c.write;
    c = {};
  }
  if (sum.requested_read == 0 && sum.requested_write == 0) return sum;
  for (int64_t i = 0; i < bytes; ++i) {
    sum.distinct_read += shadow_[i] >> 1 & 1;
    sum.distinct_write += shadow_[i] >> 2 & 1;
    shadow_[i] &= kWritten;
  }
  return sum;
}

// ------------------------------------------------------------------------------------------ blocks

Worker::Worker(int index, int64_t sram_bytes)
    : index(index),
      shared_(static_cast<size_t>(sram_bytes)),
      shared_shadow_(static_cast<size_t>(sram_bytes)) {}

std::string Worker::who(int thread) const {
  const uint3 b = block_index(*launch_, block_);
  const uint3 t = threads_[static_cast<size_t>(thread)].index;
  return fmt::format("rung {}, kernel {}, block ({},{},{}), thread ({},{},{})", launch_->rung,
                     launch_->kernel, b.x, b.y, b.z, t.x, t.y, t.z);
}

unsigned Worker::warp_lanes() const {
  const int first = current_ / 32 * 32;
  const int lanes = std::min(32, static_cast<int>(threads_.size()) - first);
  return lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
}

void Worker::fiber_main(void* self) {
  auto* w = static_cast<Worker*>(self);
  try {
    (*w->launch_->body)();
    if (!w->thread().copies.empty())
      fault("ends with an asynchronous copy that was never waited for");
    w->async_.end_thread();
  } catch (...) {
    w->failure_ = std::current_exception();
  }
  w->thread().state = Thread::State::done;
  ++w->done_;
  w->fibers_[static_cast<size_t>(w->current_)]->finish();
}

void Worker::run_block(const Launch& launch, int64_t block) {
  launch_ = &launch;
  block_ = block;
  tracing_ = launch.trace;
  step_ = 0;
  const auto n = static_cast<size_t>(launch.block.x) * launch.block.y * launch.block.z;
  while (fibers_.size() < n) fibers_.push_back(std::make_unique<Fiber>());
  threads_.resize(n);
  meetings_.resize((n + 31) / 32);
  for (auto& m : meetings_) m.clear();
  regions_.clear();
  accesses_.clear();  // a fault may have left some
  failure_ = nullptr;
  done_ = at_barrier_ = 0;
  async_.begin_block();
  std::fill_n(shared_shadow_.begin(), launch.shared_bytes, uint8_t{0});
  std::fill_n(shared_.begin(), launch.shared_bytes, static_cast<char>(0xff));

  blockIdx = block_index(launch, block);
  blockDim = launch.block;
  gridDim = launch.grid;
  for (size_t t = 0; t < n; ++t) {
    Thread& thread = threads_[t];
    const auto i = static_cast<unsigned>(t);
    thread.index = {i % launch.block.x, i / launch.block.x % launch.block.y,
                    i / launch.block.x / launch.block.y};
    thread.state = Thread::State::ready;
    thread.shared_takes = 0;
    thread.copies.clear();
    thread.group = 0;
    thread.exps = thread.other_flops = 0;
    fibers_[t]->start(&Worker::fiber_main, this);
  }

  std::vector<int> warps(meetings_.size()), lanes(32);
  std::iota(warps.begin(), warps.end(), 0);
  std::iota(lanes.begin(), lanes.end(), 0);
  if (launch.schedule.order == Schedule::Order::reverse) {
    std::reverse(warps.begin(), warps.end());
    std::reverse(lanes.begin(), lanes.end());
  }
  const bool random = launch.schedule.order == Schedule::Order::random;
  uint64_t number = mix(launch.schedule.seed ^ static_cast<uint64_t>(block) << 20);
  const auto shuffle = [&](std::vector<int>& order) {
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[(number = mix(number)) % (i + 1)]);
  };
  while (done_ < static_cast<int>(n)) {
    if (random) shuffle(warps);
    bool progress = false;
    barrier_passed_ = false;
    for (const int warp : warps) {
      // A warp runs on until it waits for other warps. Were all to go from collective to collective
      // in step, what a missing barrier lets happen would not happen. Shuffled, it may lose its
      // turn at any collective.
      for (bool ran = true; ran && !barrier_passed_;) {
        if (random) shuffle(lanes);
        ran = run_warp(warp, lanes);
        progress |= ran;
        if (random && (number = mix(number)) % 2) break;
      }
      if (barrier_passed_) break;  // all leave it in the schedule's order
    }
    if (!progress && !async_.deliver()) deadlock();
  }
  async_.end_block();
  if (tracing_) close_trace_step();
}

bool Worker::run_warp(int warp, const std::vector<int>& lanes) {
  bool ran = false;
  for (const int lane : lanes) {
    current_ = 32 * warp + lane;
    if (current_ >= std::ssize(threads_) || thread().state != Thread::State::ready) continue;
    ran = true;
    threadIdx = thread().index;
    Fiber& fiber = *fibers_[static_cast<size_t>(current_)];
    if (tracing_) charged_ = counters;
    fiber.resume();
    if (tracing_) charge();
    if (fiber.overflowed())
      throw Fault(fmt::format("{}: stack overflow (local arrays too large for the sim)", who()));
    if (failure_) std::rethrow_exception(failure_);
    if (barrier_passed_) break;
  }
  return ran;
}

void Worker::wait(const char* at, std::source_location where) {
  Thread& self = thread();
  self.state = Thread::State::waiting;
  self.waits_at = at;
  self.where = where;
  fibers_[static_cast<size_t>(current_)]->yield();
}

void Worker::deadlock() {
  // Who waits for what, where something of async_ is waited for.
  struct Waiting {
    std::string what;
    size_t first;
    int threads;
  };
  std::vector<Waiting> all;
  bool async = false;
  for (size_t t = 0; t < threads_.size(); ++t) {
    if (threads_[t].state != Thread::State::waiting) continue;
    std::string what = async_.waits_for(static_cast<int>(t));
    async |= !what.empty();
    what = fmt::format("{} ({})", what.empty() ? threads_[t].waits_at : what,
                       place(threads_[t].where));
    if (all.empty() || all.back().what != what) all.push_back({what, t, 0});
    ++all.back().threads;
  }
  if (async) {
    std::string who_waits;
    for (const Waiting& w : all) {
      const uint3 i = threads_[w.first].index;
      who_waits +=
          fmt::format("{}thread ({},{},{}){} for {}", who_waits.empty() ? "" : "; ", i.x, i.y, i.z,
                      w.threads > 1 ? fmt::format(" and {} after it", w.threads - 1) : "", w.what);
    }
    throw Fault(fmt::format("{}: deadlock: {} of {} threads have ended, the others wait: {}",
                            who(static_cast<int>(all.front().first)), done_, threads_.size(),
                            who_waits));
  }
  // Name the first thread that waits, what it waits at, and the first that never came.
  int waiting = 0;
  const Thread* first = nullptr;
  const Thread* absent = nullptr;
  for (size_t t = 0; t < threads_.size(); ++t) {
    const Thread& thread = threads_[t];
    if (thread.state == Thread::State::waiting) {
      ++waiting;
      if (!first) {
        first = &thread;
        current_ = static_cast<int>(t);
      }
    }
  }
  for (const Thread& thread : threads_)
    if (!absent &&
        (thread.state == Thread::State::done || std::strcmp(thread.waits_at, first->waits_at) != 0))
      absent = &thread;
  std::string why = fmt::format("deadlock: waits at {} ({})", first->waits_at, place(first->where));
  if (absent) {
    why += fmt::format(", which thread ({},{},{}) never reaches: it ", absent->index.x,
                       absent->index.y, absent->index.z);
    why += absent->state == Thread::State::done
               ? "has ended"
               : fmt::format("waits at {} ({})", absent->waits_at, place(absent->where));
  }
  throw Fault(fmt::format("{}: {}; {} of {} threads wait, {} have ended", who(), why, waiting,
                          threads_.size(), done_));
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
  if (++at_barrier_ < static_cast<int>(threads_.size())) return wait("__syncthreads", where);
  at_barrier_ = 0;
  for (Thread& t : threads_) t.state = Thread::State::ready;
  if (tracing_) close_trace_step();
  barrier_passed_ = true;
  fibers_[static_cast<size_t>(current_)]->yield();
}

bool Worker::meet(const char* word, unsigned mask, void* mine, std::source_location where,
                  Meeting*& meeting) {
  mask &= warp_lanes();
  const unsigned self = 1u << lane();
  if (!(mask & self)) fault(fmt::format("{}: the mask {:#010x} leaves out the caller", word, mask));
  auto& open = meetings_[static_cast<size_t>(current_ / 32)];
  Meeting* m = nullptr;
  for (Meeting& other : open) {
    if (!(other.mask & mask)) continue;
    if (other.mask != mask || std::strcmp(other.word, word) != 0)
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
  m->lanes[lane()] = mine;
  m->arrived |= self;
  if (m->arrived == m->mask) {
    meeting = m;
    return true;
  }
  wait(word, where);
  return false;
}

void Worker::release(Meeting& meeting) {
  const auto warp = static_cast<size_t>(current_ / 32);
  for (unsigned left = meeting.mask; left; left &= left - 1) {
    const auto t = warp * 32 + static_cast<size_t>(std::countr_zero(left));
    threads_[t].state = Thread::State::ready;
  }
  auto& open = meetings_[warp];
  std::swap(meeting, open.back());
  open.pop_back();
  // The last to come takes its place in the schedule's order again.
  fibers_[static_cast<size_t>(current_)]->yield();
}

// ---------------------------------------------------------------------------------- shared memory

int64_t Worker::take_shared(const char* name, int64_t bytes) {
  Thread& self = thread();
  const auto k = static_cast<size_t>(self.shared_takes++);
  if (k < regions_.size()) {
    const Region& r = regions_[k];
    if (r.name != name || r.bytes != bytes)
      fault(
          fmt::format("takes {} bytes of shared memory for {} where another thread took {} for {}",
                      bytes, name, r.bytes, r.name));
    return r.begin;
  }
  int64_t begin = 0;
  for (const Region& r : regions_) begin = std::max(begin, r.begin + r.bytes);
  begin = (begin + 127) / 128 * 128;
  if (begin + bytes > launch_->shared_bytes)
    fault(fmt::format("more shared memory than the launch gave: {} ends at byte {} of {}", name,
                      begin + bytes, launch_->shared_bytes));
  regions_.push_back({name, begin, bytes});
  return begin;
}

void Worker::shared_fault(const char* what, const char* name, int64_t at, int64_t begin,
                          int element) const {
  fault(fmt::format("{} shared {}[{}] (element of {} bytes)", what, name,
                    at >= begin ? (at - begin) / element : -((begin - at + element - 1) / element),
                    element));
}

void Worker::check_readable_by_async(const char* what, int64_t at) const {
  if (at < 0 || at + 16 > launch_->shared_bytes)
    fault(fmt::format("{} shared memory at byte {} of {}", what, at, launch_->shared_bytes));
  for (int64_t i = at; i < at + 16; ++i) {
    const uint8_t seen = shared_shadow_[static_cast<size_t>(i)];
    if ((seen & (kWritten | kInFlight | kOrdinary)) == kWritten) continue;
    std::string element = fmt::format("byte {}", i);
    for (const Region& r : regions_)
      if (i >= r.begin && i < r.begin + r.bytes)
        element = fmt::format("{}[{}] (element of 2 bytes)", r.name, (i - r.begin) / 2);
    fault(fmt::format("{} shared {}, {}", what, element,
                      seen & kInFlight     ? "the target of a copy that was not waited for"
                      : !(seen & kWritten) ? "which nobody wrote"
                                           : "written with no fence_proxy_async() since"));
  }
}

void Worker::start_copy(const char* name, int64_t target, int64_t begin, int64_t end,
                        const char* source, int bytes, int element) {
  if (target < begin || target + bytes > end)
    shared_fault("asynchronous copy to", name, target, begin, element);
  if (target % bytes != 0 || reinterpret_cast<uintptr_t>(source) % unsigned(bytes) != 0)
    fault(fmt::format("asynchronous copy to {} not aligned to {} bytes", name, bytes));
  for (int64_t i = target; i < target + bytes; ++i) {
    const uint8_t seen = shared_shadow_[static_cast<size_t>(i)];
    if (seen & (kInFlight | kBeingRead))
      shared_fault(seen & kInFlight
                       ? "asynchronous copy onto one that was not waited for:"
                       : "asynchronous copy under a wgmma or TMA store that still reads",
                   name, target, begin, element);
    shared_shadow_[static_cast<size_t>(i)] = kInFlight;
  }
  counters.sram_write += bytes;
  thread().copies.push_back({target, source, bytes, thread().group});
}

void Worker::commit_copies() {
  ++thread().group;
}

void Worker::wait_copies(int groups_left) {
  Thread& self = thread();
  const int landed = self.group - groups_left;  // groups below this number are complete
  size_t kept = 0;
  for (const Thread::Copy& copy : self.copies) {
    if (copy.group >= landed) {
      self.copies[kept++] = copy;
      continue;
    }
    char* target = shared_.data() + copy.target;
    const auto bytes = static_cast<size_t>(copy.bytes);
    if (copy.source)
      std::memcpy(target, copy.source, bytes);
    else
      std::memset(target, 0, bytes);
    std::memset(shared_shadow_.data() + copy.target, kWritten | kOrdinary, bytes);
    if (tracks_ordinary_writes_) async_.note_ordinary_write(copy.target, copy.bytes);
  }
  self.copies.resize(kept);
}

// ------------------------------------------------------------------------------------------- trace

void Worker::trace_access(const Tracked* array, bool write, int64_t begin, int64_t end) {
  if (!accesses_.empty()) {
    Access& last = accesses_.back();
    if (last.array == array && last.write == write && begin >= last.begin && begin <= last.end) {
      last.end = std::max(last.end, end);
      return;
    }
  }
  accesses_.push_back({array, write, begin, end});
}

void Worker::charge() {
  thread().exps += counters.exps - charged_.exps;
  thread().other_flops += counters.other_flops - charged_.other_flops;
  charged_ = counters;
}

void Worker::trace_event(const char* event, const std::string& name, int64_t number, int64_t amount,
                         const std::string& barrier) {
  if (!tracing_) return;
  async_trace.push_back(
      {launch_->kernel, block_, current_ / 32, event, name, barrier, number, amount});
  if (lane() != 0) return;
  charge();
  async_trace.back().exps = std::exchange(thread().exps, 0);
  async_trace.back().other_flops = std::exchange(thread().other_flops, 0);
}

void Worker::close_trace_step() {
  std::sort(accesses_.begin(), accesses_.end(), [](const Access& a, const Access& b) {
    return std::tie(a.array->name, a.write, a.begin) < std::tie(b.array->name, b.write, b.begin);
  });
  size_t first = trace.size();
  for (const Access& a : accesses_) {
    if (trace.size() > first && trace.back().array == a.array->name &&
        trace.back().write == a.write && a.begin <= trace.back().end)
      trace.back().end = std::max(trace.back().end, a.end);
    else
      trace.push_back({launch_->kernel, block_, step_, a.array->name, a.write, a.begin, a.end});
  }
  accesses_.clear();
  ++step_;
}

// --------------------------------------------------------------------------------------------- Sim

Sim::Sim(const SimOptions& options) : options_(options) {
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  // A trace tells one story, so one worker writes it.
  const int threads = !options.trace_file.empty() ? 1 : options.threads ? options.threads : cores;
  for (int i = 0; i < threads; ++i)
    workers_.push_back(std::make_unique<Worker>(i, options.sram_bytes));
  info_.kind = DeviceKind::sim;
  info_.name = fmt::format("sim on {} core{}", threads, threads == 1 ? "" : "s");
  info_.sram_bytes = options.sram_bytes;
  info_.compute_capability = 90;
  const int64_t page = sysconf(_SC_PAGESIZE);
  info_.memory_bytes = page * sysconf(_SC_PHYS_PAGES);
  info_.memory_free = page * sysconf(_SC_AVPHYS_PAGES);
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.rfind("MemAvailable:", 0) == 0)
      info_.memory_free = std::strtoll(line.c_str() + 13, nullptr, 10) * 1024;
  // Every byte of an array has a shadow byte.
  info_.memory_bytes /= 2;
  info_.memory_free /= 2;
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
    for (auto& w : workers_) w->counters = {};
    throw;
  }
  current_sim = nullptr;
  return std::move(reports_);
}

void Sim::launch(const char* kernel, dim3 grid, dim3 block, int64_t shared_bytes,
                 const std::function<void()>& body) {
  const auto refuse = [&](const std::string& why) {
    throw Fault(fmt::format("rung {}, kernel {}: {}", rung_, kernel, why));
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

  Launch launch{rung_,
                kernel,
                grid,
                block,
                shared_bytes,
                &body,
                options_.schedule,
                !options_.trace_file.empty()};
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
        failures[static_cast<size_t>(w.index)] = {k, std::current_exception()};
        stop = true;
      }
    }
    worker = nullptr;
  };
  {
    std::vector<std::jthread> helpers;
    const auto wanted = static_cast<size_t>(std::min<int64_t>(blocks, std::ssize(workers_)));
    for (size_t i = 1; i < wanted; ++i) helpers.emplace_back([&, i] { work(*workers_[i]); });
    work(*workers_[0]);
  }
  for (auto& w : workers_) {
    trace_.insert(trace_.end(), w->trace.begin(), w->trace.end());
    w->trace.clear();
    async_trace_.insert(async_trace_.end(), w->async_trace.begin(), w->async_trace.end());
    w->async_trace.clear();
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
  for (auto& w : workers_) {
    counts.sram_read += w->counters.sram_read;
    counts.sram_write += w->counters.sram_write;
    counts.matmul_flops += w->counters.matmul_flops;
    counts.exps += w->counters.exps;
    counts.other_flops += w->counters.other_flops;
    counts.bank_conflicts += w->counters.bank_conflicts;
    w->counters = {};
  }
}

}  // namespace ladder::sim

namespace ladder {

std::unique_ptr<Device> open_sim(const SimOptions& options) {
  return std::make_unique<sim::Sim>(options);
}

}  // namespace ladder
