// Records the events of a trace and finds the place in the kernel where each of them occurred. A
// warp's lanes run one after another, so a lane usually adds to events of lanes before it.
#include "machine/sim/recorder.h"

#include <unwind.h>

#include <algorithm>

namespace ladder::sim {
namespace {

// After a lane has touched this many bytes of global memory, a loop's next round starts a new
// event. Without this limit, a loop that waits for nothing would be a single event.
constexpr int64_t kBytesOfRound = 512;

/// The calls that lead from a kernel to the recorder, as a walk over the stack finds them.
struct Frames {
  const void* kernel;                // its first instruction; the walk ends there
  std::vector<uintptr_t> addresses;  // innermost first
  bool direct = false;               // whether `caller` is an address in the kernel itself
  const void* caller;
};

/// Adds a frame to the Frames at `argument`. Stops at the kernel, or after 48 frames.
_Unwind_Reason_Code see_frame(_Unwind_Context* context, void* argument) {
  auto& frames = *static_cast<Frames*>(argument);
  const auto address = static_cast<uintptr_t>(_Unwind_GetIP(context));
  if (!address || frames.addresses.size() >= 48) return _URC_NORMAL_STOP;
  frames.addresses.push_back(address - 1);  // within the call instruction
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

// ------------------------------------------------------------------------------ launches, blocks

Recorder::Recorder(const Counts& counts) : counts_(counts) {}

void Recorder::start_launch(Trace::Launch launch, const void* function) {
  kernel_ = function;
  direct_.clear();
  trace_.launches.push_back(std::move(launch));
}

void Recorder::start_block(int64_t index, int threads) {
  block_ = index;
  thread_ = 0;
  by_tma_ = false;  // a fault may have left it true
  lanes_.assign(threads, {});
  warps_.clear();
  warps_.resize((threads + 31) / 32);
  charged_ = counts_;
}

void Recorder::end_block(const std::vector<SharedBytes::Region>& regions) {
  auto& shared = trace_.launches.back().shared;
  if (shared.empty()) shared = regions;
  switch_to(thread_);
  for (size_t t = 0; t < lanes_.size(); ++t) {
    thread_ = static_cast<int>(t);
    flush_pending(lane().site);
    if (lane().pending != Amounts{})
      merge(lane().at < events().size() ? events()[lane().at]
                                        : find(EventKind::compute, "", lane().site, lane().site),
            lane());
  }
  std::vector<Event*> events;
  for (auto& of_warp : warps_)
    for (Event& e : of_warp) events.push_back(&e);
  std::stable_sort(events.begin(), events.end(),
                   [](const Event* a, const Event* b) { return a->order < b->order; });
  for (Event* const e : events) {
    e->ranges = e->hbm.list();
    for (auto& t : e->sram) e->shared.push_back({t.array, t.write, t.ranges.list()});
    trace_.events.push_back(std::move(*e));
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

void Recorder::switch_to(int thread) {
  lane().pending.add(counts_);
  lane().pending.add(charged_, -1);
  charged_ = counts_;
  thread_ = thread;
}

void Recorder::flush_pending(int site) {
  switch_to(thread_);
  Lane& self = lane();
  const Amounts& p = self.pending;
  if (p.matmul_flops || p.exps || p.other_flops)
    merge(find(EventKind::compute, "", site, self.site), self);
}

void Recorder::merge(Event& e, Lane& lane) {
  e.counts.add(std::exchange(lane.pending, {}));
  for (const auto& t : lane.touches)
    for (const auto& [begin, end] : t.ranges)
      touched(e.sram, t.array, t.array_begin, t.write).add(begin, end);
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

Recorder::Event& Recorder::append(EventKind kind, std::string_view name, int site) {
  auto& all = events();
  // Other lanes may have passed a barrier that this lane has not reached. The event belongs before
  // that barrier, so the other lanes' indices of later events move up.
  size_t at = lane().since;
  while (at < all.size() && !is_barrier(all[at].kind)) ++at;
  const int64_t order = at < all.size() ? all[at].order : order_++;
  Event& e = *all.insert(all.begin() + static_cast<std::ptrdiff_t>(at), Event{});
  const size_t first = static_cast<size_t>(thread_ / 32 * 32);
  for (size_t t = first; t < std::min(first + 32, lanes_.size()); ++t) {
    lanes_[t].since += lanes_[t].since > at;
    lanes_[t].at += lanes_[t].at >= at;
  }
  e.launch = static_cast<int>(trace_.launches.size()) - 1;
  e.block = block_;
  e.warp = thread_ / 32;
  e.order = order;
  e.kind = kind;
  e.name = name;
  e.site = site;
  lane().at = at;
  return e;
}

Recorder::Event& Recorder::find(EventKind kind, std::string_view name, int site, int start_site) {
  auto& all = events();
  Lane& self = lane();
  const auto same = [&](const Event& e) {
    return e.site == site && e.start_site == start_site && e.kind == kind && e.name == name;
  };
  // Look from the lane's last event on first, because the match is usually there.
  for (const size_t first : {std::max(self.at, self.since), self.since})
    for (size_t i = first; i < all.size() && !is_barrier(all[i].kind); ++i)
      if (same(all[i])) {
        self.at = i;
        return all[i];
      }
  Event& e = append(kind, name, site);
  e.start_site = start_site;
  return e;
}

void Recorder::pass_barrier(EventKind kind, std::string_view name, int64_t number, int site) {
  const auto same = [&](const Event& e) {
    // Sites are not compared, because the compiler may have duplicated the call.
    return e.kind == kind && e.number == number && e.name == name;
  };
  const auto& all = events();
  Lane& self = lane();
  size_t i = self.since;
  while (i < all.size() && !same(all[i])) ++i;
  if (i == all.size()) {
    append(kind, name, site).number = number;
    i = self.at;
  }
  self.at = i;
  self.since = i + 1;
  self.bytes = 0;
}

void Recorder::access(EventKind kind, const Array& array, int64_t begin, int64_t end) {
  const int here = site(__builtin_return_address(0));
  flush_pending(here);
  Lane& self = lane();
  if (self.bytes >= kBytesOfRound && !by_tma_) {
    // If the lane has been at this site before, a loop is in its next round.
    const auto& all = events();
    for (size_t i = self.since; i <= self.at && i < all.size(); ++i)
      if (all[i].kind == kind && all[i].site == here && all[i].name == array.name) {
        pass_barrier(EventKind::round, "", 0, -1);
        break;
      }
  }
  self.bytes += end - begin;
  Event& e = find(kind, array.name, here);
  merge(e, self);
  e.bytes += end - begin;
  e.hbm.add(begin, end);
  self.site = here;
}

Ranges& Recorder::touched(std::vector<SharedTouch>& touches, const char* array, int64_t begin,
                          bool write) {
  for (auto& t : touches)
    if (t.array_begin == begin && t.write == write) return t.ranges;
  return touches.emplace_back(SharedTouch{array, begin, write, {}}).ranges;
}

void Recorder::copy(const SharedPlace& target, int64_t bytes, bool zeros) {
  if (zeros || lane().at >= events().size()) {
    const int here = site();
    flush_pending(here);
    merge(find(EventKind::zeros, "", here), lane());
    lane().site = here;
  }
  touched(events()[lane().at].sram, target.name, target.begin, true)
      .add(target.at, target.at + bytes);
}

void Recorder::touch(const SharedPlace& place, int64_t bytes, bool write) {
  touched(lane().touches, place.name, place.begin, write).add(place.at, place.at + bytes);
  if (!write) return;  // a read is attributed to the next event
  const int here = site();
  flush_pending(here);
  merge(find(EventKind::store, place.name, here), lane());
  lane().site = here;
}

void Recorder::collective(const char* name) {
  const int here = site();
  switch_to(thread_);
  // A product's event has only its own FLOPs; earlier counts become a compute event.
  const bool product = std::string_view(name).starts_with("mma");
  const int64_t flops = product ? std::exchange(lane().pending.matmul_flops, 0) : 0;
  const int computes = thread_, first = computes / 32 * 32;
  const int end = std::min(first + 32, static_cast<int>(lanes_.size()));
  for (thread_ = first; thread_ < end; ++thread_) flush_pending(here);
  thread_ = computes;
  Event& e = find(EventKind::collective, name, here);
  e.counts.matmul_flops += flops;
  for (int t = first; t < end; ++t) {
    merge(e, lanes_[t]);
    lanes_[t].site = here;
  }
}

void Recorder::event(EventKind kind, std::string_view name, int64_t number, int64_t amount,
                     const std::string& barrier) {
  const int here = site();
  switch_to(thread_);
  const int64_t flops =
      kind == EventKind::wgmma ? std::exchange(lane().pending.matmul_flops, 0) : 0;
  flush_pending(here);
  if (is_barrier(kind))
    pass_barrier(kind, name, number, here);
  else
    append(kind, name, here).number = number;
  Event& e = events()[lane().at];
  e.amount += amount;
  e.barrier = barrier;
  e.counts.matmul_flops += flops;
  merge(e, lane());
  lane().site = here;
}

void Recorder::fault(const std::string& message, int thread, bool running) {
  trace_.fault = {message, static_cast<int>(trace_.launches.size()) - 1, block_, thread,
                  thread < 0 ? -1
                  : running  ? site()
                             : lanes_[thread].site};
}

}  // namespace ladder::sim
