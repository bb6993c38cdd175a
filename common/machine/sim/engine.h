// The sim: a SIMT machine on the CPU. One OS thread a core runs whole blocks; the CUDA threads of a
// block are fibers. Every access to global and shared memory passes through here, is checked
// against a shadow byte for each byte, and is counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "machine/device.h"
#include "machine/sim/async.h"
#include "machine/sim/fiber.h"

namespace ladder::sim {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};

inline constexpr int warpSize = 32;

// CUDA's built-in variables, of the fiber that runs.
inline constinit thread_local uint3 threadIdx;
inline constinit thread_local uint3 blockIdx;
inline constinit thread_local dim3 blockDim;
inline constinit thread_local dim3 gridDim;

/// A kernel did what CUDA forbids. Says rung, kernel, block, thread, array and index.
struct Fault : Error {
  explicit Fault(const std::string& what) : Error(Exit::wrong_result, what) {}
};

/// What is known of a byte; one shadow byte each.
enum ShadowBit : uint8_t {
  kWritten = 1,      // somebody wrote it
  kReadHere = 2,     // read in this kernel
  kWrittenHere = 4,  // written in this kernel
  kInFlight = 8,     // the target of an asynchronous copy that nobody has waited for
  kBeingRead = 16,   // by a wgmma or a TMA store that nobody has waited for
  kOrdinary = 32     // written by ordinary stores, and not fenced for wgmma and TMA since
};

/// The unsigned integer of n bytes, and a shadow bit repeated in each of them.
template <int n>
struct Word;
template <>
struct Word<1> {
  using type = uint8_t;
};
template <>
struct Word<2> {
  using type = uint16_t;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<8> {
  using type = uint64_t;
};
template <int n>
constexpr auto repeat(unsigned bits) {
  using W = typename Word<n>::type;
  return static_cast<W>(static_cast<W>(~W{0}) / 0xff * bits);
}

/// Throws a Fault that says who and where; called on the fiber at fault.
[[noreturn]] void fault(const std::string& what);

/// An array in the sim's HBM, with its shadow and its counts.
class Tracked : public Array {
 public:
  Tracked(const std::string& name, int64_t bytes, int workers);
  ~Tracked();
  Tracked(const Tracked&) = delete;

  /// Checks and counts an access of n bytes at byte offset `at` by the running thread. Faults count
  /// in elements of `element` bytes.
  template <int n>
  void read(int64_t at, int element = n);
  template <int n>
  void write(int64_t at, int element = n);

  void forget();                   // contents become poison that nobody wrote
  void mark_written();             // by the host
  HbmCounts take_kernel_counts();  // since the last call; clears the kernel's shadow bits

 private:
  [[noreturn]] void fail(const char* what, int64_t at, int64_t element) const;
  void check(int64_t at, int64_t n, int element, const char* what) const {
    if (at < 0 || at + n > bytes) [[unlikely]]
      fail(what, at, element);
  }

  struct alignas(64) WorkerCounts {
    int64_t read = 0, write = 0;
  };
  uint8_t* shadow_;
  std::vector<WorkerCounts> counts_;
};

/// State of one CUDA thread.
struct Thread {
  enum class State : uint8_t { ready, waiting, done };
  uint3 index;
  State state = State::ready;
  const char* waits_at = "";  // the barrier or collective it waits at
  std::source_location where;
  int shared_takes = 0;  // how often it called take()
  struct Copy {
    int64_t target;      // byte offset in the block's shared memory
    const char* source;  // null: zeros
    int bytes;
    int group;
  };
  std::vector<Copy> copies;           // asynchronous copies under way
  int group = 0;                      // the one that the next copy joins
  int64_t exps = 0, other_flops = 0;  // since its last event, when tracing
};

/// A warp's meeting for one collective: lanes publish a pointer each, the last computes for all.
struct Meeting {
  const char* word = nullptr;
  unsigned mask = 0, arrived = 0;
  void* lanes[32];
};

struct Launch {
  std::string rung, kernel;
  dim3 grid, block;
  int64_t shared_bytes = 0;
  const std::function<void()>* body = nullptr;  // the kernel with its arguments
  Schedule schedule;
  bool trace = false;
};

/// One OS thread's share of the machine: it runs blocks, one at a time.
class Worker {
 public:
  explicit Worker(int index, int64_t sram_bytes);

