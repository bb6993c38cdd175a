// A block of CUDA threads, which are fibers of one OS thread: which of them runs, who waits and who
// goes on, where they meet, what they counted, and what --trace records of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "machine/device.h"
#include "machine/sim/fiber.h"
#include "machine/sim/recorder.h"
#include "machine/sim/shared_memory.h"

namespace ladder::sim {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};

// CUDA's built-in variables, of the fiber that runs.
inline constinit thread_local uint3 threadIdx;
inline constinit thread_local uint3 blockIdx;
inline constinit thread_local dim3 blockDim;
inline constinit thread_local dim3 gridDim;

/// The next of a row of numbers as if drawn at random (splitmix64).
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

/// Where in a kernel something is called: the last parameter, Where::current() by default.
using Where = std::source_location;

inline constexpr int kMaxThreads = 1024;  // of a block

/// A kernel that is being run.
struct Launch {
  std::string kernel;
  dim3 grid, block;
  int64_t smem_bytes = 0;
  const void* function = nullptr;  // the kernel's code, by which a trace finds its lines
  std::function<void()> body;      // the kernel with its arguments
  bool early = false;              // starts while the kernel before it may still be running
  // Of the machine, which sets them.
  std::string rung = {};
  Schedule schedule = {};
  Recorder* recorder = nullptr;  // where a trace is written
  /// Whether some thread has let the next kernel start, or waited for the one before.
  mutable std::atomic<bool> lets_next_start{false}, waited{false};

  int threads() const { return static_cast<int>(block.x * block.y * block.z); }
};
/// Runs a kernel to its end on the machine whose run() is under way. Throws its Fault.
void run_kernel(Launch&& launch);

/// Where a warp's lanes meet for a collective: each publishes a pointer, the last computes for all.
struct Meeting {
  const char* name;
  unsigned arrived = 0;
  void* lanes[32];
};

class Async;
class TrackedArray;

/// Of an OS thread: runs blocks in turn, each in the schedule's order from barrier to barrier.
class Block {
 public:
  Block(int worker, int64_t smem_bytes);
  ~Block();

  void run(const Launch& launch, int64_t index);

  // Of all blocks of the kernel that it has run. HBM's bytes are counted with the arrays.
  Counts counts;
  SharedBytes memory;
  /// Made when a block first uses any of it; most kernels have none.
  Async& async();
  /// Null where nothing is traced.
  Recorder* recorder() const { return recorder_; }

  // Called on fibers, of the thread that runs.
  int running() const { return running_; }
  /// Its place among the threads of all workers, each of which has room for twice kMaxThreads.
  int64_t slot() const { return slot_; }
  int lane() const { return running_ % 32; }
  int warp() const { return running_ / 32; }
  int lanes() const { return std::min(32, count_ - 32 * warp()); }  // that its warp has
  /// Waits until another wakes it. `at` and `where` describe it if the block comes to a standstill.
  void wait(const char* at, Where where);
  /// The same, for what() at that time.
  void wait_for(std::function<std::string()> what, Where where);
  /// Yields to the scheduler.
  void yield() { threads_[running_].fiber->yield(); }
  void wake(int thread) { threads_[thread].state = Thread::State::ready; }
  void syncthreads(Where where);
  void let_next_kernel_start() { launch_->lets_next_start = true; }
  void wait_for_kernel_before() { threads_[running_].waited = launch_->waited = true; }
  /// Whether the thread may meet the kernel before, which it has not waited for.
  bool early() const { return launch_->early && !threads_[running_].waited; }
  /// Joins the warp's meeting. Returns it to the last lane to come, which computes and then calls
  /// release(); to the others nothing, once that is done.
  Meeting* meet(const char* name, unsigned mask, void* mine, Where where);
  void release(Meeting& meeting);
  /// Counts exponentials by the thread that runs, and what they run under.
  void count_exps(int n) {
    const Thread& self = threads_[running_];
    counts.exps += n;
    counts.exps_under_products += int64_t{n} * self.products;
    counts.exps_between_turns += self.turn_passed ? n : 0;
  }
  /// The same of bytes that it stores to shared memory.
  void count_stored(int64_t bytes) {
    counts.sram_write += bytes;
    counts.stores_under_products += bytes * threads_[running_].products;
  }
  /// Of the thread's products so many groups are in flight.
  void set_products(int groups) { threads_[running_].products = groups; }
  /// It arrived at a named barrier, or waited at one.
  void set_turn_passed(bool passed) { threads_[running_].turn_passed = passed; }
  /// The thread takes part in a product, with so many of its FLOPs.
  void count_product(int64_t flops) {
    warps_[warp()].multiplies = true;
    if (memory.copies_under_way(running_)) counts.flops_under_copies += flops;
  }
  /// The thread starts an asynchronous copy to shared memory.
  void count_copy() { ++warps_[warp()].copies; }
  /// A lane of the warp accesses an array, for the first time since the warp met.
  void touches(TrackedArray& array);
  /// Counts what so many warps from `first` on asked of HBM since they met.
  void count_accesses(int first, int warps);
  /// What the lanes of the warp copied to shared memory so far, other threads may see.
  void publish_warp();
  /// Whether an asynchronous operation that could end now has to wait until no thread can go on
  /// without it, as the schedule decides.
  bool late();

