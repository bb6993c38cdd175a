// Represents the running block's shared memory: its bytes, the arrays taken from it, and a shadow
// byte for each byte, which records what may touch it. Ordinary accesses (sim_memory.h), cp.async,
// and the accesses of TMA and wgmma (async.h) are checked against each other here.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "machine/trace.h"
#include "rung.h"

namespace ladder::sim {

/// Reports a broken rule of CUDA. The text names the rung, kernel, block, thread, array and index.
struct Fault : Error {
  explicit Fault(const std::string& what) : Error(Exit::wrong_result, what) {}
};
/// Throws a Fault that names the running thread and its block. Call it on the fiber at fault.
[[noreturn]] void throw_fault(const std::string& what);
template <class... T>
[[noreturn]] void fault(fmt::format_string<T...> what, T&&... values) {
  throw_fault(fmt::format(what, std::forward<T>(values)...));
}

/// Bits of a byte's shadow: what the simulator knows about a byte of an array or of shared memory.
enum ShadowBit : uint8_t {
  kWritten = 1,  // a thread or the host wrote it
  // Bits for bytes of arrays in global memory.
  kReadHere = 2,        // read in this kernel
  kWrittenHere = 4,     // written in this kernel
  kAddedHere = 8,       // added to atomically in this kernel
  kShared = 16,         // several blocks only read it, or only added to it
  kReadBefore = 32,     // the previous kernel read it, and this one started early
  kWrittenBefore = 64,  // the previous kernel wrote it, and this one started early
  // Bits for bytes of shared memory.
  kLoaded = 2,       // TMA or bulk_load wrote it; its readers are recorded
  kInFlight = 8,     // the target of an asynchronous copy that no thread has waited for
  kBeingRead = 16,   // a wgmma, TMA store or bulk_add that was not waited for reads it
  kOrdinary = 32,    // a store or cp.async wrote it; its thread has called no proxy fence since
  kOneThreads = 64,  // cp.async wrote it; its thread has waited, but passed no barrier since
  kWatched = 128     // ordinary accesses are traced; set on all bytes or on none
};

/// The bits of an accumulator register while a wgmma is in flight: a signalling NaN. Arithmetic
/// makes it quiet (bit 22), which reveals that code computed with the register and wrote it back.
inline constexpr uint32_t kOwnedByWgmma = 0x7fadbeef;

/// Word<n> is the unsigned integer of n bytes; repeat<n>(bits) holds the same bits in each byte.
template <int n>
using Word = std::tuple_element_t<std::countr_zero(unsigned{n}),
                                  std::tuple<uint8_t, uint16_t, uint32_t, uint64_t>>;
template <int n>
constexpr auto repeat(unsigned bits) {
  using W = Word<n>;
  return static_cast<W>(static_cast<W>(~W{0}) / 0xff * bits);
}

/// A place in an array in shared memory. Offsets are in bytes from the start of shared memory.
struct SharedPlace {
  const char* name = "";               // the array's
  int64_t at = 0, begin = 0, end = 0;  // the place, and the array's range [begin, end)
  int element = 1;                     // bytes per element

  [[gnu::always_inline]] SharedPlace operator+(int64_t bytes) const {
    return {name, at + bytes, begin, end, element};
  }
  int64_t index() const;     // the element's index in its array; negative before its start
  std::string text() const;  // for messages: "shared K[3] (element of 2 bytes)"
};

/// Returns where the swizzle stores the 16 bytes at byte offset `at`. With lines of 128 bytes, bits
/// 4–6 of the offset are XORed with bits 7–9; with lines of 64 bytes, bits 4–5 with bits 7–8.
constexpr int64_t swizzled(int64_t at, int64_t line_bytes) {
  return at ^ (at >> 7 & (line_bytes / 16 - 1)) << 4;
}

class Recorder;

/// A block's shared memory. Offsets `at` are in bytes from its start, `thread` is a thread's number
/// in the block, and every check that fails throws a Fault in the running thread.
class SharedBytes {
 public:
  explicit SharedBytes(int64_t capacity);

  /// Prepares for a block of `threads` threads that was launched with `bytes` bytes: all become
  /// poisoned and unwritten. Then reports ordinary accesses to `recorder`, unless it is null.
  void start(int64_t bytes, int threads, Recorder* recorder);

  using Region = Trace::Launch::Shared;  // an array in shared memory
  /// Returns the byte offset of the next array that a thread takes: aligned to `alignment` bytes,
  /// and equal for all threads. For `panel` and `row` see Region. Faults if another thread took
  /// another array in this place, or if the launch requested too few bytes.
  int64_t take(int thread, const char* name, int64_t bytes, int alignment, int64_t panel,
               int64_t row);
  /// Returns the place of byte `at`, as elements of `element` bytes, in the array that contains it.
  SharedPlace place_of(int64_t at, int element) const;
  const std::vector<Region>& regions() const { return regions_; }

  char* data() { return bytes_.data(); }

  // Check ordinary accesses of n bytes, where n is 1, 2, 4, 8 or 16; check_write() also marks the
  // bytes as written. The caller moves the bytes through data().
  template <int n>
  void check_read(const SharedPlace& place, int thread);
  template <int n>
  void check_write(const SharedPlace& place, int thread);

  /// Faults, beginning with `what`, unless the `bytes` bytes from the place on are in its array.
  void check_inside(const char* what, const SharedPlace& place, int64_t bytes) const {
    if (place.at < place.begin || place.at + bytes > place.end) [[unlikely]]
      fault("{} {}: {} bytes from there reach outside the array, which has {} elements", what,
            place.text(), bytes, (place.end - place.begin) / place.element);
  }

