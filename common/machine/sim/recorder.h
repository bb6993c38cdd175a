// What --trace records of the threads of a block: what each warp did, at which line of the kernel,
// in the order of the program. Lanes that do the same at the same line are one event, and so are
// the rounds of a loop, as long as nothing is waited for and it does not grow large.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "machine/device.h"
#include "machine/sim/shared_memory.h"
#include "machine/trace.h"

namespace ladder::sim {

/// Bytes that were touched, each once: where each run of them begins and ends.
class Ranges : public std::map<int64_t, int64_t> {
 public:
  void add(int64_t begin, int64_t end);
  ByteRanges list() const { return {begin(), end()}; }
};

/// Of the one worker that traces. All is reported by the running thread, which switch_to() names.
class Recorder {
 public:
  explicit Recorder(const Counts& counts);

  void start_launch(Trace::Launch launch, const void* function);
  void start_block(int64_t index, int threads);
  /// Its events, and the shared arrays that it took.
  void end_block(const std::vector<SharedBytes::Region>& regions);

  /// Charges what was counted since the last call to the thread that ran; `thread` runs now.
  void switch_to(int thread);

  /// `kind`: read or write.
  void access(EventKind kind, const Array& array, int64_t begin, int64_t end);
  /// Whether accesses are TMA's, whose copy is one event however large.
  void copies(bool by_tma) { by_tma_ = by_tma; }
  /// What the thread read just now goes to shared memory, or zeros go there.
  void copy(const SharedPlace& target, int64_t bytes, bool zeros);
  void touch(const SharedPlace& place, int64_t bytes, bool write);
  /// A collective, reported by the lane that computes.
  void collective(const char* name);
  /// What the thread asked of a barrier, where each lane of its warp does, or of an engine.
  void event(EventKind kind, std::string_view name, int64_t number, int64_t amount,
             const std::string& barrier);
  /// Where the thread is now, or was last, if it is not `running`.
  void fault(const std::string& message, int thread, bool running);

  Trace take();

 private:
  struct SharedTouch {
    const char* array;
    int64_t array_begin;
    bool write;
    Ranges ranges;
  };
  /// An event of the block in flight, whose bytes still grow.
  struct Event : TraceEvent {
    Ranges hbm;
    std::vector<SharedTouch> sram;
  };
  struct Lane {
    size_t since = 0;                  // index of the first event after its last barrier
    size_t at = 0;                     // of its last event
    int site = -1;                     // of that
    int64_t bytes = 0;                 // of HBM, since its last barrier
    Amounts pending;                   // counted since its last event
    std::vector<SharedTouch> touches;  // since then
  };

  Lane& lane() { return lanes_[thread_]; }
  std::vector<Event>& events() { return warps_[thread_ / 32]; }
  /// The return addresses from here up to the kernel, as a number. What it is for a `caller` in the
  /// kernel itself is remembered.
  int site(const void* caller = nullptr);
  /// The event of the lane's round that is the same, or a new one.
  Event& find(EventKind kind, std::string_view name, int site, int start_site = -1);
  Event& append(EventKind kind, std::string_view name, int site);
  void pass_barrier(EventKind kind, std::string_view name, int64_t number, int site);
  /// Records what the thread computed since its last event, up to `site`.
  void flush_pending(int site);
  /// Adds to an event what a lane counted, and did to shared memory, since the one before.
  static void merge(Event& event, Lane& lane);
  static Ranges& touched(std::vector<SharedTouch>& touches, const char* array, int64_t begin,
                         bool write);

  const Counts& counts_;
  Amounts charged_;  // that some thread has been charged with
  const void* kernel_ = nullptr;
  int64_t block_ = 0, order_ = 0;
  int thread_ = 0;
  bool by_tma_ = false;
  std::vector<Lane> lanes_;
  std::vector<std::vector<Event>> warps_;
  std::unordered_map<const void*, int> direct_;  // callers that are the kernel itself
  std::unordered_map<std::string, int> sites_;
  Trace trace_;
};

}  // namespace ladder::sim
