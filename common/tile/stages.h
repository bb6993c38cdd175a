// A pipeline on Hopper: a ring of stages in shared memory (double buffering, if there are two). A
// producer fills the stages through TMA; consumers use and then free them. `full` and `free` are
// mbarriers. Below each side of this picture are the functions that it calls in turn.
//
//                              full
//   producer, one thread     ─────────→   consumers, whole warps
//   acquire, fill            ←─────────   wait, tile, release
//                              free
#pragma once

#include "tile/warpgroup.h"

namespace ladder::MACHINE {

/// The position of a producer or consumer in a ring of n stages: `stage` is the current stage,
/// `round` the parity of the completed rounds, and thus of the mbarrier phase that fills the stage.
template <int n>
struct Ring {
  int stage = 0, round = 0;
  __device__ __forceinline__ void next() {
    if (++stage == n) stage = 0, round ^= 1;
  }
};

/// n stages in shared memory. A stage is a tile and two mbarriers: a phase of `full` ends when the
/// tile is complete, and a phase of `free` when all consumers are done with it. If slots > 1, each
/// stage has one slot per consumer, and each slot has a tile and barriers of its own. The producer
/// fills one slot after another, and each consumer sets `slot` to its own number. Every thread
/// keeps its position in the ring in its own registers and begins at stage 0.
template <class Tile, int n, int slots = 1>
struct Stages {
  Smem<typename Tile::Element> tiles;
  Smem<Mbarrier> full, free;
  Ring<n> at;
  int slot = 0;

  /// Allocates the tiles. init() allocates the barriers: between tiles they would cost padding.
  __device__ __forceinline__ Stages(SharedMemory& smem, const char* name)
      : tiles(smem.tiles<Tile>(name, n * slots)) {}

  /// Allocates and initialises the barriers. A stage, or each of its slots, becomes free after
  /// `arrivals` arrivals. All threads call init(); then thread 0 must call fence_mbarrier_init(),
  /// and a __syncthreads() must follow.
  __device__ __forceinline__ void init(SharedMemory& smem, const char* full_name,
                                       const char* free_name, int arrivals) {
    full = smem.take<Mbarrier>(full_name, n * slots);
    free = smem.take<Mbarrier>(free_name, n * slots);
    if (threadIdx.x == 0)
      for (int i = 0; i < n * slots; ++i) {
        full[i].init(1);
        free[i].init(arrivals);
      }
  }

  /// Returns the index of a stage's tile and barriers in this thread's slot.
  __device__ __forceinline__ int number(int stage) const { return stage * slots + slot; }
  __device__ __forceinline__ int number() const { return number(at.stage); }
  /// Returns the tile of this thread's stage and slot.
  __device__ __forceinline__ Tile tile() const { return {tiles + number() * Tile::kElements}; }

  /// For the producer: waits until the current stage is free. In the first round every wait passes
  /// immediately, because an mbarrier treats the phase before its first one as ended.
  __device__ __forceinline__ void acquire() const { free[number()].wait(1 - at.round); }
  /// Like acquire(), but in the first round, too, waits for a consumer to call set_free().
  __device__ __forceinline__ void acquire_freed() const { free[number()].wait(at.round); }
  /// Starts filling the tile from column c0, row c1, head c2, batch c3 of `map`; calls next_slot().
  __device__ __forceinline__ void fill(const TensorMap& map, int c0, int c1, int c2, int c3) {
    full[number()].arrive_expect_tx(Tile::kBytes);
    tma_load(map, full[number()], tile(), c0, c1, c2, c3);
    next_slot();
  }
  /// Marks the stage full without a copy, to tell the consumer that no work is left; then advances.
  __device__ __forceinline__ void signal_end() {
    full[number()].arrive();
    next_slot();
  }
  /// Advances to the next slot, or from the last slot to the next stage.
  __device__ __forceinline__ void next_slot() {
    if (++slot == slots) slot = 0, at.next();
  }

  /// For a consumer: waits until the stage is full.
  __device__ __forceinline__ void wait() const { full[number()].wait(at.round); }
  /// For a consumer: signals with one arrival that this warp is done with the stage, and advances.
  /// Lane 0 arrives without waiting for other lanes. If lanes have read the stage with loads of
  /// their own, not only through products that all have waited for, call __syncwarp() first.
  __device__ __forceinline__ void release() {
    if (lane_id() == 0) {
      done_with(tile().data, Tile::kElements);
      free[number()].arrive();
    }
    at.next();
  }
  /// For one thread of a consumer that advances (next()) before it frees a stage. set_free() frees
  /// the current stage, and set_last_free() the previous one in the ring (or the only one).
  __device__ __forceinline__ void set_free() const { free[number()].arrive(); }
  __device__ __forceinline__ void set_last_free() const {
    static_assert(n <= 2);
    free[number(n - 1 - at.stage)].arrive();
  }
  /// For a consumer: advances to the next stage without freeing the current one.
  __device__ __forceinline__ void next() { at.next(); }
};

/// n stages, each a tile and one float per row of the tile: LSE arrives with Q, and D with dO.
template <class Tile, int n, int rows>
struct StagesWithRows : Stages<Tile, n> {
  Smem<float> floats;
  using Stages<Tile, n>::Stages;

  /// Allocates the floats, then allocates and initialises the barriers as Stages does.
  __device__ __forceinline__ void init(SharedMemory& smem, const char* floats_name,
                                       const char* full_name, const char* free_name, int arrivals) {
    floats = smem.take<float>(floats_name, n * rows);
    Stages<Tile, n>::init(smem, full_name, free_name, arrivals);
  }
  /// Returns the floats of the thread's current stage.
  __device__ __forceinline__ Smem<float> of_rows() const { return floats + this->at.stage * rows; }
  /// Like Stages' fill(), but also copies `rows` floats from `source`; one mbarrier counts both.
  __device__ __forceinline__ void fill(const TensorMap& map, int c0, int c1, int c2, int c3,
                                       Hbm<const float> source) {
    const int stage = this->at.stage;
    this->full[stage].arrive_expect_tx(Tile::kBytes + rows * int{sizeof(float)});
    tma_load(map, this->full[stage], this->tile(), c0, c1, c2, c3);
    bulk_load(this->full[stage], of_rows(), source, rows);
    this->at.next();
  }
  /// Frees the stage as Stages does, but only after all lanes have read their floats.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane_id() == 0) done_with(of_rows(), rows);
    Stages<Tile, n>::release();
  }
};

}  // namespace ladder::MACHINE
