// The sim: CUDA's meaning, exact counts, and a fault for everything that CUDA forbids. Each fault
// is planted in a small kernel and must name kernel, block, thread, array and index.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

#include "harness/parallel.h"
#include "machine/machine.h"

namespace ladder::sim {
namespace {

/// Fails unless `said` has every one of `parts` in it.
void expect_says(const std::string& said, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(said.find(part), std::string::npos) << "no \"" << part << "\" in: " << said;
}

/// A sim with arrays of floats.
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
  /// The message of the fault that `work` must end in.
  std::string fault_of(const std::function<void()>& work) {
    try {
      device().run("test", work);
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.status, Exit::wrong_result);
      return fault.what();
    }
    return "no fault";
  }

 private:
  std::unique_ptr<Device> device_;
};

std::vector<float> iota(int n) {
  std::vector<float> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 0.0f);
  return v;
}

// ------------------------------------------------------------------------------------- what counts

/// y[i] = x[i] + x[0]: reads two elements a thread.
__global__ void add_first(Hbm<const float> x, Hbm<float> y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = x[i] + x[0];
}

TEST_F(SimTest, CountsRequestedAndDistinctBytes) {
  Array& x = array("x", iota(100));
  Array& y = array("y", 100);
  const Counts c = run([&] {
    launch("add_first", add_first, dim3(4), dim3(32), 0, hbm<float>(x), hbm<float>(y), 100);
  });
  EXPECT_EQ(c.hbm.requested_read, 800);
  EXPECT_EQ(c.hbm.requested_write, 400);
  EXPECT_EQ(c.hbm.distinct_read, 400);
  EXPECT_EQ(c.hbm.distinct_write, 400);
  EXPECT_EQ(c.arrays.at("x").requested_read, 800);
  EXPECT_EQ(c.arrays.at("x").requested_write, 0);
  EXPECT_EQ(c.arrays.at("y").distinct_write, 400);
  EXPECT_EQ(values(y).at(99), 99);
}

TEST_F(SimTest, DistinctIsPerKernel) {
  Array& x = array("x", iota(32));
  Array& y = array("y", 32);
  const auto once = [&] {
    launch("add_first", add_first, dim3(1), dim3(32), 0, hbm<float>(x), hbm<float>(y), 32);
  };
  const Counts c = run([&] {
    once();
    once();
  });
  EXPECT_EQ(c.hbm.distinct_read, 2 * 128);  // launches of one name add up
}

__global__ void reverse_in_shared(Hbm<float> x) {
  SharedMemory smem;
  const auto s = smem.take<float>("s", 64);
  const int i = static_cast<int>(threadIdx.x);
  s[i] = x[i];
  __syncthreads();
  x[i] = s[63 - i];
}

TEST_F(SimTest, SharedMemoryAndBarrier) {
  for (const auto order :
       {Schedule::Order::forward, Schedule::Order::reverse, Schedule::Order::random}) {
    options({.schedule = {order, 7}});
    Array& x = array("x", iota(64));
    const Counts c = run([&] {
      launch("reverse", reverse_in_shared, dim3(1), dim3(64), shared_bytes<float>(64),
             hbm<float>(x));
    });
    EXPECT_EQ(c.sram_read, 256);
    EXPECT_EQ(c.sram_write, 256);
    EXPECT_EQ(values(x).at(0), 63);
    EXPECT_EQ(values(x).at(63), 0);
  }
}

/// Block x passes x + 2 barriers.
__global__ void pass_barriers() {
  for (unsigned i = 0; i < blockIdx.x; ++i) __syncthreads();
  __syncwarp();
  __syncthreads();
  __syncthreads();
}

TEST_F(SimTest, CountsTheBarriersOfEachBlockOnce) {
  for (const auto order :
       {Schedule::Order::forward, Schedule::Order::reverse, Schedule::Order::random}) {
    options({.schedule = {order, 7}});
    for (const unsigned threads : {1u, 31u, 96u}) {
      const Counts c = run([&] {
        launch("pass", pass_barriers, dim3(5), dim3(threads), 0);
        launch("pass", pass_barriers, dim3(1), dim3(threads), 0);
      });
      EXPECT_EQ(c.barriers, 2 + 3 + 4 + 5 + 6 + 2);
    }
  }
  Array& x = array("x", iota(32));
  const Counts none = run(
      [&] { launch("copy", add_first, dim3(1), dim3(32), 0, hbm<float>(x), hbm<float>(x), 32); });
  EXPECT_EQ(none.barriers, 0);
}

