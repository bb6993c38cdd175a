// Records the trace of a block: what each warp did at each line of the kernel, in program order.
// Lanes that do the same at the same line form one event. A loop's rounds also form one event,
// unless they wait for something or touch many bytes.
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

/// A set of bytes as disjoint ranges [begin, end); maps each range's begin to its end.
class Ranges : public std::map<int64_t, int64_t> {
 public:
  void add(int64_t begin, int64_t end);
  ByteRanges list() const { return {begin(), end()}; }
};

/// Records the events of a traced run, which has a single worker. All calls concern the running
/// thread, which switch_to() sets.
class Recorder {
 public:
  explicit Recorder(const Counts& counts);

  void start_launch(Trace::Launch launch, const void* function);
  void start_block(int64_t index, int threads);
  /// Completes the block's events; `regions` are the shared arrays that it took.
  void end_block(const std::vector<SharedBytes::Region>& regions);

  /// Attributes the counts since the last call to the thread that ran; now `thread` runs.
  void switch_to(int thread);

  /// Records an access to bytes [begin, end) of an array in global memory; `kind` is read or write.
  void access(EventKind kind, const Array& array, int64_t begin, int64_t end);
  /// Sets whether accesses belong to a TMA copy, which is one event whatever its size.
  void copies(bool by_tma) { by_tma_ = by_tma; }
  /// Records that the data just read, or zeros, are written to shared memory.
  void copy(const SharedPlace& target, int64_t bytes, bool zeros);
  /// Records an ordinary access to shared memory, or one by wgmma or a TMA store.
  void touch(const SharedPlace& place, int64_t bytes, bool write);
  /// Records a collective; called by the lane that computes it.
  void collective(const char* name);
  /// Records a barrier (each lane of the warp calls this) or an operation of TMA or wgmma. For the
  /// parameters see TraceEvent.
  void event(EventKind kind, std::string_view name, int64_t number, int64_t amount,
             const std::string& barrier);
  /// Records a fault and the place where the thread is if it is `running`, or else last was.
  void fault(const std::string& message, int thread, bool running);

  Trace take();

 private:
  struct SharedTouch {
    const char* array;
    int64_t array_begin;
    bool write;
    Ranges ranges;
  };
  /// An event of the running block, which may still grow.
  struct Event : TraceEvent {
    Ranges hbm;
    std::vector<SharedTouch> sram;
  };
  struct Lane {
    size_t since = 0;                  // index of the first event after its last barrier
    size_t at = 0;                     // index of the lane's last event
    int site = -1;                     // site of its last event
    int64_t bytes = 0;                 // bytes of global memory touched since its last barrier
    Amounts pending;                   // counts since its last event
    std::vector<SharedTouch> touches;  // accesses to shared memory since its last event
  };

  Lane& lane() { return lanes_[thread_]; }
  std::vector<Event>& events() { return warps_[thread_ / 32]; }
  /// Returns the site, a number for the chain of return addresses from here up to the kernel.
  /// Caches it for a `caller` in the kernel itself.
  int site(const void* caller = nullptr);
  /// Returns the event that matches the arguments since the lane's last barrier, or a new one.
  Event& find(EventKind kind, std::string_view name, int site, int start_site = -1);
  Event& append(EventKind kind, std::string_view name, int site);
  void pass_barrier(EventKind kind, std::string_view name, int64_t number, int site);
  /// Records the thread's computation between its last event and `site` as a compute event.
  void flush_pending(int site);
  /// Adds the lane's pending counts and accesses to shared memory to an event.
  static void merge(Event& event, Lane& lane);
  static Ranges& touched(std::vector<SharedTouch>& touches, const char* array, int64_t begin,
                         bool write);

  const Counts& counts_;
  Amounts charged_;  // counts that have been attributed to a thread
  const void* kernel_ = nullptr;
  int64_t block_ = 0, order_ = 0;
  int thread_ = 0;
  bool by_tma_ = false;
  std::vector<Lane> lanes_;
  std::vector<std::vector<Event>> warps_;
  std::unordered_map<const void*, int> direct_;  // sites of callers in the kernel itself
  std::unordered_map<std::string, int> sites_;
  Trace trace_;
};

}  // namespace ladder::sim
