// Defines what the simulator counts (Amounts) and the trace of a run (--trace): what each warp did,
// event after event, with the counts of each event. sim/recorder.cpp records a trace,
// harness/trace_file.cpp writes it to a file, and scripts/explore shows it.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace ladder {

/// Ranges of bytes in ascending order, each as [begin, end).
using ByteRanges = std::vector<std::pair<int64_t, int64_t>>;

/// The simulator's counts, except the bytes of global memory (HbmCounts in device.h).
struct Amounts {
  int64_t sram_read = 0, sram_write = 0;  // shared-memory bytes
  int64_t sram_operands = 0;              // the bytes of sram_read that are operands of products
  int64_t matmul_flops = 0;               // executed, padding and masked halves included
  int64_t exps = 0;
  int64_t other_flops = 0;     // stated by the functions of common/tile
  int64_t barriers = 0;        // how often blocks passed a barrier of all their threads
  int64_t bank_conflicts = 0;  // extra passes of ldmatrix and stmatrix over shared memory
  // common/README.md defines the remaining counts under their keys.
  int64_t read_sectors = 0, write_sectors = 0;
  int64_t blocks = 0, products = 0, atomics = 0, consumer_copies = 0;
  int64_t flops_under_copies = 0, exps_under_products = 0, exps_between_turns = 0;
  int64_t stores_under_products = 0;

  bool operator==(const Amounts&) const = default;
  void add(const Amounts& other, int64_t times = 1);  // adds times · other
};
/// A member of Amounts, and its key in the JSON report and in traces.
struct Amount {
  using Member = int64_t Amounts::*;  // an alias, because g++ warns of parentheses that nvcc adds
  const char* key;
  Member member;
};
inline constexpr Amount kAmounts[] = {{"sram_read_bytes", &Amounts::sram_read},
                                      {"sram_write_bytes", &Amounts::sram_write},
                                      {"sram_operand_bytes", &Amounts::sram_operands},
                                      {"matmul_flops", &Amounts::matmul_flops},
                                      {"exp_count", &Amounts::exps},
                                      {"other_flops", &Amounts::other_flops},
                                      {"barriers", &Amounts::barriers},
                                      {"bank_conflicts", &Amounts::bank_conflicts},
                                      {"hbm_read_sectors", &Amounts::read_sectors},
                                      {"hbm_write_sectors", &Amounts::write_sectors},
                                      {"blocks", &Amounts::blocks},
                                      {"products", &Amounts::products},
                                      {"atomics", &Amounts::atomics},
                                      {"consumer_copies", &Amounts::consumer_copies},
                                      {"flops_under_copies", &Amounts::flops_under_copies},
                                      {"exps_under_products", &Amounts::exps_under_products},
                                      {"exps_between_turns", &Amounts::exps_between_turns},
                                      {"stores_under_products", &Amounts::stores_under_products}};
static_assert(sizeof(Amounts) == std::size(kAmounts) * sizeof(int64_t));
inline void Amounts::add(const Amounts& other, int64_t times) {
  for (const auto& [key, member] : kAmounts) this->*member += times * (other.*member);
}

/// The kinds of events. All from `round` on are barriers, which a warp's lanes pass together.
enum class EventKind : uint8_t {
  read,        // the global array `name` is read
  write,       // the global array `name` is written
  compute,     // arithmetic between two other events
  collective,  // a warp's collective, the function `name`
  store,       // the shared array `name` is written
  zeros,       // zeros go to shared memory
  // Hopper's operations, issued by single threads.
  tma_load,
  bulk_load,
  tma_store,
  bulk_add,
  tma_store_wait,
  mbarrier_arrive,
  wgmma,
  exit,
  // Barriers.
  round,  // separates the events of a loop's rounds
  syncthreads,
  cp_async_commit,
  cp_async_wait,
  mbarrier_wait,
  named_barrier_arrive,
  named_barrier_sync,
  wgmma_wait,
};
inline constexpr const char* kEventTexts[] = {
    // The kinds' names in traces and in the explorer, in the order of EventKind.
    "read", "write", "compute", "collective", "store", "zeros",
    // Hopper's.
    "tma_load", "bulk_load", "tma_store", "bulk_add", "tma_store_wait", "mbarrier_arrive", "wgmma",
    "exit",
    // Barriers.
    "round", "__syncthreads", "cp_async_commit", "cp_async_wait", "mbarrier_wait",
    "named_barrier_arrive", "named_barrier_sync", "wgmma_wait"};