__global__ void warp_words(Hbm<float> out) {
  const int lane = static_cast<int>(threadIdx.x);
  const auto x = static_cast<float>(lane);
  float sum = x;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  out[lane] = sum;
  out[32 + lane] = __shfl_sync(0xffffffff, x, 35);
  // The two halves of a warp may meet apart.
  if (lane < 16)
    out[64 + lane] = __shfl_xor_sync(0x0000ffff, x, 1);
  else
    out[64 + lane] = __shfl_xor_sync(0xffff0000, x, 2);
  // There is no lane 32 to 63: who asks for one keeps its own.
  out[128 + lane] = __shfl_xor_sync(0xffffffff, x, 32);
  // One lane of the lower half votes for, and none of the upper half.
  out[96 + lane] = __any_sync(lane < 16 ? 0x0000ffff : 0xffff0000, lane == 5) ? 1.0f : 0.0f;
}

TEST_F(SimTest, WarpCollectives) {
  // At random the halves come to their collectives in turns, so that several are under way.
  for (const auto& schedule :
       {Schedule{}, Schedule{Schedule::Order::reverse, 0}, Schedule{Schedule::Order::random, 1},
        Schedule{Schedule::Order::random, 2}}) {
    options({.schedule = schedule});
    Array& out = array("out", 160);
    run([&] { launch("warp", warp_words, dim3(1), dim3(32), 0, hbm<float>(out)); });
    const auto v = values(out);
    for (size_t lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(v[lane], 496);
      EXPECT_EQ(v[32 + lane], 3);
      EXPECT_EQ(v[64 + lane], float(lane < 16 ? lane ^ 1 : lane ^ 2));
      EXPECT_EQ(v[96 + lane], lane < 16 ? 1 : 0);
      EXPECT_EQ(v[128 + lane], lane);
    }
  }
}

/// out[i] = when thread i came.
__global__ void take_numbers(Hbm<float> next, Hbm<float> out) {
  out[static_cast<int>(threadIdx.x)] = atomicAdd(next, 1.0f);
}

TEST_F(SimTest, SchedulesAreOfLanesAndOfWarps) {
  const auto order = [&](const Schedule& schedule) {
    options({.schedule = schedule});
    Array& next = array("next", std::vector<float>{0.0f});
    Array& out = array("out", 128);
    run([&] {
      launch("take", take_numbers, dim3(1), dim3(128), 0, hbm<float>(next), hbm<float>(out));
    });
    return values(out);
  };
  const auto forward = order({}), reverse = order({Schedule::Order::reverse, 0});
  EXPECT_EQ(forward, iota(128));
  EXPECT_EQ(reverse, std::vector<float>(forward.rbegin(), forward.rend()));
  std::set<bool> warps, lanes;  // whether the second comes before the first
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const auto random = order({Schedule::Order::random, seed});
    warps.insert(random[32] < random[0]);
    lanes.insert(random[1] < random[0]);
  }
  EXPECT_EQ(warps.size(), 2u);
  EXPECT_EQ(lanes.size(), 2u);
}

__global__ void count_up(Hbm<float> total) {
  atomicAdd(total + 1, 1.0f);
}

TEST_F(SimTest, AtomicsAreOneReadAndOneWrite) {
  Array& total = array("total", {0.0f, 0.0f});
  const Counts c =
      run([&] { launch("count", count_up, dim3(50), dim3(64), 0, hbm<float>(total)); });
  EXPECT_EQ(values(total), (std::vector<float>{0, 3200}));
  EXPECT_EQ(c.hbm.requested_read, 3200 * 4);
  EXPECT_EQ(c.hbm.requested_write, 3200 * 4);
  EXPECT_EQ(c.hbm.distinct_write, 4);
}

__global__ void arithmetic(Hbm<float> x) {
  x[0] = fmaf(2, 3, 4) + expf(0) + exp2f(3);
}

