// The gpu side of machine.h on a GPU: launches that fail say which kernel and where, cuBLAS's
// products are right, and the counters of DRAM see a copy.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "machine/cublas.h"
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

/// How many of rows × columns elements are further than 5e-3 from the sums of term(i, j, k).
int count_wrong_sums(const std::vector<ladder::fp16>& got, int rows, int columns, int pitch,
                     int inner, auto term) {
  int wrong = 0;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      double sum = 0;
      for (int k = 0; k < inner; ++k) sum += term(i, j, k);
      wrong += !(std::abs(got[i * pitch + j] - sum) <= 5e-3);
    }
  return wrong;
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

// Batches of products, B transposed or not, with rows of C and A longer than their columns.
TEST_F(GpuMachine, CublasMakesProducts) {
  const Problem p{.B = 2, .H = 6, .Hk = 2, .N = 37, .N_kv = 45, .d = 40, .scale = 0.3f};
  const int rows = p.B * p.H * p.N, keys = p.B * p.Hk * p.N_kv, pitch = 48;
  try {
    open_cublas();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  const auto q = random<fp16>(rows * p.d), weights = random<fp16>(rows * pitch);
  const auto k = random<fp16>(keys * p.d), v = random<fp16>(keys * p.d);
  Array &S = make("S", rows * pitch * 2), &O = make("O", rows * p.d * 2);
  const int64_t of_head = int64_t{p.H} / p.Hk * p.N;  // rows
  const auto batch = [&](Array& array, int64_t row, int64_t rows_of_head) {
    return MatrixBatch{&array, row, row * rows_of_head};
  };
  const auto kernels = device().run("test", [&] {
    cublas_product("scores", p.dtype, true, of_head, p.N_kv, p.d, p.scale,
                   batch(upload<fp16>("Q", q), p.d, of_head),
                   batch(upload<fp16>("K", k), p.d, p.N_kv), batch(S, pitch, of_head), p.B * p.Hk);
    cublas_product("output", p.dtype, false, of_head, p.d, p.N_kv, 1,
                   batch(upload<fp16>("P", weights), pitch, of_head),
                   batch(upload<fp16>("V", v), p.d, p.N_kv), batch(O, p.d, of_head), p.B * p.Hk);
  });
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].name + " " + kernels[1].name, "scores output");
  const auto key = [&](int row, int j) { return static_cast<int>(p.kv_row(row / p.N)) + j; };
  const auto of_score = [&](int i, int j, int c) {
    return p.scale * q[i * p.d + c] * k[key(i, j) * p.d + c];
  };
  EXPECT_EQ(count_wrong_sums(values<fp16>(S), rows, p.N_kv, pitch, p.d, of_score), 0);
  const auto of_output = [&](int i, int c, int j) {
    return weights[i * pitch + j] * v[key(i, j) * p.d + c];
  };
  EXPECT_EQ(count_wrong_sums(values<fp16>(O), rows, p.d, p.d, p.N_kv, of_output), 0);
}

// --dram: a copy reads and writes each byte once, whether it fills L2 many times over or leaves all
// that it wrote there, to be written back later.
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
      GTEST_SKIP() << e.what();
    }
    ASSERT_EQ(report.kernels.size(), 2u);
    for (const auto& [name, dram] : report.kernels) {
      const double expected = static_cast<double>(bytes);
      EXPECT_NEAR(static_cast<double>(dram.read), expected, 0.1 * expected) << name;
      EXPECT_NEAR(static_cast<double>(dram.write), expected, 0.1 * expected) << name;
    }
    // What fits L2 is read from HBM by the first copy alone.
    if (2 * bytes < device().info().l2_bytes)
      EXPECT_LT(report.all.read, bytes + bytes / 2);
    else
      EXPECT_GT(report.all.read, bytes + bytes / 2);
  }
}

}  // namespace
}  // namespace ladder::gpu
