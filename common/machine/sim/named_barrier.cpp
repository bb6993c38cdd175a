// Implements named barriers (PTX: bar), at which some of a block's warps wait or only arrive.
#include "machine/sim/async.h"

namespace ladder::sim {

void Async::named_barrier(int id, int threads, bool waits, Where where) {
  if (id < 1 || id > 15) fault("named barrier {}: give a number from 1 to 15", id);
  if (threads < 32 || threads > 1024 || threads % 32)
    fault("named barrier {} of {} threads: give a multiple of 32 up to 1024", id, threads);
  NamedBarrier& b = named_[id];
  if (b.arrived > 0 && b.expected != threads)
    fault("named barrier {}: called for {} threads, but earlier arrivals expect {}", id, threads,
          b.expected);
  const int self = block_.running();
  if (b.who[self])
    fault("arrives at named barrier {} a second time, when {} of {} threads have arrived", id,
          b.arrived, b.expected);
  block_.trace_event(waits ? EventKind::named_barrier_sync : EventKind::named_barrier_arrive,
                     std::to_string(id), b.completed);
  memory_.publish(self);
  block_.set_turn_passed(!waits);
  b.expected = threads;
  b.who[self] = true;
  if (++b.arrived < b.expected) {
    if (!waits) return;
    b.waiters.push_back(self);
    return block_.wait_for(
        [&b, id] {
          return fmt::format("named barrier {}, where {} of {} threads are missing", id,
                             b.expected - b.arrived, b.expected);
        },
        where);
  }
  if (threads == block_.threads()) ++block_.counts.barriers;  // counts like a __syncthreads()
  for (const int t : b.waiters) block_.wake(t);
  const int64_t completed = b.completed + 1;
  b = {};
  b.completed = completed;
  if (waits) block_.yield();  // returns to its place in the schedule's order
}

}  // namespace ladder::sim