TEST_F(SimTest, CountsArithmetic) {
  Array& x = array("x", 1);
  const Counts c = run([&] { launch("a", arithmetic, dim3(1), dim3(1), 0, hbm<float>(x)); });
  EXPECT_EQ(values(x).at(0), 19);
  EXPECT_EQ(c.matmul_flops, 2);
  EXPECT_EQ(c.exps, 2);
}

__global__ void staged_copy(Hbm<const float> x, Hbm<float> y) {
  SharedMemory smem;
  const auto s = smem.take<float>("s", 128);
  const int i = static_cast<int>(threadIdx.x);
  cp_async(s + 4 * i, x + 4 * i, i < 20);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  for (int c = 0; c < 4; ++c) y[4 * i + c] = s[(4 * i + c + 64) % 128];
}

TEST_F(SimTest, AsynchronousCopyFillsWithZerosAndCountsWhatItRead) {
  Array& x = array("x", iota(128));
  Array& y = array("y", 128);
  const Counts c = run([&] {
    launch("copy", staged_copy, dim3(1), dim3(32), 512, hbm<const float>(x), hbm<float>(y));
  });
  const auto v = values(y);
  EXPECT_EQ(v[0], 64);
  EXPECT_EQ(v[16], 0);  // element 80: past the 20 valid copies
  EXPECT_EQ(v[64], 0);
  EXPECT_EQ(v[127], 63);
  EXPECT_EQ(c.arrays.at("x").requested_read, 20 * 16);
}

TEST_F(SimTest, TraceShowsWhoTouchedWhatBetweenBarriers) {
  options({.trace_file = "unused: the device only records"});
  Array& x = array("x", iota(64));
  device().run(
      "test", [&] { launch("reverse", reverse_in_shared, dim3(1), dim3(64), 256, hbm<float>(x)); });
  // The second warp's, of both.
  std::vector<std::string> what;
  for (const TraceEvent& e : device().take_trace().events) {
    if (e.warp == 0) continue;
    what.push_back(e.what);
    if (e.what != "read" && e.what != "write") continue;
    EXPECT_EQ(e.name, "x");
    ASSERT_EQ(e.ranges.size(), 1u);
    EXPECT_EQ(e.ranges[0].begin, 128);
    EXPECT_EQ(e.ranges[0].bytes, 128);
  }
  EXPECT_EQ(what, (std::vector<std::string>{"read", "store", "__syncthreads", "write"}));
}

__global__ void who_am_i(Hbm<float> x) {
  const auto block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const auto thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  x[block * blockDim.x * blockDim.y * blockDim.z + thread] = static_cast<float>(thread);
}

TEST_F(SimTest, EveryBlockAndThreadRunsOnceInEverySchedule) {
  for (const auto& schedule :
       {Schedule{Schedule::Order::forward, 0}, Schedule{Schedule::Order::reverse, 0},
        Schedule{Schedule::Order::random, 1}, Schedule{Schedule::Order::random, 99}}) {
    options({.schedule = schedule});
    const int threads = 3 * 5 * 2, blocks = 7 * 4 * 3;
    Array& x = array("x", threads * blocks);
    const Counts c =
        run([&] { launch("who", who_am_i, dim3(7, 4, 3), dim3(3, 5, 2), 0, hbm<float>(x)); });
    EXPECT_EQ(c.hbm.requested_write, 4 * threads * blocks);
    EXPECT_EQ(c.hbm.distinct_write, 4 * threads * blocks);
  }
}

// A named element would be read when it is used, on the gpu when it is named.
static_assert(std::is_convertible_v<HbmRef<float>, float>);
static_assert(!std::is_convertible_v<HbmRef<float>&, float>);
static_assert(!std::is_convertible_v<SmemRef<fp16>&, float>);

// ------------------------------------------------------------------------------------------ faults

__global__ void write_at(Hbm<float> x, int64_t at) {
  if (blockIdx.x == 2 && threadIdx.x == 3) x[at] = 1;
}
__global__ void read_at(Hbm<float> x, Hbm<float> y, int64_t at) {
  if (blockIdx.x == 2 && threadIdx.x == 3) y[0] = x[at];
}

