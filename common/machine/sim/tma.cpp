#include "machine/sim/tma.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "machine/sim/fault.h"

namespace ladder::sim {
namespace {

constexpr const char *kTmaLoad = "TMA load", *kTmaStore = "TMA store";

}  // namespace

Tma::Tma(Block& block, BlockMemory& memory, Barriers& barriers)
    : block_(block),
      memory_(memory),
      barriers_(barriers),
      stores_(static_cast<size_t>(block.threads())) {}

void Tma::end_thread() const {
  const std::vector<Store>& stores = stores_[static_cast<size_t>(block_.running())].under_way;
  if (!stores.empty())
    fault(fmt::format("ends with a {} that was never waited for",
                      std::holds_alternative<Box>(stores[0].what) ? kTmaStore : "bulk_add"));
}

void Tma::end_block() const {
  if (!loads_.empty()) barriers_.fault_of_load(*loads_.front().barrier, loads_.front().thread);
}

bool Tma::deliver_load() {
  if (loads_.empty()) return false;
  const Load load = loads_.front();
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

// ------------------------------------------------------------------------------------------ boxes

Tma::Piece Tma::piece_of(const Box& box, int row) {
  const auto& [map, at, shared] = box;
  const int64_t r = int64_t{at[1]} + row;
  const bool inside = r >= 0 && r < map.extents[1] && at[2] >= 0 && at[2] < map.extents[2] &&
                      at[3] >= 0 && at[3] < map.extents[3];
  const int64_t first = std::max(at[0], 0);
  const int64_t last = std::min(map.extents[0], int64_t{at[0]} + map.box_bytes / map.element);
  if (!inside || last <= first) return {0, 0, 0};
  const int64_t index =
      ((at[3] * map.extents[2] + at[2]) * map.extents[1] + r) * map.extents[0] + first;
  return {map.element * index, map.element * (first - at[0]), map.element * (last - first)};
}

template <class F>
void Tma::for_each_piece(const Box& box, F f) {
  for (int row = 0; row < box.map.box_rows; ++row) {
    const Piece piece = piece_of(box, row);
    for (int64_t i = 0; i < piece.bytes; i += 16) f(piece.at + i, box.place(row, piece.begin + i));
  }
}

void Tma::check(const char* what, const TensorMap& map, const SharedPlace& place) {
  const auto [name, at, begin, end] = place;
  if (!map.array) fault(fmt::format("{}: a tensor map of nothing", what));
  if (at % (8 * map.box_bytes))
    fault(fmt::format("{}: shared {}[{}] not aligned to {} bytes", what, name,
                      (at - begin) / map.element, 8 * map.box_bytes));
  if (at < begin || at + int64_t{map.box_rows} * map.box_bytes > end)
    fault(fmt::format("{}: a box of {} rows × {} bytes at shared {}[{}] ends past its {} elements",
                      what, map.box_rows, map.box_bytes, name, (at - begin) / map.element,
                      (end - begin) / map.element));
}

void Tma::copy_in(const Box& box) {
  for (int row = 0; row < box.map.box_rows; ++row) {
    const Piece piece = piece_of(box, row);
    char line[128] = {};
    if (piece.bytes)
      std::memcpy(line + piece.begin, static_cast<char*>(box.map.array->data) + piece.at,
                  static_cast<size_t>(piece.bytes));
    for (int64_t i = 0; i < box.map.box_bytes; i += 16)
      std::memcpy(memory_.data() + box.place(row, i), line + i, 16);
  }
}

void Tma::copy_out(const Box& box) {
  for (int row = 0; row < box.map.box_rows; ++row) {
    const Piece piece = piece_of(box, row);
    if (!piece.bytes) continue;
    char line[128];
    for (int64_t i = 0; i < box.map.box_bytes; i += 16)
      std::memcpy(line + i, memory_.data() + box.place(row, i), 16);
    std::memcpy(static_cast<char*>(box.map.array->data) + piece.at, line + piece.begin,
                static_cast<size_t>(piece.bytes));
  }
}

// --------------------------------------------------------------------------------- floats in a row

template <class F>
void Tma::for_each_piece(const Floats& floats, F f) {
  for (int64_t i = 0; i < floats.bytes(); i += 16) f(floats.at + i, floats.shared + i);
}

void Tma::check(const char* what, const Floats& floats, const SharedPlace& place) {
  const auto [name, at, begin, end] = place;
  if (floats.n < 1 || floats.n % 4)
    fault(fmt::format("{} of {} floats: their number is a positive multiple of 4", what, floats.n));
  if (at % 16)
    fault(fmt::format("{}: shared {}[{}] not aligned to 16 bytes", what, name, (at - begin) / 4));
  if (floats.at % 16)
    fault(fmt::format("{}: {}[{}] not aligned to 16 bytes", what, floats.of->name, floats.at / 4));
  if (at < begin || at + floats.bytes() > end)
    fault(fmt::format("{}: {} floats at shared {}[{}] end past its {} elements", what, floats.n,
                      name, (at - begin) / 4, (end - begin) / 4));
}

void Tma::copy_in(const Floats& floats) {
  std::memcpy(memory_.data() + floats.shared, static_cast<char*>(floats.of->data) + floats.at,
              static_cast<size_t>(floats.bytes()));
}

void Tma::add(const Floats& floats) {
  auto* const sums = static_cast<float*>(floats.of->data) + floats.at / 4;
  for (int64_t i = 0; i < floats.n; ++i) {
    float x;
    std::memcpy(&x, memory_.data() + floats.shared + 4 * i, 4);
    add_atomically(sums[i], x);
  }
}

// ------------------------------------------------------------------------------------------ loads

void Tma::load(const TensorMap& map, const MbarrierPlace& barrier, const SharedPlace& target,
               const int (&at)[4]) {
  Barriers::Barrier& b = barriers_.for_load(kTmaLoad, barrier);
  check(kTmaLoad, map, target);
  start_load(kTmaLoad, "tma_load", Box{map, {at[0], at[1], at[2], at[3]}, target.at}, b, target);
}

void Tma::bulk_load(Tracked& array, int64_t at, const MbarrierPlace& barrier,
                    const SharedPlace& target, int n) {
  Barriers::Barrier& b = barriers_.for_load("bulk_load", barrier);
  const Floats floats{&array, at, target.at, n};
  check("bulk_load", floats, target);
  start_load("bulk_load", "bulk_load", floats, b, target);
}

template <class What>
void Tma::start_load(const char* what, const char* event, const What& copy,
                     Barriers::Barrier& barrier, const SharedPlace& target) {
  const int64_t bytes = copy.bytes();
  memory_.begin_load(what, target, bytes, copy.element());
  Recorder* const recorder = block_.recorder();
  if (recorder) recorder->copies(true);
  for_each_piece(copy, [&](int64_t at, int64_t) {
    copy.array().template read<16>(block_, at, copy.element());
  });
  block_.counts.sram_write += bytes;
  if (recorder) recorder->copies(false), recorder->copy(target, bytes, false);
  block_.trace_event(event, copy.array().name, barrier.phase, bytes, barrier.name);
  const Load load{copy, &barrier, block_.running()};
  if (block_.late())
    loads_.push_back(load);
  else
    end_load(load);
}

void Tma::end_load(const Load& load) {
  std::visit(
      [&]<class What>(const What& copy) {
        copy_in(copy);
        barriers_.load_ended(*load.barrier, copy.shared, copy.bytes(), load.thread,
                             std::is_same_v<What, Floats>);
      },
      load.what);
}

// -------------------------------------------------------------------------- stores and additions

void Tma::store(const TensorMap& map, const SharedPlace& source, const int (&at)[4]) {
  check(kTmaStore, map, source);
  for (const int i : at)
    if (i < 0) fault(fmt::format("TMA store to place {}: a box to store cannot start before 0", i));
  start_store(kTmaStore, "tma_store", Box{map, {at[0], at[1], at[2], at[3]}, source.at}, source,
              [&](int64_t to) { map.array->write<16>(block_, to, map.element); });
}

void Tma::bulk_add(Tracked& array, int64_t at, const SharedPlace& source, int n) {
  const Floats floats{&array, at, source.at, n};
  check("bulk_add", floats, source);
  start_store("bulk_add", "bulk_add", floats, source,
              [&](int64_t to) { array.add<16>(block_, to, 4); });
}

template <class What, class Access>
void Tma::start_store(const char* what, const char* event, const What& copy,
                      const SharedPlace& source, Access access) {
  Recorder* const recorder = block_.recorder();
  if (recorder) recorder->copies(true);
  for_each_piece(copy, [&](int64_t to, int64_t) { access(to); });
  if (recorder) recorder->copies(false);
  for_each_piece(copy, [&](int64_t, int64_t chunk) {
    memory_.begin_async_read(what, chunk, copy.element());
    if (recorder) recorder->touch({source.name, chunk, source.begin, source.end}, 16, false);
    block_.counts.sram_read += 16;
  });
  mine().under_way.push_back({copy, mine().group});
  block_.trace_event(event, copy.array().name, mine().group, copy.bytes());
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
    if (const Floats* const floats = std::get_if<Floats>(&store.what))
      add(*floats);
    else
      copy_out(std::get<Box>(store.what));
    std::visit(
        [&](const auto& copy) {
          for_each_piece(copy, [&](int64_t, int64_t chunk) { memory_.end_async_read(chunk); });
        },
        store.what);
    return true;
  });
  stores.done = -1;
  block_.wake(thread);
}

}  // namespace ladder::sim
