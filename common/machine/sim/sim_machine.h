// The sim's side of machine.h: CUDA's constructs with CUDA's meaning, checked and counted. What a
// function does is said in gpu_machine.h; here, what it counts and where it faults.
#pragma once

#define MACHINE sim
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "float16.h"
#include "float8.h"
#include "machine/sim/engine.h"

namespace ladder::sim {

inline constexpr DeviceKind kDevice = DeviceKind::sim;
using ladder::bf16;
using ladder::e4m3;
using ladder::fp16;
using std::max;
using std::min;

/// Faults where x comes from a register of sums that a wgmma still owns: a NaN's payload survives
/// arithmetic; only its sign and its quiet bit may change.
inline void check_waited_for(float x) {
  if ((std::bit_cast<uint32_t>(x) & 0x7fbfffff) == kOwnedByWgmma) [[unlikely]]
    fault("uses an accumulator of a wgmma before the wgmma_wait() for it");
}

// ---------------------------------------------------------------------------------- global memory

/// An element of a writable array: reads when its value is used, writes when assigned. Only as long
/// as it has no name: `auto x = S[i]` is a copy on the gpu, and would be read late here; the sim
/// refuses to compile uses of such an x. Say `float x = S[i]`.
template <class T, class Pointer>
class Ref {
 public:
  Ref(const Pointer& array, int64_t i) : array_(array), i_(i) {}
  operator T() && { return array_.load(i_); }
  explicit operator float() && requires(!std::is_same_v<T, float>) {
    return static_cast<float>(array_.load(i_));
  }
  Ref& operator=(T x) {
    array_.store(i_, x);
    return *this;
  }
  Ref& operator=(const Ref& other) { return *this = other.array_.load(other.i_); }

 private:
  Pointer array_;
  int64_t i_;
};

/// A pointer into a tracked array. Copying and offsetting are free; [] reads or writes and counts.
template <class T>
class Hbm {
 public:
  using Value = std::remove_const_t<T>;

  Hbm() = default;
  explicit Hbm(Array& array) : array_(&static_cast<Tracked&>(array)) {}
  template <class U>
  requires(std::is_same_v<T, const U>) Hbm(const Hbm<U>& other)
      : array_(other.array_), origin_(other.origin_) {}

  auto operator[](int64_t i) const {
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

  Value load(int64_t i) const {
    count<Access::read>(i);
    return data()[i];
  }
  void store(int64_t i, Value x) const {
    if constexpr (std::is_same_v<T, float>) check_waited_for(x);
    count<Access::write>(i);
    data()[i] = x;
  }
  T* data() const { return static_cast<T*>(array_->data) + origin_; }
  Tracked& array() const { return *array_; }
  /// Where element i stands in the array.
  int64_t byte(int64_t i) const { return (origin_ + i) * static_cast<int64_t>(sizeof(T)); }
  /// Checks and counts an access of n bytes at element i.
  template <Access access, int n = sizeof(T)>
  void count(int64_t i) const {
    array_->touch<access, n>(worker->block(), byte(i), sizeof(T));
  }

 private:
  template <class U>
  friend class Hbm;
  Tracked* array_ = nullptr;
  int64_t origin_ = 0;  // element that [0] is
};

template <class T>
using HbmRef = Ref<T, Hbm<T>>;

template <class T>
Hbm<T> hbm(Array& array) {
  return Hbm<T>(array);
}

// ---------------------------------------------------------------------------------- shared memory

template <class T>
class Smem;
/// What [] of shared memory gives.
template <class T>
struct InShared {
  using Ref = sim::Ref<T, Smem<T>>;
};

/// A pointer into the block's shared memory, bound to the region it was taken as.
template <class T>
class Smem {
 public:
  Smem() = default;
  Smem(const char* name, int64_t begin, int64_t end)
      : name_(name), at_(begin), begin_(begin), end_(end) {}
  auto operator[](int64_t i) const { return typename InShared<T>::Ref(*this, i); }
  Smem operator+(int64_t n) const {
    Smem moved = *this;
    moved.at_ += n * static_cast<int64_t>(sizeof(T));
    return moved;
  }