TEST_F(SimTest, FaultsOutOfBounds) {
  Array& x = array("x", iota(10));
  for (const int64_t at : {int64_t{10}, int64_t{-1}, int64_t{1} << 40}) {
    const std::string said =
        fault_of([&] { launch("write_at", write_at, dim3(4), dim3(8), 0, hbm<float>(x), at); });
    expect_says(said, {"rung test", "kernel write_at", "block (2,0,0)", "thread (3,0,0)",
                       ("write to x[" + std::to_string(at) + "]")});
  }
  Array& y = array("y", 1);
  expect_says(fault_of([&] {
                launch("read_at", read_at, dim3(4), dim3(8), 0, hbm<float>(x), hbm<float>(y),
                       int64_t{10});
              }),
              {"kernel read_at, block (2,0,0), thread (3,0,0)", "read of x[10]"});
}

TEST_F(SimTest, FaultsReadOfWhatNobodyWrote) {
  Array& x = array("x", 10);
  Array& y = array("y", 1);
  expect_says(fault_of([&] {
                launch("read_at", read_at, dim3(4), dim3(8), 0, hbm<float>(x), hbm<float>(y),
                       int64_t{6});
              }),
              {"block (2,0,0), thread (3,0,0): read of unwritten x[6]"});
}

TEST_F(SimTest, PoisonMakesContentsUnwrittenAgain) {
  Array& x = array("x", iota(10));
  Array& y = array("y", 1);
  device().poison(x);
  expect_says(fault_of([&] {
                launch("read_at", read_at, dim3(4), dim3(8), 0, hbm<float>(x), hbm<float>(y),
                       int64_t{0});
              }),
              {"read of unwritten x[0]"});
  EXPECT_TRUE(std::isnan(values(x).at(0)));
}

__global__ void shared_at(int read, int write) {
  SharedMemory smem;
  const auto before = smem.take<float>("before", 8);
  const auto tile = smem.take<float>("tile", 8);
  const auto after = smem.take<float>("after", 8);
  before[0] = after[0] = 0;
  if (threadIdx.x != 5) return;
  if (write >= -8) tile[write] = 1;
  if (read >= -8) before[0] = tile[read];
}

TEST_F(SimTest, FaultsInSharedMemory) {
  const auto said = [&](int read, int write) {
    return fault_of([&] { launch("shared", shared_at, dim3(1), dim3(8), 384, read, write); });
  };
  expect_says(said(-9, 8), {"block (0,0,0), thread (5,0,0): write to shared tile[8]"});
  expect_says(said(-9, -1), {"write to shared tile[-1]"});
  expect_says(said(8, -9), {"thread (5,0,0): read of shared tile[8]"});
  expect_says(said(3, -9), {"read of unwritten shared tile[3]"});
  EXPECT_EQ(said(3, 3), "no fault");
}

TEST_F(SimTest, FaultsMoreSharedMemoryThanLaunchedWith) {
  expect_says(fault_of([&] { launch("shared", shared_at, dim3(1), dim3(8), 256, -9, -9); }),
              {"kernel shared, block (0,0,0), thread (0,0,0)",
               "more shared memory than the launch gave: after ends at byte 288 of "
               "256"});
}

TEST_F(SimTest, FaultsMoreSharedMemoryThanThereIs) {
  options({.sram_bytes = 300});
  expect_says(
      fault_of([&] { launch("shared", shared_at, dim3(1), dim3(8), 384, -9, -9); }),
      {"rung test, kernel shared", "384 bytes of shared memory for a block, more than the 300"});
}

__global__ void unequal_takes() {
  SharedMemory smem;
  smem.take<float>("a", threadIdx.x == 2 ? 4 : 8);
}
__global__ void takes_of_other_names() {
  SharedMemory smem;
  smem.take<float>(threadIdx.x == 2 ? "b" : "a", 8);
}

TEST_F(SimTest, FaultsThreadsThatTakeDifferentSharedMemory) {
  expect_says(fault_of([&] { launch("takes", unequal_takes, dim3(1), dim3(4), 384); }),
              {"thread (2,0,0)", "16 bytes of shared memory for a"});
  expect_says(fault_of([&] { launch("takes", takes_of_other_names, dim3(1), dim3(4), 384); }),
              {"thread (2,0,0)", "32 bytes of shared memory for b"});
}

