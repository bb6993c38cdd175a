// Checks accesses to a block's shared memory: bounds, unwritten values and copies in flight.
#include "machine/sim/shared_memory.h"

#include <algorithm>
#include <cstring>

#include "machine/sim/recorder.h"

namespace ladder::sim {

int64_t SharedPlace::index() const {
  const int64_t i = at - begin;
  return i >= 0 ? i / element : -((-i + element - 1) / element);
}

std::string SharedPlace::text() const {
  return fmt::format("shared {}[{}] (element of {} bytes)", name, index(), element);
}

SharedBytes::SharedBytes(int64_t capacity)
    : bytes_(capacity), shadow_(capacity), readers_(capacity / 16 + 1) {}

void SharedBytes::start(int64_t bytes, int threads, Recorder* recorder) {
  recorder_ = recorder;
  watched_ = recorder ? uint8_t{kWatched} : uint8_t{0};
  launched_bytes_ = bytes;
  std::fill_n(bytes_.begin(), bytes, static_cast<char>(0xff));
  std::fill_n(shadow_.begin(), bytes, watched_);
  copiers_.resize(std::max<size_t>(copiers_.size(), bytes));
  regions_.clear();
  threads_.assign(threads + 1, {});
  if (std::exchange(tells_writers_apart_, false)) std::fill(readers_.begin(), readers_.end(), 0);
}

int64_t SharedBytes::take(int thread, const char* name, int64_t bytes, int alignment, int64_t panel,
                          int64_t row) {
  const auto k = static_cast<size_t>(threads_[thread].takes++);
  if (k < regions_.size()) {
    const Region& r = regions_[k];
    if (r.array != name || r.bytes != bytes)
      fault(
          "takes {} bytes of shared memory for {}, but another thread took {} for {}: all threads "
          "must take the same arrays in the same order",
          bytes, name, r.bytes, r.array);
    return r.begin;
  }
  int64_t begin = 0;
  for (const Region& r : regions_) begin = std::max(begin, r.begin + r.bytes);
  begin = (begin + alignment - 1) / alignment * alignment;
  if (begin + bytes > launched_bytes_)
    fault(
        "takes more shared memory than the launch requested: "
        "{} ends at byte {}, but the block has {}",
        name, begin + bytes, launched_bytes_);
  regions_.push_back({name, begin, bytes, panel, row});
  return begin;
}

SharedPlace SharedBytes::place_of(int64_t at, int element) const {
  for (const Region& r : regions_)
    if (at >= r.begin && at < r.begin + r.bytes)
      return {r.array.c_str(), at, r.begin, r.begin + r.bytes, element};
  return {"", at, 0, launched_bytes_, element};
}

void SharedBytes::check(const char* what, const char* of, const SharedPlace& place, int64_t bytes,
                        unsigned bad, int thread) {
  constexpr std::pair<ShadowBit, const char*> kReasons[] = {
      {kInFlight, "to which an asynchronous copy is still writing: wait for the copy first"},
      {kWritten, "which is unwritten: is a write, or a barrier after it, missing?"},
      {kBeingRead, "which a wgmma, TMA store or bulk_add is still reading: wait for it first"},
      {kOrdinary, "which a thread wrote without calling fence_proxy_async() afterwards"}};
  for (int64_t i = place.at; i < place.at + bytes; ++i) {
    uint8_t& shadow = shadow_[i];
    if (!((shadow ^ kWritten) & (bad | kOneThreads))) continue;  // the common case
    // Bits that a later barrier or fence of the thread has made void are cleared only here.
    if (shadow & kOneThreads && threads_[copiers_[i].thread].barriers > copiers_[i].passed)
      shadow &= static_cast<uint8_t>(~kOneThreads);
    if (bad & shadow & kOrdinary && threads_[writers_[i].thread].fences > writers_[i].passed)
      shadow &= static_cast<uint8_t>(~kOrdinary);
    const unsigned found = (shadow ^ kWritten) & bad;
    for (const auto& [bit, why] : kReasons)
      if (found & bit) fault("{} {} {}, {}", what, of, (place + (i - place.at)).text(), why);
    if (found & kOneThreads && copiers_[i].thread != thread)
      fault(
          "{} {} {}, which thread {} of the block copied and waited for, but no __syncwarp or "
          "barrier has followed the wait (no other collective orders memory)",
          what, of, (place + (i - place.at)).text(), copiers_[i].thread);
  }
}

// ---------------------------------------------------------------------------- ordinary accesses

void SharedBytes::rare_read(const SharedPlace& place, int n, int thread) {
  check("read", "of", place, n, kInFlight | kWritten | kOneThreads, thread);
  const auto* const seen = &shadow_[place.at];
  if (std::any_of(seen, seen + n, [](uint8_t s) { return s & kLoaded; }))
    threads_[thread].read.push_back(place.at);
  if (recorder_) recorder_->touch(place, n, false);
}

void SharedBytes::rare_write(const SharedPlace& place, int n, int thread) {
  check("write", "to", place, n, kInFlight | kBeingRead | kOneThreads, thread);
  std::fill_n(&shadow_[place.at], n, kWritten | kOrdinary | watched_);
  if (tells_writers_apart_) note_write(thread, place.at, n);
  if (recorder_) recorder_->touch(place, n, true);
}

// -------------------------------------------------------------------------- asynchronous accesses

void SharedBytes::begin_copy(const SharedPlace& place, const char* source, int bytes, int thread) {
  check_inside("asynchronous copy to", place, bytes);
  if (place.at % bytes != 0)
    fault("asynchronous copy to {} not aligned to {} bytes", place.text(), bytes);
  check("asynchronous copy", "to", place, bytes, kInFlight | kBeingRead | kOneThreads, thread);
  std::fill_n(&shadow_[place.at], bytes, kInFlight | watched_);
  threads_[thread].copies.push_back({place.at, source, bytes, threads_[thread].group});
}

int SharedBytes::wait_for_copies(int groups_left, int thread) {
  OfThread& mine = threads_[thread];
  const int ended = mine.group - groups_left;  // groups below this number end
  std::erase_if(mine.copies, [&](const OfThread::Copy& copy) {
    const auto& [at, source, bytes, group] = copy;
    if (group >= ended) return false;
    if (source)
      std::memcpy(&bytes_[at], source, bytes);
    else
      std::memset(&bytes_[at], 0, bytes);
    std::fill_n(&shadow_[at], bytes, kWritten | kOrdinary | kOneThreads | watched_);
    std::fill_n(&copiers_[at], bytes, By{thread, mine.barriers});
    if (tells_writers_apart_) note_write(thread, at, bytes);
    return true;
  });
  return ended;
}

void SharedBytes::end_thread(int thread) {
  if (!threads_[thread].copies.empty())
    fault("ends with an asynchronous copy that was never waited for");
}

void SharedBytes::check_read_by_others(const SharedPlace& place, int64_t bytes, int thread) const {
  const int end = std::min(thread / 32 * 32 + 32, static_cast<int>(threads_.size()));
  for (int other = thread / 32 * 32; other < end; ++other)
    for (const int64_t at : threads_[other].read)
      if (other != thread && at >= place.at && at < place.at + bytes)
        fault("releases {}, which thread {} of the block read: no __syncwarp or barrier followed",
              (place + (at - place.at)).text(), other);
}

void SharedBytes::begin_load(const char* what, const SharedPlace& place, int64_t bytes) {
  check(what, "onto", place, bytes, kInFlight | kBeingRead | kOrdinary);
  std::fill_n(&shadow_[place.at], bytes, kInFlight | watched_);
}

void SharedBytes::begin_async_read(const char* what, int64_t at, int element) {
  if (at + 16 > launched_bytes_)
    fault("{} of 16 bytes at byte {} of shared memory, but the block has only {} bytes", what, at,
          launched_bytes_);
  constexpr unsigned kBad = kWritten | kInFlight | kOrdinary;
  uint8_t* const seen = &shadow_[at];
  if (std::any_of(seen, seen + 16, [](uint8_t s) { return (s & kBad) != kWritten; }))
    check(what, "of", place_of(at, element), 16, kBad);
  ++readers_[at / 16];
  for (int i = 0; i < 16; ++i) seen[i] |= kBeingRead;
}

void SharedBytes::end_async_read(int64_t at) {
  if (--readers_[at / 16]) return;
  for (int64_t i = at; i < at + 16; ++i) shadow_[i] &= static_cast<uint8_t>(~kBeingRead);
}

void SharedBytes::tell_writers_apart() {
  tells_writers_apart_ = true;
  writers_.assign(launched_bytes_, By{static_cast<int>(threads_.size()) - 1, 0});
}

}  // namespace ladder::sim
