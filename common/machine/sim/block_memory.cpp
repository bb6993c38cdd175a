#include "machine/sim/block_memory.h"

#include <algorithm>
#include <cstring>

#include "machine/sim/recorder.h"

namespace ladder::sim {

BlockMemory::BlockMemory(int64_t capacity)
    : bytes_(static_cast<size_t>(capacity)),
      shadow_(static_cast<size_t>(capacity)),
      readers_(static_cast<size_t>(capacity / 16 + 1)) {}

void BlockMemory::start(int64_t bytes, int threads, Recorder* recorder) {
  recorder_ = recorder;
  watched_ = recorder ? uint8_t{kWatched} : uint8_t{0};
  launched_bytes_ = bytes;
  std::fill_n(bytes_.begin(), bytes, static_cast<char>(0xff));
  std::fill_n(shadow_.begin(), bytes, watched_);
  regions_.clear();
  threads_.resize(threads);
  for (OfThread& t : threads_) {
    t.takes = t.group = 0;
    t.copies.clear();
    for (auto* const ranges : {&t.copied, &t.read, &t.writes}) ranges->clear();
  }
  if (!tells_writers_apart_) return;
  tells_writers_apart_ = false;
  std::fill(readers_.begin(), readers_.end(), uint16_t{0});
  early_writes_.clear();
}

int64_t BlockMemory::take(int thread, const char* name, int64_t bytes) {
  const auto k = static_cast<size_t>(of(thread).takes++);
  if (k < regions_.size()) {
    const Region& r = regions_[k];
    if (r.array != name || r.bytes != bytes)
      fault("takes {} bytes of shared memory for {} where another thread took {} for {}", bytes,
            name, r.bytes, r.array);
    return r.begin;
  }
  int64_t begin = 0;
  for (const Region& r : regions_) begin = std::max(begin, r.begin + r.bytes);
  begin = (begin + 127) / 128 * 128;
  if (begin + bytes > launched_bytes_)
    fault("more shared memory than the launch gave: {} ends at byte {} of {}", name, begin + bytes,
          launched_bytes_);
  regions_.push_back({name, begin, bytes});
  return begin;
}

const BlockMemory::Region* BlockMemory::region_at(int64_t at) const {
  for (const Region& r : regions_)
    if (at >= r.begin && at < r.begin + r.bytes) return &r;
  return nullptr;
}

// ---------------------------------------------------------------------------- ordinary accesses

std::string SharedPlace::element(int bytes) const {
  const int64_t i = at - begin;
  return fmt::format("shared {}[{}] (element of {} bytes)", name,
                     i >= 0 ? i / bytes : -((-i + bytes - 1) / bytes), bytes);
}

void BlockMemory::fail(const char* what, const SharedPlace& place, int element) const {
  fault("{} {}", what, place.element(element));
}

void BlockMemory::rare_read(const SharedPlace& place, int n, int element, int thread) {
  int floats = 0;
  for (int64_t i = place.at; i < place.at + n; ++i) {
    const uint8_t seen = shadow_[i];
    if (seen & kInFlight) fail("read before its asynchronous copy was waited for:", place, element);
    if (!(seen & kWritten)) fail("read of unwritten", place, element);
    if (seen & kOneThreads) check_copier("read of", place + (i - place.at), element, thread);
    floats |= seen & kFloats;
  }
  if (floats) of(thread).read.push_back({place.at, place.at + n});
  if (recorder_) recorder_->touch(place, n, false);
}

void BlockMemory::rare_write(const SharedPlace& place, int n, int element, int thread) {
  for (int64_t i = place.at; i < place.at + n; ++i) {
    uint8_t& seen = shadow_[i];
    if (seen & kInFlight)
      fail("write under an asynchronous copy that was not waited for:", place, element);
    if (seen & kBeingRead)
      fail("write under a wgmma or TMA store that was not waited for and still reads", place,
           element);
    if (seen & kOneThreads) check_copier("write to", place + (i - place.at), element, thread);
    seen = kWritten | kOrdinary | watched_;
  }
  if (tells_writers_apart_) note_write(thread, place.at, n);
  if (recorder_) recorder_->touch(place, n, true);
}

void BlockMemory::check_copier(const char* what, const SharedPlace& place, int element,
                               int thread) const {
  const auto copied = [&](const OfThread& by) {
    return std::any_of(by.copied.begin(), by.copied.end(), [&](const Range& range) {
      return place.at >= range.first && place.at < range.second;
    });
  };
  if (copied(threads_[thread])) return;
  const auto copier = std::find_if(threads_.begin(), threads_.end(), copied);
  fault(
      "{} {}, which thread {} of the block copied and waited for, but with no "
      "__syncwarp or barrier since: a collective alone orders no memory",
      what, place.element(element), copier - threads_.begin());
}

// -------------------------------------------------------------------------- asynchronous accesses

void BlockMemory::begin_copy(const SharedPlace& place, const char* source, int bytes, int element,
                             int thread) {
  check_inside("asynchronous copy to", place, bytes, element);
  if (place.at % bytes != 0 || reinterpret_cast<uintptr_t>(source) % unsigned(bytes) != 0)
    fault("asynchronous copy to {} not aligned to {} bytes", place.name, bytes);
  for (int64_t i = place.at; i < place.at + bytes; ++i) {
    uint8_t& s = shadow_[i];
    if (s & (kInFlight | kBeingRead))
      fail(s & kInFlight ? "asynchronous copy onto one that was not waited for:"
                         : "asynchronous copy under a wgmma or TMA store that still reads",
           place, element);
    if (s & kOneThreads)
      check_copier("asynchronous copy onto", place + (i - place.at), element, thread);
    s = kInFlight | watched_;
  }
  of(thread).copies.push_back({place.at, source, bytes, of(thread).group});
}

int BlockMemory::wait_for_copies(int groups_left, int thread) {
  OfThread& mine = of(thread);
  const int ended = mine.group - groups_left;  // groups below this number
  std::erase_if(mine.copies, [&](const OfThread::Copy& copy) {
    const auto& [at, source, bytes, group] = copy;
    if (group >= ended) return false;
    const auto n = static_cast<size_t>(bytes);
    if (source)
      std::memcpy(bytes_.data() + at, source, n);
    else
      std::memset(bytes_.data() + at, 0, n);
    std::memset(shadow_.data() + at, kWritten | kOrdinary | kOneThreads | watched_, n);
    mine.copied.push_back({at, at + bytes});
    if (tells_writers_apart_) note_write(thread, at, bytes);
    return true;
  });
  return ended;
}

void BlockMemory::end_thread(int thread) {
  if (!of(thread).copies.empty()) fault("ends with an asynchronous copy that was never waited for");
}

void BlockMemory::publish(int thread) {
  auto& ranges = of(thread).copied;
  for (const auto& [begin, end] : ranges)
    for (int64_t i = begin; i < end; ++i) shadow_[i] &= static_cast<uint8_t>(~kOneThreads);
  ranges.clear();
  of(thread).read.clear();
}

void BlockMemory::check_read_by_others(const SharedPlace& place, int64_t bytes, int element,
                                       int thread) const {
  const int end = std::min(thread / 32 * 32 + 32, static_cast<int>(threads_.size()));
  for (int other = thread / 32 * 32; other < end; ++other)
    for (const auto& [begin, last] : threads_[other].read)
      if (other != thread && begin >= place.at && begin < place.at + bytes)
        fault(
            "releases {}, which thread {} of the block read with no __syncwarp or "
            "barrier since",
            (place + (begin - place.at)).element(element), other);
}

void BlockMemory::begin_load(const char* what, const SharedPlace& place, int64_t bytes,
                             int element) {
  for (int64_t i = place.at; i < place.at + bytes; ++i) {
    const auto complain = [&](const char* why) {
      fault("{} onto shared {}[{}], {}", what, place.name, (i - place.begin) / element, why);
    };
    uint8_t& s = shadow_[i];
    if (s & kInFlight) complain("the target of a copy that was not waited for");
    if (s & kBeingRead) complain("which a wgmma or TMA store not waited for still reads");
    if (s & kOrdinary) complain("which was written with no fence_proxy_async() since");
    s = kInFlight | watched_;
  }
}

void BlockMemory::end_load(int64_t at, int64_t bytes, bool floats) {
  std::memset(shadow_.data() + at, kWritten | watched_ | (floats ? kFloats : 0),
              static_cast<size_t>(bytes));
}

void BlockMemory::begin_async_read(const char* what, int64_t at, int element) {
  if (at + 16 > launched_bytes_)
    fault("{} of shared memory at byte {} of {}", what, at, launched_bytes_);
  for (int64_t i = at; i < at + 16; ++i) {
    const uint8_t seen = shadow_[i];
    if ((seen & (kWritten | kInFlight | kOrdinary)) == kWritten) continue;
    const Region* const r = region_at(i);
    const std::string place = r ? SharedPlace{r->array.c_str(), i, r->begin, 0}.element(element)
                                : fmt::format("shared byte {}", i);
    fault("{} of {}, {}", what, place,
          seen & kInFlight     ? "the target of a copy that was not waited for"
          : !(seen & kWritten) ? "which nobody wrote"
                               : "written with no fence_proxy_async() since");
  }
  ++readers_[at / 16];
  for (int64_t i = at; i < at + 16; ++i) shadow_[i] |= kBeingRead;
}

void BlockMemory::end_async_read(int64_t at) {
  if (--readers_[at / 16]) return;
  for (int64_t i = at; i < at + 16; ++i) shadow_[i] &= static_cast<uint8_t>(~kBeingRead);
}

// ------------------------------------------------------------------------------------ proxy fences

void BlockMemory::tell_writers_apart() {
  tells_writers_apart_ = true;
  for (int64_t i = 0; i < launched_bytes_; ++i)
    if (shadow_[i] & kOrdinary) early_writes_.push_back({i, i + 1});
}

void BlockMemory::note_write(int thread, int64_t at, int64_t bytes) {
  auto& mine = of(thread).writes;
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

void BlockMemory::fence_proxy(int thread) {
  const auto clear = [&](std::vector<Range>& ranges) {
    for (const auto& [begin, end] : ranges)
      for (int64_t i = begin; i < end; ++i) shadow_[i] &= static_cast<uint8_t>(~kOrdinary);
    ranges.clear();
  };
  clear(of(thread).writes);
  clear(early_writes_);
}

}  // namespace ladder::sim
