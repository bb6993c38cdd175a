// The sim: CUDA's meaning, exact counts, and a fault for everything that CUDA forbids. Each fault
// is planted in a small kernel and must name kernel, block, thread, array and index.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

#include "harness/parallel.h"
#include "machine/hopper.h"
#include "tests/sim/sim_test.h"

namespace ladder::sim {
namespace {

const Schedule kSchedules[] = {
    {}, {Schedule::Order::reverse, 0}, {Schedule::Order::random, 1}, {Schedule::Order::random, 99}};

// ------------------------------------------------------------------------------------- what counts

TEST_F(SimTest, CountsRequestedAndDistinctBytes) {
  const auto x = array("x", iota(100)), y = array("y", 100);
  const auto add_first = [&] {  // reads two elements a thread
    const int i = static_cast<int>(blockIdx.x * blockDim.x) + thread();
    if (i < 100) y[i] = x[i] + x[0];
  };
  const Counts c = run(4, 32, add_first);
  EXPECT_EQ(c.hbm.requested_read, 800);
  EXPECT_EQ(c.hbm.requested_write, 400);
  EXPECT_EQ(c.hbm.distinct_read, 400);
  EXPECT_EQ(c.hbm.distinct_write, 400);
  EXPECT_EQ(c.arrays.at("x").requested_read, 800);
  EXPECT_EQ(c.arrays.at("x").requested_write, 0);
  EXPECT_EQ(c.arrays.at("y").distinct_write, 400);
  EXPECT_EQ(values(y).at(99), 99);
  const Counts twice = run([&] {
    for (int i = 0; i < 2; ++i) start("add_first", 1, 32, add_first);
  });
  EXPECT_EQ(twice.hbm.distinct_read, 2 * 128);  // launches of one name add up
}

void reverse_in_shared(Hbm<float> x) {
  SharedMemory smem;
  const auto s = smem.take<float>("s", 64);
  s[thread()] = x[thread()];
  __syncthreads();
  x[thread()] = s[63 - thread()];
}

TEST_F(SimTest, SharedMemoryAndBarrier) {
  for (const auto order : kOrders) {
    options({.schedule = {order, 7}});
    const auto x = array("x", iota(64));
    const Counts c = run(1, 64, [&] { reverse_in_shared(x); });
    EXPECT_EQ(c.sram_read, 256);
    EXPECT_EQ(c.sram_write, 256);
    EXPECT_EQ(values(x).at(0), 63);
    EXPECT_EQ(values(x).at(63), 0);
    EXPECT_EQ(c.barriers, 1);
  }
}

TEST_F(SimTest, CountsTheBarriersOfEachBlockOnce) {
  const auto pass_barriers = [] {  // block x passes x + 2
    for (unsigned i = 0; i < blockIdx.x; ++i) __syncthreads();
    __syncwarp();
    __syncthreads();
    __syncthreads();
  };
  for (const auto order : kOrders)
    for (const unsigned threads : {1u, 31u, 96u}) {
      options({.schedule = {order, 7}});
      const Counts c = run([&] {
        for (const unsigned blocks : {5u, 1u}) start("pass", blocks, threads, pass_barriers);
      });
      EXPECT_EQ(c.barriers, 2 + 3 + 4 + 5 + 6 + 2);
    }
}

TEST_F(SimTest, WarpCollectives) {
  // At random the halves come to their collectives in turns, so that several are under way.
  for (const auto& schedule : kSchedules) {
    options({.schedule = schedule});
    const auto out = array("out", 160);
    run(1, 32, [&] {
      const int lane = thread();
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
    });
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

// So a kernel without its barrier is right in one order of threads and wrong in another.
TEST_F(SimTest, SchedulesAreOfLanesAndOfWarps) {
  const auto order = [&](const Schedule& schedule) {  // when each thread came, and came again
    options({.schedule = schedule});
    const auto next = array("next", iota(1)), out = array("out", 3 * 128);
    run(1, 128, [&] {
      out[thread()] = atomicAdd(next, 1.0f);
      for (int i = 0; i < 9; ++i) __syncwarp();
      out[128 + thread()] = atomicAdd(next, 1.0f);
      __syncthreads();
      out[256 + thread()] = atomicAdd(next, 1.0f);
    });
    return values(out);
  };
  const auto forward = order({}), reverse = order({Schedule::Order::reverse, 0});
  for (int i = 0; i < 3 * 128; i += 128) {
    EXPECT_TRUE(std::is_sorted(&forward[i], &forward[i] + 128)) << i;
    EXPECT_TRUE(std::is_sorted(&reverse[i], &reverse[i] + 128, std::greater())) << i;
  }
  // That a warp meets its own lanes orders nothing between two warps.
  EXPECT_LT(forward[0], forward[128 + 32]);
  EXPECT_GT(reverse[0], reverse[128 + 32]);
  std::set<bool> warps, lanes;  // whether the second comes before the first
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const auto random = order({Schedule::Order::random, seed});
    warps.insert(random[32] < random[0]);
    lanes.insert(random[1] < random[0]);
  }
  EXPECT_EQ(warps.size(), 2u);
  EXPECT_EQ(lanes.size(), 2u);
}

TEST_F(SimTest, AtomicsAreOneReadAndOneWrite) {
  const auto total = array("total", {0.0f, 0.0f});
  const Counts c = run(50, 64, [&] { atomicAdd(total + 1, 1.0f); });
  EXPECT_EQ(values(total), (std::vector<float>{0, 3200}));
  EXPECT_EQ(c.hbm.requested_read, 3200 * 4);
  EXPECT_EQ(c.hbm.requested_write, 3200 * 4);
  EXPECT_EQ(c.hbm.distinct_write, 4);
  EXPECT_EQ(c.barriers, 0);
}

TEST_F(SimTest, CountsArithmetic) {
  const auto x = array("x", 1);
  const Counts c = run(1, 1, [&] { x[0] = fmaf(2, 3, 4) + expf(0) + exp2f(3); });
  EXPECT_EQ(values(x).at(0), 19);
  EXPECT_EQ(c.matmul_flops, 2);
  EXPECT_EQ(c.exps, 2);
}

TEST_F(SimTest, CountsTheBankConflictsOfMatrices) {
  // Of four matrices of 8 rows, each stored or loaded in 1 pass at best: rows 64 bytes apart meet
  // four at a time, 128 bytes or a multiple apart all eight.
  for (const auto& [pitch, conflicts] : {std::pair{8, 0}, {32, 4 * 3}, {64, 4 * 7}, {128, 4 * 7}}) {
    const auto copy_matrices = [pitch = pitch] {
      SharedMemory smem;
      const auto row = smem.take<fp16>("s", 32 * 128) + pitch * thread();
      unsigned r[4] = {};
      stmatrix_x4(row, r);
      ldmatrix_x4(r, row);
    };
    EXPECT_EQ(run(1, 32, copy_matrices).bank_conflicts, 2 * conflicts);
  }
}

TEST_F(SimTest, AsynchronousCopyFillsWithZerosAndCountsWhatItRead) {
  const auto x = array("x", iota(128)), y = array("y", 128);
  const Counts c = run(1, 32, [&] {
    SharedMemory smem;
    const auto s = smem.take<float>("s", 128);
    const int i = 4 * thread();
    cp_async(s + i, x + i, i < 80);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int e = 0; e < 4; ++e) y[i + e] = s[(i + e + 64) % 128];
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
  const auto x = array("x", iota(64));
  run(1, 64, [&] { reverse_in_shared(x); });
  std::string what;  // the second warp's
  for (const TraceEvent& e : device().take_trace().events) {
    if (e.warp == 0) continue;
    what += e.what + " " + e.name + " ";
    for (const Strided& r : e.ranges)
      if (e.name == "x") what += fmt::format("{}+{} ", r.begin, r.bytes);
  }
  EXPECT_EQ(what, "read x 128+128 store s __syncthreads  write x 128+128 ");
}

TEST_F(SimTest, EveryBlockAndThreadRunsOnceInEverySchedule) {
  for (const auto& schedule : kSchedules) {
    options({.schedule = schedule});
    const int threads = 3 * 5 * 2, blocks = 7 * 4 * 3;
    const auto x = array("x", threads * blocks);
    const Counts c = run(dim3(7, 4, 3), dim3(3, 5, 2), [&] {
      const auto b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      const auto t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      x[b * blockDim.x * blockDim.y * blockDim.z + t] = 0;
    });
    EXPECT_EQ(c.hbm.requested_write, 4 * threads * blocks);
    EXPECT_EQ(c.hbm.distinct_write, 4 * threads * blocks);
  }
}

// A named element would be read when it is used, on the gpu when it is named.
static_assert(std::is_convertible_v<HbmRef<float>, float>);
static_assert(!std::is_convertible_v<HbmRef<float>&, float>);
static_assert(!std::is_convertible_v<SmemRef<fp16>&, float>);

// ------------------------------------------------------------------------------------------ faults

TEST_F(SimTest, FaultsOutsideAnArrayAndWhereNobodyWrote) {
  const auto x = array("x", iota(10)), y = array("y", 10);
  const auto expect = [&](bool writes, Hbm<float> a, int64_t at, const std::string& wanted) {
    const auto touch = [&] {  // thread 3 of block 2
      if (blockIdx.x != 2 || threadIdx.x != 3) return;
      if (writes)
        a[at] = 1;
      else if (a[at] > 0)
        a[0] = 0;
    };
    expect_says(fault_of(4, 8, touch),
                "rung test, kernel planted, block (2,0,0), thread (3,0,0): " + wanted);
  };
  for (const int64_t at : {int64_t{10}, int64_t{-1}, int64_t{1} << 40})
    expect(true, x, at, "write to x[" + std::to_string(at) + "]");
  expect(false, x, 10, "read of x[10]");
  expect(false, y, 6, "read of unwritten y[6]");
  device().poison(x.array());
  expect(false, x, 0, "read of unwritten x[0]");
  EXPECT_TRUE(std::isnan(values(x).at(0)));
}

TEST_F(SimTest, FaultsInSharedMemory) {
  const auto kernel = [] {
    SharedMemory smem;
    const auto before = smem.take<float>("before", 8);
    const auto tile = smem.take<float>("tile", 8);
    const auto after = smem.take<float>("after", 8);
    before[0] = after[0] = 0;
    if (threadIdx.x != 5) return;
    if (made("writes past")) tile[8] = 1;
    if (made("writes before")) tile[-1] = 1;
    if (made("reads past")) before[0] = tile[8];
    if (made("")) tile[3] = 1;
    if (made("reads unwritten") || made("")) before[0] = tile[3];
  };
  expect(8,
         {{"writes past", "block (0,0,0), thread (5,0,0): write to shared tile[8]"},
          {"writes before", "write to shared tile[-1]"},
          {"reads past", "thread (5,0,0): read of shared tile[8]"},
          {"reads unwritten", "read of unwritten shared tile[3]"},
          {"", "no fault"}},
         kernel);
  expect_says(fault_of(1, 8, kernel, 256),
              "kernel planted, block (0,0,0), thread (0,0,0) … more shared memory than the launch "
              "gave: after ends at byte 288 of 256");
  options({.sram_bytes = 300});
  expect_says(
      fault_of(1, 8, kernel, 384),
      "rung test, kernel planted … 384 bytes of shared memory for a block, more than the 300");
}

TEST_F(SimTest, FaultsThreadsThatTakeDifferentSharedMemory) {
  expect(4,
         {{"size", "thread (2,0,0) … 16 bytes of shared memory for a"},
          {"name", "thread (2,0,0) … 32 bytes of shared memory for b"}},
         [] {
           const bool other = threadIdx.x == 2;
           SharedMemory smem;
           smem.take<float>(other && made("name") ? "b" : "a", other && made("size") ? 4 : 8);
         });
}

TEST_F(SimTest, FaultsOutsideAChunk) {
  const auto x = array("x", iota(16));
  expect(2,
         {{"past", "block (0,0,0), thread (1,0,0): element 8 of a chunk, which has 8"},
          {"before", "element -1 of a chunk"},
          {"", "no fault"}},
         [&] {
           auto chunk = read_chunk(x);
           const int i = made("past") ? 8 : made("before") ? -1 : 7;
           if (threadIdx.x == 1) chunk[i] = chunk[i] + 1;
         });
}

TEST_F(SimTest, FaultsMisusedAsynchronousCopies) {
  const auto x = array("x", iota(8));
  expect(1,
         {{"reads early",
           "kernel planted, block (0,0,0), thread (0,0,0) … read before its asynchronous copy was "
           "waited for: shared stage[3]"},
          {"never waits", "ends with an asynchronous copy that was never waited for"},
          {"writes under it", "write under an asynchronous copy"},
          {"copies onto it", "asynchronous copy onto one that was not waited for"},
          {"misaligned", "not aligned to 16 bytes"},
          {"past shared", "asynchronous copy to shared stage"},
          {"past array", "read of x[8]"},
          {"8 bytes misaligned", "asynchronous copy to stage not aligned to 8 bytes"},
          {"", "no fault"}},
         [&] {
           SharedMemory smem;
           const auto s = smem.take<float>("stage", 8);
           cp_async(s, x);
           cp_async_commit();
           if (made("never waits")) return;
           if (made("writes under it")) s[2] = 0;
           if (made("copies onto it")) cp_async(s, x + 4);
           if (made("misaligned")) cp_async(s + 1, x);
           if (made("past shared")) cp_async(s + 8, x);
           if (made("past array")) cp_async(s + 4, x + 8);
           if (made("8 bytes misaligned")) cp_async<8>(s + 4, x + 1);
           if (made("") || made("reads early")) cp_async(s + 4, x + 4);
           cp_async_commit();
           if (made("")) cp_async_wait<1>();
           if (made("") || made("reads early")) s[3] = float(s[3]) + 1;
           cp_async_wait<0>();
         });
}

TEST_F(SimTest, FaultsBarrierThatPartOfTheBlockNeverReaches) {
  expect(64,
         {{"one warp",
           "block (0,0,0), thread (0,0,0) … deadlock: waits at __syncthreads (sim_test.cpp: … "
           "which thread (32,0,0) never reaches: it has ended"},
          {"one lane missing", "deadlock: waits at __syncwarp … thread (7,0,0) never reaches"},
          {"two branches", "a barrier in a branch that not all threads take"},
          {"two in a line",
           "__syncthreads at sim_test.cpp: … while other threads wait at the one at "
           "sim_test.cpp:"}},
         [] {
           const bool first = threadIdx.x < 32;
           if (made("one warp") && first) __syncthreads();
           if (made("one lane missing") && threadIdx.x != 7) __syncwarp();
           if (made("two in a line")) first ? __syncthreads() : __syncthreads();
           if (!made("two branches")) return;
           if (first)
             __syncthreads();
           else
             __syncthreads();
         });
}

TEST_F(SimTest, FaultsLanesThatDisagree) {
  expect(32,
         {{"on the collective", "block (0,0,0), thread (16,0,0) … lanes disagree: __shfl_xor_sync"},
          {"on the mask", "lanes disagree"},
          {"without themselves", "leaves out the caller"}},
         [] {
           const bool lower = threadIdx.x < 16;
           if (made("on the collective") && lower) return __syncwarp();
           const unsigned mask = made("without themselves")      ? 0x0000ffff
                                 : made("on the mask") && !lower ? 0xffff0000
                                                                 : 0xffffffff;
           __shfl_xor_sync(mask, 1.0f, 1);
         });
}

TEST_F(SimTest, FaultsWhatIsUndefinedOnTheGpu) {
  const auto floats = array("x", iota(8));
  const auto x = hbm<fp16>(floats.array());
  const auto kernel = [&] {
    SharedMemory smem;
    const auto s = smem.take<fp16>("s", 256);
    for (int i = 0; i < 8; ++i) s[8 * static_cast<int>(threadIdx.x) + i] = fp16(0.0f);
    __syncthreads();
    unsigned r[4] = {};
    float c[4] = {};
    if (made("shuffle") && threadIdx.x < 16) __shfl_xor_sync(0xffff, 1.0f, 16);
    if (made("ldmatrix")) ldmatrix_x4(r, s);
    if (made("mma")) mma_m16n8k16<fp16>(c, r, 0, 0);
    if (made("ldmatrix's row")) ldmatrix_x4(r, s + 4);
    if (made("stmatrix")) stmatrix_x4(s, r);
    if (made("stmatrix's row")) stmatrix_x4(s + 4, r);
    if (made("pair")) store_pair(s + 1, 0u);
    if (made("copy")) cp_async(s, x + 4);
    if (made("chunk read")) read_chunk(x + 1);
    if (made("chunk written")) write_chunk(s + 4, read_chunk(x));
  };
  expect(31,
         {{"ldmatrix", "ldmatrix.x4 in a warp of fewer than 32 threads"},
          {"stmatrix", "stmatrix.x4 in a warp of fewer than 32 threads"},
          {"mma", "mma.m16n8k16 in a warp of fewer than 32 threads"},
          {"", "no fault"}},
         kernel);
  expect(32,
         {{"shuffle", "__shfl_xor_sync: lane 0 reads lane 16, which takes no part"},
          {"ldmatrix's row", "ldmatrix.x4 of a row not aligned to 16 bytes"},
          {"stmatrix's row", "stmatrix.x4 of a row of shared s not aligned to 16 bytes"},
          {"pair", "pair to shared s not aligned to 4 bytes"},
          {"copy", "asynchronous copy from global memory not aligned to 16 bytes"},
          {"chunk read", "read of a chunk not aligned to 16 bytes"},
          {"chunk written", "write of a chunk to shared s not aligned to 16 bytes"}},
         kernel);
  expect(1,
         {{"addition", "atomic_add_pair not aligned to 8 bytes"},
          {"store", "16-byte store from shared halves not aligned to 16 bytes"},
          {"read of 4", "read of 4 floats not aligned to 16 bytes"},
          {"read of 4 past", "read of x[8] (element of 4 bytes; the array has 8)"},
          {"store of 4", "store of 4 floats to shared s not aligned to 16 bytes"},
          {"store of 4 past", "write to shared s[8] (element of 4 bytes)"},
          {"", "no fault"}},
         [&] {
           SharedMemory smem;
           const auto s = smem.take<float>("s", 8);
           const auto halves = smem.take<fp16>("halves", 16);
           for (int i = 0; i < 16; ++i) halves[i] = fp16(0.0f);
           if (made("addition")) atomic_add_pair(floats + 1, 1, 1);
           store_16_bytes(x + 8, halves + (made("store") ? 4 : 8));
           float four[4];
           read_4(four, floats + (made("read of 4") ? 2 : made("read of 4 past") ? 8 : 4));
           store_4(s + (made("store of 4") ? 2 : made("store of 4 past") ? 8 : 4), four);
         });
}

TEST_F(SimTest, FaultsThePowerOfANaN) {
  const auto x = array("x", std::vector<float>{-INFINITY, NAN});
  expect(1, {{"", "no fault"}, {"NaN", "thread (0,0,0): 2^NaN: did −∞ − (−∞) come up?"}},
         [&] { x[0] = exp2_fast(x[made("NaN") ? 1 : 0]); });
  EXPECT_EQ(values(x).at(0), 0);
}

TEST_F(SimTest, FaultsImpossibleLaunches) {
  const auto expect = [&](dim3 grid, dim3 block, const char* wanted) {
    expect_says(fault_of(grid, block, [] {}), wanted);
  };
  expect(dim3(1), dim3(32, 33), "kernel planted: a block of (32,33,1) threads");
  expect(dim3(1), dim3(0), "a block of (0,1,1)");
  expect(dim3(1), dim3(1, 1, 65), "a block of (1,1,65)");
  expect(dim3(1, 65536), dim3(1), "kernel planted: a grid of (1,65536,1) blocks");
  expect(dim3(1, 1, 65536), dim3(1), "a grid of (1,1,65536)");
  expect(dim3(0), dim3(1), "a grid of (0,1,1)");
  expect(dim3(1, 0), dim3(1), "a grid of (1,0,1)");
  expect(dim3(1, 1, 0), dim3(1), "a grid of (1,1,0)");
  expect(dim3(0x80000000u), dim3(1), "a grid of (2147483648,1,1)");
  EXPECT_THROW(start("outside", 1, 1, [] {}), std::logic_error);
  EXPECT_THROW(device().allocate("huge", int64_t{1} << 60), Error);
}

TEST_F(SimTest, AfterAFaultTraceAndCountsStartClean) {
  options({.trace_file = "in memory"});
  const auto x = array("x", iota(32)), y = array("y", 32);
  const auto copy = [&] { y[thread()] = x[thread()]; };
  expect_says(fault_of(1, 33, copy), "thread (32,0,0) … x[32]");
  device().take_trace();
  const Counts c = run(1, 1, copy);
  EXPECT_EQ(c.hbm.requested_read, 4);
  EXPECT_EQ(c.hbm.distinct_read, 4);
  const auto events = device().take_trace().events;
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].name + events[1].name, "xy");
  EXPECT_EQ(events[0].bytes, 4);
}

#ifdef __linux__
TEST_F(SimTest, StartsNoThreadWhereThereIsOneCore) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  std::atomic<int> others = 0;  // blocks and calls that run on another thread than this
  const auto look = [&, self = std::this_thread::get_id()] {
    others += std::this_thread::get_id() != self;
  };
  EXPECT_EQ(device().info().name, "sim on 1 core");
  run(64, 1, look);
  parallel_for(8, [&](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // time for another to begin
    look();
  });
  EXPECT_EQ(others, 0);
  sched_setaffinity(0, sizeof before, &before);
}
#endif

}  // namespace
}  // namespace ladder::sim
