// The shared memory of the block that runs: its bytes, the arrays taken from it, and of every byte
// who may touch it. Ordinary accesses, asynchronous copies, wgmmas and TMA stores all come here and
// are checked against what the others do.
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

/// A kernel did what CUDA forbids. Says rung, kernel, block, thread, array and index.
struct Fault : Error {
  explicit Fault(const std::string& what) : Error(Exit::wrong_result, what) {}
};
/// Throws a Fault that says who and where; called on the fiber at fault.
[[noreturn]] void throw_fault(const std::string& what);
template <class... T>
[[noreturn]] void fault(fmt::format_string<T...> what, T&&... values) {
  throw_fault(fmt::format(what, std::forward<T>(values)...));
}

/// What the simulator knows of each byte of an array or of shared memory: a byte of its own, its
/// shadow. (Which blocks touched an array is in tracked.h.)
enum ShadowBit : uint8_t {
  kWritten = 1,  // somebody wrote it
  // of arrays
  kReadHere = 2,     // read in this kernel
  kWrittenHere = 4,  // written in this kernel
  kAddedHere = 8,    // added to atomically in this kernel
  kShared = 16,      // several blocks read it in this kernel, or added to it, and did nothing else
  kReadBefore = 32,  // by the kernel before, and this one has started early
  kWrittenBefore = 64,
  // of shared memory
  kLoaded = 2,       // came by TMA or bulk_load: of each thread that reads it this is noted
  kInFlight = 8,     // the target of an asynchronous copy that nobody has waited for
  kBeingRead = 16,   // by a wgmma or a TMA store that nobody has waited for
  kOrdinary = 32,    // written by ordinary stores, and not fenced for wgmma and TMA since
  kOneThreads = 64,  // copied by a thread that waited for it, and has come to no barrier since
  kWatched = 128     // a trace is told of ordinary accesses; of all bytes or of none
};

/// The bits of an accumulator register that a wgmma still owns: a signalling NaN. Arithmetic with
/// it gives the quiet one, bit 22, so a register that was computed with and written back is found.
inline constexpr uint32_t kOwnedByWgmma = 0x7fadbeef;

/// The unsigned integer of n bytes, and a shadow bit repeated in each of them.
template <int n>
using Word = std::tuple_element_t<std::countr_zero(unsigned{n}),
                                  std::tuple<uint8_t, uint16_t, uint32_t, uint64_t>>;
template <int n>
constexpr auto repeat(unsigned bits) {
  using W = Word<n>;
  return static_cast<W>(static_cast<W>(~W{0}) / 0xff * bits);
}

/// A place in an array in shared memory, all in bytes from the start of the block's.
struct SharedPlace {
  const char* name = "";
  int64_t at = 0, begin = 0, end = 0;  // the place, and where the array begins and ends
  int element = 1;                     // bytes that an element has

  [[gnu::always_inline]] SharedPlace operator+(int64_t bytes) const {
    return {name, at + bytes, begin, end, element};
  }
  int64_t index() const;     // of the element
  std::string text() const;  // "shared K[3] (element of 2 bytes)"
};

/// Where the 16 bytes at `at` stand in lines of 128 bytes under 128-byte swizzle: bits 4–6 XOR bits
/// 7–9. In lines of 64 bytes under their swizzle fewer bits: 4–5 XOR 7–8.
constexpr int64_t swizzled(int64_t at, int64_t line_bytes) {
  return at ^ (at >> 7 & (line_bytes / 16 - 1)) << 4;
}

class Recorder;

class SharedBytes {
 public:
  explicit SharedBytes(int64_t capacity);

  /// For a block of `threads` threads, launched with `bytes`: poison that nobody wrote. The
  /// recorder, null where nothing is traced, is told of ordinary accesses.
  void start(int64_t bytes, int threads, Recorder* recorder);

  using Region = Trace::Launch::Shared;  // an array
  /// Where the array begins that a thread takes next: aligned, and the same for all threads.
  int64_t take(int thread, const char* name, int64_t bytes, int alignment);
  /// The byte at `at`, in the array that holds it.
  SharedPlace place_of(int64_t at, int element) const;
  const std::vector<Region>& regions() const { return regions_; }

  char* data() { return bytes_.data(); }

  // Ordinary accesses of n bytes, checked and, those that write, noted. The bytes move by data().
  template <int n>
  void check_read(const SharedPlace& place, int thread);
  template <int n>
  void check_write(const SharedPlace& place, int thread);

