// What tests of the sim share: a device with arrays, mistakes that a test switches on in its
// kernels, and what the faults must say.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/machine.h"
#include "tests/device_test.h"

namespace ladder::sim {

/// What the kernel that runs does wrong.
inline std::string_view mistake;
inline bool made(std::string_view what) {
  return mistake == what;
}

constexpr Schedule::Order kOrders[] = {Schedule::Order::forward, Schedule::Order::reverse,
                                       Schedule::Order::random};

inline std::vector<float> iota(int n) {
  std::vector<float> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 0.0f);
  return v;
}

/// Fails unless `said` has in it, one after the other, the parts of `wanted` that … separates.
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

class SimTest : public ::testing::Test {
 protected:
  void options(const SimOptions& o) { device_ = open_sim(o); }
  Device& device() {
    if (!device_) device_ = open_sim({});
    return *device_;
  }
  Array& array(const char* name, int64_t floats) { return *device().allocate(name, floats * 4); }
  Array& array(const char* name, const std::vector<float>& values) {
    Array& a = array(name, std::ssize(values));
    device().upload(a, values.data());
    return a;
  }
  std::vector<float> values(const Array& a) {
    std::vector<float> v(static_cast<size_t>(a.bytes) / 4);
    device().download(v.data(), a);
    return v;
  }
  Counts run(const std::function<void()>& work) {
    const auto reports = device().run("test", work);
    EXPECT_EQ(reports.size(), 1u);
    return reports.at(0).counts.value();
  }
  template <class... P>
  Counts run(void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared_bytes,
             auto&&... arguments) {
    return *run_kernel(device(), kernel, grid, block, shared_bytes, arguments...);
  }
  /// The message of the fault that `work` ends in.
  std::string fault_of(const std::function<void()>& work) {
    try {
      device().run("test", work);
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.status, Exit::wrong_result);
      return fault.what();
    }
    return "no fault";
  }
  template <class... P>
  std::string fault_of(void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared_bytes,
                       auto&&... arguments) {
    return fault_of([&] { run_kernel(device(), kernel, grid, block, shared_bytes, arguments...); });
  }
  /// The same of a kernel of one block, with 512 bytes of shared memory.
  std::string said(int threads, const std::function<void()>& kernel) {
    return fault_of(
        [&] { Sim::current().launch("planted", dim3(1), dim3(threads), 512, nullptr, kernel); });
  }
  /// A mistake of a kernel and what must be said of it; of "" that it is "no fault".
  struct Mistake {
    std::string_view what;
    std::string says, in_reverse = "";  // in_reverse: instead, in that order of threads
  };
  using Mistakes = std::vector<Mistake>;
  void expect(int threads, const Mistakes& mistakes, const std::function<void()>& kernel) {
    for (const Mistake& m : mistakes) {
      SCOPED_TRACE(m.what);
      mistake = m.what;
      expect_says(said(threads, kernel), m.says);
    }
  }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace ladder::sim
