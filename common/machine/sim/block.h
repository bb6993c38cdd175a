// Runs a block of CUDA threads, each as a fiber of one OS thread: chooses the thread to run next,
// lets threads wait and meet, counts their work, and passes it to the recorder of --trace. The
// functions that kernels call (sim_machine.h, sim_hopper.h) reach their block as `this_block`.
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

// CUDA's built-in variables, with the values of the running fiber.
inline constinit thread_local uint3 threadIdx;
inline constinit thread_local uint3 blockIdx;
inline constinit thread_local dim3 blockDim;
inline constinit thread_local dim3 gridDim;

/// Returns the pseudorandom number that the generator splitmix64 makes from state x.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

/// The source position of a call in a kernel, the last parameter of the functions that it calls.
using Where = std::source_location;

inline constexpr int kMaxThreads = 1024;  // per block

/// A launched kernel.
struct Launch {
  std::string kernel;
  dim3 grid, block;
  int64_t smem_bytes = 0;          // dynamic shared memory per block
  const void* function = nullptr;  // the kernel's code, for the lines of a trace
  std::function<void()> body;      // the kernel with its arguments
  bool early = false;              // starts while the previous kernel may still run
  // The simulated machine sets the members from here on.
  std::string rung = {};
  Schedule schedule = {};
  Recorder* recorder = nullptr;  // null: no trace is recorded
  /// Whether any thread has let the next kernel start, and has waited for the previous one.
  mutable std::atomic<bool> lets_next_start{false}, waited{false};

  int threads() const { return static_cast<int>(block.x * block.y * block.z); }
};
/// Runs a kernel to its end on the simulator whose run() is active. Throws the Fault, if any.
void run_kernel(Launch&& launch);

/// A meeting of a warp's lanes for a collective: each publishes a pointer, the last one computes.
struct Meeting {
  const char* name;      // the collective's
  unsigned arrived = 0;  // mask of lanes
  void* lanes[32];       // each lane's pointer
};

class Async;
class TrackedArray;

/// Runs blocks one after another on an OS thread, their threads in the schedule's order.
class Block {
 public:
  Block(int worker, int64_t smem_bytes);
  ~Block();

  /// Runs block `index` of the grid (with x fastest) to its end. Throws the block's Fault, if any.
  void run(const Launch& launch, int64_t index);

  // Counts of the kernel's blocks that this object ran; the arrays count bytes of global memory.
  Counts counts;
  SharedBytes memory;
  /// Returns the block's asynchronous units. They are created on first use; most kernels need none.
  Async& async();
  /// Returns the recorder, or null if nothing is traced.
  Recorder* recorder() const { return recorder_; }

  // These functions are called on fibers and concern the running thread.
  int running() const { return running_; }
  /// Returns the running thread's index in tables of reads and writes with 2 · kMaxThreads
  /// entries per worker: the index for reads. Add kMaxThreads for writes.
  int64_t slot() const { return slot_; }
  int lane() const { return running_ % 32; }
  int warp() const { return running_ / 32; }
  int lanes() const { return std::min(32, count_ - 32 * warp()); }  // how many its warp has
  /// Waits until another thread wakes this one. The message of a deadlock names `at` and `where`.
  void wait(const char* at, Where where);
  /// Waits like wait(), but calls what() to describe the wait, at the time of a deadlock.
  void wait_for(std::function<std::string()> what, Where where);
  /// Lets the scheduler run other threads first.
  void yield() { threads_[running_].fiber->yield(); }
  void wake(int thread) { threads_[thread].state = Thread::State::ready; }
  void syncthreads(Where where);
  void let_next_kernel_start() { launch_->lets_next_start = true; }
  void wait_for_kernel_before() { threads_[running_].waited = launch_->waited = true; }
  /// Whether the thread may overlap the previous kernel: it started early and has not waited.
  bool early() const { return launch_->early && !threads_[running_].waited; }
  /// Joins the warp's meeting for the collective `name` with the pointer `mine`. The last lane to
  /// arrive gets the meeting, computes and calls release(); then the call returns null in the other
  /// lanes. Faults if `mask` leaves out a lane, or if other lanes wait at another collective.
  Meeting* meet(const char* name, unsigned mask, void* mine, Where where);
  void release(Meeting& meeting);
  /// Counts n exponentials, and separately those that overlap products or fall between turns, that
  /// is, after the thread arrived at a named barrier and before it next waits at one.
  void count_exps(int n) {
    const Thread& self = threads_[running_];
    counts.exps += n;
    counts.exps_under_products += int64_t{n} * self.products;
    counts.exps_between_turns += self.turn_passed ? n : 0;
  }
  /// Counts bytes stored to shared memory, and separately those whose stores overlap products.
  void count_stored(int64_t bytes) {
    counts.sram_write += bytes;
    counts.stores_under_products += bytes * threads_[running_].products;
  }
  /// Sets how many groups of the thread's products are in flight.
  void set_products(int groups) { threads_[running_].products = groups; }
  /// Records that the thread arrived at a named barrier (true) or waited at one (false).
  void set_turn_passed(bool passed) { threads_[running_].turn_passed = passed; }
  /// Records that the thread takes part in a product and does `flops` of its FLOPs.
  void count_product(int64_t flops) {
    warps_[warp()].multiplies = true;
    if (memory.copies_under_way(running_)) counts.flops_under_copies += flops;
  }
  /// Records that the thread starts an asynchronous copy to shared memory.
  void count_copy() { ++warps_[warp()].copies; }
  /// Records the warp's first access to an array since its last collective or __syncthreads().
  void touches(TrackedArray& array);
  /// Counts these warps' requests to global memory since their last collective or __syncthreads().
  void count_accesses(int first, int warps);
  /// Lets other threads read what the warp's lanes have copied to shared memory.
  void publish_warp();
  /// Returns whether the schedule delays an asynchronous operation until no thread can proceed.
  bool late();

