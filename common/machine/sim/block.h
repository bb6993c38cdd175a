// The threads of the block that a worker runs: which of them runs, who waits and who goes on, what
// they counted, and what they tell --trace. What threads wait for is in files of its own, which
// see no more of each other than this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "machine/device.h"
#include "machine/sim/fiber.h"
#include "machine/sim/recorder.h"

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

/// A kernel that is being run.
struct Launch {
  std::string rung, kernel;
  dim3 grid, block;
  int64_t shared_bytes = 0;
  const std::function<void()>* body = nullptr;  // the kernel with its arguments
  Schedule schedule;
  Recorder* recorder = nullptr;  // where a trace is written

  int threads() const { return static_cast<int>(block.x * block.y * block.z); }
};

class Block {
 public:
  /// State of one CUDA thread.
  struct Thread {
    enum class State : uint8_t { ready, waiting, done };
    uint3 index;
    State state = State::ready;
    const char* waits_at = "";  // the barrier or collective it waits at
    std::source_location where;
  };

  /// `worker`: the number of the worker whose block it is.
  explicit Block(int worker) : worker_(worker) {}

  // Called by the worker.
  /// The next block: each of its threads is ready to call entry(argument).
  void start(const Launch& launch, int64_t index, void (*entry)(void*), void* argument);
  /// Runs a thread, if it is ready, until it waits, yields or ends. False where it is not ready.
  /// Inline, because a switch of stacks costs more with each function there is to return from.
  bool resume(int t) {
    const Thread& thread = threads_[static_cast<size_t>(t)];
    if (thread.state != Thread::State::ready) return false;
    running_ = t;
    threadIdx = thread.index;
    Fiber& fiber = *fibers_[static_cast<size_t>(t)];
    if (recorder_) recorder_->runs(t);
    fiber.resume();
    if (recorder_) recorder_->runs(t);
    if (fiber.overflowed()) [[unlikely]]
      fault_in(t, "stack overflow (local arrays too large for the sim)");
    return true;
  }
  /// Null where nothing is traced.
  Recorder* recorder() const { return recorder_; }

  // Called on fibers, of the thread that runs.
  int running() const { return running_; }
  int lane() const { return running_ % 32; }
  unsigned warp_lanes() const {  // mask of the lanes that its warp has
    const int lanes = count_ - running_ / 32 * 32;
    return lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
  }
  /// Waits until another wakes it. `at` and `where` describe it if the block comes to a standstill.
  void wait(const char* at, std::source_location where) {
    Thread& self = threads_[static_cast<size_t>(running_)];
    self.state = Thread::State::waiting;
    self.waits_at = at;
    self.where = where;
    yield();
  }
  /// Takes its place in the schedule's order again.
  void yield() { fibers_[static_cast<size_t>(running_)]->yield(); }
  [[noreturn]] void end_thread();

  void wake(int thread) { threads_[static_cast<size_t>(thread)].state = Thread::State::ready; }
  /// Whether an asynchronous operation that could end now has to wait until no thread can go on
  /// without it, as the schedule decides.
  bool late();

  int worker() const { return worker_; }
  const Launch& launch() const { return *launch_; }
  int threads() const { return count_; }
  int ended() const { return ended_; }
  const Thread& thread(int t) const { return threads_[static_cast<size_t>(t)]; }
  /// Its number in the grid, counted from 1.
  uint32_t number() const { return number_; }
  /// "(0,0,0)": the block of the same grid that has this number.
  std::string index_of(uint32_t number) const;
  /// "thread (1,0,0)"
  std::string name_of(int thread) const;
  /// Throws a Fault for a thread. `runs`: it is the one that runs, and a trace says where it is.
  [[noreturn]] void fault_in(int thread, const std::string& what, bool runs = false) const;

  /// By a thread that does it for itself.
  void trace_event(const char* event, const std::string& name, int64_t number, int64_t amount = 0,
                   const std::string& barrier = "") {
    if (recorder_) [[unlikely]]
      recorder_->event(event, name, number, amount, barrier, true);
  }
  /// By each thread of a warp that does it as a whole.
  void trace_event_of_warp(const char* event, const std::string& name, int64_t number) {
    if (recorder_) [[unlikely]]
      recorder_->event(event, name, number, 0, "", false);
  }

  // Of all blocks of the kernel that the worker has run. HBM's bytes are counted with the arrays.
  Counts counts;

 private:
  const int worker_;
  const Launch* launch_ = nullptr;
  int64_t index_ = 0;
  uint32_t number_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Thread> threads_;
  int count_ = 0;  // of them
  int running_ = 0;
  int ended_ = 0;
  uint64_t random_ = 0;
  Recorder* recorder_ = nullptr;
};

}  // namespace ladder::sim