  // Copies of 4, 8 or 16 bytes that a thread starts (cp.async). They end only when that thread
  // waits for them. Until then no thread may touch the bytes; afterwards, until publish(), only
  // that thread may.
  /// Starts a copy; a null `source` writes zeros.
  void begin_copy(const SharedPlace& place, const char* source, int bytes, int thread);
  /// Closes the thread's current group of copies and returns its number.
  int commit_copies(int thread) { return threads_[thread].group++; }
  /// Ends the thread's copies except its last `groups_left` groups; returns the first group left.
  int wait_for_copies(int groups_left, int thread);
  bool copies_under_way(int thread) const { return !threads_[thread].copies.empty(); }
  /// Faults if the thread, which ends, has not waited for all of its copies.
  void end_thread(int thread);
  /// Records that the thread passed a barrier that orders memory: other threads may now read the
  /// bytes that it copied and overwrite the bytes that it read.
  void publish(int thread) {
    ++threads_[thread].barriers;
    threads_[thread].read.clear();
  }
  /// Faults if another lane of the warp has read data of TMA or bulk_load here, without a barrier.
  void check_read_by_others(const SharedPlace& place, int64_t bytes, int thread) const;

  // Begin and end a load by TMA or bulk_load, which faults call `what`; the caller moves the bytes.
  void begin_load(const char* what, const SharedPlace& place, int64_t bytes);
  void end_load(int64_t at, int64_t bytes) {
    std::fill_n(&shadow_[at], bytes, kWritten | watched_ | kLoaded);
  }

  // Begin and end a read of 16 bytes by a wgmma, TMA store or bulk_add, which faults call `what`.
  // In between, no thread may write the bytes. `element` is the number of bytes per element.
  void begin_async_read(const char* what, int64_t at, int element);
  void end_async_read(int64_t at);

  /// From the first use of Hopper's units on, records which thread made each ordinary write,
  /// because only that thread's fence_proxy() covers it. Any thread's fence covers earlier writes.
  void tell_writers_apart();
  /// Lets wgmmas and TMA stores read, and TMA loads overwrite, what the thread has written so far.
  void fence_proxy(int thread) {
    ++threads_[thread].fences;
    ++threads_.back().fences;
  }

 private:
  /// Faults if any of the `bytes` bytes has one of the bits `bad` in its shadow. In `bad`, kWritten
  /// stands for an unwritten byte, and kOneThreads for a byte that a thread other than `thread`
  /// copied. The message begins with `what` and `of`, such as "read" and "of".
  void check(const char* what, const char* of, const SharedPlace& place, int64_t bytes,
             unsigned bad, int thread = -1);
  // Handle accesses to n bytes whose shadow needs a closer look than check_read() and check_write()
  // take: fault unless this thread may read or write them, and report them to the recorder.
  // (kWatched sends all accesses here during a trace, so the fast path needs no test for one.)
  void rare_read(const SharedPlace& place, int n, int thread);
  void rare_write(const SharedPlace& place, int n, int thread);
  void note_write(int thread, int64_t at, int64_t bytes) {
    std::fill_n(&writers_[at], bytes, By{thread, threads_[thread].fences});
  }

  std::vector<char> bytes_;
  std::vector<uint8_t> shadow_;
  Recorder* recorder_ = nullptr;
  uint8_t watched_ = 0;            // kWatched if there is a recorder, else 0
  int64_t launched_bytes_ = 0;     // the bytes that the launch gave the block
  std::vector<Region> regions_;    // in the order of take(); the same for every thread
  std::vector<uint16_t> readers_;  // per 16 bytes: number of asynchronous reads in flight
  struct By {
    int thread, passed;  // how many barriers, or fences, the thread had passed by then
  };
  std::vector<By> copiers_;  // per byte: who copied it; valid if it has kOneThreads
  std::vector<By> writers_;  // per byte: its last ordinary writer
  bool tells_writers_apart_ = false;
  struct OfThread {
    int takes = 0;  // number of arrays taken so far
    struct Copy {
      int64_t target;      // byte offset in shared memory
      const char* source;  // null: zeros
      int bytes, group;
    };
    std::vector<Copy> copies = {};   // in flight
    int group = 0;                   // the group that the next copy joins
    int barriers = 0, fences = 0;    // number of memory barriers and proxy fences passed so far
    std::vector<int64_t> read = {};  // offsets of loaded bytes read since its last barrier
  };
  std::vector<OfThread> threads_;  // per thread; the last entry stands for unknown writers
};

template <int n>
inline void SharedBytes::check_read(const SharedPlace& place, int thread) {
  if constexpr (n == 16) {
    check_read<8>(place, thread);
    check_read<8>(place + 8, thread);
  } else {
    check_inside("read of", place, n);
    using W = Word<n>;
    const W seen = *reinterpret_cast<const W*>(shadow_.data() + place.at);
    constexpr W rare = repeat<n>(kLoaded | kInFlight | kOneThreads | kWatched);
    if ((seen & (repeat<n>(kWritten) | rare)) != repeat<n>(kWritten)) [[unlikely]]
      rare_read(place, n, thread);
  }
}

template <int n>
inline void SharedBytes::check_write(const SharedPlace& place, int thread) {
  if constexpr (n == 16) {
    check_write<8>(place, thread);
    check_write<8>(place + 8, thread);
  } else {
    check_inside("write to", place, n);
    using W = Word<n>;
    W* const s = reinterpret_cast<W*>(shadow_.data() + place.at);
    if (*s & repeat<n>(kInFlight | kBeingRead | kOneThreads | kWatched)) [[unlikely]]
      return rare_write(place, n, thread);
    *s = repeat<n>(kWritten | kOrdinary);
    if (tells_writers_apart_) [[unlikely]]
      note_write(thread, place.at, n);
  }
}

}  // namespace ladder::sim
