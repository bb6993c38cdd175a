// Implements machine/hopper.h for the simulator, with async.h and wgmma.h. gpu_hopper.h says what
// each function does; the comments here say what it counts and when it faults.
#pragma once

#define __grid_constant__

#include "machine/sim/async.h"
#include "machine/sim/sim_machine.h"

namespace ladder::sim {

template <class T>
TensorMap tensor_map(Array& array, int d, int64_t rows, int64_t heads, int64_t batch, int box_rows,
                     int box_bytes = 128) {
  constexpr int kElement = sizeof(T);
  static_assert(kElement == 1 || kElement == 2);
  if (std::min<int64_t>({d, rows, heads, batch, box_rows}) < 1 || d * kElement % 16 ||
      box_rows > 256 || (box_bytes != 64 && box_bytes != 128) ||
      (array.data && kElement * d * rows * heads * batch != array.bytes))
    fault(
        "cannot make a tensor map of {} ({} bytes) as ({},{},{},{}) of {} bytes in boxes of {} "
        "rows × {} bytes: rows must be a multiple of 16 bytes, boxes 1 to 256 rows of 64 or 128 "
        "bytes, and the array as large as its shape",
        array.name, array.bytes, batch, heads, rows, d, kElement, box_rows, box_bytes);
  return {
      &static_cast<TrackedArray&>(array), {d, rows, heads, batch}, box_rows, box_bytes, kElement};
}

/// Returns 3, whatever --sms says, so that each block processes several tiles even in small runs.
inline int resident_blocks() {
  return 3;
}

// ------------------------------------------------------------------------------------- barriers

/// A reference to an mbarrier: element i of an array in shared memory. Faults if i is outside it.
class MbarrierRef {
 public:
  MbarrierRef(const Smem<Mbarrier>& array, int64_t i) : place_(array.place(i)) {
    const auto& [name, at, begin, end, element] = place_;
    if (at < begin || at >= end)
      fault("mbarrier {}[{}]: the array has {}", name, i, (end - begin) / element);
  }

  void init(int count) const { this_block->async().init(place_, count); }
  void arrive() const { arrive_expect_tx(0); }
  void arrive_expect_tx(int bytes) const { this_block->async().arrive(place_, bytes); }
  void wait(int parity, Where where = Where::current()) const {
    this_block->async().wait(place_, parity, where);
  }
  const SharedPlace& place() const { return place_; }

