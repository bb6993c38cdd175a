// Gives simulated kernels global and shared memory (Hbm, Smem) whose every access is checked and
// counted. gpu_machine.h documents the functions that kernels call.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "machine/sim/global_memory.h"

namespace ladder::sim {

/// Faults if x comes from an accumulator that a wgmma still owns, whose registers hold the NaN
/// kOwnedByWgmma. Arithmetic may change a NaN's sign and quiet bit, so these two are ignored.
inline void check_waited_for(float x) {
  if ((std::bit_cast<uint32_t>(x) & 0x7fbfffff) == kOwnedByWgmma) [[unlikely]]
    fault("uses an accumulator of a wgmma before the wgmma_wait() for it");
}

// ---------------------------------------------------------------------------------- global memory

/// An element S[i] of a writable array, read when its value is used and written when it is assigned
/// to. Write `float x = S[i]`, never `auto x = S[i]`: that copies the value on the GPU, but would
/// read it later here, so uses of such an x do not compile.
template <class T, class Pointer>
class Ref {
 public:
  Ref(const Pointer& array, int64_t i) : array_(array), i_(i) {}
  operator T() && { return array_.load(i_); }
  explicit operator float() && requires(!std::is_same_v<T, float>) {
    return static_cast<float>(array_.load(i_));
  }
  Ref& operator=(T x) {
    if constexpr (std::is_same_v<T, float>) check_waited_for(x);
    array_.store(i_, x);
    return *this;
  }
  Ref& operator=(const Ref& other) { return *this = other.array_.load(other.i_); }

 private:
  Pointer array_;
  int64_t i_;
};

/// A pointer into a TrackedArray. An access through [] is counted; copying or offsetting it is not.
template <class T>
class Hbm {
 public:
  using Value = std::remove_const_t<T>;

  Hbm() = default;
  explicit Hbm(Array& array) : array_(&static_cast<TrackedArray&>(array)) {}
  template <class U>
  requires(std::is_same_v<T, const U>) Hbm(const Hbm<U>& other)
      : array_(other.array_), origin_(other.origin_) {}

  [[gnu::always_inline]] auto operator[](int64_t i) const {
    if constexpr (std::is_const_v<T>)
      return load(i);
    else
      return Ref<T, Hbm>(*this, i);
  }
  Hbm operator+(int64_t n) const {
    Hbm moved = *this;
    moved.origin_ += n;
    return moved;
  }

  [[gnu::always_inline]] Value load(int64_t i) const {
    count<Access::read>(i);
    return data()[i];
  }
  void store(int64_t i, Value x) const {
    count<Access::write>(i);
    data()[i] = x;
  }
  /// Read or write a U in aligned accesses of min(16, sizeof(U)) bytes, which faults call `what`.
  template <class U>
  U load_as(const char* what) const {
    count_wide<Access::read, U>(what);
    U x;
    std::memcpy(static_cast<void*>(&x), data(), sizeof(U));
    return x;
  }
  template <class U>
  void store_as(const char* what, const U& x) const {
    count_wide<Access::write, U>(what);
    std::memcpy(static_cast<void*>(data()), &x, sizeof(U));
  }
  TrackedArray& array() const { return *array_; }
  /// Returns the byte offset of element i in the array.
  int64_t byte(int64_t i) const { return (origin_ + i) * static_cast<int64_t>(sizeof(T)); }
  /// Checks and counts an access of n bytes at element i.
  template <Access access, int n = sizeof(T)>
  [[gnu::always_inline]] void count(int64_t i) const {
    Block& block = *this_block;
    array_->check_access<access, n>(block, byte(i), sizeof(T));
    array_->record_access<access, n>(block, byte(i));
  }
  void check_aligned(const char* what, int bytes) const {
    if (byte(0) % bytes) fault("{} not aligned to {} bytes", what, bytes);
  }
  /// Adds x atomically to element 0 and returns the old value.
  T add(Value x) const {
    count<Access::add>(0);
    return add_atomically(*data(), x);
  }
  /// Counts cp_async's read of `bytes` bytes and returns the address that it reads later.
  template <int bytes>
  const char* counted_bytes() const {
    count<Access::read, bytes>(0);
    return reinterpret_cast<const char*>(data());
  }

