#include "machine/sim/block.h"

#include <fmt/format.h>

namespace ladder::sim {
namespace {

uint3 block_index(const Launch& launch, int64_t block) {
  const int64_t x = launch.grid.x, y = launch.grid.y;
  return {static_cast<unsigned>(block % x), static_cast<unsigned>(block / x % y),
          static_cast<unsigned>(block / x / y)};
}

}  // namespace

void Block::start(const Launch& launch, int64_t index, void (*entry)(void*), void* argument) {
  launch_ = &launch;
  index_ = index;
  number_ = static_cast<uint32_t>(index + 1);
  ended_ = 0;
  random_ = mix(launch.schedule.seed + 1) ^ static_cast<uint64_t>(index);
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
  const auto order = launch_->schedule.order;
  return order == Schedule::Order::random ? (random_ = mix(random_)) % 2
                                          : order == Schedule::Order::forward;
}

std::string Block::index_of(uint32_t number) const {
  const uint3 b = block_index(*launch_, int64_t{number} - 1);
  return fmt::format("({},{},{})", b.x, b.y, b.z);
}

std::string Block::name_of(int t) const {
  const uint3 i = thread(t).index;
  return fmt::format("thread ({},{},{})", i.x, i.y, i.z);
}

void Block::fault_in(int thread, const std::string& what, bool runs) const {
  const std::string message =
      fmt::format("rung {}, kernel {}, block {}, {}: {}", launch_->rung, launch_->kernel,
                  index_of(number_), name_of(thread), what);
  if (recorder_) recorder_->fault(message, thread, runs);
  throw Fault(message);
}

}  // namespace ladder::sim