__global__ void chunk_at(Hbm<float> x, int i) {
  auto chunk = read_chunk(x);
  if (threadIdx.x == 1) chunk[i] = chunk[i] + 1;
}

TEST_F(SimTest, FaultsOutsideAChunk) {
  Array& x = array("x", iota(16));
  const auto said = [&](int i) {
    return fault_of([&] { launch("chunk", chunk_at, dim3(1), dim3(2), 0, hbm<float>(x), i); });
  };
  expect_says(said(8), {"block (0,0,0), thread (1,0,0): element 8 of a chunk, which has 8"});
  expect_says(said(-1), {"element -1 of a chunk"});
  EXPECT_EQ(said(7), "no fault");
}

__global__ void early_read(Hbm<const float> x, Hbm<float> y, bool wait) {
  SharedMemory smem;
  const auto s = smem.take<float>("stage", 8);
  cp_async(s, x);
  cp_async_commit();
  cp_async(s + 4, x + 4);
  cp_async_commit();
  if (wait) cp_async_wait<1>();
  y[0] = s[3];
  cp_async_wait<0>();
}

TEST_F(SimTest, FaultsAsynchronousDataReadBeforeItsWait) {
  Array& x = array("x", iota(8));
  Array& y = array("y", 1);
  const auto said = [&](bool wait) {
    return fault_of([&] {
      launch("early", early_read, dim3(1), dim3(1), 128, hbm<const float>(x), hbm<float>(y), wait);
    });
  };
  expect_says(said(false), {"kernel early, block (0,0,0), thread (0,0,0)",
                            "read before its asynchronous copy was waited for: shared stage[3]"});
  EXPECT_EQ(said(true), "no fault");
}

__global__ void unwaited_copy(Hbm<const float> x, int mode) {
  SharedMemory smem;
  const auto s = smem.take<float>("stage", 8);
  cp_async(s, x);
  cp_async_commit();
  if (mode == 0) return;
  if (mode == 1) s[2] = 0;
  if (mode == 2) cp_async(s, x + 4);
  if (mode == 3) cp_async(s + 1, x);
  if (mode == 4) cp_async(s + 8, x);
  if (mode == 5) cp_async(s + 4, x + 8);
  if (mode == 7) cp_async<8>(s + 4, x + 1);
  cp_async_wait<0>();
}

TEST_F(SimTest, FaultsMisusedAsynchronousCopies) {
  Array& x = array("x", iota(8));
  const auto said = [&](int mode) {
    return fault_of(
        [&] { launch("copy", unwaited_copy, dim3(1), dim3(1), 128, hbm<const float>(x), mode); });
  };
  expect_says(said(0), {"ends with an asynchronous copy that was never waited for"});
  expect_says(said(1), {"write under an asynchronous copy"});
  expect_says(said(2), {"asynchronous copy onto one that was not waited for"});
  expect_says(said(3), {"not aligned to 16 bytes"});
  expect_says(said(4), {"asynchronous copy to shared stage"});
  expect_says(said(5), {"read of x[8]"});
  expect_says(said(7), {"asynchronous copy to stage not aligned to 8 bytes"});
  EXPECT_EQ(said(6), "no fault");
}

__global__ void partial_barrier(int mode) {
  const bool first = threadIdx.x < 32;
  if (mode == 0) {
    if (first) __syncthreads();
  } else if (mode == 1) {
    if (first)
      __syncthreads();
    else
      __syncthreads();
  } else if (mode == 2) {
    if (threadIdx.x != 7) __syncwarp();
  }
}

TEST_F(SimTest, FaultsBarrierThatPartOfTheBlockNeverReaches) {
  const auto said = [&](int mode) {
    return fault_of([&] { launch("barrier", partial_barrier, dim3(2), dim3(64), 0, mode); });
  };
  expect_says(said(0), {"kernel barrier, block (0,0,0), thread (0,0,0)",
                        "deadlock: waits at __syncthreads (sim_test.cpp:",
                        "which thread (32,0,0) never reaches: it has ended"});
  expect_says(said(1), {"a barrier in a branch that not all threads take"});
  expect_says(said(2), {"deadlock: waits at __syncwarp", "thread (7,0,0) never reaches"});
}

