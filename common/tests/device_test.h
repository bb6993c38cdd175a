// Supports tests whose kernels are compiled for both machines, the GPU and the simulator.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <type_traits>
#include <vector>

#include "float16.h"
#include "machine/device.h"
#include "machine/machine.h"

/// Expands to the name of a test suite on this machine: Simname or Gpuname.
#ifdef LADDER_SIM
#define ON_MACHINE(name) Sim##name
#else
#define ON_MACHINE(name) Gpu##name
#endif

namespace ladder::MACHINE {

/// The host's type with the same bits as a kernel's type T, for upload and download.
template <class T>
using OnHost = std::conditional_t<
    std::is_arithmetic_v<T>, T,
    std::conditional_t<sizeof(T) == 1, ladder::e4m3,
                       std::conditional_t<std::is_same_v<T, fp16>, ladder::fp16, ladder::bf16>>>;

template <class T>
std::type_identity<T> element_of(Hbm<T>);  // only declared, to name T
/// Returns what a kernel's parameter gets: an Hbm for an Array, and any other argument unchanged.
template <class Parameter>
auto argument(Array& array) {
  return hbm<typename decltype(element_of(std::declval<Parameter>()))::type>(array);
}
template <class Parameter>
const Parameter& argument(const Parameter& value) {
  return value;
}

/// A test whose kernels run on their machine; the GPU's version is skipped if no GPU can be used.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef LADDER_SIM
    device_ = open_sim({});
#else
    try {
      device_ = open_gpu();
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
#endif
  }

  /// Draws n numbers uniformly from −1 to 1, rounded to T.
  template <class T>
  std::vector<OnHost<T>> random(int n) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<OnHost<T>> numbers;
    while (std::ssize(numbers) < n) numbers.emplace_back(uniform(random_));
    return numbers;
  }
  /// Allocates an array with these values, which lives until the test ends.
  template <class T>
  Array& upload(const char* name, const std::vector<OnHost<T>>& values) {
    Array& array = make(name, std::ssize(values) * int64_t{sizeof(T)});
    device_->upload(array, values.data());
    return array;
  }
  /// Allocates a poisoned array, whose elements are NaN in every floating-point type.
  Array& make(const char* name, int64_t bytes) {
    return *arrays_.emplace_back(device_->allocate(name, bytes));
  }
  /// Returns a copy of the array's values.
  template <class T>
  std::vector<OnHost<T>> values(const Array& array) {
    std::vector<OnHost<T>> all(static_cast<size_t>(array.bytes) / sizeof(T));
    device_->download(all.data(), array);
    return all;
  }
  /// Runs one kernel and returns its counts, or nullopt on a GPU, which does not count.
  /// `smem_bytes` is the shared memory per block. For each Array argument the kernel gets an Hbm.
  template <class... P>
  std::optional<Counts> run(void (*kernel)(P...), dim3 grid, dim3 block, int64_t smem_bytes,
                            auto&&... arguments) {
    const auto work = [&] {
      launch("test", kernel, grid, block, smem_bytes, argument<P>(arguments)...);
    };
    return device_->run("test", work).at(0).counts;
  }

  Device& device() {
    return *device_;
  }

  std::unique_ptr<Device> device_;
  std::vector<std::shared_ptr<Array>> arrays_;
  std::mt19937 random_{0};
};

}  // namespace ladder::MACHINE