static_assert(std::size(kEventTexts) == static_cast<size_t>(EventKind::wgmma_wait) + 1);
inline constexpr const char* text_of(EventKind kind) {
  return kEventTexts[static_cast<size_t>(kind)];
}
constexpr bool is_barrier(EventKind kind) {
  return kind >= EventKind::round;
}

/// What a warp did at one line of its kernel. All lanes' work at the same line forms one event. The
/// rounds of a loop that waits for nothing also form one event, up to some size. Every count is
/// recorded once, so the sums over the events are the run's counts. A warp's events are in program
/// order; the events of a block's warps are interleaved in one order that the barriers allow. An
/// event is placed where it began; for a wait, that is where the warp began to wait.
///
/// The members keep their names in the file that --trace writes (harness/trace_file.cpp), in Python
/// (scripts/ladder/trace/read.py) and on the explorer's page. Writing the file turns sites into
/// source lines; Python adds a time and the part of the problem that the event works on.
struct TraceEvent {
  int launch;     // index into Trace::launches
  int64_t block;  // x + gridDim.x·(y + gridDim.y·z)
  int warp;       // number in its block
  int64_t order;  // position among all events of the run
  EventKind kind;
  /// The name depends on the kind. Copy: its array. Mbarrier: the barrier, such as K_full[1]. Named
  /// barrier: its number. Collective: its function. Product: the shared array of its right operand
  /// (the event is recorded when the product's group is committed).
  std::string name;
  std::string barrier;  // for a load, the mbarrier that counts its bytes
  /// The number depends on the kind. __syncthreads: how many the block has passed before. Mbarrier:
  /// the phase that a load or arrival counts for, or that a wait waits for (phase -1 has ended from
  /// the start). Named barrier: how often it was completed before. Products and stores: their
  /// group, counted from 0. Wait for groups: all groups below this number.
  int64_t number = 0;
  int64_t amount = 0;   // a copy's bytes, a product's FLOPs
  int site = -1;        // index into Trace::sites; -1: unknown
  int start_site = -1;  // for a compute event, the site before it; it ends at `site`
  int64_t bytes = 0;    // bytes of global memory that all lanes requested
  ByteRanges ranges;    // the offsets of these bytes in the array, each once
  struct Touch {
    std::string array;
    bool write;
    ByteRanges ranges;  // relative to the start of the block's shared memory
  };
  std::vector<Touch> shared;  // the event's accesses to shared memory
  Amounts counts;
};

/// The events of a run and the tables to which they refer by index.
struct Trace {
  struct Launch {
    std::string kernel;
    unsigned grid[3], block[3];  // x, y, z
    struct Shared {              // an array in shared memory
      std::string array;
      int64_t begin, bytes;        // its offset in the block's shared memory, and its size
      int64_t panel = 0, row = 0;  // for swizzled tiles: bytes per panel, and per row of a panel
    };
    std::vector<Shared> shared;  // the arrays that the first traced block took
  };
  std::vector<Launch> launches;
  std::vector<TraceEvent> events;
  /// For each site, the addresses of the calls that lead to it, innermost first.
  std::vector<std::vector<uintptr_t>> sites;
  struct Fault {
    std::string message;  // empty: no fault
    int launch = -1;      // index into `launches`
    int64_t block = 0;    // numbered as in TraceEvent
    // The thread's number in its block, or -1 if the launch is at fault; an index into `sites`.
    int thread = 0, site = -1;
  } fault;
};

}  // namespace ladder