// Both stand in one line.
__global__ void barriers_beside_each_other() {
  threadIdx.x ? __syncthreads() : __syncthreads();
}

__global__ void disagree(int mode) {
  const int lane = static_cast<int>(threadIdx.x);
  if (mode == 0) {
    if (lane < 16)
      __syncwarp();
    else
      __shfl_xor_sync(0xffffffff, 1.0f, 1);
  } else if (mode == 1) {
    __shfl_xor_sync(lane < 16 ? 0xffffffff : 0xffff0000, 1.0f, 1);
  } else {
    __shfl_xor_sync(0x0000ffff, 1.0f, 1);
  }
}

TEST_F(SimTest, FaultsBarriersInTwoBranches) {
  expect_says(
      fault_of([&] { launch("beside", barriers_beside_each_other, dim3(1), dim3(2), 0); }),
      {"__syncthreads at sim_test.cpp:", "while other threads wait at the one at sim_test.cpp:"});
}

TEST_F(SimTest, FaultsLanesThatDisagree) {
  const auto said = [&](int mode) {
    return fault_of([&] { launch("disagree", disagree, dim3(1), dim3(32), 0, mode); });
  };
  expect_says(said(0), {"kernel disagree, block (0,0,0), thread (16,0,0)",
                        "lanes disagree: __shfl_xor_sync"});
  expect_says(said(1), {"lanes disagree"});
  expect_says(said(2), {"leaves out the caller"});
}

__global__ void undefined_on_the_gpu(Hbm<const fp16> x, int mode) {
  SharedMemory smem;
  const auto s = smem.take<fp16>("s", 256);
  for (int i = 0; i < 8; ++i) s[8 * static_cast<int>(threadIdx.x) + i] = fp16(0.0f);
  __syncthreads();
  unsigned r[4] = {};
  float c[4] = {};
  if (mode == 0 && threadIdx.x < 16) __shfl_xor_sync(0xffff, 1.0f, 16);
  if (mode == 1) ldmatrix_x4(r, s);
  if (mode == 2) mma_m16n8k16<fp16>(c, r, 0, 0);
  if (mode == 3) ldmatrix_x4(r, s + 4);
  if (mode == 4) store_pair(s + 1, 0u);
  if (mode == 5) cp_async(s, x + 4);
  if (mode == 6) read_chunk(x + 1);
  if (mode == 7) write_chunk(s + 4, read_chunk(x));
}
__global__ void store_from(Hbm<fp16> x, int at) {
  SharedMemory smem;
  const auto s = smem.take<fp16>("s", 16);
  for (int i = 0; i < 16; ++i) s[i] = fp16(0.0f);
  store_16_bytes(x, s + at);
}
__global__ void add_pair_at(Hbm<float> x, int i) {
  atomic_add_pair(x + i, 1, 1);
}
__global__ void four_floats(Hbm<const float> x, int mode) {
  SharedMemory smem;
  const auto s = smem.take<float>("s", 8);
  float four[4];
  read_4(four, mode == 0 ? x + 2 : mode == 1 ? x + 8 : x + 4);
  store_4(mode == 2 ? s + 2 : mode == 3 ? s + 8 : s + 4, four);
}

