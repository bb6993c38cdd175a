// The sim's side of machine.h: CUDA's words with CUDA's meaning, checked and counted.
#pragma once

#define MACHINE sim
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "float16.h"
#include "machine/sim/engine.h"

namespace ladder::sim {

inline constexpr DeviceKind kDevice = DeviceKind::sim;
using ladder::bf16;
using ladder::fp16;

// ---------------------------------------------------------------------------------- global memory

template <class T>
class HbmRef;

/// A pointer into a tracked array. Copying and offsetting are free; [] reads or writes and counts.
template <class T>
class Hbm {
 public:
  using Value = std::remove_const_t<T>;

  Hbm() = default;
  explicit Hbm(Array& array) : array_(&static_cast<Tracked&>(array)) {}
  template <class U>
    requires(std::is_same_v<T, const U>)
  Hbm(const Hbm<U>& other) : array_(other.array_), origin_(other.origin_) {}

  auto operator[](int64_t i) const {
    if constexpr (std::is_const_v<T>)
      return load(i);
    else
      return HbmRef<T>(*this, i);
  }
  Hbm operator+(int64_t n) const {
    Hbm moved = *this;
    moved.origin_ += n;
    return moved;
  }

  Value load(int64_t i) const {
    array_->read<sizeof(T)>((origin_ + i) * static_cast<int64_t>(sizeof(T)));
    return data()[i];
  }
  void store(int64_t i, Value x) const {
    array_->write<sizeof(T)>((origin_ + i) * static_cast<int64_t>(sizeof(T)));
    data()[i] = x;
  }
  T* data() const { return static_cast<T*>(array_->data) + origin_; }
  /// Checks and counts a read or write of n bytes at element i, for wider accesses.
  template <int n>
  void count_read(int64_t i) const {
    array_->read<n>((origin_ + i) * static_cast<int64_t>(sizeof(T)));
  }
  template <int n>
  void count_write(int64_t i) const {
    array_->write<n>((origin_ + i) * static_cast<int64_t>(sizeof(T)));
  }

 private:
  template <class U>
  friend class Hbm;
  Tracked* array_ = nullptr;
  int64_t origin_ = 0;  // element that [0] is
};

/// An element of a writable array: reads when its value is used, writes when assigned.
template <class T>
class HbmRef {
 public:
  HbmRef(const Hbm<T>& array, int64_t i) : array_(array), i_(i) {}
  operator T() const { return array_.load(i_); }
  explicit operator float() const
    requires(!std::is_same_v<T, float>)
  {
    return static_cast<float>(array_.load(i_));
  }
  HbmRef& operator=(T x) {
    array_.store(i_, x);
    return *this;
  }
  HbmRef& operator=(const HbmRef& other) { return *this = T(other); }
  HbmRef& operator+=(T x) { return *this = T(*this) + x; }
  HbmRef& operator*=(T x) { return *this = T(*this) * x; }

 private:
  Hbm<T> array_;
  int64_t i_;
};

template <class T>
Hbm<T> hbm(Array& array) {
  return Hbm<T>(array);
}

// ---------------------------------------------------------------------------------- shared memory

template <class T>
class SmemRef;

/// A pointer into the block's shared memory, bound to the region it was taken as.
template <class T>
class Smem {
 public:
  Smem() = default;
  Smem(const char* name, int64_t begin, int64_t end) : name_(name), at_(begin), begin_(begin),
                                                       end_(end) {}
  SmemRef<T> operator[](int64_t i) const { return SmemRef<T>(*this, i); }
  Smem operator+(int64_t n) const {
    Smem moved = *this;
    moved.at_ += n * static_cast<int64_t>(sizeof(T));
    return moved;
  }

  T load(int64_t i) const { return load_as<T>(i); }
  void store(int64_t i, T x) const {
    const int64_t at = byte(i);
    worker->write_shared<sizeof(T)>(name_, at, begin_, end_);
    std::memcpy(worker->shared_data() + at, &x, sizeof(T));
  }
  /// Reads a U (16 bytes at most) that starts at element i.
  template <class U>
  U load_as(int64_t i) const {
    const int64_t at = byte(i);
    worker->read_shared<sizeof(U)>(name_, at, begin_, end_);
    U x;
    std::memcpy(&x, worker->shared_data() + at, sizeof(U));
    return x;
  }
  int64_t byte(int64_t i) const { return at_ + i * static_cast<int64_t>(sizeof(T)); }
  const char* name() const { return name_; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

 private:
  const char* name_ = "";
  int64_t at_ = 0, begin_ = 0, end_ = 0;  // bytes in the block's shared memory
};

template <class T>
class SmemRef {
 public:
  SmemRef(const Smem<T>& array, int64_t i) : array_(array), i_(i) {}
  operator T() const { return array_.load(i_); }
  explicit operator float() const
    requires(!std::is_same_v<T, float>)
  {
    return static_cast<float>(array_.load(i_));
  }
  SmemRef& operator=(T x) {
    array_.store(i_, x);
    return *this;
  }
  SmemRef& operator=(const SmemRef& other) { return *this = T(other); }
  SmemRef& operator+=(T x) { return *this = T(*this) + x; }
  SmemRef& operator*=(T x) { return *this = T(*this) * x; }