 private:
  template <class U>
  friend class Hbm;
  /// Returns the address of element [0], for accesses that have already been counted.
  T* data() const { return static_cast<T*>(array_->contents()) + origin_; }
  template <Access access, class U>
  void count_wide(const char* what) const {
    constexpr int kWidth = sizeof(U) < 16 ? sizeof(U) : 16;
    check_aligned(what, kWidth);
    for (int i = 0; i < int(sizeof(U) / sizeof(T)); i += kWidth / sizeof(T))
      count<access, kWidth>(i);
  }

  TrackedArray* array_ = nullptr;
  int64_t origin_ = 0;  // the array index of element [0]
};

template <class T>
using HbmWrittenBefore = Hbm<T>;  // only GPU compilers need the distinction
template <class T>
Hbm<T> hbm(Array& array) {
  return Hbm<T>(array);
}

// ---------------------------------------------------------------------------------- shared memory

template <class T>
class Smem;
/// Defines the type that [] on shared memory returns: Ref, or MbarrierRef for mbarriers.
template <class T>
struct InShared {
  using Ref = sim::Ref<T, Smem<T>>;
};

/// A pointer into an array in the block's shared memory. Accesses outside the array fault.
template <class T>
class Smem {
 public:
  Smem() = default;
  explicit Smem(const SharedPlace& place) : place_(place) {}
  auto operator[](int64_t i) const { return typename InShared<T>::Ref(*this, i); }
  [[gnu::always_inline]] Smem operator+(int64_t n) const { return Smem(place(n)); }

  T load(int64_t i) const { return read<T>(place(i)); }
  void store(int64_t i, T x) const { write(place(i), x); }
  /// Read or write a U of at most 16 bytes in one aligned access, which faults call `what`.
  template <class U>
  U load_as(const char* what) const {
    check_aligned(what, "from", sizeof(U));
    return read<U>(place_);
  }
  template <class U>
  void store_as(const char* what, const U& x) const {
    check_aligned(what, "to", sizeof(U));
    write(place_, x);
  }
  /// Return element i's byte offset in shared memory, and as a place with the array's bounds.
  int64_t byte(int64_t i) const { return place_.at + i * int64_t{sizeof(T)}; }
  [[gnu::always_inline]] SharedPlace place(int64_t i) const {
    return place_ + i * int64_t{sizeof(T)};
  }

 private:
  void check_aligned(const char* what, const char* way, int bytes) const {
    if (place_.at % bytes)
      fault("{} {} shared {} not aligned to {} bytes", what, way, place_.name, bytes);
  }
  template <class U>
  static U read(const SharedPlace& place) {
    this_block->memory.check_read<sizeof(U)>(place, this_block->running());
    this_block->counts.sram_read += sizeof(U);
    U x;
    std::memcpy(&x, this_block->memory.data() + place.at, sizeof(U));
    return x;
  }
  template <class U>
  static void write(const SharedPlace& place, const U& x) {
    this_block->memory.check_write<sizeof(U)>(place, this_block->running());
    this_block->count_stored(sizeof(U));
    std::memcpy(this_block->memory.data() + place.at, &x, sizeof(U));
  }