TEST_F(SimTest, FaultsWhatIsUndefinedOnTheGpu) {
  Array& x = array("x", iota(8));
  const auto said = [&](int mode, int threads) {
    return fault_of([&] {
      launch("undefined", undefined_on_the_gpu, dim3(1), dim3(threads), 512, hbm<const fp16>(x),
             mode);
    });
  };
  expect_says(said(0, 32), {"__shfl_xor_sync: lane 0 reads lane 16, which takes no part"});
  expect_says(said(1, 31), {"ldmatrix.x4 in a warp of fewer than 32 threads"});
  expect_says(said(2, 31), {"mma.m16n8k16 in a warp of fewer than 32 threads"});
  expect_says(said(3, 32), {"ldmatrix.x4 of a row not aligned to 16 bytes"});
  expect_says(said(4, 32), {"pair to shared s not aligned to 4 bytes"});
  expect_says(said(5, 32), {"asynchronous copy from global memory not aligned to 16 bytes"});
  expect_says(said(6, 32), {"read of a chunk not aligned to 16 bytes"});
  expect_says(said(7, 32), {"write of a chunk to shared s not aligned to 16 bytes"});
  EXPECT_EQ(said(8, 31), "no fault");
  expect_says(fault_of([&] { launch("add", add_pair_at, dim3(1), dim3(1), 0, hbm<float>(x), 1); }),
              {"atomic_add_pair: not aligned"});
  const auto stored_from = [&](int at) {
    return fault_of([&] { launch("store", store_from, dim3(1), dim3(1), 128, hbm<fp16>(x), at); });
  };
  EXPECT_EQ(stored_from(8), "no fault");
  expect_says(stored_from(4), {"16-byte store from shared memory not aligned to 16 bytes"});

  Array& floats = array("floats", iota(8));
  const auto of_four = [&](int mode) {
    return fault_of([&] {
      launch("four", four_floats, dim3(1), dim3(1), 128, hbm<const float>(floats), mode);
    });
  };
  expect_says(of_four(0), {"read of 4 floats not aligned to 16 bytes"});
  expect_says(of_four(1), {"read of floats[8] (element of 4 bytes; the array has 8)"});
  expect_says(of_four(2), {"store of 4 floats to shared s not aligned to 16 bytes"});
  expect_says(of_four(3), {"write to shared s[8] (element of 4 bytes)"});
  EXPECT_EQ(of_four(4), "no fault");
}

__global__ void power(Hbm<float> x) {
  x[0] = exp2_fast(x[0]);
}

TEST_F(SimTest, FaultsThePowerOfANaN) {
  Array& x = array("x", std::vector<float>{-INFINITY});
  const auto work = [&] { launch("power", power, dim3(1), dim3(1), 0, hbm<float>(x)); };
  EXPECT_EQ(fault_of(work), "no fault");
  EXPECT_EQ(values(x).at(0), 0);
  const float nan = NAN;
  device().upload(x, &nan);
  expect_says(fault_of(work), {"kernel power", "thread (0,0,0): 2^NaN: did −∞ − (−∞) come up?"});
}

__global__ void nothing() {}

TEST_F(SimTest, FaultsImpossibleLaunches) {
  expect_says(fault_of([&] { launch("big", nothing, dim3(1), dim3(32, 33), 0); }),
              {"kernel big: a block of (32,33,1) threads"});
  expect_says(fault_of([&] { launch("tall", nothing, dim3(1, 65536), dim3(1), 0); }),
              {"kernel tall: a grid of (1,65536,1) blocks"});
  expect_says(fault_of([&] { launch("deep", nothing, dim3(1, 1, 65536), dim3(1), 0); }),
              {"kernel deep: a grid of (1,1,65536) blocks"});
  expect_says(fault_of([&] { launch("none", nothing, dim3(0), dim3(1), 0); }),
              {"a grid of (0,1,1)"});
  for (const dim3& grid : {dim3(1, 0), dim3(1, 1, 0), dim3(0x80000000u)})
    expect_says(fault_of([&] { launch("none", nothing, grid, dim3(1), 0); }),
                {"kernel none: a grid of ("});
  for (const dim3& block : {dim3(0), dim3(1, 1, 65)})
    expect_says(fault_of([&] { launch("none", nothing, dim3(1), block, 0); }),
                {"kernel none: a block of ("});
  EXPECT_THROW(launch("outside", nothing, dim3(1), dim3(1), 0), std::logic_error);
  EXPECT_THROW(device().allocate("huge", int64_t{1} << 60), Error);
}

// Without its barrier this kernel is right in one order of threads and wrong in another.
__global__ void neighbour_without_barrier(Hbm<float> x) {
  SharedMemory smem;
  const auto s = smem.take<float>("s", 64);
  const int i = static_cast<int>(threadIdx.x);
  s[i] = x[i];
  x[i] = s[i > 0 ? i - 1 : 0];
}

