#include "machine/sim/barriers.h"

#include <fmt/format.h>

namespace ladder::sim {
namespace {

std::string name_of(const SharedPlace& place) {
  return fmt::format("{}[{}]", place.name, (place.at - place.begin) / int64_t{sizeof(Mbarrier)});
}

}  // namespace

// ------------------------------------------------------------------------------------- mbarriers

void Barriers::init(const SharedPlace& place, int count) {
  if (count < 1 || count >= 1 << 20)
    fault(fmt::format("mbarrier {}: a count of {}", name_of(place), count));
  for (const Barrier& b : barriers_)
    if (b.at == place.at) fault(fmt::format("mbarrier {} initialised a second time", b.name));
  Barrier& b = barriers_.emplace_back();
  b.at = place.at;
  b.name = name_of(place);
  b.count = b.pending = count;
  b.initialised_by = block_.running();
}

void Barriers::fence_init() {
  for (Barrier& b : barriers_) b.fenced |= b.initialised_by == block_.running();
}

Barriers::Barrier& Barriers::find(const SharedPlace& place) {
  for (Barrier& b : barriers_)
    if (b.at == place.at) return b;
  fault(fmt::format("mbarrier {} is used before its init", name_of(place)));
}

void Barriers::arrive(const SharedPlace& place, int64_t bytes) {
  Barrier& b = find(place);
  if (bytes < 0 || b.bytes + bytes >= 1 << 20)
    fault(fmt::format("mbarrier {}: {} bytes promised, and less than 2²⁰ is the most", b.name,
                      b.bytes + bytes));
  if (b.pending == 0)
    fault(fmt::format("arrives at mbarrier {} in phase {}, where all {} have arrived", b.name,
                      b.phase, b.count));
  block_.trace_event("mbarrier_arrive", b.name, b.phase);
  memory_.publish(block_.running());
  b.bytes += bytes;
  --b.pending;
  settle(b);
}

void Barriers::settle(Barrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  ++b.phase;
  b.pending = b.count;
  if (b.waiters.empty()) return;
  for (const int thread : b.waiters) block_.wake(thread);
  b.waiters.clear();
  make_readable(b);
}

void Barriers::make_readable(Barrier& b) {
  std::erase_if(b.landed, [&](const Barrier::Landed& l) {
    if (l.phase >= b.phase) return false;
    memory_.end_load(l.begin, l.bytes, l.floats);
    return true;
  });
}

void Barriers::wait(const SharedPlace& place, int parity, std::source_location where) {
  Barrier& b = find(place);
  if (parity != 0 && parity != 1)
    fault(fmt::format("waits for parity {} of mbarrier {}: it is 0 or 1", parity, b.name));
  const bool over = (b.phase & 1) != parity;
  block_.trace_event_of_warp("mbarrier_wait", b.name, over ? b.phase - 1 : b.phase);
  if (over) return make_readable(b);
  b.waiters.push_back(block_.running());
  block_.wait("mbarrier", where);
}

Barriers::Barrier& Barriers::for_load(const char* what, const SharedPlace& place) {
  Barrier& b = find(place);
  if (!b.fenced)
    fault(fmt::format("{} to mbarrier {} without fence_mbarrier_init() after its init", what,
                      b.name));
  return b;
}

void Barriers::load_ended(Barrier& b, int64_t begin, int64_t bytes, int thread, bool floats) {
  b.landed.push_back({b.phase, begin, bytes, thread, floats});
  b.bytes -= bytes;
  settle(b);
}

void Barriers::fault_of_load(const Barrier& b, int thread) const {
  block_.fault_in(
      thread,
      fmt::format("the block ends with a load to mbarrier {} that nobody waited for", b.name));
}

void Barriers::end_block() const {
  for (const Barrier& b : barriers_)
    if (!b.landed.empty()) fault_of_load(b, b.landed.front().thread);
  for (int id = 1; id < 16; ++id) {
    const NamedBarrier& b = named_[id];
    if (b.arrived == 0) continue;
    int first = 0;
    while (!b.who[static_cast<size_t>(first)]) ++first;
    block_.fault_in(first,
                    fmt::format("the block ends with {} of {} threads at named barrier {}: they "
                                "arrived for others that never came",
                                b.arrived, b.expected, id));
  }
}

// -------------------------------------------------------------------------------- named barriers

void Barriers::named_barrier(int id, int threads, bool waits, std::source_location where) {
  if (id < 1 || id > 15) fault(fmt::format("named barrier {}: they are 1 to 15", id));
  if (threads < 32 || threads > 1024 || threads % 32)
    fault(fmt::format("named barrier {} of {} threads: whole warps, 1024 at most", id, threads));
  NamedBarrier& b = named_[id];
  if (b.arrived > 0 && b.expected != threads)
    fault(fmt::format("named barrier {} of {} threads, where others came to one of {}", id, threads,
                      b.expected));
  const auto self = static_cast<size_t>(block_.running());
  if (b.who[self])
    fault(fmt::format("comes to named barrier {} a second time, {} of {} threads being there", id,
                      b.arrived, b.expected));
  block_.trace_event_of_warp(waits ? "named_barrier_sync" : "named_barrier_arrive",
                             std::to_string(id), b.completed);
  memory_.publish(block_.running());
  b.expected = threads;
  b.who[self] = true;
  if (++b.arrived < b.expected) {
    if (!waits) return;
    b.waiters.push_back(block_.running());
    return block_.wait("named barrier", where);
  }
  for (const int t : b.waiters) block_.wake(t);
  const int64_t completed = b.completed + 1;
  b = {};
  b.completed = completed;
  if (waits) block_.yield();  // the last to come takes its place in the schedule's order again
}

// --------------------------------------------------------------------------------------- deadlock

std::string Barriers::waits_for(int thread) const {
  for (const Barrier& b : barriers_)
    for (const int waiter : b.waiters)
      if (waiter == thread)
        return fmt::format(
            "mbarrier {}, the end of phase {} (parity {}), where {} of {} arrivals and {} bytes "
            "are missing",
            b.name, b.phase, b.phase & 1, b.pending, b.count, b.bytes);
  for (int id = 1; id < 16; ++id)
    for (const int t : named_[id].waiters)
      if (t == thread)
        return fmt::format("named barrier {}, where {} of {} threads are missing", id,
                           named_[id].expected - named_[id].arrived, named_[id].expected);
  return "";
}

}  // namespace ladder::sim
