// What --trace records of a run on the sim: everything that its warps did and that was counted.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace ladder {

/// `count` runs of `bytes` bytes, `stride` bytes from the start of one to the next's.
struct Strided {
  int64_t begin, bytes, stride, count;
};

/// What the sim counts of what threads do, HBM apart.
struct Amounts {
  int64_t matmul_flops = 0;  // executed, padding and masked halves included
  int64_t exps = 0;
  int64_t other_flops = 0;                // of the functions of common/tile, which state theirs
  int64_t sram_read = 0, sram_write = 0;  // shared-memory bytes
  void add(const Amounts& other, int64_t times = 1) {
    matmul_flops += times * other.matmul_flops;
    exps += times * other.exps;
    other_flops += times * other.other_flops;
    sram_read += times * other.sram_read;
    sram_write += times * other.sram_write;
  }
};

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
    // As traces write them; a collective is written as its function.
    "read", "write", "compute", nullptr, "store", "zeros",
    // Hopper's.
    "tma_load", "bulk_load", "tma_store", "bulk_add", "tma_store_wait", "mbarrier_arrive", "wgmma",
    "exit",
    // Barriers.
    "round", "__syncthreads", "cp_async_commit", "cp_async_wait", "mbarrier_wait",
    "named_barrier_arrive", "named_barrier_sync", "wgmma_wait"};
static_assert(std::size(kEventTexts) == static_cast<size_t>(EventKind::wgmma_wait) + 1);
/// Whether the lanes of a warp go past it together.
constexpr bool is_barrier(EventKind kind) {
  return kind >= EventKind::round;
}

/// What a warp did at one line of its kernel, or one thread of it at a barrier. What its lanes do
/// at the same line is one event; so are rounds of a loop in which nothing is waited for, up to
/// some size. All that the sim counts is recorded once: sums over the events are the run's counts.
/// A warp's events are in program order, those of a block in one possible order, each at the place
/// where it began: a wait stands where the warp began to wait.
struct TraceEvent : Amounts {
  int launch;     // of Trace::launches
  int64_t block;  // x + gridDim.x·(y + gridDim.y·z)
  int warp;       // of the block
  int64_t order;  // among all of the run
  EventKind kind;
  /// The array that is copied; the barrier, as K_full[1] or, a named one, by its number; of a
  /// product, recorded when its group is committed, the shared array of the right operand.
  std::string name;
  std::string barrier;  // that a load reports to
  /// Of __syncthreads how many the block has passed. For an mbarrier the phase that a load or an
  /// arrival counts for, or whose end is waited for (-1 is over from the start). For a named
  /// barrier how often it was complete before. For products and stores their group, the first
  /// being 0; a wait is for all groups below the number.
  int64_t number = 0;
  int64_t amount = 0;           // bytes of a copy; FLOPs of a product
  int site = -1;                // of Trace::sites; -1: unknown
  int from = -1;                // of a compute event: it lies between that and `site`
  int64_t bytes = 0;            // requested of HBM, every lane's
  std::vector<Strided> ranges;  // the same bytes, each once
  struct Touch {
    std::string array;
    bool write;
    std::vector<Strided> ranges;  // from the start of the block's shared memory
  };
  std::vector<Touch> shared;  // what it touched of shared memory
  /// Lane 0's exponentials and FLOPs since its previous wait, signal or request to an engine: such
  /// an event's.
  int64_t lane_exps = 0, lane_other_flops = 0;

  std::string text() const {
    return kind == EventKind::collective ? name : kEventTexts[static_cast<size_t>(kind)];
  }
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
