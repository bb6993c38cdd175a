// What the tests share that compile their kernels for both machines.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <type_traits>
#include <vector>

#include "float16.h"
#include "float8.h"
#include "harness/tensor.h"
#include "machine/device.h"
#include "machine/machine.h"

namespace ladder::MACHINE {
namespace {

template <class T>
using OnHost =
    std::conditional_t<sizeof(T) == 1, ladder::e4m3,
                       std::conditional_t<std::is_same_v<T, fp16>, ladder::fp16, ladder::bf16>>;

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

/// A row-major matrix of a kernel's results.
template <class T>
struct Results {
  std::vector<T> all;
  int columns = 1;
  T operator()(int i, int j) const { return all[static_cast<size_t>(i * columns + j)]; }
};

/// Of how many of rows × columns elements (i, j) `is` is true.
int count_where(int rows, int columns, auto is) {
  int n = 0;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) n += is(i, j);
  return n;
}

/// Makes `check`, a lambda with template parameters, go through cases: types of Case<...>.
template <class T, int... n>
struct Case {};
void check_each(auto check, auto... cases) {
  (check(cases), ...);
}

/// A row-major matrix on the host, its elements rounded to a type.
struct Matrix {
  int rows = 0, columns = 0;
  Tensor elements;
  double operator()(int i, int j) const { return elements[int64_t{i} * columns + j]; }
};

template <class T>
std::type_identity<T> element_of(Hbm<T>);
template <class Parameter>
auto argument(Array& array) {
  return hbm<typename decltype(element_of(std::declval<Parameter>()))::type>(array);
}
template <class Parameter>
const Parameter& argument(const Parameter& value) {
  return value;
}
/// Runs one kernel; of an Array it takes the elements. On the sim: what it counts.
template <class... P>
std::optional<Counts> run_kernel(Device& device, void (*kernel)(P...), dim3 grid, dim3 block,
                                 int64_t shared_bytes, auto&&... arguments) {
  const auto work = [&] {
    launch("test", kernel, grid, block, shared_bytes, argument<P>(arguments)...);
  };
  return device.run("test", work).at(0).counts;
}

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
  /// Of e4m3 integers from −8 to 8, whose sums are exact however they are added up.
  template <class T>
  Matrix random_operand(int rows, int columns) {
    if constexpr (sizeof(T) == 2) return random_matrix<T>(rows, columns);
    std::vector<float> values(static_cast<size_t>(rows) * static_cast<size_t>(columns));
    for (float& v : values) v = static_cast<float>(random_() % 17) - 8;
    return {rows, columns, round_all(DType::fp16, values)};
  }
  template <class T>
  Array& upload_as(const char* name, const Matrix& m) {
    if constexpr (sizeof(T) == 2) return upload(name, m);
    std::vector<uint8_t> codes;
    for (const float x : widen_all(m.elements)) codes.push_back(ladder::e4m3(x).bits);
    return upload(name, codes);
  }
  Array& upload(const char* name, const Matrix& m) {
    return upload(name, m.elements.bits);
  }
  template <class X>
  Array& upload(const char* name, const std::vector<X>& values) {
    Array& array = make(name, std::ssize(values) * int64_t{sizeof(X)});
    device_->upload(array, values.data());
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
  Results<T> results(const Array& array, int columns) {
    return {values<T>(array), columns};
  }
  template <class T>
  Matrix matrix(const Array& array, int rows, int columns) {
    return {rows, columns, {kType<T>, values<uint16_t>(array)}};
  }
  /// The largest error of `got`, rows × columns, which should be the sums of term(i, j, k).
  static double worst_sum(const Results<float>& got, int rows, int inner, auto term) {
    double worst = 0;
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < got.columns; ++j) {
        double sum = 0;
        for (int k = 0; k < inner; ++k) sum += term(i, j, k);
        worst = worse(worst, std::abs(got(i, j) - sum));
      }
    return worst;
  }
  /// By how much `c`, rounded to T, is further from fp32 than rounding explains.
  template <class T>
  static double worst_rounding(const Matrix& c, const std::vector<float>& in_fp32) {
    double worst = -INFINITY;
    for (int i = 0; i < c.rows * c.columns; ++i) {
      const double got = in_fp32[static_cast<size_t>(i)], difference = c.elements[i] - got;
      worst = worse(worst, std::abs(difference) - rounding<T>(got));
    }
    return worst;
  }
  /// run_kernel() on this device.
  template <class... P>
  std::optional<Counts> run(void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared_bytes,
                            auto&&... arguments) {
    return run_kernel(*device_, kernel, grid, block, shared_bytes, arguments...);
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
