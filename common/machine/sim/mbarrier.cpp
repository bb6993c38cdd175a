// Implements mbarriers: counts a phase's arrivals and bytes, and wakes the threads that wait.
#include "machine/sim/async.h"

namespace ladder::sim {
namespace {

std::string name_of(const SharedPlace& place) {
  return fmt::format("{}[{}]", place.name, place.index());
}

}  // namespace

void Async::init(const SharedPlace& place, int count) {
  if (count < 1 || count >= 1 << 20)
    fault("mbarrier {}: a count of {}, which must be from 1 to 2²⁰ - 1", name_of(place), count);
  for (const Barrier& b : barriers_)
    if (b.at == place.at) fault("mbarrier {} initialised a second time", b.name);
  barriers_.push_back({place.at, name_of(place), count, count, block_.running()});
}

void Async::fence_init() {
  for (Barrier& b : barriers_) b.fenced |= b.initialised_by == block_.running();
}

Async::Barrier& Async::find(const SharedPlace& place) {
  for (Barrier& b : barriers_)
    if (b.at == place.at) return b;
  fault("mbarrier {} is used before its init", name_of(place));
}

void Async::arrive(const SharedPlace& place, int64_t bytes) {
  Barrier& b = find(place);
  if (bytes < 0 || b.bytes + bytes >= 1 << 20)
    fault("mbarrier {}: {} bytes promised, which must be fewer than 2²⁰", b.name, b.bytes + bytes);
  if (b.pending == 0)
    fault("arrives at mbarrier {} in phase {}, where all {} have arrived", b.name, b.phase,
          b.count);
  block_.trace_event(EventKind::mbarrier_arrive, b.name, b.phase);
  memory_.publish(block_.running());
  b.bytes += bytes;
  --b.pending;
  end_phase_if_complete(b);
}

void Async::end_phase_if_complete(Barrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  ++b.phase;
  b.pending = b.count;
  if (b.waiters.empty()) return;
  for (const int thread : b.waiters) block_.wake(thread);
  b.waiters.clear();
  make_readable(b);
}

void Async::make_readable(const Barrier& b) {
  std::erase_if(loads_, [&](const Load& load) {
    if (load.barrier != &b || load.phase < 0 || load.phase >= b.phase) return false;
    memory_.end_load(load.place.at, load.bytes);
    return true;
  });
}

void Async::wait(const SharedPlace& place, int parity, Where where) {
  Barrier& b = find(place);
  if (parity != 0 && parity != 1)
    fault("waits for parity {} of mbarrier {}: a parity is 0 or 1", parity, b.name);
  const bool over = (b.phase & 1) != parity;  // the phase meant is the previous one
  block_.trace_event(EventKind::mbarrier_wait, b.name, over ? b.phase - 1 : b.phase);
  if (over) return make_readable(b);
  b.waiters.push_back(block_.running());
  block_.wait_for(
      [&b] {
        return fmt::format(
            "mbarrier {}, the end of phase {} (parity {}), where {} of {} arrivals and {} bytes "
            "are missing",
            b.name, b.phase, b.phase & 1, b.pending, b.count, b.bytes);
      },
      where);
}

}  // namespace ladder::sim