  int worker() const { return worker_; }  // the OS thread's number
  int threads() const { return count_; }
  int warps() const { return static_cast<int>(meetings_.size()); }
  /// Its number in the grid, counted from 1.
  uint32_t number() const { return number_; }
  /// "(0,0,0)": the block of the same grid that has this number.
  std::string index_of(uint32_t number) const;
  /// Throws a Fault for a thread.
  template <class... T>
  [[noreturn]] void fault_in(int thread, fmt::format_string<T...> what, T&&... values) const {
    throw_fault(thread, fmt::format(what, std::forward<T>(values)...), false);
  }
  /// `running`: it is the one that runs, and a trace says where it is.
  [[noreturn]] void throw_fault(int thread, const std::string& what, bool running) const;

  void trace_event(EventKind kind, std::string_view name, int64_t number, int64_t amount = 0,
                   const std::string& barrier = "") {
    if (recorder_) [[unlikely]]
      recorder_->event(kind, name, number, amount, barrier);
  }

 private:
  struct Thread {
    enum class State : uint8_t { ready, waiting, done };
    uint3 index;
    State state = State::ready;
    bool waited = false;       // for the kernel before
    bool turn_passed = false;  // see the setters
    int products = 0;
    const char* waits_at = "";               // the barrier or collective it waits at
    std::function<std::string()> waits_for;  // the same of what runs beside threads
    Where where;
    std::unique_ptr<Fiber> fiber = std::make_unique<Fiber>();
  };

  void start(const Launch& launch, int64_t index);
  static void thread_main();
  /// Resumes each lane that can run, in this order, once or until a barrier is passed. False: none.
  bool run_warp(int warp, const std::vector<int>& lanes);
  [[noreturn]] void deadlock();
  std::string name_of(int thread) const;  // "thread (1,0,0)"

  const int worker_;
  const Launch* launch_ = nullptr;
  Recorder* recorder_ = nullptr;
  uint32_t number_ = 0;
  std::vector<Thread> threads_;  // at least as many as the block has
  /// Those of blocks that are gone: to map stacks takes longer than to run a small kernel.
  static thread_local std::vector<std::vector<Thread>> idle_;
  int count_ = 0, ended_ = 0, running_ = 0;
  int64_t slot_ = 0;
  uint64_t random_ = 0;  // for late()
  int at_barrier_ = 0;
  int64_t barriers_passed_ = 0;  // by the block
  Where barrier_where_;
  bool barrier_passed_ = false;    // since the scheduler last chose among all warps
  std::vector<Meeting> meetings_;  // of each warp
  std::vector<std::vector<TrackedArray*>> touched_;  // by each warp since it met
  struct Warp {
    bool multiplies = false;
    int64_t copies = 0;
  };
  std::vector<Warp> warps_;
  std::unique_ptr<Async> async_;
  std::exception_ptr failure_;
};

/// The block that this OS thread runs.
inline constinit thread_local Block* this_block = nullptr;

}  // namespace ladder::sim
