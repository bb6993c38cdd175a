#include "machine/sim/block.h"

#include <fmt/format.h>

#include "machine/sim/fault.h"

namespace ladder::sim {
namespace {

uint3 block_index(const Launch& launch, int64_t block) {
  const int64_t x = launch.grid.x, y = launch.grid.y;
  return {static_cast<unsigned>(block % x), static_cast<unsigned>(block / x % y),
          static_cast<unsigned>(block / x / y)};
}

uint64_t next_random(uint64_t& state) {  // xorshift64*
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545f4914f6cdd1d >> 32;
}

}  // namespace

void Block::start(const Launch& launch, int64_t index, void (*entry)(void*), void* argument) {
  launch_ = &launch;
  index_ = index;
  number_ = static_cast<uint32_t>(index + 1);
  ended_ = 0;
  random_ = (launch.schedule.seed + 1) * 0x9e3779b97f4a7c15 ^ static_cast<uint64_t>(index);
  recorder_ = launch.recorder;
  if (recorder_) recorder_->start_block(index, launch.threads());
  blockIdx = block_index(launch, index);
  blockDim = launch.block;
  gridDim = launch.grid;
  count_ = launch.threads();
  const auto n = static_cast<size_t>(count_);
  while (fibers_.size() < n) fibers_.push_back(std::make_unique<Fiber>());
  threads_.resize(n);
  for (size_t t = 0; t < n; ++t) {
    Thread& thread = threads_[t];
    const auto i = static_cast<unsigned>(t);
    thread.index = {i % launch.block.x, i / launch.block.x % launch.block.y,
                    i / launch.block.x / launch.block.y};
    thread.state = Thread::State::ready;
    fibers_[t]->start(entry, argument);
  }
}

void Block::end_thread() {
  threads_[static_cast<size_t>(running_)].state = Thread::State::done;
  ++ended_;
  fibers_[static_cast<size_t>(running_)]->finish();
}

bool Block::late() {
  switch (launch_->schedule.order) {
    case Schedule::Order::forward:
      return true;
    case Schedule::Order::reverse:
      return false;
    default:
      return next_random(random_) % 2;
  }
}

std::string Block::index_of(uint32_t number) const {
  const uint3 b = block_index(*launch_, int64_t{number} - 1);
  return fmt::format("({},{},{})", b.x, b.y, b.z);
}

std::string Block::who(int t) const {
  const uint3 i = thread(t).index;
  return fmt::format("rung {}, kernel {}, block {}, thread ({},{},{})", launch_->rung,
                     launch_->kernel, index_of(number_), i.x, i.y, i.z);
}

void Block::fault_in(int thread, const std::string& what, bool runs) const {
  const std::string message = fmt::format("{}: {}", who(thread), what);
  if (recorder_) recorder_->fault(message, thread, runs);
  throw Fault(message);
}

}  // namespace ladder::sim
