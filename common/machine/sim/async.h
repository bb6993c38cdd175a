// What runs beside the threads of a block on Hopper, for one block at a time: barriers in shared
// memory and the bulk copies that report to them, the asynchronous products of warpgroups, named
// barriers. What is asynchronous ends as late as it can, when no thread can run on without it: so
// what reads it, or overwrites what it reads, too early shows. In reverse schedules it ends as
// early as it can, in random ones either.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <deque>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace ladder::sim {

class Tracked;
class Worker;

/// An array as bulk tensor copies see it: extents, innermost first, of 16-bit elements, in boxes of
/// 64 columns × box_rows rows.
struct TensorMap {
  Tracked* array = nullptr;
  int64_t extents[4] = {};
  int box_rows = 0;
};

/// The bits of an accumulator register that a wgmma still owns: a signalling NaN. Arithmetic with
/// it gives the quiet one, bit 22, so a register that was computed with and written back shows.
inline constexpr uint32_t kOwnedByWgmma = 0x7fadbeef;

/// A wgmma, m64nNk16, as each of its lanes issues it.
struct Wgmma {
  int N;
  bool is_bf16, a_in_registers, transposed_a, transposed_b;
  uint64_t a, b;  // descriptors
  int scale_d;
  bool operator==(const Wgmma&) const = default;
};

class Async {
 public:
  explicit Async(Worker& worker) : worker_(worker) {}

  void begin_block();
  /// Called by a thread that ends, and after the last one.
  void end_thread();
  void end_block();
  /// Ends something that is under way, if there is anything. Called where no thread can run.
  bool deliver();
  /// What a waiting thread waits for, if it is one of the things here.
  std::string waits_for(int thread) const;

  // Called on fibers.
  void init(int64_t at, const char* name, int64_t index, int count);
  void fence_init();
  void arrive(int64_t at, const char* name, int64_t index, int64_t bytes);
  void wait(int64_t at, const char* name, int64_t index, int parity, std::source_location where);
  void set_registers(int n);
  void named_barrier(int id, int threads, bool waits, std::source_location where);

  void load(const TensorMap& map, int64_t barrier, const char* barrier_name, int64_t barrier_index,
            const char* name, int64_t target, int64_t begin, int64_t end, const int (&at)[4]);
  void store(const TensorMap& map, const char* name, int64_t source, int64_t begin, int64_t end,
             const int (&at)[4]);
  void commit_stores();
  void wait_stores(int groups_left, std::source_location where);

  void note_ordinary_write(int64_t at, int64_t bytes);
  void fence_proxy();

  void fence_registers(const void* registers, size_t bytes);
  /// `d`: the lane's N/2 registers of sums; `a`: its 4 of the left operand, or null.
  void issue(const Wgmma& wgmma, float* d, unsigned* a);
  void commit_wgmmas();
  void wait_wgmmas(int groups_left, std::source_location where);

 private:
  struct Barrier {
    int64_t at;
    std::string name;
    int count, pending;  // arrivals
    int64_t bytes = 0;   // promised less copied
    int64_t phase = 0;
    int initialised_by;
    bool fenced = false;
    struct Waiter {
      int thread, parity;
    };
    std::vector<Waiter> waiters;
    struct Landed {  // copied in a phase that nobody has waited for
      int64_t phase, begin, bytes;
      int thread;  // that issued it
    };
    std::vector<Landed> landed;
  };
  struct Copy {
    TensorMap map;
    int at[4];
    int64_t shared;      // first byte in shared memory
    size_t barrier = 0;  // of a load
    int group = 0;       // of a store
    int thread = 0;      // that issued it
  };
  struct NamedBarrier {
    int expected = 0, arrived = 0;
    int64_t completed = 0;  // how often, so far
    std::bitset<1024> who;
    std::vector<int> waiters;
  };
  struct Stores {  // of one thread
    std::vector<Copy> copies;
    int group = 0;
    int done = -1;  // while it waits: groups below this number must have ended
  };
  using Range = std::pair<int64_t, int64_t>;

  // A chain of wgmmas on the same accumulator that have not all been waited for.
  struct Chain {
    int N = 0, ops = 0;
    float* lanes[128] = {};
    std::vector<float> sums;  // 64 × N
  };
  struct Op {
    Wgmma wgmma;
    int group;
    std::shared_ptr<Chain> chain;
    std::vector<std::array<unsigned, 4>> a;  // of each lane
  };
  struct Lane {
    int64_t issued = 0;
    int group = 0;
    struct Fenced {
      const char* registers;
      std::vector<char> contents;
    };
    std::vector<Fenced> fenced;
    struct Operand {  // registers that a wgmma reads
      unsigned* registers;
      std::array<unsigned, 4> contents;
      int64_t last_op;
    };
    std::vector<Operand> operands;
  };
  struct Warpgroup {
    std::deque<Op> ops;  // not waited for
    int64_t first_op = 0;
    Lane lanes[128];
    std::vector<int> waiting;
    int done = 0;       // for wgmmas of groups below this number
    int registers = 0;  // of each thread, since its setmaxnreg
  };

  void start();  // at the block's first use of anything here
  Barrier& barrier(int64_t at, const char* name, int64_t index);
  void settle(Barrier& barrier);  // ends the phase if nothing is missing
  void make_readable(Barrier& barrier);
  void copy_in(const Copy& copy);
  void copy_out(const Copy& copy);
  void check_box(const char* what, const TensorMap& map, const char* name, int64_t shared,
                 int64_t begin, int64_t end) const;
  void hold(int64_t chunk);  // 16 bytes of shared memory that something still reads
  void release(int64_t chunk);
  bool late();  // whether what could end now shall wait
  void end_load();
  void end_stores(size_t thread);
  void end_wgmmas(size_t group);
  void hand_over(Warpgroup& group, int lane, const void* registers, size_t bytes, const char* what);
  void finish(size_t group, Op& op);
  void trace_products(const Warpgroup& group, int number);
  void check_untouched(const float* d, int thread, int N) const;
  [[noreturn]] void fault_in(int thread, const std::string& what) const;

  Worker& worker_;
  bool used_ = false;
  uint64_t random_ = 0;
  std::deque<Barrier> barriers_;
  std::deque<Copy> loads_;  // under way
  std::vector<Stores> stores_;
  NamedBarrier named_[16];
  std::vector<std::vector<Range>> ordinary_writes_;  // of each thread, since its last proxy fence
  std::vector<Range> early_writes_;                  // before the first use
  std::vector<uint16_t> readers_;                    // of each 16 bytes of shared memory
  std::vector<std::unique_ptr<Warpgroup>> warpgroups_;
};

}  // namespace ladder::sim