  T load(int64_t i) const { return load_as<T>(i); }
  void store(int64_t i, T x) const {
    if constexpr (std::is_same_v<T, float>) check_waited_for(x);
    store_as<T>(i, x);
  }
  /// Reads or writes a U (16 bytes at most) that starts at element i.
  template <class U>
  U load_as(int64_t i) const {
    worker->memory().check_read<sizeof(U)>(place(i), sizeof(T), worker->block().running());
    worker->counts().sram_read += sizeof(U);
    U x;
    std::memcpy(&x, worker->memory().data() + byte(i), sizeof(U));
    return x;
  }
  template <class U>
  void store_as(int64_t i, U x) const {
    worker->memory().check_write<sizeof(U)>(place(i), sizeof(T), worker->block().running());
    worker->counts().sram_write += sizeof(U);
    std::memcpy(worker->memory().data() + byte(i), &x, sizeof(U));
  }
  int64_t byte(int64_t i) const { return at_ + i * static_cast<int64_t>(sizeof(T)); }
  SharedPlace place(int64_t i) const { return {name_, byte(i), begin_, end_}; }

 private:
  const char* name_ = "";
  int64_t at_ = 0, begin_ = 0, end_ = 0;  // bytes in the block's shared memory
};

template <class T>
using SmemRef = Ref<T, Smem<T>>;

/// The block's dynamic shared memory, handed out front to back. Every thread of a block must take
/// the same pieces in the same order.
class SharedMemory {
 public:
  template <class T>
  Smem<T> take(const char* name, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    const int64_t begin = worker->memory().take(worker->block().running(), name, bytes);
    return Smem<T>(name, begin, begin + bytes);
  }
};

/// Wide accesses of global memory must be aligned, to 16 bytes mostly.
inline void check_aligned(const void* p, const char* what, uintptr_t bytes = 16) {
  if (reinterpret_cast<uintptr_t>(p) % bytes)
    fault(std::string(what) + " not aligned to " + std::to_string(bytes) + " bytes");
}

template <class T>
void check_aligned(const Smem<T>& place, const char* what, int bytes) {
  if (place.byte(0) % bytes)
    fault(std::string(what) + " shared " + place.place(0).name + " not aligned to " +
          std::to_string(bytes) + " bytes");
}

template <int bytes = 16, class T, class U>
void cp_async(Smem<T> target, Hbm<U> source, bool valid = true) {
  static_assert(std::is_same_v<T, std::remove_const_t<U>>);
  if (valid) {
    if (bytes == 16) check_aligned(source.data(), "asynchronous copy from global memory");
    source.template count<Access::read, bytes>(0);
  }
  Block& block = worker->block();
  worker->memory().begin_copy(target.place(0),
                              valid ? reinterpret_cast<const char*>(source.data()) : nullptr, bytes,
                              sizeof(T), block.running());
  worker->counts().sram_write += bytes;
  if (Recorder* const r = block.recorder()) [[unlikely]]
    r->copy(target.place(0), bytes, !valid);
}
inline void cp_async_commit() {
  Block& block = worker->block();
  block.trace_event_of_warp("cp_async_commit", "", worker->memory().commit_copies(block.running()));
}
template <int groups>
void cp_async_wait() {
  Block& block = worker->block();
  block.trace_event_of_warp("cp_async_wait", "",
                            worker->memory().wait_for_copies(groups, block.running()));
}

// --------------------------------------------------------------------------- barriers, collectives

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  worker->syncthreads(where);
}

/// Runs a collective: every lane of `mask` publishes `mine`; the last to come runs
/// compute(lanes, mask), where lanes[i] is lane i's.
template <class Lane, class Compute>
void collective(const char* word, unsigned mask, Lane& mine, Compute compute,
                std::source_location where = std::source_location::current()) {
  Meeting* meeting;
  if (worker->meet(word, mask, &mine, where, meeting)) {
    compute(reinterpret_cast<Lane* const*>(meeting->lanes), meeting->mask);
    worker->release(*meeting);
  }
}

/// Orders memory too. The other collectives do not, though lanes meet there: what one has copied
/// asynchronously, another sees after this or after a barrier of the block.
inline void __syncwarp(unsigned mask = 0xffffffff,
                       std::source_location where = std::source_location::current()) {
  int nothing = 0;
  collective(
      "__syncwarp", mask, nothing, [](int* const*, unsigned lanes) { worker->publish(lanes); },
      where);
}

/// Gives each lane the value of the lane that from(lane) names, or its own where that is outside
/// the warp. What a lane of the warp that takes no part would give is undefined.
template <class T, class From>
T shuffle(const char* word, unsigned mask, T value, int parameter, From from,
          std::source_location where) {
  struct Lane {
    T in, out;
    int parameter;
  } mine{value, value, parameter};
  collective(
      word, mask, mine,
      [&](Lane* const* lanes, unsigned present) {
        for (int i = 0; i < 32; ++i) {
          if (!(present >> i & 1)) continue;
          const int source = from(i, lanes[i]->parameter);
          if (source < 0 || source >= 32) continue;
          if (!(present >> source & 1))
            fault(std::string(word) + ": lane " + std::to_string(i) + " reads lane " +
                  std::to_string(source) + ", which takes no part");
          lanes[i]->out = lanes[source]->in;
        }
      },
      where);
  return mine.out;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane,
              std::source_location where = std::source_location::current()) {
  return shuffle(
      "__shfl_sync", mask, value, lane, [](int, int p) { return p & 31; }, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes,
                  std::source_location where = std::source_location::current()) {
  return shuffle(
      "__shfl_xor_sync", mask, value, lanes, [](int i, int p) { return i ^ p; }, where);
}

/// Whether the predicate holds in any lane of the mask.
inline bool __any_sync(unsigned mask, bool predicate,
                       std::source_location where = std::source_location::current()) {
  struct Lane {
    bool in, out;
  } mine{predicate, false};
  collective(
      "__any_sync", mask, mine,
      [](Lane* const* lanes, unsigned present) {
        bool any = false;
        for (int i = 0; i < 32; ++i) any = any || ((present >> i & 1) && lanes[i]->in);
        for (int i = 0; i < 32; ++i)
          if (present >> i & 1) lanes[i]->out = any;
      },
      where);
  return mine.out;
}

/// One read and one write, indivisible. Returns what was there before.
template <class T>
T atomicAdd(Hbm<T> target, T x) {
  target.template count<Access::add>(0);
  return add_atomically(*target.data(), x);
}
inline void atomic_add_pair(Hbm<float> target, float a, float b) {
  if (reinterpret_cast<uintptr_t>(target.data()) % 8 != 0) fault("atomic_add_pair: not aligned");
  atomicAdd(target, a);
  atomicAdd(target + 1, b);
}

// -------------------------------------------------------------------------------------- arithmetic

/// Counts as two matmul FLOPs: rungs use it for their products and nothing else.
inline float fmaf(float a, float b, float c) {
  worker->counts().matmul_flops += 2;
  return std::fma(a, b, c);
}
inline float expf(float x) {
  ++worker->counts().exps;
  return std::exp(x);
}
inline float exp2f(float x) {
  ++worker->counts().exps;
  return std::exp2(x);
}

/// 2^x. `counted` false where another lane counts the same exponential. Faults for a NaN: it need
/// not reach any result, as where a row's weight is 0 all the same, and then nothing else finds it.
inline float exp2_fast(float x, bool counted = true) {
  worker->counts().exps += counted;
  check_waited_for(x);
  if (std::isnan(x)) [[unlikely]]
    fault("2^NaN: did −∞ − (−∞) come up?");
  return std::exp2(x);
}
/// Counts FLOPs that are not a matmul's; functions of common/tile call it.
inline void count_flops(int n) {
  worker->counts().other_flops += n;
}

// ---------------------------------------------------------------- tensor cores and their operands

template <class T>
unsigned pack(float low, float high) {
  check_waited_for(low);
  check_waited_for(high);
  return T(low).bits | static_cast<unsigned>(T(high).bits) << 16;
}
template <class T>
unsigned pack(float x0, float x1, float x2, float x3) {
  static_assert(std::is_same_v<T, e4m3>);
  unsigned out = 0;
  int shift = 0;
  for (const float x : {x0, x1, x2, x3}) {
    check_waited_for(x);
    out |= static_cast<unsigned>(T(x).bits) << shift;
    shift += 8;
  }
  return out;
}
/// One half of such a register as a float.
template <class T>
float unpack(unsigned pair, int half) {
  return T::from_bits(static_cast<uint16_t>(pair >> 16 * half));
}

/// A collective of all 32 lanes (CUDA: .sync.aligned).
template <class Lane, class Compute>
void whole_warp(const char* word, Lane& mine, Compute compute) {
  if (worker->block().warp_lanes() != 0xffffffff)
    fault(std::string(word) + " in a warp of fewer than 32 threads");
  collective(word, 0xffffffff, mine, compute);
}

/// Counts how often rows of the four matrices of an ldmatrix or stmatrix meet in a group of banks.
inline void count_conflicts(const std::array<int64_t, 32>& rows) {
  for (size_t m = 0; m < 4; ++m) {
    int in_bank[8] = {}, passes = 1;  // rows of this matrix that start in each group of four banks
    for (size_t i = 0; i < 8; ++i) passes = std::max(passes, ++in_bank[rows[8 * m + i] / 16 % 8]);
    worker->counts().bank_conflicts += passes - 1;
  }
}
/// Four 8×8 matrices of 16-bit elements (or pairs of 8-bit ones) from shared memory, each lane
/// naming one row of 16 bytes. Layout: PTX ISA, “ldmatrix”: lane l receives elements 2·(l%4) and
/// the next of row l/4 of each matrix, transposed: of column l/4.
template <bool transposed, class T>
void ldmatrix(const char* word, unsigned (&r)[4], Smem<T> row) {
  static_assert(sizeof(T) == 2 || (sizeof(T) == 1 && !transposed));
  using Row = std::array<uint16_t, 8>;
  struct Lane {
    Row row;
    int64_t at;
    unsigned out[4];
  } mine{row.template load_as<Row>(0), row.byte(0), {}};
  if (mine.at % 16) fault(std::string(word) + " of a row not aligned to 16 bytes");
  worker->counts().sram_operands += int{sizeof(Row)};
  whole_warp(word, mine, [](Lane* const* lanes, unsigned) {
    std::array<int64_t, 32> rows;
    for (size_t l = 0; l < 32; ++l) rows[l] = lanes[l]->at;
    count_conflicts(rows);
    for (int m = 0; m < 4; ++m)
      for (int l = 0; l < 32; ++l) {
        const int i = l / 4, j = 2 * (l % 4);
        const auto at = [&](int a, int b) -> unsigned { return lanes[8 * m + a]->row[b]; };
        lanes[l]->out[m] =
            transposed ? at(j, i) | at(j + 1, i) << 16 : at(i, j) | at(i, j + 1) << 16;
      }
  });
  for (int m = 0; m < 4; ++m) r[m] = mine.out[m];
}
template <class T>
void ldmatrix_x4(unsigned (&r)[4], Smem<T> row) {
  ldmatrix<false>("ldmatrix.x4", r, row);
}
template <class T>
void ldmatrix_x4_trans(unsigned (&r)[4], Smem<T> row) {
  ldmatrix<true>("ldmatrix.x4.trans", r, row);
}

/// C += A·B, 16×8 += 16×16 · 16×8, fp32 accumulators. Registers as in PTX ISA, “Matrix Fragments
/// for mma.m16n8k16 with floating point type”. Counts 4,096 matmul FLOPs for the warp.
template <class T>
void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Lane {
    const unsigned* a;
    unsigned b[2];
    float* c;
  } mine{a, {b0, b1}, c};
  whole_warp("mma.m16n8k16", mine, [](Lane* const* lanes, unsigned) {
    float A[16][16], B[16][8];
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4, t = l % 4;
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i)  // a0, a1: columns 0–7 of rows g, g + 8; a2, a3: columns 8–15
          A[g + 8 * (i % 2)][2 * t + half + 8 * (i / 2)] = unpack<T>(lanes[l]->a[i], half);
        for (int i = 0; i < 2; ++i) B[2 * t + half + 8 * i][g] = unpack<T>(lanes[l]->b[i], half);
      }
    }
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i) {
        const int row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
        lanes[l]->c[i] += sum;
      }
    worker->counts().matmul_flops += 2 * 16 * 8 * 16;
  });
}

