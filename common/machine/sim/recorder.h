// Records a run's trace (trace.h): what each warp did at each line of the kernel, in program order.
// Lanes that do the same at the same line form one event. A loop's rounds also form one event,
// unless they wait for something or touch many bytes. The simulator's functions report each access,
// barrier and operation as it happens; arithmetic is found from the counts in between.
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

/// Records a traced run, which has a single worker. Calls concern the thread that switch_to() set.
class Recorder {
 public:
  /// `counts` are the worker's running counts; each event gets what its work added to them.
  explicit Recorder(const Counts& counts);

  /// Begins a launch of the kernel whose code is `function`, and then block `index` of it.
  void start_launch(Trace::Launch launch, const void* function);
  void start_block(int64_t index, int threads);
  /// Completes the block's events; `regions` are the shared arrays that it took.
  void end_block(const std::vector<SharedBytes::Region>& regions);

  /// Attributes the counts since the last call to the thread that has run since; now `thread` runs.
  void switch_to(int thread);

  /// Records an access to bytes [begin, end) of an array in global memory; `kind` is read or write.
  void access(EventKind kind, const Array& array, int64_t begin, int64_t end);
  /// Sets whether the accesses that follow belong to a TMA copy, which is one event of any size.
  void copies(bool by_tma) { by_tma_ = by_tma; }
  /// Records that the data just read, or zeros, are written to shared memory.
  void copy(const SharedPlace& target, int64_t bytes, bool zeros);
  /// Records an ordinary access to shared memory, or one by wgmma or a TMA store.
  void touch(const SharedPlace& place, int64_t bytes, bool write);
  /// Records a collective; called by the lane that computes it.
  void collective(const char* name);
  /// Records a barrier (called by each lane) or an operation of TMA or wgmma. See TraceEvent.
  void event(EventKind kind, std::string_view name, int64_t number, int64_t amount,
             const std::string& barrier);
  /// Records a fault of `thread` (-1: of the launch), and where it is if `running`, else last was.
  void fault(const std::string& message, int thread, bool running);

  Trace take();  // returns the trace recorded since the last call

 private:
  struct SharedTouch {  // accesses to one shared array
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
  /// Inserts an event after the lane's last barrier, before the next one.
  Event& append(EventKind kind, std::string_view name, int site);
  /// Moves the lane past a barrier, whose event the warp's first lane to pass it creates.
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
  int64_t block_ = 0, order_ = 0;          // the running block, and the order of the next event
  int thread_ = 0;                         // the running thread
  bool by_tma_ = false;                    // set by copies()
  std::vector<Lane> lanes_;                // per thread of the block
  std::vector<std::vector<Event>> warps_;  // per warp: its events in the running block
  std::unordered_map<const void*, int> direct_;  // sites of callers in the kernel itself
  std::unordered_map<std::string, int> sites_;   // sites, keyed by the bytes of their addresses
  Trace trace_;
};

}  // namespace ladder::sim
