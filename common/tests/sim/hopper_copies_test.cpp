// Tests the faults reported for misused copies and waits in Hopper kernels: bulk stores, additions
// and loads, mbarriers and named barriers. planted.h says how the mistakes are planted.

#include <set>

#include "tests/sim/planted.h"

namespace ladder::sim {
namespace {

using HopperCopies = Planted;

/// The kernel stores to Y, then adds 2 to 64 floats of out in a second group of stores and to 32
/// more in a third. It waits for two groups, overwrites their sources, and waits for the third.
TEST_F(HopperCopies, StoresAndAdditions) {
  const auto overwrites = [](const std::string& where, int element) {
    return fmt::format("write to shared {} (element of {} bytes), {}", where, element, kStillRead);
  };
  const auto store = [&] {
    SharedMemory smem;
    const Stage stage{smem.take<fp16>("stage", kElements)};
    const auto x = smem.take<float>("x", 64);
    const auto full = smem.take<Mbarrier>("full", 1);
    for (int i = 0; i < 32; ++i) stage.data[32 * thread() + i] = fp16(float(thread()));
    const bool unwritten =
        wrong("bulk_add of shared x[9] (element of 4 bytes), which is unwritten");
    if (thread() < 64 && (!unwritten || thread() != 9)) x[thread()] = 2;
    if (thread() == 0) full[0].init(1);
    fence_mbarrier_init();
    if (!wrong("thread (0,0,0): TMA store of shared stage[248] (element of 2 bytes), " +
               kUnfenced) ||
        thread() != 7)
      fence_proxy_async();
    __syncthreads();
    if (thread() != 0) return;
    const bool no_map = wrong("TMA store: the tensor map is empty");
    const bool before =
        wrong("TMA store: 8192 bytes from shared stage[-4096] (element of 2 bytes)");
    tma_store(no_map ? TensorMap{} : Y, before ? Stage{stage.data + -kElements} : stage,
              wrong("TMA store: a box that starts at column 4, no multiple of 16") ? 4 : 0,
              wrong("TMA store to place -1: a box to store must not start before 0") ? -1 : 0, 0,
              0);
    if (wrong("ends with a TMA store that was never waited for")) return;
    tma_store_commit();
    const bool past =
        wrong("atomic addition to out[4096] (element of 4 bytes; the array has 4096)");
    bulk_add(out + (past ? 4096 - 32 : 0), x, 64);
    if (!wrong(overwrites("x[3]", 4))) tma_store_commit();  // else the next wait does not cover it
    if (wrong(overwrites("stage[3]", 2))) stage.data[3] = fp16(0.0f);
    if (wrong(overwrites("x[3]", 4))) x[3] = 0;
    if (wrong("bulk_load onto shared x[12] (element of 4 bytes), " + kStillRead)) {
      full[0].arrive_expect_tx(16);
      bulk_load(full[0], x + 12, out, 4);
    }
    bulk_add(out + 64, x + 32, 32);
    tma_store_commit();
    tma_store_wait_read<1>();
    stage.data[3] = fp16(0.0f);
    x[wrong(overwrites("x[32]", 4)) ? 32 : 3] = 0;
    tma_store_wait<0>();
  };
  expect_says(fault_of(1, 128, store),
              "read of unwritten out[0] (element of 4 bytes; the array has");
  expect_in_every_order(128, 2, store);
}

/// Two threads store and wait. Under a forward schedule both stores begin before either ends, as if
/// copies were slow; under a reverse schedule each ends immediately; random schedules do either.
TEST_F(HopperCopies, ScheduleDeterminesWhenStoresEnd) {
  std::string order;
  const auto store = [&] {
    SharedMemory smem;
    const auto x = smem.take<float>("x", 8) + 4 * thread();
    for (int i = 0; i < 4; ++i) x[i] = 1;
    fence_proxy_async();
    bulk_add(out + 4 * thread(), x, 4);
    tma_store_commit();
    order += " begins";
    tma_store_wait<0>();
    order += " ends";
    done_with(x, 4);  // must also work in a block smaller than a warpgroup
  };
  std::map<Schedule::Order, std::set<std::string>> found;
  for (const auto of : kOrders)
    for (uint64_t seed = 0; seed < 16; ++seed) {
      options({.schedule = {of, seed}});
      number_out();
      order.clear();
      found[of].insert(fault_of(1, 2, store) + order);
    }
  const std::string late = "no fault begins begins ends ends";
  const std::string early = "no fault begins ends begins ends";
  EXPECT_EQ(found, (decltype(found){
                       {kOrders[0], {late}}, {kOrders[1], {early}}, {kOrders[2], {late, early}}}));
}

/// The kernel loads out[128] … out[191] into x, writes them to out[0] … out[63], and releases x.
TEST_F(HopperCopies, LoadsOfFloats) {
  const std::string early = "read of shared x[ … , " + kBeingCopied;
  const std::string late = "deadlock … the end of phase 1 (parity 1)";
  const std::string number = " floats: the number must be a positive multiple";
  const auto load_floats = [&] {
    SharedMemory smem;
    const auto x = smem.take<float>("x", 64);
    const auto full = smem.take<Mbarrier>("full", 1);
    if (thread() == 0) {
      full[0].init(1);
      fence_mbarrier_init();
      full[0].arrive_expect_tx(256);
      int from = 128, n = 32;
      if (wrong("bulk_load: out[130] not aligned to 16 bytes")) from = 130;
      if (wrong("read of out[4096] (element of 4 bytes; the array has 4096)")) from = 4096 - 32;
      if (wrong("bulk_load of 62" + number)) n = 62;
      if (wrong("bulk_load of 0" + number)) n = 0;
      bulk_load(full[0], x, out + from, n);
      bulk_load(full[0], x + 32, out + from + 32, 32);
    }
    __syncthreads();
    if (wrong("thread (0,0,0): the block ends with a load to mbarrier full[0] that nobody waited"))
      return;
    // In reverse order, the phase has already ended when the threads reach this wait.
    full[0].wait(wrong(early, late) ? 1 : 0);
    if (thread() < 64) out[thread()] = x[thread()];
    if (!wrong("releases shared x[ … of the block read: no __syncwarp or barrier followed"))
      __syncwarp();
    // A lane may release elements that only it has read, even if others read neighbouring ones.
    const int lane = lane_id();
    float last = lane < 3 ? x[lane == 0 ? 20 : lane == 1 ? 15 : 48] : 0;
    if (wrong("releases shared x[47] … , which thread 31", "x[47] … , which thread 127") &&
        lane == 31)
      last = x[47];
    warp_sum(last);  // lanes meet here, but this orders no memory
    if (lane == 0) done_with(x + 16, 32);
  };
  expect_in_every_order(128, 128, load_floats);
}

/// The end of an earlier phase does not permit reading data that a later phase loads.
TEST_F(HopperCopies, LoadsOfAnUnfinishedPhase) {
  expect_in_every_order(1, 7, [&] {
    SharedMemory smem;
    const auto x = smem.take<float>("x", 8);
    const auto full = smem.take<Mbarrier>("full", 1);
    full[0].init(1);
    fence_mbarrier_init();
    full[0].arrive();
    full[0].arrive_expect_tx(32);
    bulk_load(full[0], x, out, 4);
    full[0].wait(0);
    if (wrong("read of shared x[3] … , " + kBeingCopied)) out[0] = x[3];
    bulk_load(full[0], x + 4, out + 4, 4);
    full[0].wait(1);
    out[0] = x[7];
  });
}

TEST_F(HopperCopies, NamedBarriers) {
  expect(256, [&] {
    const bool first = thread() < 128;
    first ? named_barrier_sync(1, 256) : named_barrier_arrive(1, 256);
    if (wrong(
            "deadlock: 0 of 256 threads have ended, the others wait: thread (0,0,0) and 127 after "
            "it for named barrier 1, where 128 of 256 threads are missing … ; thread (128,0,0) and "
            "127 after it for named barrier 2, where 64 of 192"))
      first ? named_barrier_sync(1, 256) : named_barrier_sync(2, 192);
    if (wrong("named barrier 1: called for 128 threads, but earlier arrivals expect 256"))
      named_barrier_sync(1, first ? 256 : 128);
    if (wrong("arrives at named barrier 1 a second time, when 1 of 256 threads") && first) {
      named_barrier_arrive(1, 256);
      named_barrier_arrive(1, 256);
    }
    if (wrong("named barrier 0: give a number from 1 to 15")) named_barrier_sync(0, 256);
    if (wrong("named barrier 16: give a number from 1 to 15")) named_barrier_sync(16, 256);
    if (wrong("named barrier 1 of 100 threads: give a multiple")) named_barrier_sync(1, 100);
    if (wrong("named barrier 1 of 0 threads: give a multiple")) named_barrier_sync(1, 0);
    if (wrong("named barrier 1 of 1056 threads: give a multiple of 32 up to 1024"))
      named_barrier_sync(1, 1056);
    // The block splits, and some threads never reach the barrier of all threads.
    if (wrong("deadlock … thread (128,0,0) and 127 after it for __syncthreads "
              "(hopper_copies_test.cpp: … ), which thread (0,0,0) never reaches")) {
      if (first) return;
      named_barrier_sync(2, 128);
      __syncthreads();
    }
    if (wrong("thread (0,0,0) and 127 after it for named barrier 1 … ; thread (128,0,0) and 127 "
              "after it for __syncthreads (hopper_copies_test.cpp:")) {
      if (first) named_barrier_sync(1, 256);
      __syncthreads();
    }
    if (wrong("thread (128,0,0): the block ends with 128 of 192 threads at named barrier 15"))
      if (!first) named_barrier_arrive(15, 192);
  });
}

/// In a trace, consecutive wgmmas of a group form one event if they have the same accumulator and B
/// array. All blocks are recorded in the same way, whichever block ran before on the OS thread.
TEST_F(HopperCopies, TracesDistinguishProductsButNotBlocks) {
  options({.trace = true});
  const auto multiply = [] {
    exp2_fast(1);
    SharedMemory smem;
    const Stage A{smem.take<fp16>("A", kElements)}, B{smem.take<fp16>("B", kElements)};
    for (int i = thread(); i < kElements; i += 128) A.data[i] = B.data[i] = fp16(1.0f);
    fence_proxy_async();
    __syncthreads();
    Accumulator<16, 64> S, T;
    wgmma_fence(S, T);
    wgmma_ABt(S, A, A);
    wgmma_ABt(S, A, B);
    wgmma_ABt(T, A, B);
    wgmma_commit();
    wgmma_ABt(T, A, B);
    wgmma_commit();
    exp2_fast(1);  // overlaps both groups
    wgmma_wait<0>(S, T);
    thread() < 64 ? named_barrier_arrive(1, 128) : named_barrier_sync(1, 128);
  };
  EXPECT_EQ(run(2, 128, multiply).exps_under_products, 2 * 128 * 2);
  std::string products, all[2];
  for (const TraceEvent& e : device().take_trace().events) {
    all[e.block] += fmt::format("{} {} {} {}; ", e.warp, text_of(e.kind), e.number,
                                e.counts.exps_between_turns);
    if (e.kind == EventKind::wgmma && e.warp + e.block == 0)
      products += fmt::format("{} {} {}; ", e.name, e.number, e.amount);
  }
  EXPECT_EQ(all[1], all[0]);
  EXPECT_EQ(products, "A 0 524288; B 0 524288; B 0 524288; B 1 524288; ");
}

}  // namespace
}  // namespace ladder::sim
