// The sim: a SIMT machine on the CPU. One OS thread a core runs whole blocks; the CUDA threads of a
// block are fibers. Every access to global and shared memory is checked against a shadow byte for
// each byte, one to global memory also against what other blocks did there, and is counted.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "machine/device.h"
#include "machine/sim/barriers.h"
#include "machine/sim/block.h"
#include "machine/sim/block_memory.h"
#include "machine/sim/tma.h"
#include "machine/sim/tracked.h"
#include "machine/sim/wgmma_engine.h"

namespace ladder::sim {

/// A warp's meeting for one collective: lanes publish a pointer each, the last computes for all.
struct Meeting {
  const char* word = nullptr;
  unsigned mask = 0, arrived = 0;
  void* lanes[32];
};

/// What runs beside the threads of a block on Hopper: barriers, TMA, the products of warpgroups;
/// made when a block first uses any of it. An asynchronous operation ends as late as it can, when
/// no thread can go on without it: so a read of its result, or an overwrite of its source, that
/// comes too early is caught. In reverse schedules it ends as early as it can, in random ones at
/// either time.
class Async {
 public:
  Async(Block& block, BlockMemory& memory)
      : barriers(block, memory),
        copies(block, memory, barriers),
        wgmmas(block, memory),
        block_(block),
        memory_(memory) {
    memory.tell_writers_apart();
  }
  Async(const Async&) = delete;

  Barriers barriers;
  Tma copies;
  WgmmaEngine wgmmas;

  /// What the running thread wrote so far, wgmmas and TMA stores may read and loads overwrite.
  void fence_proxy() { memory_.fence_proxy(block_.running()); }

  /// Faults where the thread that ends, or the block, has not waited for something.
  void end_thread() {
    copies.end_thread();
    wgmmas.end_thread();
    if (block_.lane() == 0) block_.trace_event("exit", "", 0);
  }
  void end_block() const {
    copies.end_block();
    barriers.end_block();
  }
  /// Ends something that is under way, if there is anything. Called where no thread can run.
  bool deliver() { return copies.deliver_load() || wgmmas.deliver() || copies.deliver_stores(); }
  /// What a waiting thread waits for; empty if it is nothing here.
  std::string waits_for(int thread) const {
    const std::string barrier = barriers.waits_for(thread);
    return barrier.empty() ? wgmmas.waits_for(thread) : barrier;
  }

 private:
  Block& block_;
  BlockMemory& memory_;
};

/// One OS thread's share of the machine: it runs blocks, one at a time, each in the schedule's
/// order from barrier to barrier.
class Worker {
 public:
  Worker(int index, int64_t sram_bytes);

  void run_block(const Launch& launch, int64_t index);

  // The block that runs.
  Block& block() { return block_; }
  Counts& counts() { return block_.counts; }
  BlockMemory& memory() { return memory_; }
  /// Made at the block's first use; most kernels have none.
  Async& async() {
    if (!async_) async_.emplace(block_, memory_);
    return *async_;
  }

  // Called on fibers.
  void syncthreads(std::source_location where);
  /// Joins the meeting of `mask` in this warp. True for the last lane to come, which computes and
  /// then calls release(); for the others it returns false once that is done.
  bool meet(const char* word, unsigned mask, void* mine, std::source_location where,
            Meeting*& meeting);
  void release(Meeting& meeting);
  /// What the lanes of a mask copied to shared memory so far, other threads may see.
  void publish(unsigned mask);

 private:
  static void thread_main(void* worker);
  /// Resumes each lane that can run, in the order given, once or until a barrier is passed. False
  /// where none could.
  bool run_warp(int warp, const std::vector<int>& lanes);
  [[noreturn]] void deadlock();

  Block block_;
  BlockMemory memory_;
  std::optional<Async> async_;
  int at_barrier_ = 0;
  int64_t barriers_passed_ = 0;  // by the block
  std::source_location barrier_where_;
  bool barrier_passed_ = false;                 // since the scheduler last chose among all warps
  std::vector<std::vector<Meeting>> meetings_;  // of each warp, those that lanes wait in
  std::exception_ptr failure_;
};

inline constinit thread_local Worker* worker = nullptr;

/// The machine: its arrays, its workers, the report of the run under way.
class Sim : public Device {
 public:
  explicit Sim(const SimOptions& options);
  ~Sim() override;

  const DeviceInfo& info() const override { return info_; }
  Array* allocate(const std::string& name, int64_t bytes) override;
  void release(Array* array) noexcept override;
  void poison(Array& array) override;
  void upload(Array& array, const void* host) override;
  void download(void* host, const Array& array) override;
  std::vector<KernelReport> run(const std::string& rung,
                                const std::function<void()>& work) override;

  /// Runs one kernel to its end. Throws its Fault.
  /// `function`: the kernel's code, by which a trace finds its lines.
  void launch(const char* kernel, dim3 grid, dim3 block, int64_t shared_bytes, const void* function,
              const std::function<void()>& body);
  static Sim& current();

  Trace take_trace() override { return recorder_ ? recorder_->take() : Trace{}; }

 private:
  SimOptions options_;
  DeviceInfo info_;
  std::string rung_;
  std::vector<std::unique_ptr<Tracked>> arrays_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::optional<Recorder> recorder_;
  std::vector<KernelReport> reports_;
};

}  // namespace ladder::sim
