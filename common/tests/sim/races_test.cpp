// What the sim finds whatever the schedule, and on however many OS threads: blocks that touch what
// another block of the same kernel touched, and lanes that read what another lane copied with no
// barrier in between.

#include <fmt/format.h>

#include "machine/hopper.h"
#include "machine/sim/touches.h"
#include "tests/sim/sim_test.h"

namespace ladder::sim {
namespace {

const SimOptions kSims[] = {
    {.schedule = {Schedule::Order::forward, 0}, .threads = 1},
    {.schedule = {Schedule::Order::reverse, 0}, .threads = 1},
    {.schedule = {Schedule::Order::random, 1}, .threads = 1},
    {.schedule = {Schedule::Order::forward, 0}, .threads = 4},
};

/// What a kernel says on each of kSims: the fault, or that there was none. Its array x has 64
/// floats, 0, 1, 2, …
template <class First, class... P>
std::vector<std::string> said(void (*kernel)(First, P...), int blocks, int threads,
                              const P&... arguments) {
  std::vector<std::string> all;
  for (const SimOptions& options : kSims) {
    const auto device = open_sim(options);
    Array& x = *device->allocate("x", 256);
    device->upload(x, iota(64).data());
    std::string& what = all.emplace_back("no fault");
    try {
      run_kernel(*device, kernel, blocks, threads, 256, x, arguments...);
    } catch (const Fault& fault) {
      what = fault.what();
    }
  }
  return all;
}

/// Each message has one of the texts in it.
void expect_any(const std::vector<std::string>& said, const std::vector<std::string>& texts) {
  for (const std::string& what : said)
    EXPECT_TRUE(std::any_of(texts.begin(), texts.end(),
                            [&](const auto& text) { return what.find(text) != std::string::npos; }))
        << "none of \"" << texts.front() << "\" and its like in: " << what;
}
const std::vector<std::string> kNoFault = {"no fault"};

// ----------------------------------------------------------------------------------- of two blocks

__device__ void touch(Hbm<float> x, int i, Access access) {
  if (access == Access::read && x[i] < 0) x[63] = 0;
  if (access == Access::write) x[i] = 1;
  if (access == Access::add) atomicAdd(x + i, 1.0f);
}

/// Block b's thread 5 touches x[at[b]].
struct TwoTouches {
  Access access[2];
  int at[2];
};
__global__ void two_blocks(Hbm<float> x, TwoTouches plan) {
  if (threadIdx.x == 5) touch(x, plan.at[blockIdx.x], plan.access[blockIdx.x]);
}

TEST(Races, BetweenTwoBlocksAreFoundInEveryOrder) {
  const char* const does[] = {"reads", "writes", "adds atomically to"};
  const char* const did[] = {"read", "wrote", "added to atomically"};
  const auto text = [&](int second, Access doing, Access done) {
    return fmt::format(
        "rung test, kernel test, block ({},0,0), thread (5,0,0): {} x[7] (element of 4 bytes; the "
        "array has 64), which block ({},0,0) {} in the same kernel",
        second, does[static_cast<int>(doing)], 1 - second, did[static_cast<int>(done)]);
  };
  for (const Access a : {Access::read, Access::write, Access::add})
    for (const Access b : {Access::read, Access::write, Access::add}) {
      SCOPED_TRACE(std::string(does[static_cast<int>(a)]) + ", " + does[static_cast<int>(b)]);
      // 6 is the other half of the same 8 bytes.
      expect_any(said(two_blocks, 2, 8, TwoTouches{{a, b}, {7, 6}}), kNoFault);
      const bool may_meet = a == b && a != Access::write;
      expect_any(said(two_blocks, 2, 8, TwoTouches{{a, b}, {7, 7}}),
                 may_meet ? kNoFault : std::vector{text(1, b, a), text(0, a, b)});
    }
}

__global__ void add_all(Hbm<float> x) {
  for (int i = 0; i < 64; ++i) atomicAdd(x + i, 1.0f);
}
__global__ void add_then_read(Hbm<float> x) {
  atomicAdd(x + 3, 1.0f);
  if (blockIdx.x == gridDim.x - 1) x[4] = x[3];
}

TEST(Races, AtomicAdditionsMeetAndNothingElseMeetsThem) {
  expect_any(said(add_all, 9, 33), kNoFault);
  expect_any(said(add_then_read, 1, 1), kNoFault);
  expect_any(said(add_then_read, 3, 1), {"x[3]"});
}

/// Each block adds 1 to x[4] … x[35], all at once and so many times, but for the last, where it is
/// to do something else: it does that to x[7].
__global__ void add_at_once(Hbm<float> x, int times, std::optional<Access> last_does) {
  SharedMemory smem;
  const auto ones = smem.take<float>("ones", 32);
  for (int i = 0; i < 32; ++i) ones[i] = 1;
  fence_proxy_async();
  if (last_does && blockIdx.x == gridDim.x - 1) return touch(x, 7, *last_does);
  for (int i = 0; i < times; ++i) bulk_add(x + 4, ones, 32);
  tma_store_commit();
  tma_store_wait<0>();
}

TEST(Races, AdditionsByTmaMeetAtomicOnesAndNothingElse) {
  const auto with = [](std::optional<Access> last) { return said(add_at_once, 5, 1, 1, last); };
  expect_any(with({}), kNoFault);
  expect_any(with(Access::add), kNoFault);
  // Whoever comes second; four floats are looked at in cells of two.
  const std::string who = "block (4,0,0), thread (0,0,0): ", other = "adds atomically to x[6]";
  expect_any(with(Access::write), {who + "writes x[7]", other});
  expect_any(with(Access::read), {who + "reads x[7]", other});

  // None is lost where several OS threads add at a time.
  const auto device = open_sim({.threads = 4});
  Array& x = *device->allocate("x", 256);
  std::vector<float> sums(64);
  device->upload(x, sums.data());
  run_kernel(*device, add_at_once, 100, 1, 128, x, 4000, std::optional<Access>());
  device->download(sums.data(), x);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(sums[i], i >= 4 && i < 36 ? 400000 : 0);
}

/// Element i is block i's alone, though four are in 8 bytes.
__global__ void in_place(Hbm<bf16> x) {
  const int i = static_cast<int>(blockIdx.x);
  for (int k = 0; k < 3; ++k) x[i] = bf16(float(x[i]) + 1);
}
/// Everybody reads what is even, and block i has what is odd.
__global__ void beside(Hbm<float> x) {
  float sum = 0;
  for (int i = 0; i < 64; i += 2) sum += x[i];
  x[2 * static_cast<int>(blockIdx.x) + 1] = sum;
}

TEST(Races, NeighboursAreNone) {
  expect_any(said(in_place, 128, 1), kNoFault);
  expect_any(said(beside, 32, 1), kNoFault);
}

/// Blocks 1 to 3 read x[9], of a chunk that block 0 writes.
__global__ void chunk_and_element(Hbm<float> x) {
  if (blockIdx.x == 0)
    write_chunk(x + 8, Chunk<float>{});
  else
    x[40 + static_cast<int>(blockIdx.x)] = x[9];
}

TEST(Races, WideAccessesTouchEachOfTheirElements) {
  expect_any(said(chunk_and_element, 4, 1),
             {"x[9]", "x[8] (element of 4 bytes; the array has 64), which block ("});
}

__global__ void all_write(Hbm<float> x) {
  x[0] = float(x[0]) + 1;
}

TEST(Races, EndWithTheKernelAndWithTheBlock) {
  expect_any(said(all_write, 1, 64), kNoFault);
  expect_any(said(all_write, 2, 1), {"x[0]"});
  // A launch after another, and a run after a fault, begins anew.
  const auto device = open_sim({.threads = 1});
  Array& x = *device->allocate("x", 256);
  device->upload(x, iota(64).data());
  EXPECT_THROW(run_kernel(*device, all_write, 2, 1, 0, x), Fault);
  EXPECT_NO_THROW(device->run("test", [&] {
    for (int i = 0; i < 3; ++i) launch("one", all_write, dim3(1), dim3(64), 0, hbm<float>(x));
  }));
}

// Touches against a list of all that was done, at random.
TEST(Races, AreThoseOfAPlainList) {
  std::mt19937 random(0);
  int conflicts = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint64_t> shadow(2);
    Touches touches(16, reinterpret_cast<uint8_t*>(shadow.data()));
    struct Done {
      uint32_t block;
      Access access;
      int64_t at;
    };
    std::vector<Done> list;
    for (int step = 0; step < round % 40; ++step) {
      const int n = 1 << random() % 4;
      const int64_t at = random() % 16 / static_cast<unsigned>(n) * n;
      const uint32_t block = 1 + random() % 4;
      // Mostly what may meet: else a round is over at once.
      const auto access = static_cast<Access>(
          round % 3 == 0 || random() % 8 == 0 ? random() % 3 : (at / 4 + round) % 2 * 2);
      const auto against = [&](const Done& done) {
        return done.block != block && done.at >= at && done.at < at + n &&
               (done.access != access || access == Access::write);
      };
      const auto found = touches.note(block, access, at, n);
      const auto is_found = [&](const Done& done) {
        return against(done) && done.block == found->block && done.access == found->access;
      };
      SCOPED_TRACE(testing::Message() << "round " << round << ", step " << step);
      ASSERT_EQ(found.has_value(), std::any_of(list.begin(), list.end(), against));
      if (found) {
        ASSERT_TRUE(std::any_of(list.begin(), list.end(), is_found));
        ++conflicts;
        break;
      }
      for (int64_t i = at; i < at + n; ++i) list.push_back({block, access, i});
    }
  }
  EXPECT_GT(conflicts, 1000);
  EXPECT_LT(conflicts, 2900);
}

// ------------------------------------------------------------------------------- lanes of one warp

enum class Between { nothing, shuffle, warp, block, mbarrier };
enum class Then { read_own, read_next, write_next, copy_to_next };

/// Each lane copies 16 bytes, waits for them and then touches its own or its neighbour's.
__global__ void copies(Hbm<float> x, Between between, Then then) {
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

TEST(Copies, AnotherLaneSeesThemAfterABarrierAndNotAfterAShuffle) {
  const auto with = [](Between between, Then then) { return said(copies, 1, 2, between, then); };
  for (const Then then : {Then::read_own, Then::read_next, Then::write_next, Then::copy_to_next}) {
    expect_any(with(Between::warp, then), kNoFault);
    expect_any(with(Between::block, then), kNoFault);
    expect_any(with(Between::mbarrier, then), kNoFault);
  }
  expect_any(with(Between::nothing, Then::read_own), kNoFault);
  const std::string who = " of the block copied and waited for, but with no __syncwarp or barrier";
  expect_any(with(Between::shuffle, Then::read_next),
             {"thread (0,0,0): read of shared s[7] (element of 4 bytes), which thread 1" + who,
              "thread (1,0,0): read of shared s[3] (element of 4 bytes), which thread 0" + who});
  expect_any(with(Between::shuffle, Then::write_next), {"write to shared s["});
  expect_any(with(Between::shuffle, Then::copy_to_next), {"asynchronous copy onto shared s["});
  // Before the neighbour has waited, or has even begun.
  expect_any(with(Between::nothing, Then::read_next),
             {who, "read of unwritten shared s", "read before its asynchronous copy"});
}

}  // namespace
}  // namespace ladder::sim
