// A pipeline on Hopper: a ring of stages in shared memory (with two stages, double buffering),
// which a producer fills through TMA and consumers empty.
//
//                              full
//   producer, one thread     ─────────→   consumers, whole warps
//   acquire, fill            ←─────────   wait, tile, release
//                              free
#pragma once

#include "tile/warpgroup.h"

namespace ladder::MACHINE {

/// Where a producer or a consumer is in a ring of n stages: the stage, and the parity of its round
/// through them, which is the parity of the mbarrier phase that fills the stage.
template <int n>
struct Ring {
  int stage = 0, round = 0;
  __device__ __forceinline__ void next() {
    if (++stage == n) stage = 0, round ^= 1;
  }
};

/// n stages in shared memory. A stage is a tile and two barriers, which say that it is full and
/// that it is free again. With several slots it has one of each for each of that many consumers:
/// the producer fills one slot after another, and a consumer sets `slot` to its own. The place in
/// the ring is each thread's own too; all begin at stage 0.
template <class Tile, int n, int slots = 1>
struct Stages {
  Smem<typename Tile::Element> tiles;
  Smem<Mbarrier> full, free;
  Ring<n> at;
  int slot = 0;

  /// Takes the tiles. The barriers come later, in init(), once all tiles of the kernel are taken:
  /// between two tiles they would cost what aligning the second takes.
  __device__ __forceinline__ Stages(SharedMemory& smem, const char* name)
      : tiles(smem.tiles<Tile>(name, n * slots)) {}

  /// Takes the barriers. A stage, or a slot of it, is free after that many arrivals. By all
  /// threads; then thread 0 calls fence_mbarrier_init(), and a barrier of the block follows.
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

  /// The number of a stage's tile and barriers, of this thread's slot.
  __device__ __forceinline__ int number(int stage) const { return stage * slots + slot; }
  __device__ __forceinline__ int number() const { return number(at.stage); }
  __device__ __forceinline__ Tile tile() const { return {tiles + number() * Tile::kElements}; }

  /// For the producer: waits until the stage is free. At first all are: an mbarrier takes the phase
  /// before its first to be over.
  __device__ __forceinline__ void acquire() const { free[number()].wait(1 - at.round); }
  /// The same where at first none is: a consumer frees each, from the first on (set_free()).
  __device__ __forceinline__ void acquire_freed() const { free[number()].wait(at.round); }
  /// Starts filling it from column c0, row c1, head c2, batch c3 of a map, and goes on to the next.
  __device__ __forceinline__ void fill(const TensorMap& map, int c0, int c1, int c2, int c3) {
    full[number()].arrive_expect_tx(Tile::kBytes);
    tma_load(map, full[number()], tile(), c0, c1, c2, c3);
    next_slot();
  }
  /// Says that it is full, without a copy: there is no more to come. Goes on to the next.
  __device__ __forceinline__ void signal_end() {
    full[number()].arrive();
    next_slot();
  }
  __device__ __forceinline__ void next_slot() {
    if (++slot == slots) slot = 0, at.next();
  }

  /// For a consumer: waits until the stage is full.
  __device__ __forceinline__ void wait() const { full[number()].wait(at.round); }
  /// Says that this warp is done with it, which is one arrival, and goes on to the next. Lane 0
  /// waits for no other lane: where lanes read the stage by loads of their own, and not by products
  /// that all have waited for, a __syncwarp() must come before.
  __device__ __forceinline__ void release() {
    if (lane_id() == 0) {
      done_with(tile().data, Tile::kElements);
      free[number()].arrive();
    }
    at.next();
  }
  /// For a consumer that goes on (next()) before it frees a stage; one thread of it arrives. Frees
  /// its own stage, or the one before it in the ring: of two the other, of one its own.
  __device__ __forceinline__ void set_free() const { free[number()].arrive(); }
  __device__ __forceinline__ void set_last_free() const {
    static_assert(n <= 2);
    free[number(n - 1 - at.stage)].arrive();
  }
  __device__ __forceinline__ void next() { at.next(); }
};

/// n stages, each a tile and one float for each of its `rows` rows: LSE comes with Q, D with dO.
template <class Tile, int n, int rows>
struct StagesWithRows : Stages<Tile, n> {
  Smem<float> floats;
  using Stages<Tile, n>::Stages;

  /// Takes the barriers as Stages does, and the floats.
  __device__ __forceinline__ void init(SharedMemory& smem, const char* floats_name,
                                       const char* full_name, const char* free_name, int arrivals) {
    floats = smem.take<float>(floats_name, n * rows);
    Stages<Tile, n>::init(smem, full_name, free_name, arrivals);
  }
  /// The floats of this thread's stage.
  __device__ __forceinline__ Smem<float> of_rows() const { return floats + this->at.stage * rows; }
  /// Starts filling the tile, as Stages does, and its floats from `source`.
  __device__ __forceinline__ void fill(const TensorMap& map, int c0, int c1, int c2, int c3,
                                       Hbm<const float> source) {
    const int stage = this->at.stage;
    this->full[stage].arrive_expect_tx(Tile::kBytes + rows * int{sizeof(float)});
    tma_load(map, this->full[stage], this->tile(), c0, c1, c2, c3);
    bulk_load(this->full[stage], of_rows(), source, rows);
    this->at.next();
  }
  /// As Stages does, once all lanes have read their floats.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane_id() == 0) done_with(of_rows(), rows);
    Stages<Tile, n>::release();
  }
};

}  // namespace ladder::MACHINE
