#include "machine/sim/async.h"

#include <cstring>
#include <utility>

namespace ladder::sim {
namespace {

std::string name_of(const SharedPlace& place) {
  return fmt::format("{}[{}]", place.name, place.index());
}

}  // namespace

Async::Async(Block& block) : block_(block), memory_(block.memory), stores_(block.threads()) {
  memory_.tell_writers_apart();
  for (int first = 0; first + 128 <= block.threads(); first += 128)
    warpgroups_.emplace_back(block, first);
}

WgmmaEngine& Async::warpgroup(const char* what) {
  if (!has_warpgroup()) fault("{} by a warpgroup of fewer than 128 threads", what);
  return warpgroups_[block_.running() / 128];
}

void Async::set_registers(int n) {
  warpgroup("setmaxnreg").registers = n;
  // Once all warpgroups have said how many they want, the block must have as many: those that its
  // threads were started with, all alike and a multiple of 8. The chip waits for ever.
  int sum = 0;
  for (const WgmmaEngine& group : warpgroups_) {
    if (!group.registers) return;
    sum += 128 * group.registers;
  }
  const int threads = 128 * static_cast<int>(warpgroups_.size());
  const int given = 65536 / threads / 8 * 8 * threads;
  if (sum > given)
    fault(
        "setmaxnreg: the block's warpgroups want {} registers, and its {} threads were started "
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
  for (WgmmaEngine& group : warpgroups_)
    if (group.deliver()) return true;
  for (size_t thread = 0; thread < stores_.size(); ++thread)
    if (stores_[thread].done >= 0) {
      end_stores(static_cast<int>(thread));
      return true;
    }
  return false;
}

// ------------------------------------------------------------------------------------- mbarriers

void Async::init(const SharedPlace& place, int count) {
  if (count < 1 || count >= 1 << 20) fault("mbarrier {}: a count of {}", name_of(place), count);
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
    fault("mbarrier {}: {} bytes promised, and less than 2²⁰ is the most", b.name, b.bytes + bytes);
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
    fault("waits for parity {} of mbarrier {}: it is 0 or 1", parity, b.name);
  const bool over = (b.phase & 1) != parity;
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

// -------------------------------------------------------------------------------- named barriers

void Async::named_barrier(int id, int threads, bool waits, Where where) {
  if (id < 1 || id > 15) fault("named barrier {}: they are 1 to 15", id);
  if (threads < 32 || threads > 1024 || threads % 32)
    fault("named barrier {} of {} threads: whole warps, 1024 at most", id, threads);
  NamedBarrier& b = named_[id];
  if (b.arrived > 0 && b.expected != threads)
    fault("named barrier {} of {} threads, where others came to one of {}", id, threads,
          b.expected);
  const int self = block_.running();
  if (b.who[self])
    fault("comes to named barrier {} a second time, {} of {} threads being there", id, b.arrived,
          b.expected);
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
  for (const int t : b.waiters) block_.wake(t);
  const int64_t completed = b.completed + 1;
  b = {};
  b.completed = completed;
  if (waits) block_.yield();  // the last to come takes its place in the schedule's order again
}

// ----------------------------------------------------------------------------- what is copied

Async::Copy::Copy(const char* what, Tracked* array, const SharedPlace& place, int64_t bytes,
                  int alignment)
    : what(what), array(array), place(place), bytes(bytes) {
  if (place.at % alignment) fault("{}: {} not aligned to {} bytes", what, place.text(), alignment);
  if (place.at < place.begin || place.at + bytes > place.end)
    fault("{}: {} bytes from {} on end past the array's {} elements", what, bytes, place.text(),
          (place.end - place.begin) / place.element);
}

template <Access access>
void Async::touch_hbm(const Copy& copy) {
  Recorder* const recorder = block_.recorder();
  if (recorder) recorder->copies(true);
  int64_t sum = 0, last = -1;  // of sectors; pieces lie in the array's order
  for (const auto& piece : copy.pieces) {
    copy.array->touch<access, 16>(block_, piece.at, copy.place.element);
    sum += std::exchange(last, piece.at / 32) != piece.at / 32;
  }
  if (recorder) recorder->copies(false);
  for (const bool writes : {false, true})
    if (access == Access::add || writes == (access == Access::write))
      copy.array->count(block_, writes, std::ssize(copy.pieces) * 16, sum);
}

Async::Copy Async::box(const char* what, const TensorMap& map, const SharedPlace& place,
                       const int (&at)[4]) {
  if (!map.array) fault("{}: a tensor map of nothing", what);
  Copy copy(what, map.array, place, int64_t{map.box_rows} * map.box_bytes, 8 * map.box_bytes);
  const int64_t first = int64_t{at[0]} * map.element, width = map.extents[0] * map.element;
  if (first % 16)
    fault("{}: a box from column {} on, within 16 bytes: unknown to the sim", what, at[0]);
  const auto inside = [&](int64_t i, int dimension) {
    return i >= 0 && i < map.extents[dimension];
  };
  for (int row = 0; row < map.box_rows; ++row) {
    const int64_t r = int64_t{at[1]} + row;
    if (!inside(r, 1) || !inside(at[2], 2) || !inside(at[3], 3)) continue;
    const int64_t line = ((at[3] * map.extents[2] + at[2]) * map.extents[1] + r) * width + first;
    for (int64_t i = 0; i < map.box_bytes; i += 16)
      if (first + i >= 0 && first + i < width)
        copy.pieces.push_back(
            {line + i, swizzled(place.at + int64_t{row} * map.box_bytes + i, map.box_bytes)});
  }
  return copy;
}

Async::Copy Async::floats(const char* what, Tracked& array, int64_t at, const SharedPlace& place,
                          int n) {
  if (n < 1 || n % 4) fault("{} of {} floats: their number is a positive multiple of 4", what, n);
  if (at % 16) fault("{}: {}[{}] not aligned to 16 bytes", what, array.name, at / 4);
  Copy copy(what, &array, place, int64_t{n} * 4, 16);
  for (int64_t i = 0; i < copy.bytes; i += 16) copy.pieces.push_back({at + i, place.at + i});
  return copy;
}

// ------------------------------------------------------------------------------------------ loads

void Async::load(const TensorMap& map, const SharedPlace& barrier, const SharedPlace& target,
                 const int (&at)[4]) {
  start_load(EventKind::tma_load, box("TMA load", map, target, at), barrier);
}

void Async::bulk_load(Tracked& array, int64_t at, const SharedPlace& barrier,
                      const SharedPlace& target, int n) {
  start_load(EventKind::bulk_load, floats("bulk_load", array, at, target, n), barrier);
}

void Async::start_load(EventKind kind, const Copy& copy, const SharedPlace& barrier) {
  Barrier& b = find(barrier);
  if (!b.fenced)
    fault("{} to mbarrier {} without fence_mbarrier_init() after its init", copy.what, b.name);
  memory_.begin_load(copy.what, copy.place, copy.bytes);
  touch_hbm<Access::read>(copy);
  block_.counts.sram_write += copy.bytes;
  block_.count_copy();
  if (Recorder* const r = block_.recorder()) r->copy(copy.place, copy.bytes, false);
  block_.trace_event(kind, copy.array->name, b.phase, copy.bytes, b.name);
  loads_.push_back({copy, &b, block_.running()});
  if (!block_.late()) end_load(loads_.back());
}

void Async::end_load(Load& load) {
  std::memset(memory_.data() + load.place.at, 0, load.bytes);
  const char* const data = static_cast<char*>(load.array->data);
  for (const auto& piece : load.pieces)
    std::memcpy(memory_.data() + piece.shared, data + piece.at, 16);
  load.phase = load.barrier->phase;
  load.barrier->bytes -= load.bytes;
  end_phase_if_complete(*load.barrier);
}

// -------------------------------------------------------------------------- stores and additions

void Async::store(const TensorMap& map, const SharedPlace& source, const int (&at)[4]) {
  const Copy copy = box("TMA store", map, source, at);
  for (const int i : at)
    if (i < 0) fault("TMA store to place {}: a box to store cannot start before 0", i);
  start_store(EventKind::tma_store, {copy, false, mine().group});
}

void Async::bulk_add(Tracked& array, int64_t at, const SharedPlace& source, int n) {
  start_store(EventKind::bulk_add, {floats("bulk_add", array, at, source, n), true, mine().group});
}

void Async::start_store(EventKind kind, Store store) {
  store.adds ? touch_hbm<Access::add>(store) : touch_hbm<Access::write>(store);
  for (const auto& piece : store.pieces) {
    memory_.begin_async_read(store.what, piece.shared, store.place.element);
    if (Recorder* const r = block_.recorder())
      r->touch(store.place + (piece.shared - store.place.at), 16, false);
    block_.counts.sram_read += 16;
  }
  block_.trace_event(kind, store.array->name, store.group, store.bytes);
  mine().under_way.push_back(std::move(store));
}

void Async::wait_stores(int groups_left, Where where) {
  Stores& stores = mine();
  const int done = stores.group - groups_left;
  block_.trace_event(EventKind::tma_store_wait, "", done);
  if (stores.under_way.empty() || stores.under_way.front().group >= done) return;
  stores.done = done;
  if (block_.late())
    block_.wait("TMA store", where);
  else
    end_stores(block_.running());
}

void Async::end_stores(int thread) {
  Stores& stores = stores_[thread];
  std::erase_if(stores.under_way, [&](const Store& store) {
    if (store.group >= stores.done) return false;
    for (const auto& piece : store.pieces) {
      const char* const from = memory_.data() + piece.shared;
      char* const to = static_cast<char*>(store.array->data) + piece.at;
      if (store.adds) {
        float x[4];
        std::memcpy(x, from, 16);
        for (int i = 0; i < 4; ++i) add_atomically(reinterpret_cast<float*>(to)[i], x[i]);
      } else {
        std::memcpy(to, from, 16);
      }
      memory_.end_async_read(piece.shared);
    }
    return true;
  });
  stores.done = -1;
  block_.wake(thread);
}

}  // namespace ladder::sim
