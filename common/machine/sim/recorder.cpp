#include "machine/sim/recorder.h"

#include <unwind.h>

#include <algorithm>
#include <cstring>

namespace ladder::sim {
namespace {

// A lane's bytes of HBM after which a loop's next round is an event of its own: where nothing is
// waited for, a whole kernel would be one event.
constexpr int64_t kBytesOfRound = 512;
constexpr const char* kRound = "round";

struct Frames {
  const void* kernel;
  std::vector<uintptr_t> addresses;
  bool direct = false;  // `caller` belongs to the kernel
  const void* caller;
};

_Unwind_Reason_Code see_frame(_Unwind_Context* context, void* argument) {
  auto& frames = *static_cast<Frames*>(argument);
  const auto address = static_cast<uintptr_t>(_Unwind_GetIP(context));
  if (!address || frames.addresses.size() >= 48) return _URC_NORMAL_STOP;
  frames.addresses.push_back(address - 1);  // within the call that it returns from
  const auto function = static_cast<uintptr_t>(_Unwind_GetRegionStart(context));
  if (reinterpret_cast<const void*>(function) != frames.kernel) return _URC_NO_REASON;
  frames.direct = reinterpret_cast<const void*>(address) == frames.caller;
  return _URC_NORMAL_STOP;
}

}  // namespace

// ------------------------------------------------------------------------------------------ ranges

void Ranges::add(int64_t begin, int64_t end) {
  auto next = upper_bound(begin);
  if (next != this->begin() && std::prev(next)->second >= begin) begin = (--next)->first;
  while (next != this->end() && next->first <= end) {
    end = std::max(end, next->second);
    next = erase(next);
  }
  emplace_hint(next, begin, end);
}

std::vector<Strided> Ranges::strided() const {
  std::vector<Strided> runs;
  for (const auto& [begin, end] : *this) {
    if (!runs.empty() && runs.back().bytes == end - begin) {
      Strided& run = runs.back();
      const int64_t stride = begin - (run.begin + (run.count - 1) * run.stride);
      if (run.count == 1 || stride == run.stride) {
        run.stride = stride;
        ++run.count;
        continue;
      }
    }
    runs.push_back({begin, end - begin, 0, 1});
  }
  return runs;
}

// ------------------------------------------------------------------------------ launches, blocks

void Recorder::start_launch(Trace::Launch launch, const void* function) {
  kernel_ = function;
  direct_.clear();
  trace_.launches.push_back(std::move(launch));
}

void Recorder::start_block(int64_t index, int threads) {
  block_ = index;
  thread_ = 0;
  by_tma_ = false;  // a fault may have left it
  lanes_.assign(static_cast<size_t>(threads), {});
  warps_.clear();
  warps_.resize((threads + 31) / 32);
  charged_ = counts_;
}

void Recorder::end_block(const std::vector<BlockMemory::Region>& regions) {
  auto& shared = trace_.launches.back().shared;
  if (shared.empty()) shared = regions;
  runs(thread_);
  for (size_t t = 0; t < lanes_.size(); ++t) {
    thread_ = static_cast<int>(t);
    settle(lane().site);
    if (lane().pending.sram_read || lane().pending.sram_write)
      absorb(find("compute", nullptr, lane().site, lane().site), lane());
  }
  std::vector<Event*> events;
  for (auto& of_warp : warps_)
    for (Event& e : of_warp) events.push_back(&e);
  std::stable_sort(events.begin(), events.end(),
                   [](const Event* a, const Event* b) { return a->told.order < b->told.order; });
  for (Event* const e : events) {
    e->told.ranges = e->ranges.strided();
    for (auto& t : e->touches) e->told.shared.push_back({t.array, t.write, t.ranges.strided()});
    trace_.events.push_back(std::move(e->told));
  }
  warps_.clear();
}

Trace Recorder::take() {
  Trace trace = std::move(trace_);
  trace_ = {};
  sites_.clear();
  direct_.clear();
  order_ = 0;
  return trace;
}

// ----------------------------------------------------------------------------------------- amounts

void Recorder::runs(int thread) {
  for (Amounts* const mine : {&lane().pending, &lane().between}) {
    mine->add(counts_);
    mine->add(charged_, -1);
  }
  charged_ = counts_;
  thread_ = thread;
}

void Recorder::settle(int site) {
  runs(thread_);
  Lane& self = lane();
  const Amounts& p = self.pending;
  if (p.matmul_flops || p.exps || p.other_flops)
    absorb(find("compute", nullptr, site, self.site), self);
}

void Recorder::absorb(Event& e, Lane& lane) {
  e.told.add(std::exchange(lane.pending, {}));
  for (const auto& t : lane.touches)
    for (const auto& [begin, end] : t.ranges)
      touched(e.touches, t.array, t.array_begin, t.write).add(begin, end);
  lane.touches.clear();
}

// ------------------------------------------------------------------------------------------ events

int Recorder::site(const void* caller) {
  if (caller)
    if (const auto known = direct_.find(caller); known != direct_.end()) return known->second;
  Frames frames{kernel_, {}, false, caller};
  _Unwind_Backtrace(see_frame, &frames);
  const std::string key(reinterpret_cast<const char*>(frames.addresses.data()),
                        frames.addresses.size() * sizeof(uintptr_t));
  const auto [entry, is_new] = sites_.try_emplace(key, static_cast<int>(trace_.sites.size()));
  if (is_new) trace_.sites.push_back(frames.addresses);
  if (frames.direct) direct_[caller] = entry->second;
  return entry->second;
}

Recorder::Event& Recorder::append(const char* what, const void* key, int site) {
  auto& all = events();
  // Other lanes may have gone past a barrier that this one has still to come to.
  size_t at = lane().since;
  while (at < all.size() && !all[at].bounds) ++at;
  const int64_t order = at < all.size() ? all[at].told.order : order_++;
  Event& e = *all.insert(all.begin() + static_cast<std::ptrdiff_t>(at), Event{});
  const size_t first = static_cast<size_t>(thread_ / 32 * 32);
  for (size_t t = first; t < std::min(first + 32, lanes_.size()); ++t) {
    lanes_[t].since += lanes_[t].since > at;
    lanes_[t].at += lanes_[t].at >= at;
  }
  e.told.launch = static_cast<int>(trace_.launches.size()) - 1;
  e.told.block = block_;
  e.told.warp = thread_ / 32;
  e.told.order = order;
  e.told.what = what;
  e.told.site = site;
  e.key = key;
  lane().at = at;
  return e;
}

Recorder::Event& Recorder::find(const char* what, const void* key, int site, int from) {
  auto& all = events();
  Lane& self = lane();
  const auto same = [&](const Event& e) {
    return e.key == key && e.told.site == site && e.told.from == from && e.told.what == what;
  };
  for (const size_t first : {std::max(self.at, self.since), self.since})
    for (size_t i = first; i < all.size() && !all[i].bounds; ++i)
      if (same(all[i])) {
        self.at = i;
        return all[i];
      }
  Event& e = append(what, key, site);
  e.told.from = from;
  return e;
}

void Recorder::bound(const char* what, const std::string& name, int64_t number, int site) {
  const auto same = [&](const Event& e) {
    // Not by site: the compiler may have made two calls of one.
    return e.bounds && e.told.number == number && e.told.what == what && e.told.name == name;
  };
  const auto& all = events();
  Lane& self = lane();
  size_t i = self.since;
  while (i < all.size() && !same(all[i])) ++i;
  if (i == all.size()) {
    Event& e = append(what, nullptr, site);
    e.bounds = true;
    e.told.name = name;
    e.told.number = number;
    i = self.at;
  }
  self.at = i;
  self.since = i + 1;
  self.bytes = 0;
}

void Recorder::access(const Array* array, bool write, int64_t begin, int64_t end) {
  const int here = site(__builtin_return_address(0));
  settle(here);
  const char* const what = write ? "write" : "read";
  Lane& self = lane();
  if (self.bytes >= kBytesOfRound && !by_tma_) {
    // Where the lane has been here before, a loop has come round.
    const auto& all = events();
    for (size_t i = self.since; i <= self.at && i < all.size(); ++i)
      if (all[i].key == array && all[i].told.site == here) {
        bound(kRound, "", 0, -1);
        break;
      }
  }
  self.bytes += end - begin;
  Event& e = find(what, array, here);
  if (e.told.name.empty()) e.told.name = array->name;
  absorb(e, self);
  e.told.bytes += end - begin;
  e.ranges.add(begin, end);
  self.site = here;
}

Ranges& Recorder::touched(std::vector<Event::Touch>& touches, const char* array, int64_t begin,
                          bool write) {
  for (auto& t : touches)
    if (t.array_begin == begin && t.write == write) return t.ranges;
  return touches.emplace_back(Event::Touch{array, begin, write, {}}).ranges;
}

void Recorder::copy(const SharedPlace& target, int64_t bytes, bool zeros) {
  if (zeros || lane().at >= events().size()) {
    const int here = site();
    settle(here);
    absorb(find("zeros", nullptr, here), lane());
    lane().site = here;
  }
  touched(events()[lane().at].touches, target.name, target.begin, true)
      .add(target.at, target.at + bytes);
}

void Recorder::touch(const SharedPlace& place, int64_t bytes, bool write) {
  touched(lane().touches, place.name, place.begin, write).add(place.at, place.at + bytes);
  if (!write) return;  // what is read is for the next event
  const int here = site();
  settle(here);
  Event& e = find("store", place.name, here);
  if (e.told.name.empty()) e.told.name = place.name;
  absorb(e, lane());
  lane().site = here;
}

void Recorder::collective(const char* name) {
  const int here = site();
  runs(thread_);
  // A product's FLOPs are its own; what was computed before it is not.
  const bool product = std::strncmp(name, "mma", 3) == 0;
  const int64_t flops = product ? std::exchange(lane().pending.matmul_flops, 0) : 0;
  const int computes = thread_, first = computes / 32 * 32;
  const int end = std::min(first + 32, static_cast<int>(lanes_.size()));
  for (thread_ = first; thread_ < end; ++thread_) settle(here);
  thread_ = computes;
  Event& e = find(name, name, here);
  e.told.matmul_flops += flops;
  for (int t = first; t < end; ++t) {
    absorb(e, lanes_[t]);
    lanes_[t].site = here;
  }
}

void Recorder::event(const char* what, const std::string& name, int64_t number, int64_t amount,
                     const std::string& barrier, bool alone) {
  const int here = site();
  const bool product = std::strcmp(what, "wgmma") == 0;
  runs(thread_);
  const int64_t flops = product ? std::exchange(lane().pending.matmul_flops, 0) : 0;
  settle(here);
  if (alone)
    append(what, nullptr, here);
  else
    bound(what, name, number, here);
  Event& e = events()[lane().at];
  e.told.name = name;
  e.told.number = number;
  e.told.amount += amount;
  e.told.barrier = barrier;
  e.told.matmul_flops += flops;
  if (thread_ % 32 == 0) {
    const Amounts between = std::exchange(lane().between, {});
    e.told.lane_exps = between.exps;
    e.told.lane_other_flops = between.other_flops;
  }
  absorb(e, lane());
  lane().site = here;
}

void Recorder::fault(const std::string& message, int thread, bool running) {
  trace_.fault = {message, static_cast<int>(trace_.launches.size()) - 1, block_, thread,
                  thread < 0 ? -1
                  : running  ? site()
                             : lanes_[thread].site};
}

}  // namespace ladder::sim