template <class T>
void store_pair(Smem<T> target, unsigned pair) {
  check_aligned(target, "store of a pair to", 4);
  target.store_as(0, pair);
}
inline void store_pair(Smem<float> target, float low, float high) {
  target.store_as(0, std::array{low, high});
}
inline void read_4(float (&x)[4], Hbm<const float> source) {
  check_aligned(source.data(), "read of 4 floats");
  source.count<Access::read, 16>(0);
  std::memcpy(x, source.data(), sizeof(x));
}
inline void store_4(Smem<float> target, const float (&x)[4]) {
  check_aligned(target, "store of 4 floats to", 16);
  for (const float f : x) check_waited_for(f);
  target.store_as(0, std::to_array(x));
}
template <class T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Chunk {
  T x[8];
  T& operator[](int i) { return x[inside(i)]; }
  T operator[](int i) const { return x[inside(i)]; }
  static int inside(int i) {
    if (i < 0 || i >= 8) [[unlikely]]
      fault("element " + std::to_string(i) + " of a chunk, which has 8");
    return i;
  }
};
template <class T>
Chunk<std::remove_const_t<T>> read_chunk(Hbm<T> source) {
  constexpr int kBytes = alignof(Chunk<std::remove_const_t<T>>);
  check_aligned(source.data(), "read of a chunk", kBytes);
  for (int i = 0; i < 8; i += kBytes / sizeof(T)) source.template count<Access::read, kBytes>(i);
  Chunk<std::remove_const_t<T>> chunk;
  std::memcpy(&chunk.x, source.data(), sizeof(chunk.x));
  return chunk;
}
template <class T>
Chunk<std::remove_const_t<T>> read_chunk(Hbm<T> source, bool valid) {
  static_assert(sizeof(T) == 2);
  return valid ? read_chunk(source) : Chunk<std::remove_const_t<T>>{};
}
template <class T>
void write_chunk(Hbm<T> target, const Chunk<T>& chunk) {
  constexpr int kBytes = alignof(Chunk<T>);
  check_aligned(target.data(), "write of a chunk", kBytes);
  for (int i = 0; i < 8; i += kBytes / sizeof(T)) target.template count<Access::write, kBytes>(i);
  std::memcpy(static_cast<void*>(target.data()), &chunk.x, sizeof(chunk.x));
}
template <class T>
void write_chunk(Smem<T> target, const Chunk<T>& chunk) {
  check_aligned(target, "write of a chunk to", alignof(Chunk<T>));
  target.store_as(0, chunk);
}

template <class T>
void store_16_bytes(Hbm<T> target, Smem<T> source) {
  if (source.byte(0) % 16) fault("16-byte store from shared memory not aligned to 16 bytes");
  check_aligned(target.data(), "16-byte store to global memory");
  target.template count<Access::write, 16>(0);
  const auto bytes = source.template load_as<std::array<char, 16>>(0);
  std::memcpy(static_cast<void*>(target.data()), &bytes, sizeof(bytes));
}

// ------------------------------------------------------------------------------------------ launch

/// On the sim a kernel starts when the one before it has ended.
enum class Start { after, early };
inline void let_next_kernel_start() {}
inline void wait_for_kernel_before() {}

/// Runs a kernel on every block of the grid and waits. `name` stands in faults and reports.
template <Start = Start::after, class... P, class... A>
void launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared_bytes,
            A&&... arguments) {
  const std::tuple<std::remove_cvref_t<P>...> parameters(std::forward<A>(arguments)...);
  Sim::current().launch(name, grid, block, shared_bytes, reinterpret_cast<const void*>(kernel),
                        [&] { std::apply(kernel, parameters); });
}

}  // namespace ladder::sim