  SharedPlace place_;
};

/// Hands out the block's dynamic shared memory front to back. Every thread of a block must take the
/// same arrays in the same order. `name` names an array in messages and traces; `panel` and `row`
/// are the bytes per panel of a swizzled tile, and per row of a panel (0: not swizzled).
class SharedMemory {
 public:
  template <class T>
  Smem<T> take(const char* name, int64_t count, int alignment = 128, int64_t panel = 0,
               int64_t row = 0) {
    const int64_t bytes = count * int64_t{sizeof(T)};
    const int64_t begin =
        this_block->memory.take(this_block->running(), name, bytes, alignment, panel, row);
    return Smem<T>({name, begin, begin, begin + bytes, sizeof(T)});
  }
  template <class Tile>
  auto tiles(const char* name, int n = 1) {
    using T = typename Tile::Element;
    const int64_t count = int64_t{n} * Tile::kElements;
    if constexpr (requires { Tile::kPanelBytes; })
      return take<T>(name, count, Tile::kAlignment, Tile::kPanel * int64_t{sizeof(T)},
                     Tile::kPanelBytes);
    else
      return take<T>(name, count, Tile::kAlignment);
  }
};

// ------------------------------------------------------------------------- wide and other accesses

template <class T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Chunk {
  T x[8];
  T& operator[](int i) { return x[inside(i)]; }
  T operator[](int i) const { return x[inside(i)]; }
  static int inside(int i) {
    if (i < 0 || i >= 8) [[unlikely]]
      fault("element {} of a chunk, which has 8", i);
    return i;
  }
};
template <class T>
auto read_chunk(Hbm<T> source) {
  return source.template load_as<Chunk<std::remove_const_t<T>>>("read of a chunk");
}
template <class T>
auto read_chunk(Hbm<T> source, bool valid) {
  static_assert(sizeof(T) == 2);
  return valid ? read_chunk(source) : Chunk<std::remove_const_t<T>>{};
}
template <class Pointer, class T>
void write_chunk(Pointer target, const Chunk<T>& chunk) {
  target.store_as("write of a chunk", chunk);
}

template <class T>
unsigned read_pair(Hbm<T> source, bool valid) {
  return valid ? source.template load_as<unsigned>("read of a pair") : 0;
}
template <class Pointer>
void store_pair(Pointer target, unsigned pair) {
  target.store_as("store of a pair", pair);
}
template <class Pointer>
void store_pair(Pointer target, float low, float high) {
  target.store_as("store of a pair", std::array{low, high});
}
template <class Pointer>
void read_4(float (&x)[4], Pointer source) {
  const auto read = source.template load_as<std::array<float, 4>>("read of 4 floats");
  std::copy(read.begin(), read.end(), x);
}
inline void store_4(Smem<float> target, const float (&x)[4]) {
  for (const float f : x) check_waited_for(f);
  target.store_as("store of 4 floats", std::to_array(x));
}
template <class T>
void store_16_bytes(Hbm<T> target, Smem<T> source) {
  target.store_as("16-byte store to global memory",
                  source.template load_as<std::array<char, 16>>("16-byte store"));
}

/// Adds x atomically, counts a read and a write, and returns the old value.
template <class T>
T atomicAdd(Hbm<T> target, T x) {
  ++this_block->counts.atomics;
  return target.add(x);
}
inline void atomic_add_pair(Hbm<float> target, float a, float b) {
  target.check_aligned("atomic_add_pair", 8);
  atomicAdd(target, a);
  atomicAdd(target + 1, b);
}

inline void opaque(int&) {}  // only GPU code has registers to save
inline void atomic_add_4(Hbm<float> target, const float (&x)[4]) {
  target.check_aligned("atomic_add_4", 16);
  for (int i = 0; i < 4; ++i) atomicAdd(target + i, x[i]);
}

/// Counts the read and the write at once, although the copy ends only at a wait.
template <int bytes = 16, class T, class U>
void cp_async(Smem<T> target, Hbm<U> source, bool valid = true) {
  static_assert(std::is_same_v<T, std::remove_const_t<U>>);
  if (valid) source.check_aligned("asynchronous copy from global memory", bytes);
  this_block->memory.begin_copy(target.place(0),
                                valid ? source.template counted_bytes<bytes>() : nullptr, bytes,
                                this_block->running());
  this_block->counts.sram_write += bytes;
  this_block->count_copy();
  if (Recorder* const r = this_block->recorder()) [[unlikely]]
    r->copy(target.place(0), bytes, !valid);
}
inline void cp_async_commit() {
  this_block->trace_event(EventKind::cp_async_commit, "",
                          this_block->memory.commit_copies(this_block->running()));
}
template <int groups>
void cp_async_wait() {
  this_block->trace_event(EventKind::cp_async_wait, "",
                          this_block->memory.wait_for_copies(groups, this_block->running()));
}

}  // namespace ladder::sim