  void run_block(const Launch& launch, int64_t block);

  // Called on fibers.
  void syncthreads(std::source_location where);
  /// Joins the meeting of `mask` in this warp. True for the last lane to come, which computes and
  /// then calls release(); for the others it returns false once that is done.
  bool meet(const char* word, unsigned mask, void* mine, std::source_location where,
            Meeting*& meeting);
  void release(Meeting& meeting);

  int64_t take_shared(const char* name, int64_t bytes);
  template <int n>
  void read_shared(const char* name, int64_t at, int64_t begin, int64_t end, int element = n);
  template <int n>
  void write_shared(const char* name, int64_t at, int64_t begin, int64_t end, int element = n);
  char* shared_data() { return shared_.data(); }
  /// cp.async of 4, 8 or 16 bytes: `source` null fills with zeros.
  void start_copy(const char* name, int64_t target, int64_t begin, int64_t end, const char* source,
                  int bytes, int element);
  void commit_copies();
  void wait_copies(int groups_left);

  void trace_access(const Tracked* array, bool write, int64_t begin, int64_t end);
  /// By a thread that does it for itself.
  void trace_event(const char* event, const std::string& name, int64_t number, int64_t amount = 0,
                   const std::string& barrier = "");
  /// By each thread of a warp that does it as a whole.
  void trace_event_of_warp(const char* event, const std::string& name, int64_t number,
                           int64_t amount = 0) {
    if (tracing_ && lane() == 0) trace_event(event, name, number, amount);
  }

  Async& async() { return async_; }

  std::string who() const { return who(current_); }
  /// "rung 00_naive, kernel scores, block (0,0,0), thread (1,0,0)"
  std::string who(int thread) const;
  Thread& thread() { return threads_[static_cast<size_t>(current_)]; }
  int lane() const { return current_ % 32; }
  unsigned warp_lanes() const;  // mask of the lanes that this thread's warp has

  // Counters since the kernel began.
  struct Counters {
    int64_t sram_read = 0, sram_write = 0, matmul_flops = 0, exps = 0, other_flops = 0,
            bank_conflicts = 0;
  } counters;
  std::vector<TraceEvent> trace;
  std::vector<AsyncEvent> async_trace;
  const int index;

 private:
  static void fiber_main(void* worker);
  /// Resumes each lane that can run, in the order given, once or until a barrier is passed. False
  /// where none could.
  bool run_warp(int warp, const std::vector<int>& lanes);
  void wait(const char* at, std::source_location where);
  [[noreturn]] void shared_fault(const char* what, const char* name, int64_t at, int64_t begin,
                                 int element) const;
  [[noreturn]] void deadlock();
  /// Checks that wgmma or TMA may read 16 bytes of shared memory.
  void check_readable_by_async(const char* what, int64_t at) const;
  void close_trace_step();
  /// Adds what was counted since the last call, or since the thread was resumed, to the thread's.
  void charge();

  const Launch* launch_ = nullptr;
  int64_t block_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Thread> threads_;
  int current_ = 0;
  int done_ = 0;
  int at_barrier_ = 0;
  std::source_location barrier_where_;
  bool barrier_passed_ = false;                 // since the scheduler last chose among all warps
  std::vector<std::vector<Meeting>> meetings_;  // of each warp, those that lanes wait in
  std::exception_ptr failure_;
  std::vector<char> shared_;
  std::vector<uint8_t> shared_shadow_;
  struct Region {
    std::string name;
    int64_t begin, bytes;
  };
  std::vector<Region> regions_;  // in the order taken; every thread must take the same
  int64_t step_ = 0;
  struct Access {
    const Tracked* array;
    bool write;
    int64_t begin, end;
  };
  std::vector<Access> accesses_;  // of the running step, when tracing
  bool tracing_ = false;
  Counters charged_;  // what of the counters some thread has been charged with, when tracing
  Async async_{*this};
  bool tracks_ordinary_writes_ = false;  // once the block has used async_

