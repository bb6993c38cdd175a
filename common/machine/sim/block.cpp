// Runs a block's threads as fibers: picks the next to run, lets them meet and wait, names faults.
#include "machine/sim/block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "machine/sim/async.h"
#include "machine/sim/global_memory.h"

namespace ladder::sim {
namespace {

/// Returns the blockIdx of block number `block`, counted from 0 with x fastest.
uint3 block_index(const Launch& launch, int64_t block) {
  const int64_t x = launch.grid.x, y = launch.grid.y;
  return {static_cast<unsigned>(block % x), static_cast<unsigned>(block / x % y),
          static_cast<unsigned>(block / x / y)};
}

std::string place(const Where& where) {
  const std::string file = where.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), where.line());
}

}  // namespace

void throw_fault(const std::string& what) {
  if (!this_block) throw Fault(what);
  this_block->throw_fault(this_block->running(), what, true);
}

thread_local std::vector<std::vector<Block::Thread>> Block::idle_;

Block::Block(int worker, int64_t smem_bytes) : memory(smem_bytes), worker_(worker) {
  if (idle_.empty()) return;
  threads_ = std::move(idle_.back());
  idle_.pop_back();
}
Block::~Block() {
  idle_.push_back(std::move(threads_));
}

Async& Block::async() {
  if (!async_) async_ = std::make_unique<Async>(*this);
  return *async_;
}

// ----------------------------------------------------------------------------------------- threads

void Block::start(const Launch& launch, int64_t index) {
  launch_ = &launch;
  recorder_ = launch.recorder;
  number_ = static_cast<uint32_t>(index + 1);
  count_ = launch.threads();
  ended_ = at_barrier_ = 0;
  barriers_passed_ = 0;
  random_ = mix(launch.schedule.seed + 1) ^ static_cast<uint64_t>(index);
  failure_ = nullptr;
  async_.reset();
  meetings_.assign((count_ + 31) / 32, {});
  warps_.assign(meetings_.size(), {});
  touched_.resize(std::max(touched_.size(), meetings_.size()));
  memory.start(launch.smem_bytes, count_, recorder_);
  if (recorder_) recorder_->start_block(index, count_);
  blockIdx = block_index(launch, index);
  blockDim = launch.block;
  gridDim = launch.grid;
  if (std::ssize(threads_) < count_) threads_.resize(count_);
  for (int t = 0; t < count_; ++t) {
    const auto i = static_cast<unsigned>(t);
    threads_[t].index = {i % launch.block.x, i / launch.block.x % launch.block.y,
                         i / launch.block.x / launch.block.y};
    threads_[t].state = Thread::State::ready;
    threads_[t].waited = threads_[t].turn_passed = false;
    threads_[t].products = 0;
    threads_[t].waits_for = nullptr;
    threads_[t].fiber->start(&Block::thread_main);
  }
}

void Block::thread_main() {
  Block& block = *this_block;
  Thread& thread = block.threads_[block.running_];
  Fiber& fiber = *thread.fiber;
  fiber.arrived();
  try {
    block.launch_->body();
    block.memory.end_thread(block.running_);
    if (block.async_) block.async_->end_thread();
    if (fiber.overflowed())
      block.fault_in(block.running_, "stack overflow (local arrays too large for the simulator)");
  } catch (...) {
    block.failure_ = std::current_exception();
  }
  thread.state = Thread::State::done;
  ++block.ended_;
  fiber.finish();
}

void Block::run(const Launch& launch, int64_t index) {
  start(launch, index);
  ++counts.blocks;
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
  while (ended_ < count_) {
    if (random) shuffle(warps);
    bool progress = false;
    barrier_passed_ = false;
    for (const int warp : warps) {
      // A warp runs until it waits for other warps. If all warps advanced from collective to
      // collective in lockstep, a missing barrier would never cause a race. Under random schedules
      // a warp may lose its turn at any collective.
      for (bool ran = true; ran && !barrier_passed_;) {
        if (random) shuffle(lanes);
        ran = run_warp(warp, lanes);
        progress |= ran;
        if (random && (number = mix(number)) % 2) break;
      }
      if (barrier_passed_) break;  // threads leave the barrier in the schedule's order
    }
    if (!progress && !(async_ && async_->deliver())) deadlock();
  }
  if (async_) async_->end_block();
  for (const Warp& warp : warps_) counts.consumer_copies += warp.multiplies ? warp.copies : 0;
}

void Block::touches(TrackedArray& array) {
  auto& arrays = touched_[warp()];
  if (std::find(arrays.begin(), arrays.end(), &array) == arrays.end()) arrays.push_back(&array);
}

void Block::count_accesses(int first, int warps) {
  for (int warp = first; warp < first + warps; ++warp) {
    for (TrackedArray* const array : touched_[warp]) array->count_recorded(*this, warp);
    touched_[warp].clear();
  }
}

bool Block::run_warp(int warp, const std::vector<int>& lanes) {
  bool ran = false;
  for (const int lane : lanes) {
    const int t = 32 * warp + lane;
    if (t >= count_ || threads_[t].state != Thread::State::ready) continue;
    ran = true;
    running_ = t;
    slot_ = int64_t{2} * kMaxThreads * worker_ + t;
    threadIdx = threads_[t].index;
    Fiber& fiber = *threads_[t].fiber;
    if (recorder_) recorder_->switch_to(t);
    fiber.resume();
    if (recorder_) recorder_->switch_to(t);
    if (failure_) std::rethrow_exception(failure_);
    if (barrier_passed_) break;
  }
  return ran;
}