  /// Faults unless the place's `bytes` bytes lie in its array.
  void check_inside(const char* what, const SharedPlace& place, int64_t bytes) const {
    if (place.at < place.begin || place.at + bytes > place.end) [[unlikely]]
      fault("{} {}", what, place.text());
  }

  // Copies of 4, 8 or 16 bytes that a thread starts for itself (cp.async). They end when they are
  // waited for and not before: until then nobody may touch the bytes, and until publish() only that
  // thread.
  /// `source` null: zeros.
  void begin_copy(const SharedPlace& place, const char* source, int bytes, int thread);
  /// Closes the group that the thread's next copy would join: its number.
  int commit_copies(int thread) { return threads_[thread].group++; }
  /// Ends the thread's copies but those of its last `groups_left` groups: the first one's number.
  int wait_for_copies(int groups_left, int thread);
  bool copies_under_way(int thread) const { return !threads_[thread].copies.empty(); }
  /// Faults where the thread, which ends, has not waited for a copy.
  void end_thread(int thread);
  /// What the thread copied so far, others may see, and what it read, they may overwrite: it has
  /// come to a barrier that orders memory.
  void publish(int thread) {
    ++threads_[thread].barriers;
    threads_[thread].read.clear();
  }
  /// Faults where another lane read there what TMA or bulk_load brought, with no barrier since.
  void check_read_by_others(const SharedPlace& place, int64_t bytes, int thread) const;

  // Loads by TMA, likewise; their bytes come by data(). `what` names them in faults.
  void begin_load(const char* what, const SharedPlace& place, int64_t bytes);
  void end_load(int64_t at, int64_t bytes) {
    std::fill_n(&shadow_[at], bytes, kWritten | watched_ | kLoaded);
  }

  // Reads by wgmmas, TMA stores and bulk_add of the 16 bytes at `at`: between the two nobody may
  // write them. Many may read at once.
  void begin_async_read(const char* what, int64_t at, int element);
  void end_async_read(int64_t at);

  /// From now on an ordinary write is its thread's, whose fence_proxy() alone covers it. Writes
  /// before are anybody's: who made them was not noted, because most kernels need none of this.
  void tell_writers_apart();
  /// What the thread wrote so far, wgmmas and TMA stores may read and TMA loads overwrite.
  void fence_proxy(int thread) {
    ++threads_[thread].fences;
    ++threads_.back().fences;
  }

 private:
  /// Faults where the shadow of one of `bytes` bytes has one of the bits `bad`, of which kWritten
  /// means that nobody wrote it, and kOneThreads that another thread copied it.
  void check(const char* what, const char* of, const SharedPlace& place, int64_t bytes,
             unsigned bad, int thread = -1);
  // For n bytes some of which not every thread may read, or write: fault unless this one may. The
  // recorder is told here too, so that it costs nothing where there is none.
  void rare_read(const SharedPlace& place, int n, int thread);
  void rare_write(const SharedPlace& place, int n, int thread);
  void note_write(int thread, int64_t at, int64_t bytes) {
    std::fill_n(&writers_[at], bytes, By{thread, threads_[thread].fences});
  }

  std::vector<char> bytes_;
  std::vector<uint8_t> shadow_;
  Recorder* recorder_ = nullptr;
  uint8_t watched_ = 0;            // kWatched where there is a recorder
  int64_t launched_bytes_ = 0;     // that the block has, of the capacity
  std::vector<Region> regions_;    // in the order taken; every thread must take the same
  std::vector<uint16_t> readers_;  // of each 16 bytes: wgmmas and TMA stores in flight
  struct By {
    int thread, passed;  // how many barriers, or fences, it had come to by then
  };
  std::vector<By> copiers_;  // of each byte that is marked as one thread's
  std::vector<By> writers_;  // of each that ordinary stores wrote since they are told apart
  bool tells_writers_apart_ = false;
  struct OfThread {
    int takes = 0;  // of arrays, so far
    struct Copy {
      int64_t target;      // byte in shared memory
      const char* source;  // null: zeros
      int bytes, group;
    };
    std::vector<Copy> copies = {};   // in flight
    int group = 0;                   // that the next one joins
    int barriers = 0, fences = 0;    // that it came to, those that order memory, and of the proxy
    std::vector<int64_t> read = {};  // of what TMA and bulk_load brought, since its last barrier
  };
  std::vector<OfThread> threads_;  // and last anybody, for writes before writers are told apart
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