  int worker() const { return worker_; }  // the OS thread's number
  int threads() const { return count_; }
  int warps() const { return static_cast<int>(meetings_.size()); }
  /// Returns the block's number in the grid, counted from 1.
  uint32_t number() const { return number_; }
  /// Returns the index, such as "(0,0,0)", of the block with this number in the same grid.
  std::string index_of(uint32_t number) const;
  /// Throws a Fault that names thread `thread` of the block.
  template <class... T>
  [[noreturn]] void fault_in(int thread, fmt::format_string<T...> what, T&&... values) const {
    throw_fault(thread, fmt::format(what, std::forward<T>(values)...), false);
  }
  /// Throws a Fault that names the thread. A trace shows exactly where only a `running` one is.
  [[noreturn]] void throw_fault(int thread, const std::string& what, bool running) const;

  /// Records an event of the running thread for --trace. For the parameters see TraceEvent.
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
    bool waited = false;                     // whether it has waited for the previous kernel
    bool turn_passed = false;                // see set_turn_passed()
    int products = 0;                        // see set_products()
    const char* waits_at = "";               // the barrier or collective where it waits
    std::function<std::string()> waits_for;  // describes a wait for an asynchronous unit
    Where where;
    std::unique_ptr<Fiber> fiber = std::make_unique<Fiber>();
  };

  void start(const Launch& launch, int64_t index);
  static void thread_main();
  /// Resumes each ready lane once, in the order of `lanes`, until the block passes a barrier.
  /// Returns whether any lane ran.
  bool run_warp(int warp, const std::vector<int>& lanes);
  [[noreturn]] void deadlock();
  std::string name_of(int thread) const;  // "thread (1,0,0)"

  const int worker_;
  const Launch* launch_ = nullptr;
  Recorder* recorder_ = nullptr;
  uint32_t number_ = 0;
  std::vector<Thread> threads_;  // may be longer than the block's thread count
  /// The threads of destroyed Blocks, for reuse: mapping stacks takes longer than a small kernel.
  static thread_local std::vector<std::vector<Thread>> idle_;
  int count_ = 0, ended_ = 0, running_ = 0;  // number of threads, of ended ones; the running one
  int64_t slot_ = 0;
  uint64_t random_ = 0;            // state of late()'s generator
  int at_barrier_ = 0;             // how many threads wait at a __syncthreads
  int64_t barriers_passed_ = 0;    // how many __syncthreads the block has passed
  Where barrier_where_;            // the __syncthreads at which threads wait
  bool barrier_passed_ = false;    // in the scheduler's current pass over the warps
  std::vector<Meeting> meetings_;  // per warp
  std::vector<std::vector<TrackedArray*>> touched_;  // per warp, see touches()
  struct Warp {
    bool multiplies = false;  // whether it has taken part in a product
    int64_t copies = 0;       // asynchronous copies that it has started
  };
  std::vector<Warp> warps_;
  std::unique_ptr<Async> async_;
  std::exception_ptr failure_;  // what the body of a thread threw
};

/// The block that this OS thread is running.
inline constinit thread_local Block* this_block = nullptr;

}  // namespace ladder::sim
