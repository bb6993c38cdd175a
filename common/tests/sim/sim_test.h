// Supports tests of the simulator: opens it, runs lambdas as kernels, and checks faults' messages.
#pragma once

#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "tests/device_test.h"

namespace ladder::sim {

constexpr Schedule::Order kOrders[] = {Schedule::Order::forward, Schedule::Order::reverse,
                                       Schedule::Order::random};

inline std::vector<float> iota(int n) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), 0.0f);
  return v;
}

inline int thread() {
  return static_cast<int>(threadIdx.x);
}

/// Expects that `said` contains the parts of `wanted`, separated there by " … ", in this order.
inline void expect_says(const std::string& said, std::string_view wanted) {
  constexpr std::string_view kSeparator = " … ";
  for (size_t from = 0;;) {
    const size_t end = wanted.find(kSeparator);
    const std::string_view part = wanted.substr(0, end);
    const size_t at = said.find(part, from);
    EXPECT_NE(at, std::string::npos) << "no \"" << part << "\" in: " << said;
    if (at == std::string::npos || end == std::string_view::npos) return;
    from = at + part.size();
    wanted.remove_prefix(end + kSeparator.size());
  }
}

/// The default shared memory per block: three tiles of 64 rows of 128 bytes, and small arrays.
constexpr int64_t kSharedBytes = 3 * 64 * 128 + 256;

class SimTest : public DeviceTest {
 protected:
  using Kernel = std::function<void()>;

  /// Opens a simulator with these options; arrays of the previous one disappear.
  virtual void options(const SimOptions& o) {
    arrays_.clear();
    device_ = open_sim(o);
  }
  Hbm<float> array(const char* name, int64_t floats) { return hbm<float>(make(name, floats * 4)); }
  Hbm<float> array(const char* name, const std::vector<float>& values) {
    return hbm<float>(upload<float>(name, values));
  }
  std::vector<float> values(const Hbm<float>& x) { return DeviceTest::values<float>(x.array()); }
  /// Launches `kernel`, which every thread runs, under this name; call it inside run().
  static void start(const char* name, dim3 grid, dim3 block, const Kernel& kernel,
                    int64_t smem_bytes = kSharedBytes) {
    run_kernel({name, grid, block, smem_bytes, nullptr, kernel});
  }
  /// Runs `work`, which launches one kernel (or one name several times), and returns the counts.
  Counts run(const Kernel& work) {
    const auto reports = device().run("test", work);
    EXPECT_EQ(reports.size(), 1u);
    return reports.at(0).counts.value();
  }
  Counts run(dim3 grid, dim3 block, const Kernel& kernel) {
    return run([&] { start("planted", grid, block, kernel); });
  }
  /// Returns the message of the fault that ends `work`, or "no fault".
  std::string fault_of(const Kernel& work) {
    try {
      device().run("test", work);
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.status, Exit::wrong_result);
      return fault.what();
    }
    return "no fault";
  }
  std::string fault_of(dim3 grid, dim3 block, const Kernel& kernel,
                       int64_t smem_bytes = kSharedBytes) {
    return fault_of([&] { start("planted", grid, block, kernel, smem_bytes); });
  }
};

}  // namespace ladder::sim
