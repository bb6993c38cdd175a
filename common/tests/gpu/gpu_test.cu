// The gpu side of machine.h on a GPU: launches that fail say which kernel and where, cuBLAS's
// products are right, and the counters of DRAM see a copy.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "float16.h"
#include "machine/cublas.h"
#include "machine/device.h"
#include "machine/machine.h"
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
  const auto x = hbm<float>(make("x", 4096));
  try {
    device().run("test", [&] { launch("add_one", add_one, dim3(1), dim3(2048), 0, x); });
    FAIL() << "a block of 2048 threads was launched";
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Exit::wrong_result);
    for (const char* part : {"kernel add_one (gpu_test.cu:", "block (2048,1,1)"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST_F(GpuMachine, AllocationsArePoisoned) {
  for (const float v : values<float>(make("x", 400))) EXPECT_TRUE(std::isnan(v));
}

// Batches of products, B transposed or not, with rows of C and A longer than their columns.
TEST_F(GpuMachine, CublasMakesProducts) {
  const Problem p{.B = 2, .H = 6, .Hk = 2, .N = 37, .N_kv = 45, .d = 40, .scale = 0.3f};
  const int pitch = 48;
  try {
    open_cublas();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  std::map<std::string, std::vector<ladder::fp16>> host;
  std::map<std::string, Array*> arrays;
  const auto fill = [&](const char* name, int64_t elements) {
    for (int64_t i = 0; i < elements; ++i)
      host[name].emplace_back(static_cast<float>((i * 7 + name[0]) % 31) / 16 - 1);
    arrays[name] = &upload(name, host[name]);
  };
  const int64_t q = int64_t{p.B} * p.H * p.N, kv = int64_t{p.B} * p.Hk * p.N_kv;
  fill("Q", q * p.d);
  fill("K", kv * p.d);
  fill("V", kv * p.d);
  fill("O", q * p.d);
  fill("S", q * pitch);
  fill("P", q * pitch);

  const int64_t rows = int64_t{p.H} / p.Hk * p.N, k = int64_t{p.N_kv} * p.d;
  const auto batch = [&](const char* name, int64_t row, int64_t stride) {
    return MatrixBatch{arrays[name], row, stride};
  };
  const auto kernels = device().run("test", [&] {
    cublas_product("scores", p.dtype, true, rows, p.N_kv, p.d, p.scale, batch("Q", p.d, rows * p.d),
                   batch("K", p.d, k), batch("S", pitch, rows * pitch), p.B * p.Hk);
    cublas_product("output", p.dtype, false, rows, p.d, p.N_kv, 1, batch("P", pitch, rows * pitch),
                   batch("V", p.d, k), batch("O", p.d, rows * p.d), p.B * p.Hk);
  });
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].name, "scores");
  EXPECT_EQ(kernels[1].name, "output");
  for (const char* name : {"S", "O"}) host[name] = values<ladder::fp16>(*arrays[name]);
  const auto at = [&](const char* name, int64_t i) -> double {
    return float(host[name][static_cast<size_t>(i)]);
  };
  double error = 0;
  for (int bh = 0; bh < p.B * p.H; ++bh)
    for (int i = 0; i < p.N; ++i) {
      const int64_t row = p.q_row(bh) + i;
      for (int j = 0; j < p.N_kv; ++j) {
        double s = 0;
        for (int c = 0; c < p.d; ++c)
          s += at("Q", row * p.d + c) * at("K", (p.kv_row(bh) + j) * p.d + c);
        error = worse(error, std::abs(at("S", row * pitch + j) - p.scale * s));
      }
      for (int c = 0; c < p.d; ++c) {
        double o = 0;
        for (int j = 0; j < p.N_kv; ++j)
          o += at("P", row * pitch + j) * at("V", (p.kv_row(bh) + j) * p.d + c);
        error = worse(error, std::abs(at("O", row * p.d + c) - o));
      }
    }
  EXPECT_LT(error, 0.02);  // half a unit in the last place of values up to 64
}

// --dram: a copy reads and writes each byte once, whether it fills L2 many times over or leaves all
// that it wrote there, to be written back later.
TEST_F(GpuMachine, DramCountsACopy) {
  for (const int64_t bytes : {int64_t{16} << 20, int64_t{512} << 20}) {
    const Buffer x(device(), "x", bytes), y(device(), "y", bytes);
    DramReport report;
    try {
      report = device().dram([&] {
        for (const char* name : {"copy", "again"})
          launch(name, copy_all, dim3(static_cast<unsigned>(bytes / 4 / 256)), dim3(256), 0,
                 hbm<const float>(*x.array()), hbm<float>(*y.array()));
      });
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
    printf("%s\n", report.source.c_str());
    ASSERT_EQ(report.kernels.size(), 2u);
    for (const auto& [name, dram] : report.kernels) {
      printf("%s of %lld B: DRAM %lld read, %lld written; L2 %lld, L1 %lld\n", name.c_str(),
             static_cast<long long>(bytes), static_cast<long long>(dram.read),
             static_cast<long long>(dram.write), static_cast<long long>(dram.l2),
             static_cast<long long>(dram.l1));
      const double expected = static_cast<double>(bytes);
      EXPECT_NEAR(static_cast<double>(dram.read), expected, 0.1 * expected) << name;
      EXPECT_NEAR(static_cast<double>(dram.write), expected, 0.1 * expected) << name;
    }
    printf("both: DRAM %lld read, %lld written\n", static_cast<long long>(report.all.read),
           static_cast<long long>(report.all.write));
    // What fits L2 is read from HBM by the first copy alone.
    if (2 * bytes < device().info().l2_bytes)
      EXPECT_LT(report.all.read, bytes + bytes / 2);
    else
      EXPECT_GT(report.all.read, bytes + bytes / 2);
  }
}

}  // namespace
}  // namespace ladder::gpu
