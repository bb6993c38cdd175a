#include "machine/sim/tma.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ladder::sim {
Tma::Tma(Block& block, BlockMemory& memory, Barriers& barriers)
    : block_(block),
      memory_(memory),
      barriers_(barriers),
      stores_(static_cast<size_t>(block.threads())) {}

void Tma::end_thread() const {
  const std::vector<Store>& stores = stores_[static_cast<size_t>(block_.running())].under_way;
  if (!stores.empty())
    fault(fmt::format("ends with a {} that was never waited for", stores[0].what));
}

void Tma::end_block() const {
  if (!loads_.empty()) barriers_.fault_of_load(*loads_.front().barrier, loads_.front().thread);
}

bool Tma::deliver_load() {
  if (loads_.empty()) return false;
  const Load load = std::move(loads_.front());
  loads_.pop_front();
  end_load(load);
  return true;
}

bool Tma::deliver_stores() {
  const auto waiting = std::find_if(stores_.begin(), stores_.end(),
                                    [](const Stores& stores) { return stores.done >= 0; });
  if (waiting == stores_.end()) return false;
  end_stores(static_cast<int>(waiting - stores_.begin()));
  return true;
}

// ----------------------------------------------------------------------------- what is copied

Tma::Copy Tma::box(const char* what, const TensorMap& map, const SharedPlace& place,
                   const int (&at)[4]) {
  const auto& [name, shared, begin, end] = place;
  const int64_t bytes = int64_t{map.box_rows} * map.box_bytes;
  if (!map.array) fault(fmt::format("{}: a tensor map of nothing", what));
  if (shared % (8 * map.box_bytes))
    fault(fmt::format("{}: shared {}[{}] not aligned to {} bytes", what, name,
                      (shared - begin) / map.element, 8 * map.box_bytes));
  if (shared < begin || shared + bytes > end)
    fault(fmt::format("{}: a box of {} rows × {} bytes at shared {}[{}] ends past its {} elements",
                      what, map.box_rows, map.box_bytes, name, (shared - begin) / map.element,
                      (end - begin) / map.element));
  const int64_t first = int64_t{at[0]} * map.element, width = map.extents[0] * map.element;
  if (first % 16)
    fault(fmt::format("{}: a box from column {} on, within 16 bytes: unknown to the sim", what,
                      at[0]));
  Copy copy{what, map.array, map.element, shared, bytes};
  copy.pieces.reserve(static_cast<size_t>(bytes / 16));
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
            {line + i, swizzled(shared + int64_t{row} * map.box_bytes + i, map.box_bytes)});
  }
  return copy;
}

Tma::Copy Tma::floats(const char* what, Tracked& array, int64_t at, const SharedPlace& place,
                      int n) {
  const auto& [name, shared, begin, end] = place;
  if (n < 1 || n % 4)
    fault(fmt::format("{} of {} floats: their number is a positive multiple of 4", what, n));
  if (shared % 16)
    fault(
        fmt::format("{}: shared {}[{}] not aligned to 16 bytes", what, name, (shared - begin) / 4));
  if (at % 16) fault(fmt::format("{}: {}[{}] not aligned to 16 bytes", what, array.name, at / 4));
  const int64_t bytes = int64_t{n} * 4;
  if (shared < begin || shared + bytes > end)
    fault(fmt::format("{}: {} floats at shared {}[{}] end past its {} elements", what, n, name,
                      (shared - begin) / 4, (end - begin) / 4));
  Copy copy{what, &array, 4, shared, bytes};
  for (int64_t i = 0; i < bytes; i += 16) copy.pieces.push_back({at + i, shared + i});
  return copy;
}

// ------------------------------------------------------------------------------------------ loads

void Tma::load(const TensorMap& map, const SharedPlace& barrier, const SharedPlace& target,
               const int (&at)[4]) {
  Barriers::Barrier& b = barriers_.for_load("TMA load", barrier);
  start_load("tma_load", {box("TMA load", map, target, at), &b, block_.running()}, target);
}

void Tma::bulk_load(Tracked& array, int64_t at, const SharedPlace& barrier,
                    const SharedPlace& target, int n) {
  Barriers::Barrier& b = barriers_.for_load("bulk_load", barrier);
  start_load("bulk_load", {floats("bulk_load", array, at, target, n), &b, block_.running()},
             target);
}

void Tma::start_load(const char* event, Load load, const SharedPlace& target) {
  memory_.begin_load(load.what, target, load.bytes, load.element);
  Recorder* const recorder = block_.recorder();
  if (recorder) recorder->copies(true);
  for (const auto& piece : load.pieces)
    load.array->touch<Access::read, 16>(block_, piece.at, load.element);
  block_.counts.sram_write += load.bytes;
  if (recorder) recorder->copies(false), recorder->copy(target, load.bytes, false);
  block_.trace_event(event, load.array->name, load.barrier->phase, load.bytes, load.barrier->name);
  if (block_.late())
    loads_.push_back(std::move(load));
  else
    end_load(load);
}

void Tma::end_load(const Load& load) {
  std::memset(memory_.data() + load.shared, 0, static_cast<size_t>(load.bytes));
  const char* const data = static_cast<char*>(load.array->data);
  for (const auto& piece : load.pieces)
    std::memcpy(memory_.data() + piece.shared, data + piece.at, 16);
  barriers_.load_ended(*load.barrier, load.shared, load.bytes, load.thread, load.element == 4);
}

// -------------------------------------------------------------------------- stores and additions

void Tma::store(const TensorMap& map, const SharedPlace& source, const int (&at)[4]) {
  const Copy copy = box("TMA store", map, source, at);
  for (const int i : at)
    if (i < 0) fault(fmt::format("TMA store to place {}: a box to store cannot start before 0", i));
  start_store("tma_store", {copy, false, mine().group}, source);
}

void Tma::bulk_add(Tracked& array, int64_t at, const SharedPlace& source, int n) {
  start_store("bulk_add", {floats("bulk_add", array, at, source, n), true, mine().group}, source);
}

void Tma::start_store(const char* event, Store store, const SharedPlace& source) {
  Recorder* const recorder = block_.recorder();
  if (recorder) recorder->copies(true);
  for (const auto& piece : store.pieces)
    if (store.adds)
      store.array->touch<Access::add, 16>(block_, piece.at, store.element);
    else
      store.array->touch<Access::write, 16>(block_, piece.at, store.element);
  if (recorder) recorder->copies(false);
  for (const auto& piece : store.pieces) {
    memory_.begin_async_read(store.what, piece.shared, store.element);
    if (recorder) recorder->touch({source.name, piece.shared, source.begin, source.end}, 16, false);
    block_.counts.sram_read += 16;
  }
  block_.trace_event(event, store.array->name, store.group, store.bytes);
  mine().under_way.push_back(std::move(store));
}

void Tma::commit_stores() {
  ++mine().group;
}

void Tma::wait_stores(int groups_left, std::source_location where) {
  Stores& stores = mine();
  const int done = stores.group - groups_left;
  block_.trace_event("tma_store_wait", "", done);
  if (stores.under_way.empty() || stores.under_way.front().group >= done) return;
  stores.done = done;
  if (block_.late())
    block_.wait("TMA store", where);
  else
    end_stores(block_.running());
}

void Tma::end_stores(int thread) {
  Stores& stores = stores_[static_cast<size_t>(thread)];
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
