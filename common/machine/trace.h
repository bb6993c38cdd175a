// What --trace records of a run on the simulator: everything that its warps did and that was
// counted.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace ladder {

/// Runs of bytes, in order: where each begins and ends.
using ByteRanges = std::vector<std::pair<int64_t, int64_t>>;

/// What the simulator counts of what threads do, HBM's bytes apart.
struct Amounts {
  int64_t sram_read = 0, sram_write = 0;  // shared-memory bytes
  int64_t sram_operands = 0;              // of those read: for products, or by ldmatrix for them
  int64_t matmul_flops = 0;               // executed, padding and masked halves included
  int64_t exps = 0;
  int64_t other_flops = 0;     // of the functions of common/tile, which state theirs
  int64_t barriers = 0;        // times that a block passed a __syncthreads, over all blocks
  int64_t bank_conflicts = 0;  // extra passes of collectives over shared memory
  // The rest is what common/README.md says of its key.
  int64_t read_sectors = 0, write_sectors = 0;
  int64_t blocks = 0, products = 0, atomics = 0, consumer_copies = 0;
  int64_t flops_under_copies = 0, exps_under_products = 0, exps_between_turns = 0;
  int64_t stores_under_products = 0;

  bool operator==(const Amounts&) const = default;
  void add(const Amounts& other, int64_t times = 1);
};
/// An amount and its key in JSON and in traces.
struct Amount {
  using Member = int64_t Amounts::*;  // named: nvcc passes it on in parentheses, of which g++ warns
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

enum class EventKind : uint8_t {
  read,        // of HBM's array `name`
  write,       // to it
  compute,     // what is counted between two of the others
  collective,  // of a warp, the function `name`
  store,       // to the shared array `name`
  zeros,       // to shared memory
  // Hopper's, by one thread for itself.
  tma_load,
  bulk_load,
  tma_store,
  bulk_add,
  tma_store_wait,
  mbarrier_arrive,
  wgmma,
  exit,
  // Barriers.
  round,  // between two events' worth of a loop's rounds
  syncthreads,
  cp_async_commit,
  cp_async_wait,
  mbarrier_wait,
  named_barrier_arrive,
  named_barrier_sync,
  wgmma_wait,
};
inline constexpr const char* kEventTexts[] = {
    // As traces and the explorer have them.
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
/// Whether the lanes of a warp go past it together.
constexpr bool is_barrier(EventKind kind) {
  return kind >= EventKind::round;
}

/// What a warp did at one line of its kernel, or one thread of it at a barrier. What its lanes do
/// at the same line is one event; so are rounds of a loop in which nothing is waited for, up to
/// some size. All that the simulator counts is recorded once: sums over the events are the run's
/// counts. A warp's events are in program order, those of a block in one possible order, each at
/// the place where it began: a wait stands where the warp began to wait.
///
/// An event keeps this shape, and the names of its members, all the way: in the file that --trace
/// writes (harness/trace_file.cpp), in Python (scripts/ladder/trace/read.py) and in the explorer's
/// page. On the way it is added to: sites become lines, and Python adds when and with what.
struct TraceEvent {
  int launch;     // of Trace::launches
  int64_t block;  // x + gridDim.x·(y + gridDim.y·z)
  int warp;       // of the block
  int64_t order;  // among all of the run
  EventKind kind;
  /// The array that is copied; the barrier, as K_full[1] or, a named one, by its number; of a
  /// product, recorded when its group is committed, the shared array of the right operand; the
  /// function that a collective is.
  std::string name;
  std::string barrier;  // that a load reports to
  /// Of __syncthreads how many the block has passed. For an mbarrier the phase that a load or an
  /// arrival counts for, or whose end is waited for (-1 is over from the start). For a named
  /// barrier how often it was complete before. For products and stores their group, the first
  /// being 0; a wait is for all groups below the number.
  int64_t number = 0;
  int64_t amount = 0;   // bytes of a copy; FLOPs of a product
  int site = -1;        // of Trace::sites; -1: unknown
  int start_site = -1;  // of a compute event: it lies between that and `site`
  int64_t bytes = 0;    // requested of HBM, every lane's
  ByteRanges ranges;    // the same bytes, each once
  struct Touch {
    std::string array;
    bool write;
    ByteRanges ranges;  // from the start of the block's shared memory
  };
  std::vector<Touch> shared;  // what it touched of shared memory
  Amounts counts;
};

struct Trace {
  struct Launch {
    std::string kernel;
    unsigned grid[3], block[3];
    struct Shared {
      std::string array;
      int64_t begin, bytes;
    };
    std::vector<Shared> shared;  // arrays that its first block took
  };
  std::vector<Launch> launches;
  std::vector<TraceEvent> events;
  /// The addresses of the calls that lead to a place in a kernel, the innermost first.
  std::vector<std::vector<uintptr_t>> sites;
  struct Fault {
    std::string message;  // empty: there was none
    int launch = -1;
    int64_t block = 0;
    int thread = 0, site = -1;
  } fault;
};

}  // namespace ladder
