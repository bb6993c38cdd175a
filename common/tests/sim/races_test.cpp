// Tests that the simulator finds races under every schedule and on any number of OS threads: blocks
// that touch what another block of the same kernel touches, kernels that overlap the previous one,
// and lanes that read what another lane has copied, with no barrier in between.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "machine/hopper.h"
#include "tests/sim/sim_test.h"

namespace ladder::sim {
namespace {

const SimOptions kSims[] = {
    {.schedule = {Schedule::Order::forward, 0}, .threads = 1},
    {.schedule = {Schedule::Order::reverse, 0}, .threads = 1},
    {.schedule = {Schedule::Order::random, 1}, .threads = 1},
    {.schedule = {Schedule::Order::forward, 0}, .threads = 4},
};

using Texts = std::vector<std::string>;

class Races : public SimTest {
 protected:
  /// Runs the kernel on 64 floats x = 0, 1, 2, … with each of kSims, and expects a fault whose
  /// message contains one of the texts; the text "no fault" stands for a run without one.
  void expect_any(int blocks, int threads, const std::function<void(Hbm<float>)>& kernel,
                  const Texts& texts = {"no fault"}) {
    for (const SimOptions& o : kSims) {
      options(o);
      const auto x = array("x", iota(64));
      const std::string said = fault_of(blocks, threads, [&] { kernel(x); });
      EXPECT_TRUE(
          std::any_of(texts.begin(), texts.end(),
                      [&](const auto& text) { return said.find(text) != std::string::npos; }))
          << "none of \"" << texts.front() << "\" and its alternatives in: " << said;
    }
  }
};

// -------------------------------------------------------------------------------------- two blocks

void touch(Hbm<float> x, int i, Access access) {
  if (access == Access::read && x[i] < 0) x[63] = 0;
  if (access == Access::write) x[i] = 1;
  if (access == Access::add) atomicAdd(x + i, 1.0f);
}

TEST_F(Races, BlocksConflictInEveryOrder) {
  const char* const does[] = {"reads", "writes", "adds atomically to"};
  const char* const did[] = {"read", "wrote", "added to atomically"};
  const auto text = [&](int second, Access doing, int first, Access done) {
    return fmt::format(
        "rung test, kernel planted, block ({},0,0), thread (5,0,0): {} x[7] (element of 4 bytes; "
        "the array has 64), which block ({},0,0) {} in the same kernel",
        second, does[static_cast<int>(doing)], first, did[static_cast<int>(done)]);
  };
  // Block 1 makes access b to x[at], and blocks 0 and 2 make access a to x[7]. Two accesses
  // conflict unless both read or both add.
  for (const Access a : {Access::read, Access::write, Access::add})
    for (const Access b : {Access::read, Access::write, Access::add})
      for (const int at : {6, 7}) {  // 6 and 7 share the same 8 bytes
        SCOPED_TRACE(testing::Message() << int(a) << int(b) << at);
        Texts texts;
        if (a == Access::write) texts = {text(0, a, 2, a), text(2, a, 0, a)};
        if (at == 7 && (a != b || a == Access::write))
          for (const int other : {0, 2}) {
            texts.push_back(text(1, b, other, a));
            texts.push_back(text(other, a, 1, b));
          }
        if (texts.empty()) texts = {"no fault"};
        expect_any(
            3, 8,
            [&](Hbm<float> x) {
              if (threadIdx.x == 5) blockIdx.x == 1 ? touch(x, at, b) : touch(x, 7, a);
            },
            texts);
      }
}

// A block that read first and alone must still be found if it writes after another block has read.
TEST_F(Races, FirstBlockIsCheckedAfterOthersCame) {
  options({.threads = 2});
  const auto x = array("x", iota(64));
  std::atomic<unsigned> reads = 0;
  const auto both_read_then_0_writes = [&] {
    while (reads < blockIdx.x) std::this_thread::yield();
    const float seen = x[7];
    for (++reads; reads < 2;) std::this_thread::yield();
    if (blockIdx.x == 0) x[7] = seen;
  };
  expect_says(fault_of(2, 1, both_read_then_0_writes), "writes x[7] … which another block read");
}

/// Each block adds 1 to x[4] … x[35] with `times` concurrent bulk_adds. If `last_does` is given,
/// the last block makes that access to x[7] instead.
void add_at_once(Hbm<float> x, int times, std::optional<Access> last_does) {
  SharedMemory smem;
  const auto ones = smem.take<float>("ones", 32);
  for (int i = 0; i < 32; ++i) ones[i] = 1;
  fence_proxy_async();
  if (last_does && blockIdx.x == gridDim.x - 1) return touch(x, 7, *last_does);
  for (int i = 0; i < times; ++i) bulk_add(x + 4, ones, 32);
  tma_store_commit();
  tma_store_wait<0>();
}

TEST_F(Races, TmaAdditionsConflictUnlessBothAdd) {
  const auto expect = [&](std::optional<Access> last, const Texts& texts) {
    expect_any(
        5, 1, [&](Hbm<float> x) { add_at_once(x, 1, last); }, texts);
  };
  expect({}, {"no fault"});
  expect(Access::add, {"no fault"});
  // The fault names the second access; bulk_add's floats are checked in pairs.
  const std::string who = "block (4,0,0), thread (0,0,0): ", other = "adds atomically to x[6]";
  expect(Access::write, {who + "writes x[7]", other});
  expect(Access::read, {who + "reads x[7]", other});

  // No addition may be lost when several OS threads add at the same time.
  options({.threads = 4});
  const auto x = array("x", std::vector<float>(64));
  run(100, 1, [&] { add_at_once(x, 4000, {}); });
  for (int i = 0; i < 64; ++i) EXPECT_EQ(values(x)[i], i >= 4 && i < 36 ? 400000 : 0);
}

TEST_F(Races, WideAccessesTouchEachOfTheirElements) {
  const auto chunk_and_element = [](Hbm<float> x) {  // one element of a chunk that block 0 writes
    x[8 + static_cast<int>(blockIdx.x)] = 0;
    if (blockIdx.x == 0) write_chunk(x + 8, Chunk<float>{});
  };
  expect_any(2, 1, chunk_and_element,
             {"x[9]", "x[8] (element of 4 bytes; the array has 64), which block ("});
}

TEST_F(Races, DoNotOutlastTheKernelOrTheBlock) {
  const auto all_write = [](Hbm<float> x) { x[0] = float(x[0]) + 1; };
  expect_any(1, 64, all_write);
  expect_any(2, 1, all_write, {"x[0]"});
  // A second launch and a run after a fault both start with no accesses recorded.
  options({.threads = 1});
  const auto x = array("x", iota(64));
  const auto write = [&] { all_write(x); };
  expect_says(fault_of(2, 1, write), "x[0]");
  run([&] {
    for (const unsigned i : {0, 1, 0})
      start("one", 2, 1, [&] { blockIdx.x == i ? write() : void(); });
  });
}

// A kernel that starts early (programmatic dependent launch) may overlap the previous kernel until
// each of its threads has waited for that kernel.
TEST_F(Races, EarlyKernelConflictsWithPreviousOne) {
  const auto x = array("x", iota(64));
  const auto before = [&](Access did) {
    return [&, did] {
      let_next_kernel_start();
      if (thread() == 3) touch(x, 7, did);
    };
  };
  const auto then = [&](const Kernel& first, const Kernel& second) {
    return fault_of([&] {
      start("first", 1, 8, first);
      run_kernel({"second", 1, 8, kSharedBytes, nullptr, second, true});
    });
  };
  for (const Access did : {Access::read, Access::write, Access::add})
    for (const Access does : {Access::read, Access::write, Access::add})
      for (const int at : {6, 7})
        for (const int waits : {5, 6}) {  // the thread that makes the access, or another one
          SCOPED_TRACE(testing::Message() << int(did) << int(does) << at << waits);
          const bool meets = at == 7 && waits == 6 && (did != Access::read || does != Access::read);
          expect_says(then(before(did),
                           [&] {
                             if (thread() == waits) wait_for_kernel_before();
                             if (thread() == 5) touch(x, at, does);
                           }),
                      !meets ? "no fault"
                      : did == Access::read
                          ? "kernel second, block (0,0,0), thread (5,0,0) … x[7] (element of 4 "
                            "bytes; the array has 64), which the previous kernel may still read: "
                            "this kernel starts early, and this thread has not called wait_for_"
                          : "x[7] … which the previous kernel may still write");
        }
  // If the previous kernel may not have waited, the one before it may still run, but none earlier.
  const auto wait = [] { wait_for_kernel_before(); };
  const auto three = [&](bool early, Access did, Access does) {
    return fault_of([&] {
      start("first", 1, 8, before(did));
      run_kernel({"second", 1, 8, kSharedBytes, nullptr,
                  [&] { let_next_kernel_start(), wait_for_kernel_before(); }, early});
      run_kernel({"third", 1, 8, kSharedBytes, nullptr,
                  [&] {
                    if (thread() == 5) touch(x, 7, does);
                    wait_for_kernel_before();
                  },
                  true});
    });
  };
  expect_says(three(true, Access::write, Access::read), "kernel third … may still write");
  expect_says(three(true, Access::read, Access::write), "kernel third … may still read");
  expect_says(three(false, Access::write, Access::read), "no fault");
  expect_says(then([] {}, wait),
              "kernel second: starts early, but the previous kernel never calls");
  expect_says(then(before(Access::read), [] {}), "starts early, but no thread calls wait_for_");
}

// --------------------------------------------------------------------------------- lanes of a warp

enum class Between { nothing, shuffle, warp, block, mbarrier };
enum class Then { read_own, read_next, write_next, copy_to_next };

/// Each of two lanes copies 16 bytes and waits for them. The lanes then meet at `between`, and
/// touch their own bytes or the other's as `then` says.
void copies(Hbm<float> x, Between between, Then then) {
  SharedMemory smem;
  const auto s = smem.take<float>("s", 8);
  const int lane = static_cast<int>(threadIdx.x), next = 1 - lane;
  const auto arrived = smem.take<Mbarrier>("arrived", 1);
  if (lane == 0) arrived[0].init(2);
  __syncwarp();
  cp_async(s + 4 * lane, x + 4 * lane);
  cp_async_commit();
  cp_async_wait<0>();
  if (between == Between::shuffle) __shfl_xor_sync(0xffffffff, 0.0f, 1);
  if (between == Between::warp) __syncwarp();
  if (between == Between::block) __syncthreads();
  if (between == Between::mbarrier) {
    arrived[0].arrive();
    arrived[0].wait(0);
  }
  if (then == Then::read_own) x[32 + lane] = s[4 * lane + 3];
  if (then == Then::read_next) x[32 + lane] = s[4 * next + 3];
  if (then == Then::write_next) s[4 * next + 3] = 0;
  if (then == Then::copy_to_next) cp_async(s + 4 * next, x + 8);
  cp_async_commit();
  cp_async_wait<0>();
}

TEST_F(Races, CopiesAreVisibleToOtherLanesOnlyAfterABarrier) {
  const auto expect = [&](Between between, Then then, const Texts& texts = {"no fault"}) {
    expect_any(
        1, 2, [&](Hbm<float> x) { copies(x, between, then); }, texts);
  };
  for (const Then then : {Then::read_own, Then::read_next, Then::write_next, Then::copy_to_next}) {
    expect(Between::warp, then);
    expect(Between::block, then);
    expect(Between::mbarrier, then);
  }
  expect(Between::nothing, Then::read_own);
  const std::string who =
      " of the block copied and waited for, but no __syncwarp or barrier has followed the wait";
  expect(Between::shuffle, Then::read_next,
         {"thread (0,0,0): read of shared s[7] (element of 4 bytes), which thread 1" + who,
          "thread (1,0,0): read of shared s[3] (element of 4 bytes), which thread 0" + who});
  expect(Between::shuffle, Then::write_next, {"write to shared s["});
  expect(Between::shuffle, Then::copy_to_next, {"asynchronous copy to shared s["});
  // The neighbour may not have waited for its copy, or not even started it.
  expect(Between::nothing, Then::read_next,
         {who, "which is unwritten", "to which an asynchronous copy is still writing"});
}

}  // namespace
}  // namespace ladder::sim
