// Tests the simulator: CUDA's semantics, exact counts, and a fault for everything that CUDA
// forbids. A small kernel makes each mistake; the fault must name kernel, block, thread and array.

#include <algorithm>
#include <set>

#include "machine/hopper.h"
#include "tests/sim/sim_test.h"

namespace ladder::sim {
namespace {

const Schedule kSchedules[] = {
    {}, {Schedule::Order::reverse, 0}, {Schedule::Order::random, 1}, {Schedule::Order::random, 99}};

// ------------------------------------------------------------------------------------------ counts

// The suite compares each step's counts with traffic(), results_test with the committed counts.
TEST_F(SimTest, AddsUpLaunchesWithTheSameName) {
  const auto x = array("x", iota(32));
  const Counts c = run([&] {
    for (int i = 0; i < 2; ++i)
      start("work", 1, 32, [&] { x[thread()] = float(x[thread()]) + exp2f(3); });
  });
  const HbmCounts& of_x = c.arrays.at("x");
  for (const ReadWrite& bytes : {c.hbm.requested, c.hbm.distinct, of_x.requested, of_x.distinct})
    EXPECT_EQ(bytes, (ReadWrite{256, 256}));
  EXPECT_EQ(of_x.sectors, (ReadWrite{8, 8}));
  EXPECT_EQ(c.exps, 64);
  EXPECT_EQ(values(x).at(31), 31 + 2 * 8);
}

// Tests CUDA's rules for source lanes outside the warp, which no kernel of the ladder uses.
TEST_F(SimTest, ShufflesFromLanesOutsideTheWarp) {
  for (const auto& schedule : kSchedules) {
    options({.schedule = schedule});
    const auto out = array("out", 64);
    run(1, 32, [&] {
      const auto x = static_cast<float>(thread());
      out[thread()] = __shfl_sync(0xffffffff, x, 35);
      out[32 + thread()] = __shfl_xor_sync(0xffffffff, x, 32);  // returns its own value
    });
    std::vector<float> wanted = iota(32);
    wanted.insert(wanted.begin(), 32, 3.0f);
    EXPECT_EQ(values(out), wanted);
  }
}

// A kernel that lacks a barrier must be right in one order of threads and wrong in another.
TEST_F(SimTest, SchedulesReorderBlocksWarpsAndLanes) {
  // Returns the positions of block 0's 128 threads at three times, then those of the 128 blocks.
  const auto order = [&](const Schedule& schedule) {
    options({.schedule = schedule, .threads = 1});
    const auto next = array("next", iota(2)), out = array("out", 4 * 128);
    run(128, 128, [&] {
      if (thread() == 0) out[3 * 128 + blockIdx.x] = atomicAdd(next + 1, 1.0f);
      if (blockIdx.x > 0) return;
      out[thread()] = atomicAdd(next, 1.0f);
      for (int i = 0; i < 9; ++i) __syncwarp();
      out[128 + thread()] = atomicAdd(next, 1.0f);
      __syncthreads();
      out[256 + thread()] = atomicAdd(next, 1.0f);
    });
    return values(out);
  };
  const auto forward = order({}), reverse = order({Schedule::Order::reverse, 0});
  for (int i = 0; i < 4 * 128; i += 128) {
    EXPECT_TRUE(std::is_sorted(&forward[i], &forward[i] + 128)) << i;
    EXPECT_TRUE(std::is_sorted(&reverse[i], &reverse[i] + 128, std::greater())) << i;
  }
  // A meeting of a warp's lanes does not order different warps.
  EXPECT_LT(forward[0], forward[128 + 32]);
  EXPECT_GT(reverse[0], reverse[128 + 32]);
  std::set<bool> warps, lanes;  // whether the second one ran before the first
  std::set<int> first, steps;   // the position of block 0, and of block 1 relative to it
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const auto random = order({Schedule::Order::random, seed});
    warps.insert(random[32] < random[0]);
    lanes.insert(random[1] < random[0]);
    first.insert(static_cast<int>(random[384]));
    steps.insert(static_cast<int>(random[385] - random[384] + 128) % 128);
  }
  EXPECT_EQ(warps.size(), 2u);
  EXPECT_EQ(lanes.size(), 2u);
  EXPECT_GT(std::min(first.size(), steps.size()), 2u);
}

TEST_F(SimTest, CountsBankConflictsOfMatrices) {
  // Each of four matrices consists of 8 rows of 16 bytes, which take 1 pass if they use different
  // banks. If rows are 64 bytes apart, groups of 4 share banks, so 3 more passes follow; if rows
  // are a multiple of 128 bytes apart, all 8 do, and 7 follow. Pitches are in elements of 2 bytes.
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

// The k-th accesses of lanes since they last met form one request, which counts a sector once.
TEST_F(SimTest, CountsSectorsPerWarp) {
  struct Case {
    int accesses;     // per lane, to float at(lane, number); −1: no access
    int64_t sectors;  // the count if the warp's lanes meet only at the end
    int64_t apart;    // the count if they meet after each access
    int (*at)(int lane, int number);
  };
  constexpr Case kCases[] = {
      {3, 12, 12, [](int i, int n) { return 32 * n + i; }},                       // coalesced
      {3, 12, 12, [](int i, int n) { return 32 * n + 31 - i; }},                  // backwards
      {2, 2, 2, [](int, int n) { return n; }},                                    // one address
      {1, 5, 5, [](int i, int) { return 3 + i; }},                                // 12 bytes off
      {2, 6, 6, [](int i, int n) { return 32 * n + i < 41 ? 32 * n + i : -1; }},  // ragged
      {12, 384, 384, [](int i, int n) { return 64 * i + n; }},                    // a row per lane
      {3, 49, 49, [](int i, int n) { return 4 * i + 3 * n; }},                    // 16 + 16 + 17
      {3, 6, 6, [](int i, int n) { return i % 2 ? 8 * n * n : 80 + n; }},
      {4, 7, 7, [](int i, int n) { return i < 2 ? 8 * n + i * (8 - 7 * n) : -1; }},  // 2+1+2+2
      {3, 10, 10, [](int i, int n) { return n < 2 || i < 16 ? 32 * n + i : -1; }},
      // Lane 0 makes the first access alone; if the lanes do not meet before the second, the other
      // lanes' only access is combined with it.
      {2, 6, 5, [](int i, int n) { return n ? i : 64 - 65 * (i > 0); }}};
  for (const Schedule& schedule : kSchedules)
    for (const auto& [accesses, sectors, apart, at] : kCases)
      for (const int meets : {0, 1, 2}) {
        options({.schedule = schedule});
        const auto x = array("x", iota(2048));
        const Counts c = run(1, 32, [&, n = accesses, at = at] {
          for (int k = 0; k < n; ++k) {
            if (const int i = at(thread(), k); i >= 0) x[i] = x[i];
            if (meets) meets == 1 ? __syncwarp() : __syncthreads();
          }
        });
        EXPECT_EQ(c.read_sectors, meets ? apart : sectors);
        EXPECT_EQ(c.arrays.at("x").sectors.write, meets ? apart : sectors);
      }
  const auto x = array("x", iota(512));
  // TMA copies the first 64 bytes of 80-byte rows, which touch 2, 3 and 2 sectors.
  const auto rows = tensor_map<fp16>(array("rows", iota(60)).array(), 40, 3, 1, 1, 3, 64);
  const Counts c = run(1, 64, [&] {  // two warps: most lanes copy 16 bytes; then atomic additions
    SharedMemory smem;
    const auto box = smem.take<fp16>("box", 256 + 96, 512);
    const auto full = smem.take<Mbarrier>("full", 1);
    if (thread() == 0) {
      full[0].init(1);
      fence_mbarrier_init();
      full[0].arrive_expect_tx(2 * 192);
      tma_load(rows, full[0], box, 0, 0, 0, 0);
      tma_load(rows, full[0], box + 256, 0, 0, 1, 0);  // head 1 does not exist: zeros
      full[0].wait(0);
    }
    const auto s = smem.take<float>("s", 256);
    cp_async(s + 4 * thread(), x + 4 * thread(), thread() < 62);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    float y[4];
    read_4(y, Hbm<const float>(x + 4 * thread()));
    atomicAdd(x + 8 * thread(), 1.0f);
  });
  EXPECT_EQ(c.read_sectors, 7 + 31 + 32 + 64);
  EXPECT_EQ(c.arrays.at("rows").sectors.read, 7);
  EXPECT_EQ(c.write_sectors, 64);
  EXPECT_EQ(c.atomics, 64);
  EXPECT_EQ(c.sram_write, 2 * 192 + 64 * 16);  // includes zeros
}

TEST_F(SimTest, EveryThreadRunsOnceInEverySchedule) {
  for (const auto& schedule : kSchedules)
    for (const dim3 block : {dim3(1), dim3(31), dim3(3, 5, 2), dim3(4, 8, 3)}) {
      options({.schedule = schedule});
      const int threads = static_cast<int>(block.x * block.y * block.z), blocks = 7 * 4 * 3;
      const auto x = array("x", threads * blocks);
      const Counts c = run(dim3(7, 4, 3), block, [&] {
        const auto b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        const auto t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        x[b * blockDim.x * blockDim.y * blockDim.z + t] = 0;
        __syncwarp();
        for (unsigned i = 0; i < blockIdx.x; ++i) __syncthreads();
      });
      EXPECT_EQ(c.hbm.requested.write, 4 * threads * blocks);
      EXPECT_EQ(c.hbm.distinct.write, 4 * threads * blocks);
      EXPECT_EQ(c.barriers, (0 + 1 + 2 + 3 + 4 + 5 + 6) * 4 * 3);
    }
}

// x[i] returns a Ref, a stand-in for the element. Binding it to a variable would delay the read
// until the variable is used; a GPU reads at once. So only an unbound Ref converts to a number.
static_assert(std::is_convertible_v<Ref<float, Hbm<float>>, float>);
static_assert(!std::is_convertible_v<Ref<float, Hbm<float>>&, float>);
static_assert(!std::is_convertible_v<Ref<fp16, Smem<fp16>>&, float>);

// ------------------------------------------------------------------------------------------ faults

// Thread 3 of block 2 makes one mistake; the message must begin as kFaults says.
TEST_F(SimTest, FaultsOfOneThread) {
  struct Given {
    Smem<float> before, tile, after;  // none is written at first
    Smem<fp16> halves;
  };
  const auto x = array("x", iota(16)), y = array("y", 8), nan = array("nan", {-INFINITY, NAN});
  const auto pairs = hbm<fp16>(x.array());
  const auto copied = [x](const Given& in) {  // the first half of tile
    cp_async(in.tile, x);
    cp_async_commit();
  };
  const auto copy_4 = [](Smem<float> target, Hbm<float> source) {
    float four[4];
    read_4(four, source);
    store_4(target, four);
  };
  const std::string copy =
      "to which an asynchronous copy is still writing: wait for the copy first";
  const std::pair<std::string, std::function<void(const Given&)>> kFaults[] = {
      {"write to x[16] (element of 4 bytes; the array has 16)", [=](auto&) { x[16] = 1; }},
      {"write to x[-1]", [=](auto&) { x[-1] = 1; }},
      {"write to x[1099511627776]", [=](auto&) { x[int64_t{1} << 40] = 1; }},
      {"read of x[16]", [=](auto&) { x[0] = x[16]; }},
      {"read of unwritten y[6]", [=](auto&) { x[0] = y[6]; }},
      {"read of unwritten y[5]", [=](auto&) { atomicAdd(y + 5, 1.0f); }},
      {"read of unwritten y[2]", [=](auto&) { atomic_add_pair(y + 2, 1, 1); }},
      {"write to shared tile[8] (element of 4 bytes): 4 bytes from there reach outside the array, "
       "which has 8 elements",
       [](auto& in) { in.tile[8] = 1; }},
      {"write to shared tile[-1]", [](auto& in) { in.tile[-1] = 1; }},
      {"read of shared tile[8]", [](auto& in) { in.before[0] = in.tile[8]; }},
      {"read of shared tile[3] (element of 4 bytes), which is unwritten: is a write, or a barrier "
       "after it, missing?",
       [](auto& in) { in.before[0] = in.tile[3]; }},
      {"element 8 of a chunk, which has 8", [=](auto&) { read_chunk(x)[8]; }},
      {"element -1 of a chunk", [=](auto&) { read_chunk(x)[-1] = 0; }},
      {"2^NaN: did −∞ − (−∞) come up?", [=](auto&) { x[0] = exp2_fast(nan[1]); }},
      {"read of shared tile[3] (element of 4 bytes), " + copy,
       [=](auto& in) { copied(in), in.before[0] = in.tile[3]; }},
      {"write to shared tile[2] (element of 4 bytes), " + copy,
       [=](auto& in) { copied(in), in.tile[2] = 0; }},
      {"asynchronous copy to shared tile[0] (element of 4 bytes), " + copy,
       [=](auto& in) { copied(in), cp_async(in.tile, x + 4); }},
      // The copy may be in a group that the wait leaves in flight, or in no group.
      {"read of shared tile[3] (element of 4 bytes), " + copy,
       [=](auto& in) { copied(in), cp_async_wait<1>(), in.before[0] = in.tile[3]; }},
      {"read of shared tile[3] (element of 4 bytes), " + copy,
       [=](auto& in) { cp_async(in.tile, x), cp_async_wait<0>(), in.before[0] = in.tile[3]; }},
      {"ends with an asynchronous copy that was never waited for", copied},
      {"asynchronous copy to shared tile[1] (element of 4 bytes) not aligned to 16 bytes",
       [=](auto& in) { cp_async(in.tile + 1, x); }},
      {"asynchronous copy from global memory not aligned to 8 bytes",
       [=](auto& in) { cp_async<8>(in.tile, x + 1); }},
      {"asynchronous copy to shared tile[8]", [=](auto& in) { cp_async(in.tile + 8, x); }},
      {"read of x[16]", [=](auto& in) { cp_async(in.tile, x + 16); }},
      {"store of a pair to shared halves not aligned to 4 bytes",
       [](auto& in) { store_pair(in.halves + 1, 0u); }},
      {"read of a chunk not aligned to 16 bytes", [=](auto&) { read_chunk(pairs + 1); }},
      {"write of a chunk not aligned to 16 bytes",
       [=](auto&) { write_chunk(pairs + 1, Chunk<fp16>{}); }},
      {"write of a chunk to shared halves not aligned to 16 bytes",
       [=](auto& in) { write_chunk(in.halves + 4, read_chunk(pairs)); }},
      {"atomic_add_pair not aligned to 8 bytes", [=](auto&) { atomic_add_pair(x + 1, 1, 1); }},
      {"16-byte store from shared halves not aligned to 16 bytes",
       [=](auto& in) { store_16_bytes(pairs, in.halves + 4); }},
      {"16-byte store to global memory not aligned to 16 bytes",
       [=](auto& in) { store_16_bytes(pairs + 4, in.halves); }},
      {"read of 4 floats not aligned to 16 bytes", [=](auto& in) { copy_4(in.tile, x + 2); }},
      {"read of x[16]", [=](auto& in) { copy_4(in.tile, x + 16); }},
      {"store of 4 floats to shared tile not aligned to 16 bytes",
       [=](auto& in) { copy_4(in.tile + 2, x); }},
      {"write to shared tile[8]", [=](auto& in) { copy_4(in.tile + 8, x); }},
      // A correct kernel.
      {"", [=](auto& in) {
         copied(in), cp_async(in.tile + 4, x + 4), cp_async_commit(), cp_async_wait<1>();
         in.tile[3] = float(in.tile[3]) + 1;
         cp_async_wait<0>();
         auto chunk = read_chunk(x);
         chunk[7] = chunk[7] + exp2_fast(nan[0]);
         write_chunk(in.halves + 8, read_chunk(pairs));
         store_16_bytes(pairs + 8, in.halves);
         copy_4(in.tile + 4, x + 4);
         atomic_add_pair(x + 2, 1, in.tile[3]);
       }}};
  for (const auto& [says, does] : kFaults) {
    const auto kernel = [&does = does] {
      SharedMemory smem;
      const Given given{smem.take<float>("before", 8), smem.take<float>("tile", 8),
                        smem.take<float>("after", 8), smem.take<fp16>("halves", 16)};
      if (blockIdx.x != 2 || threadIdx.x != 3) return;
      for (int i = 0; i < 16; ++i) given.halves[i] = fp16(0.0f);
      does(given);
    };
    expect_says(fault_of(4, 8, kernel),
                says.empty() ? "no fault"
                             : "rung test, kernel planted, block (2,0,0), thread (3,0,0): " + says);
  }
  const auto fresh = array("fresh", 16);
  expect_says(fault_of(1, 1, [&] { y[0] = fresh[0]; }), "read of unwritten fresh[0]");
  EXPECT_TRUE(std::isnan(values(fresh).at(0)));
}

TEST_F(SimTest, FaultsOfWarpsAndBlocks) {
  const auto shared = [](const char* name = "s", int n = 64) {
    const auto s = SharedMemory().take<fp16>(name, n);
    for (int i = 0; i < n; ++i) s[i] = fp16(0.0f);
    return s;
  };
  unsigned r[4] = {};
  float c[4] = {};
  struct Case {
    int threads;
    std::string says;
    Kernel does;
  };
  const Case kFaults[] = {
      {31, "ldmatrix.x4 in a warp of fewer than 32 threads", [&] { ldmatrix_x4(r, shared()); }},
      {31, "stmatrix.x4 in a warp of fewer than 32 threads", [&] { stmatrix_x4(shared(), r); }},
      {31, "mma.m16n8k16 in a warp of fewer than", [&] { mma_m16n8k16<fp16>(c, r, 0, 0); }},
      {32, "ldmatrix.x4 of a row from shared s not aligned", [&] { ldmatrix_x4(r, shared() + 4); }},
      {32, "stmatrix.x4 of a row to shared s not aligned", [&] { stmatrix_x4(shared() + 4, r); }},
      {16, "__shfl_xor_sync: lane 0 reads lane 16, which does not take",
       [] { __shfl_xor_sync(0xffff, 1.0f, 16); }},
      {32,
       "thread (16,0,0) … lanes disagree: __shfl_xor_sync at sim_test.cpp: … , while lanes "
       "0x0000ffff of this warp are at __syncwarp",
       [] { thread() < 16 ? __syncwarp() : void(__shfl_xor_sync(0xffffffff, 1.0f, 1)); }},
      {32, "__shfl_xor_sync: the mask 0xffff7fff leaves out lanes of the warp",
       [] { __shfl_xor_sync(0xffff7fff, 1.0f, 1); }},
      {4,
       "thread (2,0,0) … 16 bytes of shared memory for s, but another thread took 128 for s: all "
       "threads must take the same arrays in the same order",
       [&] { shared("s", thread() == 2 ? 8 : 64); }},
      {4, "thread (2,0,0) … 128 bytes of shared memory for t, but another",
       [&] { shared(thread() == 2 ? "t" : "s"); }},
      {4,
       "takes more shared memory than the launch requested: "
       "s ends at byte 24834, but the block has 24832",
       [&] { shared("s", 12417); }},
      {64,
       "thread (0,0,0): deadlock: 32 of 64 threads have ended, the others wait: thread (0,0,0) and "
       "31 after it for __syncthreads (sim_test.cpp: … ), which thread (32,0,0) never reaches",
       [] {
         if (thread() < 32) __syncthreads();
       }},
      {64,
       "thread (0,0,0) and 6 after it for __syncwarp (sim_test.cpp: … ), which thread (7,0,0) "
       "never reaches; thread (7,0,0) for __syncthreads (sim_test.cpp: … ); thread (8,0,0) and 23",
       [] { thread() == 7 ? __syncthreads() : __syncwarp(); }},
      {64, "__syncthreads at sim_test.cpp: … while other threads wait at the one at sim_test.cpp:",
       [] { thread() < 32 ? __syncthreads() : __syncthreads(); }},
      {64, "a barrier in a branch that not all threads take", [] {
         if (thread() < 32)
           __syncthreads();
         else
           __syncthreads();
       }}};
  for (const auto& [threads, says, does] : kFaults)
    expect_says(fault_of(1, threads, does), "rung test, kernel planted, block (0,0,0), … " + says);
  options({.smem_bytes = 300});
  expect_says(fault_of(
                  1, 8, [] {}, 384),
              "kernel planted … 384 bytes of shared memory per block, more than the 300");
  EXPECT_NO_THROW(device().run("test", [] {
    start(
        "fits", 1, 8, [] {}, 300);
  }));
}

TEST_F(SimTest, FaultsImpossibleLaunches) {
  const std::tuple<dim3, dim3, std::string> kLaunches[] = {
      {1, dim3(32, 33), "a block of (32,33,1) threads"},
      {1, 0, "a block of (0,1,1)"},
      {1, dim3(1, 1, 65), "a block of (1,1,65)"},
      {dim3(1, 65536), 1, "a grid of (1,65536,1) blocks"},
      {dim3(1, 1, 65536), 1, "a grid of (1,1,65536)"},
      {0, 1, "a grid of (0,1,1)"},
      {dim3(1, 0), 1, "a grid of (1,0,1)"},
      {dim3(1, 1, 0), 1, "a grid of (1,1,0)"},
      {0x80000000u, 1, "a grid of (2147483648,1,1)"}};
  for (const auto& [grid, block, wanted] : kLaunches)
    expect_says(fault_of(grid, block, [] {}), "kernel planted: " + wanted);
  for (const auto& [grid, block] : {std::pair{dim3(1, 65535), dim3(1, 1, 64)},
                                    {dim3(2, 1, 65535), dim3(1)},
                                    {dim3(3), dim3(1024)}})
    EXPECT_EQ(fault_of(grid, block, [] {}), "no fault") << grid.y << " " << block.x;
  EXPECT_THROW(start("outside", 1, 1, [] {}), std::logic_error);
  EXPECT_THROW(device().allocate("huge", int64_t{1} << 60), Error);
}

// Host code cannot touch a GPU's memory either, and accesses that bypass Hbm would not be counted.
TEST_F(SimTest, HbmCannotBeTouchedByAddress) {
  const auto x = array("x", iota(64));
  auto* const at = static_cast<volatile float*>(x.array().data);
  const auto ends = testing::ExitedWithCode(static_cast<int>(Exit::wrong_result));
  const char* const said = "^x is in HBM: host code cannot touch it";
  EXPECT_EXIT(at[0] = 1, ends, said);
  EXPECT_EXIT(static_cast<void>(at[63]), ends, said);
  EXPECT_EXIT(run(1, 1, [&] { x[0] = at[1]; }), ends, said);
  EXPECT_EXIT(*reinterpret_cast<volatile int*>(64) = 1, testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EQ(values(x), iota(64));
}

TEST_F(SimTest, TraceEndsWithTheFaultAtItsThreadsPlace) {
  options({.trace = true});
  const auto x = array("x", iota(64));
  const auto half = [&] { thread() < 32 ? __syncthreads() : void(x[thread()] = 0); };
  expect_says(fault_of(1, 64, half), "thread (0,0,0): deadlock");
  const Trace stuck = device().take_trace();  // the fault's place is where thread 0 waits
  EXPECT_EQ(stuck.fault.site, stuck.events.end()[-2].site);
  expect_says(fault_of(1, 2048, half), "at most 1024");
  expect_says(device().take_trace().fault.message, "at most 1024");
}

}  // namespace
}  // namespace ladder::sim
