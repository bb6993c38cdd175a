// Implements TMA: copies boxes or floats between global and shared memory, and adds floats to HBM.
#include "machine/sim/async.h"

#include <cstring>
#include <utility>

namespace ladder::sim {

Async::Copy::Copy(const char* what, TrackedArray* array, const SharedPlace& place, int64_t bytes,
                  int alignment)
    : what(what), array(array), place(place), bytes(bytes) {
  if (place.at % alignment) fault("{}: {} not aligned to {} bytes", what, place.text(), alignment);
  if (place.at < place.begin || place.at + bytes > place.end)
    fault("{}: {} bytes from {} on reach past the array's {} elements", what, bytes, place.text(),
          (place.end - place.begin) / place.element);
}

template <Access access>
void Async::touch_hbm(const Copy& copy) {
  Recorder* const recorder = block_.recorder();
  if (recorder) recorder->copies(true);
  int64_t sum = 0, last = -1;  // pieces are in the array's order, so each sector counts once
  for (const auto& piece : copy.pieces) {
    copy.array->check_access<access, 16>(block_, piece.at, copy.place.element);
    sum += std::exchange(last, piece.at / 32) != piece.at / 32;
  }
  if (recorder) recorder->copies(false);
  for (const bool writes : {false, true})
    if (access == Access::add || writes == (access == Access::write))
      copy.array->count(block_, writes, std::ssize(copy.pieces) * 16, sum);
}

Async::Copy Async::box(const char* what, const TensorMap& map, const SharedPlace& place,
                       const int (&at)[4]) {
  if (!map.array) fault("{}: the tensor map is empty", what);
  Copy copy(what, map.array, place, int64_t{map.box_rows} * map.box_bytes, 8 * map.box_bytes);
  const int64_t first = int64_t{at[0]} * map.element, width = map.extents[0] * map.element;
  if (first % 16)
    fault(
        "{}: a box that starts at column {}, no multiple of 16 bytes: not supported by the "
        "simulator",
        what, at[0]);
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

Async::Copy Async::floats(const char* what, TrackedArray& array, int64_t at,
                          const SharedPlace& place, int n) {
  if (n < 1 || n % 4)
    fault("{} of {} floats: the number must be a positive multiple of 4", what, n);
  if (at % 16) fault("{}: {}[{}] not aligned to 16 bytes", what, array.name, at / 4);
  Copy copy(what, &array, place, int64_t{n} * 4, 16);
  for (int64_t i = 0; i < copy.bytes; i += 16) copy.pieces.push_back({at + i, place.at + i});
  return copy;
}

void Async::load(EventKind kind, const Copy& copy, const SharedPlace& barrier) {
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
  const char* const data = static_cast<char*>(load.array->contents());
  for (const auto& piece : load.pieces)
    std::memcpy(memory_.data() + piece.shared, data + piece.at, 16);
  load.phase = load.barrier->phase;
  load.barrier->bytes -= load.bytes;
  end_phase_if_complete(*load.barrier);
}

void Async::store(EventKind kind, const Copy& copy, bool adds) {
  const Store store{copy, adds, mine().group};
  adds ? touch_hbm<Access::add>(store) : touch_hbm<Access::write>(store);
  for (const auto& piece : store.pieces) {
    memory_.begin_async_read(store.what, piece.shared, store.place.element);
    if (Recorder* const r = block_.recorder())
      r->touch(store.place + (piece.shared - store.place.at), 16, false);
    block_.counts.sram_read += 16;
  }
  block_.trace_event(kind, store.array->name, store.group, store.bytes);
  mine().under_way.push_back(store);
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
      char* const to = static_cast<char*>(store.array->contents()) + piece.at;
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