void Block::wait(const char* at, Where where) {
  Thread& self = threads_[running_];
  self.state = Thread::State::waiting;
  self.waits_at = at;
  self.where = where;
  yield();
}

void Block::wait_for(std::function<std::string()> what, Where where) {
  threads_[running_].waits_for = std::move(what);
  wait("", where);
  threads_[running_].waits_for = nullptr;
}

bool Block::late() {
  const auto order = launch_->schedule.order;
  return order == Schedule::Order::random ? (random_ = mix(random_)) % 2
                                          : order == Schedule::Order::forward;
}

// --------------------------------------------------------------------------- barriers, collectives

void Block::syncthreads(Where where) {
  if (at_barrier_ == 0) {
    barrier_where_ = where;
  } else if (where.line() != barrier_where_.line() || where.column() != barrier_where_.column() ||
             std::strcmp(where.file_name(), barrier_where_.file_name()) != 0) {
    fault(
        "__syncthreads at {} while other threads wait at the one at {}: a barrier in a branch "
        "that not all threads take",
        place(where), place(barrier_where_));
  }
  const bool last = ++at_barrier_ == count_;
  if (last) {
    count_accesses(0, warps());
    ++counts.barriers;
  }
  trace_event(EventKind::syncthreads, "", barriers_passed_);
  if (!last) return wait("__syncthreads", where);
  at_barrier_ = 0;
  for (int t = 0; t < count_; ++t) {
    memory.publish(t);
    wake(t);
  }
  ++barriers_passed_;
  barrier_passed_ = true;
  yield();
}

Meeting* Block::meet(const char* name, unsigned mask, void* mine, Where where) {
  const unsigned all = ~0u >> (32 - lanes());
  if ((mask & all) != all)
    fault(
        "{}: the mask {:#010x} leaves out lanes of the warp, which the simulator does not support",
        name, mask);
  Meeting& m = meetings_[warp()];
  if (m.arrived && m.name != name && std::strcmp(m.name, name) != 0)
    fault("lanes disagree: {} at {}, while lanes {:#010x} of this warp are at {}", name,
          place(where), m.arrived, m.name);
  m.name = name;
  m.lanes[lane()] = mine;
  m.arrived |= 1u << lane();
  if (m.arrived != all) {
    wait(name, where);
    return nullptr;
  }
  count_accesses(warp(), 1);
  return &m;
}

void Block::release(Meeting& meeting) {
  if (recorder_) [[unlikely]]
    recorder_->collective(meeting.name);
  meeting.arrived = 0;
  for (int i = 0; i < lanes(); ++i) wake(32 * warp() + i);
  // The lane that arrived last returns to its place in the schedule's order.
  yield();
}

void Block::publish_warp() {
  for (int i = 0; i < lanes(); ++i) memory.publish(32 * warp() + i);
}

// ------------------------------------------------------------------------------------------ faults

std::string Block::index_of(uint32_t number) const {
  const uint3 b = block_index(*launch_, int64_t{number} - 1);
  return fmt::format("({},{},{})", b.x, b.y, b.z);
}

std::string Block::name_of(int t) const {
  const uint3 i = threads_[t].index;
  return fmt::format("thread ({},{},{})", i.x, i.y, i.z);
}

void Block::throw_fault(int thread, const std::string& what, bool running) const {
  const std::string message =
      fmt::format("rung {}, kernel {}, block {}, {}: {}", launch_->rung, launch_->kernel,
                  index_of(number_), name_of(thread), what);
  if (recorder_) recorder_->fault(message, thread, running);
  throw Fault(message);
}

void Block::deadlock() {
  struct Waiting {
    std::string what;
    int first, threads;
  };
  std::vector<Waiting> all;
  for (int t = 0; t < count_; ++t) {
    const Thread& thread = threads_[t];
    if (thread.state != Thread::State::waiting) continue;
    const std::string what = fmt::format(
        "{} ({})", thread.waits_for ? thread.waits_for() : thread.waits_at, place(thread.where));
    if (all.empty() || all.back().what != what) all.push_back({what, t, 0});
    ++all.back().threads;
  }
  std::string text;
  for (const auto& [what, first, threads] : all) {
    text += fmt::format("{}{}{} for {}", text.empty() ? "" : "; ", name_of(first),
                        threads > 1 ? fmt::format(" and {} after it", threads - 1) : "", what);
    // If the first group waits at a barrier or collective, name a thread that is not there.
    const Thread& waits = threads_[first];
    for (int t = 0; t < count_ && first == all[0].first && !waits.waits_for; ++t) {
      if (threads_[t].state == Thread::State::waiting &&
          std::strcmp(threads_[t].waits_at, waits.waits_at) == 0)
        continue;
      text += fmt::format(", which {} never reaches", name_of(t));
      break;
    }
  }
  fault_in(all[0].first, "deadlock: {} of {} threads have ended, the others wait: {}", ended_,
           count_, text);
}

}  // namespace ladder::sim
