// Tests machine.h's implementation for GPUs: the message of a failed launch names the kernel and
// the source line, and --dram counts a copy.

#include <gtest/gtest.h>

#include <string>

#include "tests/device_test.h"

namespace ladder::gpu {
namespace {

__global__ void add_one(Hbm<float> x) {
  x[threadIdx.x] = x[threadIdx.x] + 1;
}
__global__ void copy_all(Hbm<const float> x, Hbm<float> y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  y[i] = x[i];
}

class GpuMachine : public DeviceTest {};

TEST_F(GpuMachine, FailedLaunchNamesKernelAndPlace) {
  const auto x = hbm<float>(make("x", 4096));  // not touched: 2048 threads exceed CUDA's limit
  try {
    device().run("test", [&] { launch("add_one", add_one, dim3(1), dim3(2048), 0, x); });
    FAIL() << "a block of 2048 threads was launched";
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Exit::wrong_result);
    for (const char* part : {"kernel add_one (gpu_test.cu:", "block (2048,1,1)"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

// A copy must read and write each byte in DRAM once, whether the arrays are much larger than L2 or
// fit there, so that the output is written back only later.
TEST_F(GpuMachine, DramCountsACopy) {
  for (const int64_t bytes : {int64_t{16} << 20, int64_t{512} << 20}) {
    const auto x = device().allocate("x", bytes), y = device().allocate("y", bytes);
    DramReport report;
    try {
      report = device().dram([&] {
        for (const char* name : {"copy", "again"})
          launch(name, copy_all, dim3(static_cast<unsigned>(bytes / 4 / 256)), dim3(256), 0,
                 hbm<const float>(*x), hbm<float>(*y));
      });
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();  // the counters cannot be read
    }
    ASSERT_EQ(report.kernels.size(), 2u);
    for (const auto& [name, dram] : report.kernels) {
      const double expected = static_cast<double>(bytes);
      EXPECT_NEAR(static_cast<double>(dram.read), expected, 0.1 * expected) << name;
      EXPECT_NEAR(static_cast<double>(dram.write), expected, 0.1 * expected) << name;
    }
    // In report.all, L2 is emptied only before the first copy; the second finds data that fit.
    if (2 * bytes < device().info().l2_bytes)
      EXPECT_LT(report.all.read, bytes + bytes / 2);
    else
      EXPECT_GT(report.all.read, bytes + bytes / 2);
  }
}

}  // namespace
}  // namespace ladder::gpu