 private:
  SharedPlace place_;
};

template <>
struct InShared<Mbarrier> {
  using Ref = MbarrierRef;
};

inline void fence_mbarrier_init() {
  this_block->async().fence_init();
}
inline void fence_proxy_async() {
  this_block->async().fence_proxy();
}
inline void named_barrier_sync(int id, int threads, Where where = Where::current()) {
  this_block->async().named_barrier(id, threads, true, where);
}
inline void named_barrier_arrive(int id, int threads, Where where = Where::current()) {
  this_block->async().named_barrier(id, threads, false, where);
}
template <int n>
void setmaxnreg_inc() {
  static_assert(n >= 24 && n <= 256 && n % 8 == 0);
  this_block->async().set_registers(n);
}
template <int n>
void setmaxnreg_dec() {
  setmaxnreg_inc<n>();
}

// ----------------------------------------------------------------------------------- bulk copies

/// Counts the box's bytes inside the array as global reads, and all its bytes as shared writes.
template <class T>
void tma_load(const TensorMap& map, MbarrierRef barrier, Smem<T> target, int c0, int c1, int c2,
              int c3) {
  this_block->async().load(EventKind::tma_load,
                           Async::box("TMA load", map, target.place(0), {c0, c1, c2, c3}),
                           barrier.place());
}
/// Counts the box's bytes inside the array as global writes and as shared reads. Faults for a
/// negative coordinate, which the chip forbids.
template <class T>
void tma_store(const TensorMap& map, Smem<T> source, int c0, int c1, int c2, int c3) {
  if (const int least = std::min({c0, c1, c2, c3}); least < 0)
    fault("TMA store to place {}: a box to store must not start before 0", least);
  this_block->async().store(EventKind::tma_store,
                            Async::box("TMA store", map, source.place(0), {c0, c1, c2, c3}), false);
}
inline void tma_store_commit() {
  this_block->async().commit_stores();
}
template <int groups>
void tma_store_wait_read(Where where = Where::current()) {
  this_block->async().wait_stores(groups, where);
}
template <int groups>
void tma_store_wait(Where where = Where::current()) {
  this_block->async().wait_stores(groups, where);
}

/// Counts the bytes as global reads and as writes to shared memory.
inline void bulk_load(MbarrierRef barrier, Smem<float> target, Hbm<const float> source, int n) {
  this_block->async().load(
      EventKind::bulk_load,
      Async::floats("bulk_load", source.array(), source.byte(0), target.place(0), n),
      barrier.place());
}
/// Counts a read and a write of each byte of global memory, like atomicAdd, and shared reads.
inline void bulk_add(Hbm<float> target, Smem<float> source, int n) {
  this_block->async().store(
      EventKind::bulk_add,
      Async::floats("bulk_add", target.array(), target.byte(0), source.place(0), n), true);
}

template <class T>
void stmatrix_x4(Smem<T> row, const unsigned (&r)[4]) {
  static_assert(sizeof(T) == 2);
  struct Lane {
    const unsigned* r;
    int64_t at;
    std::array<unsigned, 4> row;
  } mine{r, row.byte(0), {}};
  whole_warp("stmatrix.x4", mine, [](Lane* const* lanes, int) {
    count_conflicts(lanes);
    for (int l = 0; l < 32; ++l)
      for (int j = 0; j < 4; ++j) lanes[l]->row[j] = lanes[l % 8 * 4 + j]->r[l / 8];
  });
  row.store_as("stmatrix.x4 of a row", mine.row);
}

// ------------------------------------------------------------------------- products of a warpgroup

template <class T>
uint64_t matrix_descriptor(Smem<T> start, int leading, int stride, int piece = 128) {
  return (static_cast<uint64_t>(start.byte(0)) & 0x3ffff) >> 4 |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         uint64_t{piece == 64 ? 2u : 1u} << 62;
}
/// Faults if the new start exceeds its 14 bits, because on the chip it would change the next field.
inline uint64_t advanced(uint64_t descriptor, int bytes) {
  const uint64_t start = (descriptor & 0x3fff) + static_cast<uint64_t>(bytes >> 4);
  if (bytes % 16 || start > 0x3fff)
    fault("wgmma: a matrix descriptor advanced by {} bytes: not a multiple of 16, or too far",
          bytes);
  return (descriptor & ~uint64_t{0x3fff}) | start;
}

inline void wgmma_fence_instruction() {}
inline int uniform(int x, unsigned = 0) {
  return x;
}
/// Does nothing: the simulator runs in program order.
inline void scheduling_barrier() {}
template <class R, int n>
void hold(R (&registers)[n][4]) {
  this_block->async().warpgroup().fence_registers(registers, sizeof(registers));
}
inline void wgmma_commit() {
  this_block->async().warpgroup().commit();
}
template <int groups>
void wgmma_wait_instruction(Where where = Where::current()) {
  this_block->async().warpgroup().wait(groups, where);
}

/// Declares that the warp is done reading n elements. Faults if a product of its warpgroup still
/// reads them, or if TMA or bulk_load wrote them and another lane read them with no barrier since.
template <class T>
void done_with(Smem<T> tile, int n) {
  this_block->async().done_with(tile.place(0), n * int64_t{sizeof(T)});
}

/// Whether gpu_hopper.h defines a product with N = 8·n columns.
template <int n>
constexpr bool kHasWidth = n == 4 || n == 8 || n == 10 || n == 12 || n == 16 || n == 24 || n == 32;
template <class T>
Element element_of() {
  return sizeof(T) == 1 ? Element::e4m3 : is_bf16<T>() ? Element::bf16 : Element::fp16;
}

/// Counts 2·64·N·16 matmul FLOPs (e4m3: 2·64·N·32), and reads of operands in shared memory.
template <class T, bool transposed_a, bool transposed_b, int n>
void wgmma_m64(float (&d)[n][4], uint64_t a, uint64_t b, int scale_d) {
  static_assert(kHasWidth<n>);
  this_block->async().warpgroup().issue(
      {8 * n, element_of<T>(), false, transposed_a, transposed_b, a, b, scale_d}, &d[0][0],
      nullptr);
}
template <class T, bool transposed_b, int n>
void wgmma_m64(float (&d)[n][4], unsigned (&a)[4], uint64_t b, int scale_d) {
  static_assert(kHasWidth<n>);
  this_block->async().warpgroup().issue(
      {8 * n, element_of<T>(), true, false, transposed_b, 0, b, scale_d}, &d[0][0], a);
}

}  // namespace ladder::sim
