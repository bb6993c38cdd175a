// What the tests share that compile their kernels for both machines.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "harness/tensor.h"
#include "machine/device.h"
#include "machine/machine.h"

namespace ladder::MACHINE {
namespace {

template <class T>
constexpr DType kType = std::is_same_v<T, fp16> ? DType::fp16 : DType::bf16;

/// Where T rounds x: half a unit in the last place.
template <class T>
double rounding(double x) {
  return std::abs(x) / (std::is_same_v<T, fp16> ? 2048 : 256);
}

/// The larger error; NaN, which std::max would drop, if either is.
inline double worse(double a, double b) {
  return std::isnan(a) || a >= b ? a : b;
}

/// A row-major matrix on the host, its elements rounded to a type.
struct Matrix {
  int rows = 0, columns = 0;
  Tensor elements;
  double operator()(int i, int j) const { return elements[int64_t{i} * columns + j]; }
};

/// A test that runs kernels of the machine it is compiled for.
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

  template <class T>
  Matrix random_matrix(int rows, int columns) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(static_cast<size_t>(rows) * static_cast<size_t>(columns));
    for (float& v : values) v = uniform(random_);
    return {rows, columns, round_all(kType<T>, values)};
  }
  Array& upload(const char* name, const Matrix& m) {
    Array& array = make(name, m.elements.bytes());
    device_->upload(array, m.elements.bits.data());
    return array;
  }
  Array& make(const char* name, int64_t bytes) {
    return *buffers_.emplace_back(*device_, name, bytes).array();
  }
  template <class T>
  std::vector<T> values(const Array& array) {
    std::vector<T> all(static_cast<size_t>(array.bytes) / sizeof(T));
    device_->download(all.data(), array);
    return all;
  }
  template <class T>
  Matrix matrix(const Array& array, int rows, int columns) {
    return {rows, columns, {kType<T>, values<uint16_t>(array)}};
  }
  /// Runs one kernel. On the sim: what it counts.
  std::optional<Counts> run(const std::function<void()>& work) {
    return device_->run("test", work).at(0).counts;
  }

  Device& device() {
    return *device_;
  }

 private:
  std::unique_ptr<Device> device_;
  std::deque<Buffer> buffers_;
  std::mt19937 random_{0};
};

}  // namespace
}  // namespace ladder::MACHINE