TEST_F(SimTest, SchedulesExposeAMissingBarrier) {
  std::set<std::string> outcomes;
  for (const auto order : {Schedule::Order::forward, Schedule::Order::reverse}) {
    options({.schedule = {order, 0}});
    Array& x = array("x", iota(64));
    outcomes.insert(fault_of(
        [&] { launch("race", neighbour_without_barrier, dim3(1), dim3(64), 256, hbm<float>(x)); }));
  }
  EXPECT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes.count("no fault"), 1u);
}

// Thread 0 leaves a barrier first or last; a thread that reads what it writes has missed a barrier.
__global__ void first_thread_writes_after_a_barrier(Hbm<float> x) {
  SharedMemory smem;
  const auto s = smem.take<float>("s", 1);
  s[0] = 1;
  __syncthreads();
  if (threadIdx.x == 0) s[0] = 2;
  if (threadIdx.x == 1) x[0] = s[0];
}

// Warp 1 reads what warp 0 writes; that both meet their own lanes in between orders nothing.
__global__ void warps_meet_only_themselves(Hbm<float> x) {
  SharedMemory smem;
  const auto s = smem.take<float>("s", 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x < 32) s[lane] = 1;
  for (int i = 0; i < 9; ++i) __syncwarp();
  if (threadIdx.x >= 32) x[lane] = s[lane];
}

TEST_F(SimTest, ForwardAndReverseShowEitherOrderOfThreadsAndOfWarps) {
  for (const auto kernel : {first_thread_writes_after_a_barrier, warps_meet_only_themselves}) {
    std::set<std::string> outcomes;
    for (const auto order : {Schedule::Order::forward, Schedule::Order::reverse}) {
      options({.schedule = {order, 0}});
      Array& x = array("x", 32);
      const std::string fault =
          fault_of([&] { launch("race", kernel, dim3(1), dim3(64), 128, hbm<float>(x)); });
      outcomes.insert(fault + std::to_string(values(x).at(0)));
    }
    EXPECT_EQ(outcomes.size(), 2u) << *outcomes.begin();
  }
}

TEST_F(SimTest, ATraceAfterAFaultHasNothingOfIt) {
  options({.trace_file = "in memory"});
  Array& x = array("x", iota(32));
  Array& y = array("y", 32);
  const auto add = [&](int threads, int n) {
    launch("add_first", add_first, dim3(1), dim3(threads), 0, hbm<float>(x), hbm<float>(y), n);
  };
  expect_says(fault_of([&] { add(33, 33); }), {"thread (32,0,0)", "x[32]"});
  device().take_trace();
  run([&] { add(1, 1); });
  const auto events = device().take_trace().events;
  ASSERT_EQ(events.size(), 3u);  // x[0] is named at two places
  EXPECT_EQ(events[0].name + events[1].name + events[2].name, "xxy");
  EXPECT_EQ(events[0].bytes, 4);
}

TEST_F(SimTest, ARunAfterAFaultStartsClean) {
  Array& x = array("x", iota(10));
  Array& y = array("y", 10);
  fault_of([&] { launch("write_at", write_at, dim3(4), dim3(8), 0, hbm<float>(x), int64_t{10}); });
  const Counts c = run([&] {
    launch("add_first", add_first, dim3(1), dim3(32), 0, hbm<float>(x), hbm<float>(y), 10);
  });
  EXPECT_EQ(c.hbm.requested_read, 80);
  EXPECT_EQ(c.hbm.distinct_read, 40);
}

#ifdef __linux__
/// Counts the blocks that run on another thread than `caller`.
__global__ void look_at_thread(std::thread::id caller, std::atomic<int>* others) {
  *others += std::this_thread::get_id() != caller;
}

TEST_F(SimTest, StartsNoThreadWhereThereIsOneCore) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const std::thread::id self = std::this_thread::get_id();
  std::atomic<int> others = 0;
  EXPECT_EQ(device().info().name, "sim on 1 core");
  device().run("test",
               [&] { launch("look", look_at_thread, dim3(64), dim3(1), 0, self, &others); });
  parallel_for(8, [&](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // time for another to begin
    others += std::this_thread::get_id() != self;
  });
  EXPECT_EQ(others, 0);
  sched_setaffinity(0, sizeof before, &before);
}
#endif

}  // namespace
}  // namespace ladder::sim
