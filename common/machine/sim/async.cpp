#include "machine/sim/async.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "float16.h"
#include "machine/sim/engine.h"

namespace ladder::sim {
namespace {

constexpr int64_t kRowBytes = 128;  // of a box, and of a line that a swizzle works on
constexpr unsigned kOwnedOperand = 0x7fed7fed;

/// Where the 16 bytes at `at` stand under 128-byte swizzle: bits 4–6 XOR bits 7–9.
int64_t swizzle_128(int64_t at) {
  return at ^ (at >> 7 & 7) << 4;
}

/// A matrix in shared memory as a descriptor tells it (PTX ISA: “Matrix Descriptor Format”).
struct Descriptor {
  int64_t start, leading, stride;
  int swizzle;  // bytes: 128, 64, 32, or 16 for none
  explicit Descriptor(uint64_t bits)
      : start(static_cast<int64_t>(bits & 0x3fff) << 4),
        leading(static_cast<int64_t>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<int64_t>(bits >> 32 & 0x3fff) << 4),
        swizzle(bits >> 62 ? 256 >> (bits >> 62) : 16) {
    if (bits >> 49 & 7) fault("wgmma: a matrix descriptor with a base offset, unknown to the sim");
  }
  /// The 16 bytes that hold elements k … k + 7 of row i or, transposed, i … i + 7 of column k.
  int64_t chunk(int i, int k, bool transposed) const {
    int64_t at = start;
    if (swizzle == 16)
      at += transposed ? i / 8 * stride + k % 8 * 16 + k / 8 * leading
                       : i / 8 * stride + i % 8 * 16 + k / 8 * leading;
    else if (transposed)
      at += i / (swizzle / 2) * leading + i % (swizzle / 2) * 2 + k % 8 * swizzle + k / 8 * stride;
    else
      at += i / 8 * stride + i % 8 * swizzle + k * 2;
    const int64_t pieces = swizzle / 16;  // that change places
    return at ^ (at >> 7 & (pieces - 1)) << 4;
  }
};

/// Calls f(at, i, k) for each 16 bytes of an operand of `rows` rows (or columns) × 16.
template <class F>
void for_each_chunk(uint64_t descriptor, int rows, bool transposed, F f) {
  const Descriptor d(descriptor);
  const int step_i = transposed ? 8 : 1, step_k = transposed ? 1 : 8;
  for (int i = 0; i < rows; i += step_i)
    for (int k = 0; k < 16; k += step_k) f(d.chunk(i, k, transposed), i, k);
}

/// The part of a box's row that lies within the array: byte offset in the array, first column
/// within the box, bytes. None where the row is past the end.
struct Piece {
  int64_t at, column, bytes;
};
Piece piece_of(const TensorMap& map, const int (&at)[4], int row) {
  const int64_t r = int64_t{at[1]} + row;
  const bool inside = r >= 0 && r < map.extents[1] && at[2] >= 0 && at[2] < map.extents[2] &&
                      at[3] >= 0 && at[3] < map.extents[3];
  const int64_t first = std::max(at[0], 0);
  const int64_t last = std::min(map.extents[0], int64_t{at[0]} + 64);
  if (!inside || last <= first) return {0, 0, 0};
  const int64_t index =
      ((at[3] * map.extents[2] + at[2]) * map.extents[1] + r) * map.extents[0] + first;
  return {2 * index, first - at[0], 2 * (last - first)};
}

uint64_t next_random(uint64_t& state) {  // xorshift64*
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545f4914f6cdd1d >> 32;
}

/// Row and column of a lane's register i of an accumulator.
std::pair<int, int> element(int lane, int i) {
  return {lane / 32 * 16 + lane % 32 / 4 + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

}  // namespace

void Async::fault_in(int thread, const std::string& what) const {
  throw Fault(fmt::format("{}: {}", worker_.who(thread), what));
}

void Async::begin_block() {
  worker_.tracks_ordinary_writes_ = false;
  if (!used_) return;
  used_ = false;
  barriers_.clear();
  loads_.clear();
  stores_.clear();
  for (auto& b : named_) b = {};
  ordinary_writes_.clear();
  early_writes_.clear();
  std::fill(readers_.begin(), readers_.end(), uint16_t{0});
  warpgroups_.clear();
}

void Async::start() {
  if (used_) return;
  used_ = true;
  const size_t threads = worker_.threads_.size();
  stores_.assign(threads, {});
  ordinary_writes_.assign(threads, {});
  warpgroups_.resize(threads / 128);
  for (auto& g : warpgroups_) g = std::make_unique<Warpgroup>();
  readers_.resize(worker_.shared_.size() / 16 + 1);
  const Schedule& schedule = worker_.launch_->schedule;
  random_ = (schedule.seed + 1) * 0x9e3779b97f4a7c15 ^ static_cast<uint64_t>(worker_.block_);
  // Who wrote what is there already is not known: any thread's fence will do.
  const auto& shadow = worker_.shared_shadow_;
  for (int64_t i = 0; i < worker_.launch_->shared_bytes; ++i)
    if (shadow[static_cast<size_t>(i)] & kOrdinary) early_writes_.push_back({i, i + 1});
  worker_.tracks_ordinary_writes_ = true;
}

void Async::end_thread() {
  if (!used_) return;
  const int t = worker_.current_;
  if (!stores_[static_cast<size_t>(t)].copies.empty())
    fault("ends with a TMA store that was never waited for");
  const auto g = static_cast<size_t>(t / 128);
  if (g < warpgroups_.size() && warpgroups_[g]->lanes[t % 128].issued > warpgroups_[g]->first_op)
    fault("ends with a wgmma that was never waited for");
  worker_.trace_event_of_warp("exit", "", 0);
}

void Async::end_block() {
  if (!used_) return;
  const auto complain = [&](const Barrier& b, int thread) {
    fault_in(thread,
             fmt::format("the block ends with a TMA load to mbarrier {} that nobody waited for",
                         b.name));
  };
  if (!loads_.empty()) complain(barriers_[loads_.front().barrier], loads_.front().thread);
  for (const Barrier& b : barriers_)
    if (!b.landed.empty()) complain(b, b.landed.front().thread);
}

// ------------------------------------------------------------------------------------- mbarriers

namespace {
std::string barrier_name(const char* name, int64_t index) {
  return fmt::format("{}[{}]", name, index);
}
}  // namespace

void Async::init(int64_t at, const char* name, int64_t index, int count) {
  start();
  if (count < 1 || count >= 1 << 20)
    fault(fmt::format("mbarrier {}: a count of {}", barrier_name(name, index), count));
  for (const Barrier& b : barriers_)
    if (b.at == at) fault(fmt::format("mbarrier {} initialised a second time", b.name));
  Barrier& b = barriers_.emplace_back();
  b.at = at;
  b.name = barrier_name(name, index);
  b.count = b.pending = count;
  b.initialised_by = worker_.current_;
}

void Async::fence_init() {
  for (Barrier& b : barriers_) b.fenced |= b.initialised_by == worker_.current_;
}

Async::Barrier& Async::barrier(int64_t at, const char* name, int64_t index) {
  start();
  for (Barrier& b : barriers_)
    if (b.at == at) return b;
  fault(fmt::format("mbarrier {} is used before its init", barrier_name(name, index)));
}

void Async::arrive(int64_t at, const char* name, int64_t index, int64_t bytes) {
  Barrier& b = barrier(at, name, index);
  if (bytes < 0 || b.bytes + bytes >= 1 << 20)
    fault(fmt::format("mbarrier {}: {} bytes promised, and less than 2²⁰ is the most", b.name,
                      b.bytes + bytes));
  if (b.pending == 0)
    fault(fmt::format("arrives at mbarrier {} in phase {}, where all {} have arrived", b.name,
                      b.phase, b.count));
  worker_.trace_event("mbarrier_arrive", b.name, b.phase);
  b.bytes += bytes;
  --b.pending;
  settle(b);
}

void Async::settle(Barrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  const int parity = static_cast<int>(b.phase & 1);
  ++b.phase;
  b.pending = b.count;
  bool awaited = false;
  std::erase_if(b.waiters, [&](const Barrier::Waiter& w) {
    if (w.parity != parity) return false;
    worker_.threads_[static_cast<size_t>(w.thread)].state = Thread::State::ready;
    return awaited = true;
  });
  if (awaited) make_readable(b);
}

void Async::make_readable(Barrier& b) {
  std::erase_if(b.landed, [&](const Barrier::Landed& l) {
    if (l.phase >= b.phase) return false;
    std::memset(worker_.shared_shadow_.data() + l.begin, kWritten, static_cast<size_t>(l.bytes));
    return true;
  });
}

void Async::wait(int64_t at, const char* name, int64_t index, int parity,
                 std::source_location where) {
  Barrier& b = barrier(at, name, index);
  if (parity != 0 && parity != 1)
    fault(fmt::format("waits for parity {} of mbarrier {}: it is 0 or 1", parity, b.name));
  const bool over = (b.phase & 1) != parity;
  worker_.trace_event_of_warp("mbarrier_wait", b.name, over ? b.phase - 1 : b.phase);
  if (over) return make_readable(b);
  b.waiters.push_back({worker_.current_, parity});
  worker_.wait("mbarrier", where);
}

// -------------------------------------------------------------------------------- named barriers

void Async::named_barrier(int id, int threads, bool waits, std::source_location where) {
  start();
  if (id < 1 || id > 15) fault(fmt::format("named barrier {}: they are 1 to 15", id));
  if (threads < 32 || threads > 1024 || threads % 32)
    fault(fmt::format("named barrier {} of {} threads: whole warps, 1024 at most", id, threads));
  NamedBarrier& b = named_[id];
  if (b.arrived > 0 && b.expected != threads)
    fault(fmt::format("named barrier {} of {} threads, where others came to one of {}", id, threads,
                      b.expected));
  const auto self = static_cast<size_t>(worker_.current_);
  if (b.who[self])
    fault(fmt::format("comes to named barrier {} a second time, {} of {} threads being there", id,
                      b.arrived, b.expected));
  worker_.trace_event_of_warp(waits ? "named_barrier_sync" : "named_barrier_arrive",
                              std::to_string(id), b.completed);
  b.expected = threads;
  b.who[self] = true;
  if (++b.arrived < b.expected) {
    if (!waits) return;
    b.waiters.push_back(worker_.current_);
    return worker_.wait("named barrier", where);
  }
  for (const int t : b.waiters)
    worker_.threads_[static_cast<size_t>(t)].state = Thread::State::ready;
  const int64_t completed = b.completed + 1;
  b = {};
  b.completed = completed;
  // The last to come takes its place in the schedule's order again.
  if (waits) worker_.fibers_[self]->yield();
}

void Async::set_registers(int n) {
  start();
  const auto g = static_cast<size_t>(worker_.current_ / 128);
  if (g >= warpgroups_.size()) fault("setmaxnreg by a warpgroup of fewer than 128 threads");
  warpgroups_[g]->registers = n;
  // Once all warpgroups have said how many they want, an SM must have as many.
  int sum = 0;
  for (const auto& group : warpgroups_) {
    if (!group->registers) return;
    sum += group->registers;
  }
  if (128 * sum > 65536)
    fault(fmt::format("setmaxnreg: the block's warpgroups want {} registers, and an SM has 65536",
                      128 * sum));
}

// ------------------------------------------------------------------------------------ bulk copies

void Async::check_box(const char* what, const TensorMap& map, const char* name, int64_t shared,
                      int64_t begin, int64_t end) const {
  if (!map.array) fault(fmt::format("{}: a tensor map of nothing", what));
  if (shared % 1024)
    fault(fmt::format("{}: shared {}[{}] not aligned to 1024 bytes", what, name,
                      (shared - begin) / 2));
  if (shared < begin || shared + map.box_rows * kRowBytes > end)
    fault(fmt::format("{}: a box of {} rows × 128 bytes at shared {}[{}] ends past its {} elements",
                      what, map.box_rows, name, (shared - begin) / 2, (end - begin) / 2));
}

void Async::load(const TensorMap& map, int64_t barrier_at, const char* barrier_name,
                 int64_t barrier_index, const char* name, int64_t target, int64_t begin,
                 int64_t end, const int (&at)[4]) {
  Barrier& b = barrier(barrier_at, barrier_name, barrier_index);
  if (!b.fenced)
    fault(fmt::format("TMA load to mbarrier {} without fence_mbarrier_init() after its init",
                      b.name));
  check_box("TMA load", map, name, target, begin, end);
  uint8_t* const shadow = worker_.shared_shadow_.data();
  const int64_t bytes = map.box_rows * kRowBytes;
  for (int64_t i = target; i < target + bytes; ++i) {
    const auto complain = [&](const char* why) {
      fault(fmt::format("TMA load onto shared {}[{}], {}", name, (i - begin) / 2, why));
    };
    if (shadow[i] & kInFlight) complain("the target of a copy that was not waited for");
    if (shadow[i] & kBeingRead) complain("which a wgmma or TMA store not waited for still reads");
    if (shadow[i] & kOrdinary) complain("which was written with no fence_proxy_async() since");
    shadow[i] = kInFlight;
  }
  for (int row = 0; row < map.box_rows; ++row) {
    const Piece piece = piece_of(map, at, row);
    for (int64_t i = 0; i < piece.bytes; i += 16) map.array->read<16>(piece.at + i, 2);
  }
  worker_.counters.sram_write += bytes;
  worker_.trace_event("tma_load", map.array->name, b.phase, bytes, b.name);
  loads_.push_back({map, {at[0], at[1], at[2], at[3]}, target});
  loads_.back().barrier = static_cast<size_t>(
      std::find_if(barriers_.begin(), barriers_.end(), [&](auto& x) { return &x == &b; }) -
      barriers_.begin());
  loads_.back().thread = worker_.current_;
  if (late()) return;
  std::rotate(loads_.begin(), loads_.end() - 1, loads_.end());
  end_load();
}

bool Async::late() {
  switch (worker_.launch_->schedule.order) {
    case Schedule::Order::forward:
      return true;
    case Schedule::Order::reverse:
      return false;
    default:
      return next_random(random_) % 2;
  }
}

bool Async::deliver() {
  if (!loads_.empty()) {
    end_load();
    return true;
  }
  for (size_t g = 0; g < warpgroups_.size(); ++g)
    if (warpgroups_[g]->waiting.size() == 128) {
      end_wgmmas(g);
      return true;
    }
  for (size_t t = 0; t < stores_.size(); ++t)
    if (stores_[t].done >= 0) {
      end_stores(t);
      return true;
    }
  return false;
}

void Async::end_load() {
  const Copy copy = loads_.front();
  loads_.pop_front();
  copy_in(copy);
  Barrier& b = barriers_[copy.barrier];
  const int64_t bytes = copy.map.box_rows * kRowBytes;
  b.landed.push_back({b.phase, copy.shared, bytes, copy.thread});
  b.bytes -= bytes;
  settle(b);
}

void Async::copy_in(const Copy& copy) {
  for (int row = 0; row < copy.map.box_rows; ++row) {
    const Piece piece = piece_of(copy.map, copy.at, row);
    char line[kRowBytes] = {};
    if (piece.bytes)
      std::memcpy(line + 2 * piece.column, static_cast<char*>(copy.map.array->data) + piece.at,
                  static_cast<size_t>(piece.bytes));
    for (int64_t c = 0; c < kRowBytes; c += 16)
      std::memcpy(worker_.shared_.data() + swizzle_128(copy.shared + row * kRowBytes + c), line + c,
                  16);
  }
}

void Async::copy_out(const Copy& copy) {
  for (int row = 0; row < copy.map.box_rows; ++row) {
    const Piece piece = piece_of(copy.map, copy.at, row);
    if (!piece.bytes) continue;
    char line[kRowBytes];
    for (int64_t c = 0; c < kRowBytes; c += 16)
      std::memcpy(line + c, worker_.shared_.data() + swizzle_128(copy.shared + row * kRowBytes + c),
                  16);
    std::memcpy(static_cast<char*>(copy.map.array->data) + piece.at, line + 2 * piece.column,
                static_cast<size_t>(piece.bytes));
  }
}

namespace {
/// Calls f(at) for each 16 bytes of shared memory that a store of the box reads.
template <class F>
void for_each_stored(const TensorMap& map, const int (&at)[4], int64_t shared, F f) {
  for (int row = 0; row < map.box_rows; ++row) {
    const Piece piece = piece_of(map, at, row);
    for (int64_t i = 0; i < piece.bytes; i += 16)
      f(swizzle_128(shared + row * kRowBytes + 2 * piece.column + i));
  }
}
}  // namespace

void Async::store(const TensorMap& map, const char* name, int64_t source, int64_t begin,
                  int64_t end, const int (&at)[4]) {
  start();
  check_box("TMA store", map, name, source, begin, end);
  for (const int i : at)
    if (i < 0) fault(fmt::format("TMA store to place {}: a box to store cannot start before 0", i));
  for (int row = 0; row < map.box_rows; ++row) {
    const Piece piece = piece_of(map, at, row);
    for (int64_t i = 0; i < piece.bytes; i += 16) map.array->write<16>(piece.at + i, 2);
  }
  for_each_stored(map, at, source, [&](int64_t chunk) {
    worker_.check_readable_by_async("TMA store of", chunk);
    worker_.counters.sram_read += 16;
    hold(chunk);
  });
  Stores& mine = stores_[static_cast<size_t>(worker_.current_)];
  mine.copies.push_back({map, {at[0], at[1], at[2], at[3]}, source});
  mine.copies.back().group = mine.group;
  worker_.trace_event("tma_store", map.array->name, mine.group, map.box_rows * kRowBytes);
}

void Async::commit_stores() {
  start();
  ++stores_[static_cast<size_t>(worker_.current_)].group;
}

void Async::wait_stores(int groups_left, std::source_location where) {
  start();
  const auto t = static_cast<size_t>(worker_.current_);
  Stores& mine = stores_[t];
  const int done = mine.group - groups_left;
  worker_.trace_event("tma_store_wait", "", done);
  if (mine.copies.empty() || mine.copies.front().group >= done) return;
  mine.done = done;
  if (late())
    worker_.wait("TMA store", where);
  else
    end_stores(t);
}

void Async::end_stores(size_t thread) {
  Stores& stores = stores_[thread];
  std::erase_if(stores.copies, [&](const Copy& copy) {
    if (copy.group >= stores.done) return false;
    copy_out(copy);
    for_each_stored(copy.map, copy.at, copy.shared, [&](int64_t chunk) { release(chunk); });
    return true;
  });
  stores.done = -1;
  worker_.threads_[thread].state = Thread::State::ready;
}

// ------------------------------------------------------------------------ who may touch what, when

void Async::hold(int64_t chunk) {
  ++readers_[static_cast<size_t>(chunk / 16)];
  for (int i = 0; i < 16; ++i) worker_.shared_shadow_[static_cast<size_t>(chunk + i)] |= kBeingRead;
}

void Async::release(int64_t chunk) {
  if (--readers_[static_cast<size_t>(chunk / 16)]) return;
  for (int i = 0; i < 16; ++i)
    worker_.shared_shadow_[static_cast<size_t>(chunk + i)] &= static_cast<uint8_t>(~kBeingRead);
}

void Async::note_ordinary_write(int64_t at, int64_t bytes) {
  auto& mine = ordinary_writes_[static_cast<size_t>(worker_.current_)];
  if (!mine.empty() && mine.back().second == at) {
    mine.back().second += bytes;
    return;
  }
  mine.push_back({at, at + bytes});
  // A thread that writes the same places over and over must not fill the memory.
  if (mine.size() % 4096) return;
  std::sort(mine.begin(), mine.end());
  mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
}

void Async::fence_proxy() {
  start();
  const auto clear = [&](std::vector<Range>& ranges) {
    for (const auto& [begin, end] : ranges)
      for (int64_t i = begin; i < end; ++i)
        worker_.shared_shadow_[static_cast<size_t>(i)] &= static_cast<uint8_t>(~kOrdinary);
    ranges.clear();
  };
  clear(ordinary_writes_[static_cast<size_t>(worker_.current_)]);
  clear(early_writes_);
}

// -------------------------------------------------------------------------- products of warpgroups

void Async::fence_registers(const void* registers, size_t bytes) {
  start();
  const auto g = static_cast<size_t>(worker_.current_ / 128);
  if (g >= warpgroups_.size()) fault("wgmma by a warpgroup of fewer than 128 threads");
  auto& fenced = warpgroups_[g]->lanes[worker_.current_ % 128].fenced;
  const auto* begin = static_cast<const char*>(registers);
  auto entry = std::find_if(fenced.begin(), fenced.end(), [&](const Lane::Fenced& f) {
    return f.registers == begin && f.contents.size() == bytes;
  });
  if (entry == fenced.end()) {
    std::erase_if(fenced, [&](const Lane::Fenced& f) {  // registers that lived there before
      return f.registers < begin + bytes && begin < f.registers + f.contents.size();
    });
    entry = fenced.insert(fenced.end(), {begin, std::vector<char>(bytes)});
  }
  std::memcpy(entry->contents.data(), begin, bytes);
}

/// Registers pass from other code to a wgmma: they must be as they were at a fence.
void Async::hand_over(Warpgroup& group, int lane, const void* registers, size_t bytes,
                      const char* what) {
  const auto* begin = static_cast<const char*>(registers);
  for (const Lane::Fenced& f : group.lanes[lane].fenced) {
    if (begin < f.registers || begin + bytes > f.registers + f.contents.size()) continue;
    if (std::memcmp(begin, f.contents.data() + (begin - f.registers), bytes) == 0) return;
    fault(fmt::format("wgmma: its {} changed since the last wgmma_fence() of it", what));
  }
  fault(fmt::format("wgmma without a wgmma_fence() of its {} before", what));
}

void Async::check_untouched(const float* d, int thread, int N) const {
  for (int i = 0; i < N / 2; ++i) {
    if (std::bit_cast<uint32_t>(d[i]) == kOwnedByWgmma) continue;
    const auto [row, column] = element(thread % 128, i);
    fault_in(thread,
             fmt::format("accumulator of a wgmma m64n{}k16, row {}, column {}: other code wrote to "
                         "it between the wgmma and the wgmma_wait() for it",
                         N, row, column));
  }
}

void Async::issue(const Wgmma& wgmma, float* d, unsigned* a) {
  start();
  const int t = worker_.current_, l = t % 128, N = wgmma.N;
  if (static_cast<size_t>(t / 128) >= warpgroups_.size())
    fault("wgmma by a warpgroup of fewer than 128 threads");
  Warpgroup& group = *warpgroups_[static_cast<size_t>(t / 128)];
  Lane& lane = group.lanes[l];
  const auto number = static_cast<size_t>(lane.issued++ - group.first_op);
  if (number == group.ops.size()) {  // the first lane to come
    Op& op = group.ops.emplace_back(Op{wgmma, lane.group, nullptr, {}});
    for (size_t i = number; i-- > 0 && !op.chain;)
      if (group.ops[i].chain->lanes[l] == d) op.chain = group.ops[i].chain;
    if (!op.chain) {
      op.chain = std::make_shared<Chain>();
      op.chain->N = N;
      op.chain->sums.resize(static_cast<size_t>(64 * N));
    }
    ++op.chain->ops;
    if (wgmma.a_in_registers) op.a.resize(128);
    const auto read = [&](int64_t chunk, int, int) {
      worker_.check_readable_by_async("wgmma of", chunk);
      worker_.counters.sram_read += 16;
      hold(chunk);
    };
    if (!wgmma.a_in_registers) for_each_chunk(wgmma.a, 64, wgmma.transposed_a, read);
    for_each_chunk(wgmma.b, N, wgmma.transposed_b, read);
    worker_.counters.matmul_flops += 2 * 64 * N * 16;
  }
  Op& op = group.ops[number];
  Chain& chain = *op.chain;
  if (op.wgmma != wgmma || op.group != lane.group || (chain.lanes[l] && chain.lanes[l] != d))
    fault("lanes of a warpgroup disagree on a wgmma: its descriptors, shape or accumulator");
  if (chain.N != N)
    fault(fmt::format("wgmma m64n{}k16 on the accumulator of an m64n{}k16 not waited for", N,
                      chain.N));
  if (chain.lanes[l]) {
    check_untouched(d, t, N);
  } else {
    chain.lanes[l] = d;
    hand_over(group, l, d, static_cast<size_t>(N / 2) * sizeof(float), "accumulator");
    for (int i = 0; i < N / 2; ++i) {
      const auto [row, column] = element(l, i);
      chain.sums[static_cast<size_t>(row * N + column)] = d[i];
      d[i] = std::bit_cast<float>(kOwnedByWgmma);
    }
  }
  if (!a) return;
  auto held = std::find_if(lane.operands.begin(), lane.operands.end(),
                           [&](const Lane::Operand& o) { return o.registers == a; });
  if (held == lane.operands.end()) {
    hand_over(group, l, a, 4 * sizeof(unsigned), "left operand");
    held = lane.operands.insert(lane.operands.end(), {a, {a[0], a[1], a[2], a[3]}, 0});
    std::fill_n(a, 4, kOwnedOperand);
  }
  held->last_op = lane.issued - 1;
  op.a[static_cast<size_t>(l)] = held->contents;
}

void Async::commit_wgmmas() {
  start();
  const auto g = static_cast<size_t>(worker_.current_ / 128);
  if (g >= warpgroups_.size()) fault("wgmma by a warpgroup of fewer than 128 threads");
  int& number = warpgroups_[g]->lanes[worker_.current_ % 128].group;
  trace_products(*warpgroups_[g], number++);
}

void Async::trace_products(const Warpgroup& group, int number) {
  if (!worker_.tracing_ || worker_.lane() != 0) return;
  const Op* last = nullptr;
  for (const Op& op : group.ops) {
    if (op.group != number) continue;
    const int64_t flops = 2 * 64 * op.wgmma.N * 16, b = Descriptor(op.wgmma.b).start;
    std::string name;
    for (const Worker::Region& r : worker_.regions_)
      if (b >= r.begin && b < r.begin + r.bytes) name = r.name;
    if (last && last->chain == op.chain && worker_.async_trace.back().name == name)
      worker_.async_trace.back().amount += flops;  // the same product goes on
    else
      worker_.trace_event("wgmma", name, number, flops);
    last = &op;
  }
}

void Async::wait_wgmmas(int groups_left, std::source_location where) {
  start();
  const int t = worker_.current_;
  if (static_cast<size_t>(t / 128) >= warpgroups_.size())
    fault("wgmma by a warpgroup of fewer than 128 threads");
  Warpgroup& group = *warpgroups_[static_cast<size_t>(t / 128)];
  const int done = group.lanes[t % 128].group - groups_left;  // groups below this number
  worker_.trace_event_of_warp("wgmma_wait", "", done);
  if (group.ops.empty() || group.ops.front().group >= done) return;
  group.done = done;
  group.waiting.push_back(t);
  const bool all = group.waiting.size() == 128;
  if (all)
    for (const Lane& lane : group.lanes)
      if (lane.issued != group.lanes[t % 128].issued || lane.group != group.lanes[t % 128].group)
        fault("lanes of a warpgroup disagree at wgmma_wait() on which wgmmas they have issued");
  if (all && !late()) {
    end_wgmmas(static_cast<size_t>(t / 128));
    return worker_.fibers_[static_cast<size_t>(t)]->yield();
  }
  worker_.wait("wgmma_wait", where);
}

void Async::end_wgmmas(size_t g) {
  Warpgroup& group = *warpgroups_[g];
  while (!group.ops.empty() && group.ops.front().group < group.done) {
    finish(g, group.ops.front());
    group.ops.pop_front();
    ++group.first_op;
  }
  for (const int t : group.waiting)
    worker_.threads_[static_cast<size_t>(t)].state = Thread::State::ready;
  group.waiting.clear();
}

void Async::finish(size_t g, Op& op) {
  Warpgroup& group = *warpgroups_[g];
  const Wgmma& w = op.wgmma;
  const int N = w.N;
  const auto value = [&](uint16_t bits) -> float {
    return w.is_bf16 ? float(bf16::from_bits(bits)) : float(fp16::from_bits(bits));
  };
  static thread_local std::vector<float> A(64 * 16), B(16 * 256), sum(256);
  // A: [row][k]; B: [k][column].
  const auto read = [&](uint64_t descriptor, int rows, bool transposed, std::vector<float>& to,
                        int by_row, int by_k) {
    for_each_chunk(descriptor, rows, transposed, [&](int64_t chunk, int i, int k) {
      uint16_t bits[8];
      std::memcpy(bits, worker_.shared_.data() + chunk, 16);
      const int step = transposed ? by_row : by_k;
      for (int e = 0; e < 8; ++e)
        to[static_cast<size_t>(i * by_row + k * by_k + e * step)] = value(bits[e]);
      release(chunk);
    });
  };
  if (w.a_in_registers) {
    for (int l = 0; l < 128; ++l)
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          const int row = l / 32 * 16 + l % 32 / 4 + i % 2 * 8, k = l % 4 * 2 + half + i / 2 * 8;
          A[static_cast<size_t>(16 * row + k)] = value(static_cast<uint16_t>(
              op.a[static_cast<size_t>(l)][static_cast<size_t>(i)] >> 16 * half));
        }
  } else {
    read(w.a, 64, w.transposed_a, A, 16, 1);
  }
  read(w.b, N, w.transposed_b, B, 1, N);
  for (int row = 0; row < 64; ++row) {
    std::fill_n(sum.data(), N, 0.0f);
    for (int k = 0; k < 16; ++k) {
      const float a = A[static_cast<size_t>(16 * row + k)];
      const float* const b = B.data() + k * N;
      for (int j = 0; j < N; ++j) sum[static_cast<size_t>(j)] += a * b[j];
    }
    float* const c = op.chain->sums.data() + row * N;
    for (int j = 0; j < N; ++j) c[j] = (w.scale_d ? c[j] : 0) + sum[static_cast<size_t>(j)];
  }

  const int first = static_cast<int>(128 * g);
  for (int l = 0; l < 128; ++l)
    std::erase_if(group.lanes[l].operands, [&](const Lane::Operand& o) {
      if (o.last_op > group.first_op) return false;
      for (int i = 0; i < 4; ++i)
        if (o.registers[i] != kOwnedOperand)
          fault_in(first + l,
                   "left operand of a wgmma: other code wrote to its registers, or it went out of "
                   "scope, between the wgmma and the wgmma_wait() for it");
      std::copy(o.contents.begin(), o.contents.end(), o.registers);
      return true;
    });
  Chain& chain = *op.chain;
  if (--chain.ops > 0) return;
  for (int l = 0; l < 128; ++l) check_untouched(chain.lanes[l], first + l, N);
  for (int l = 0; l < 128; ++l)
    for (int i = 0; i < N / 2; ++i) {
      const auto [row, column] = element(l, i);
      chain.lanes[l][i] = chain.sums[static_cast<size_t>(row * N + column)];
    }
}

// --------------------------------------------------------------------------------------- deadlock

std::string Async::waits_for(int thread) const {
  for (const Barrier& b : barriers_)
    for (const auto& w : b.waiters)
      if (w.thread == thread)
        return fmt::format(
            "mbarrier {}, the end of phase {} (parity {}), where {} of {} arrivals and {} bytes "
            "are "
            "missing",
            b.name, b.phase, w.parity, b.pending, b.count, b.bytes);
  for (int id = 1; id < 16; ++id)
    for (const int t : named_[id].waiters)
      if (t == thread)
        return fmt::format("named barrier {}, where {} of {} threads are missing", id,
                           named_[id].expected - named_[id].arrived, named_[id].expected);
  for (const auto& g : warpgroups_)
    for (const int t : g->waiting)
      if (t == thread)
        return fmt::format("wgmma_wait, where {} of 128 threads are missing",
                           128 - g->waiting.size());
  return "";
}

}  // namespace ladder::sim