 private:
  Smem<T> array_;
  int64_t i_;
};

/// The block's dynamic shared memory, handed out front to back. Every thread of a block must take
/// the same pieces in the same order.
class SharedMemory {
 public:
  template <class T>
  Smem<T> take(const char* name, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    const int64_t begin = worker->take_shared(name, bytes);
    return Smem<T>(name, begin, begin + bytes);
  }
};

/// Starts a copy of 16 bytes from global to shared memory (cp.async.cg). Where `valid` is false
/// zeros are written and the source is not touched.
template <class T, class U>
void cp_async(Smem<T> target, Hbm<U> source, bool valid = true) {
  static_assert(std::is_same_v<T, std::remove_const_t<U>>);
  const int64_t at = target.byte(0);
  if (valid) source.template count_read<16>(0);
  worker->start_copy(target.name(), at, target.begin(), target.end(),
                     valid ? reinterpret_cast<const char*>(source.data()) : nullptr);
}
/// Closes the group that this thread's copies since the last commit belong to.
inline void cp_async_commit() { worker->commit_copies(); }
/// Waits until at most `groups` of this thread's groups are still under way.
template <int groups>
void cp_async_wait() {
  worker->wait_copies(groups);
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

inline void __syncwarp(unsigned mask = 0xffffffff,
                       std::source_location where = std::source_location::current()) {
  int nothing = 0;
  collective("__syncwarp", mask, nothing, [](int* const*, unsigned) {}, where);
}

/// Gives each lane the value of the lane that from(lane) names, or its own where that lane is
/// outside the warp or the mask.
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
          if (source >= 0 && source < 32 && (present >> source & 1))
            lanes[i]->out = lanes[source]->in;
        }
      },
      where);
  return mine.out;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane,
              std::source_location where = std::source_location::current()) {
  return shuffle("__shfl_sync", mask, value, lane, [](int, int p) { return p & 31; }, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes,
                  std::source_location where = std::source_location::current()) {
  return shuffle("__shfl_xor_sync", mask, value, lanes, [](int i, int p) { return i ^ p; }, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                   std::source_location where = std::source_location::current()) {
  return shuffle("__shfl_down_sync", mask, value, static_cast<int>(delta),
                 [](int i, int p) { return i + p; }, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              std::source_location where = std::source_location::current()) {
  struct Lane {
    bool in;
    unsigned out;
  } mine{predicate != 0, 0};
  collective(
      "__ballot_sync", mask, mine,
      [](Lane* const* lanes, unsigned present) {
        unsigned votes = 0;
        for (int i = 0; i < 32; ++i)
          if ((present >> i & 1) && lanes[i]->in) votes |= 1u << i;
        for (int i = 0; i < 32; ++i)
          if (present >> i & 1) lanes[i]->out = votes;
      },
      where);
  return mine.out;
}
inline int __any_sync(unsigned mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, !predicate, where) == 0;
}

/// One read and one write, indivisible. Returns what was there before.
template <class T>
T atomicAdd(Hbm<T> target, T x) {
  target.template count_read<sizeof(T)>(0);
  target.template count_write<sizeof(T)>(0);
  return std::atomic_ref<T>(*target.data()).fetch_add(x, std::memory_order_relaxed);
}
template <class T>
T atomicAdd(Smem<T> target, T x) {
  const T before = target.load(0);
  target.store(0, before + x);
  return before;
}

// -------------------------------------------------------------------------------------- arithmetic

/// Counts as two matmul FLOPs: rungs use it for their products and nothing else.
inline float fmaf(float a, float b, float c) {
  worker->counters.matmul_flops += 2;
  return std::fma(a, b, c);
}
inline float expf(float x) {
  ++worker->counters.exps;
  return std::exp(x);
}
inline float exp2f(float x) {
  ++worker->counters.exps;
  return std::exp2(x);
}

// ------------------------------------------------------------------------------------------ launch

/// Runs a kernel on every block of the grid and waits. `name` stands in faults and reports.
template <class... P, class... A>
void launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared_bytes,
            A&&... arguments) {
  const std::tuple<std::remove_cvref_t<P>...> parameters(std::forward<A>(arguments)...);
  Sim::current().launch(name, grid, block, shared_bytes,
                        [&] { std::apply(kernel, parameters); });
}

}  // namespace ladder::sim
