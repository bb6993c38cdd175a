// Creates and ends Hopper's units that work concurrently with a block's threads. tma.cpp,
// mbarrier.cpp, named_barrier.cpp and wgmma.cpp implement their operations.
#include "machine/sim/async.h"

namespace ladder::sim {

Async::Async(Block& block) : block_(block), memory_(block.memory), stores_(block.threads()) {
  memory_.tell_writers_apart();
  for (int first = 0; first + 128 <= block.threads(); first += 128)
    warpgroups_.emplace_back(block, first);
}

Warpgroup& Async::warpgroup(const char* what) {
  if (!has_warpgroup()) fault("{} by a warpgroup of fewer than 128 threads", what);
  return warpgroups_[block_.running() / 128];
}

void Async::set_registers(int n) {
  warpgroup("setmaxnreg").registers = n;
  // Once all warpgroups have called setmaxnreg, their registers together must not exceed those that
  // the block started with; otherwise the chip would wait forever. A block alone on its SM starts
  // with an equal number of the SM's 65,536 per thread, rounded down to a multiple of 8.
  int sum = 0;
  for (const Warpgroup& group : warpgroups_) {
    if (!group.registers) return;
    sum += 128 * group.registers;
  }
  const int threads = 128 * static_cast<int>(warpgroups_.size());
  const int given = 65536 / threads / 8 * 8 * threads;
  if (sum > given)
    fault(
        "setmaxnreg: the block's warpgroups ask for {} registers, but its {} threads started "
        "with {}",
        sum, threads, given);
}

void Async::done_with(const SharedPlace& place, int64_t bytes) {
  memory_.check_read_by_others(place, bytes, block_.running());
  if (has_warpgroup()) warpgroup().done_with(place, bytes);
}

void Async::end_thread() {
  if (!mine().under_way.empty())
    fault("ends with a {} that was never waited for", mine().under_way[0].what);
  if (has_warpgroup()) warpgroup().end_thread();
  if (block_.lane() == 0) block_.trace_event(EventKind::exit, "", 0);
}

void Async::end_block() const {
  if (!loads_.empty())
    block_.fault_in(loads_[0].thread,
                    "the block ends with a load to mbarrier {} that nobody waited for",
                    loads_[0].barrier->name);
  for (int id = 1; id < 16; ++id) {
    const NamedBarrier& b = named_[id];
    if (b.arrived == 0) continue;
    int first = 0;
    while (!b.who[first]) ++first;
    block_.fault_in(first,
                    "the block ends with {} of {} threads at named barrier {}: they "
                    "arrived for others that never came",
                    b.arrived, b.expected, id);
  }
}

bool Async::deliver() {
  for (Load& load : loads_)
    if (load.phase < 0) {
      end_load(load);
      return true;
    }
  for (Warpgroup& group : warpgroups_)
    if (group.deliver()) return true;
  for (size_t thread = 0; thread < stores_.size(); ++thread)
    if (stores_[thread].done >= 0) {
      end_stores(static_cast<int>(thread));
      return true;
    }
  return false;
}

}  // namespace ladder::sim