  friend class Tracked;
  friend class Async;
};

inline constinit thread_local Worker* worker = nullptr;

template <int n>
inline void Tracked::read(int64_t at, int element) {
  if constexpr (n == 16) {
    read<8>(at, element);
    read<8>(at + 8, element);
  } else {
    check(at, n, element, "read of");
    using W = typename Word<n>::type;
    W* const s = reinterpret_cast<W*>(shadow_ + at);
    const W seen = __atomic_load_n(s, __ATOMIC_RELAXED);
    constexpr W want = repeat<n>(kWritten | kReadHere);
    if ((seen & want) != want) [[unlikely]] {
      if ((seen & repeat<n>(kWritten)) != repeat<n>(kWritten))
        fail("read of unwritten", at, element);
      __atomic_fetch_or(s, repeat<n>(kReadHere), __ATOMIC_RELAXED);
    }
    counts_[static_cast<size_t>(worker->index)].read += n;
    if (worker->tracing_) [[unlikely]]
      worker->trace_access(this, false, at, at + n);
  }
}

template <int n>
inline void Tracked::write(int64_t at, int element) {
  if constexpr (n == 16) {
    write<8>(at, element);
    write<8>(at + 8, element);
  } else {
    check(at, n, element, "write to");
    using W = typename Word<n>::type;
    W* const s = reinterpret_cast<W*>(shadow_ + at);
    constexpr W want = repeat<n>(kWritten | kWrittenHere);
    if ((__atomic_load_n(s, __ATOMIC_RELAXED) & want) != want)
      __atomic_fetch_or(s, want, __ATOMIC_RELAXED);
    counts_[static_cast<size_t>(worker->index)].write += n;
    if (worker->tracing_) [[unlikely]]
      worker->trace_access(this, true, at, at + n);
  }
}

template <int n>
inline void Worker::read_shared(const char* name, int64_t at, int64_t begin, int64_t end,
                                int element) {
  if constexpr (n == 16) {
    read_shared<8>(name, at, begin, end, element);
    read_shared<8>(name, at + 8, begin, end, element);
  } else {
    if (at < begin || at + n > end) [[unlikely]]
      shared_fault("read of", name, at, begin, element);
    using W = typename Word<n>::type;
    const W seen = *reinterpret_cast<const W*>(shared_shadow_.data() + at);
    if ((seen & repeat<n>(kWritten | kInFlight)) != repeat<n>(kWritten)) [[unlikely]]
      shared_fault(seen & repeat<n>(kInFlight) ? "read before its asynchronous copy was waited for:"
                                               : "read of unwritten",
                   name, at, begin, element);
    counters.sram_read += n;
  }
}

template <int n>
inline void Worker::write_shared(const char* name, int64_t at, int64_t begin, int64_t end,
                                 int element) {
  if constexpr (n == 16) {
    write_shared<8>(name, at, begin, end, element);
    write_shared<8>(name, at + 8, begin, end, element);
  } else {
    if (at < begin || at + n > end) [[unlikely]]
      shared_fault("write to", name, at, begin, element);
    using W = typename Word<n>::type;
    W* const s = reinterpret_cast<W*>(shared_shadow_.data() + at);
    if (*s & repeat<n>(kInFlight | kBeingRead)) [[unlikely]]
      shared_fault(*s & repeat<n>(kInFlight)
                       ? "write under an asynchronous copy that was not waited for:"
                       : "write under a wgmma or TMA store that was not waited for and still reads",
                   name, at, begin, element);
    *s = repeat<n>(kWritten | kOrdinary);
    counters.sram_write += n;
    if (tracks_ordinary_writes_) [[unlikely]]
      async_.note_ordinary_write(at, n);
  }
}

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
  std::optional<Timing> time(const std::function<void()>&, const TimingOptions&) override {
    return {};
  }
  std::map<std::string, double> time_kernels(const std::function<void()>&,
                                             const TimingOptions&) override {
    return {};
  }

  /// Runs one kernel to its end. Throws its Fault.
  void launch(const char* kernel, dim3 grid, dim3 block, int64_t shared_bytes,
              const std::function<void()>& body);
  static Sim& current();

  std::vector<TraceEvent> take_trace() override { return std::move(trace_); }
  std::vector<AsyncEvent> take_async_trace() override { return std::move(async_trace_); }

 private:
  SimOptions options_;
  DeviceInfo info_;
  std::string rung_;
  std::vector<std::unique_ptr<Tracked>> arrays_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<KernelReport> reports_;
  std::vector<TraceEvent> trace_;
  std::vector<AsyncEvent> async_trace_;
};

}  // namespace ladder::sim
