// What the sim finds in kernels for Hopper: each mistake is planted in a small kernel and must be
// told with who and where.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "machine/hopper.h"
#include "tile/rows.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::sim {
namespace {

using Stage = SwizzledTile<fp16, 64, 64>;
constexpr int kElements = Stage::kElements;

/// What a planted mistake leaves out or does wrong.
enum Mistake : int {
  kNone,
  // the registers of a wgmma
  kNoWait,
  kNoCommit,
  kReadsBeforeWait,
  kWaitsForOther,
  kWritesBeforeWait,
  kScalesBetween,
  kNoFence,
  kWritesAfterFence,
  kNoFenceOfOperand,
  kWritesOperandBeforeWait,
  kOtherAccumulator,
  kOtherTile,
  kOtherShape,
  kOtherWait,
  kOtherGroup,
  kOtherCount,
  kPartOfWarpgroup,
  // what a wgmma reads
  kNoProxyFence,
  kStoresBeforeWait,
  kStoresUnderSecondWgmma,
  kUnwritten,
  kPastTheEnd,
  // copies
  kReadsBeforeBarrier,
  kMultipliesBeforeBarrier,
  kEarlyPhase,
  kLatePhase,
  kTooManyBytes,
  kTooFewBytes,
  kTooFewArrivals,
  kTooManyArrivals,
  kLoadsUnderWgmma,
  kLoadsTwice,
  kLoadsOntoOrdinaryStores,
  kNoInit,
  kInitTwice,
  kNoInitFence,
  kCountOf0,
  kCountTooLarge,
  kBarrierBeforeTheFirst,
  kMegabyte,
  kNegativeBytes,
  kNobodyWaits,
  kMisaligned,
  kBoxTooLarge,
  kParityOfRound,
  // stages
  kStagesWithoutInit,
  kFillsWithoutAcquire,
  kMultipliesWithoutWait,
  kForgetsRelease,
  kReleasesUnderWgmma,
  kReleasesUnderSecondWgmma,
  // stores
  kStoreWithoutProxyFence,
  kOverwritesSource,
  kOtherThreadOverwritesSource,
  kNoStoreWait,
  kStoresBeforeRow0,
  kMapOfNothing,
  kBeforeShared,
  // floats in a row
  kSourceMisaligned,
  kTargetMisaligned,
  k62Floats,
  kNoFloats,
  kPastShared,
  kPastArray,
  kBeforeArray,
  kNoSyncwarp,
  kLoadsUnderAddition,
  kAddsTooEarly,
  kAddsUnwritten,
};

class HopperFaults : public ::testing::Test {
 protected:
  HopperFaults() { options({}); }
  void options(const SimOptions& o) {
    device_ = open_sim(o);
    X_ = device_->allocate("X", 128 * 64 * 2);
    Y_ = device_->allocate("Y", 64 * 64 * 2);
    out_ = device_->allocate("out", 64 * 64 * 4);
    const std::vector<fp16> ones(128 * 64, fp16(1.0f));
    device_->upload(*X_, ones.data());
  }

  /// How a run of a kernel ends. The kernel takes (X, Y, out, mistake).
  template <class Kernel>
  std::string said(Kernel kernel, int mistake, int threads = 128, int blocks = 1) {
    try {
      device_->run("test", [&] {
        launch("planted", kernel, dim3(blocks), dim3(threads),
               3 * shared_bytes<fp16>(kElements) + 2 * shared_bytes<Mbarrier>(2),
               tensor_map<fp16>(*X_, 64, 128, 1, 1, 64), tensor_map<fp16>(*Y_, 64, 64, 1, 1, 64),
               hbm<float>(*out_), mistake);
      });
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.status, Exit::wrong_result);
      return fault.what();
    }
    return "no fault";
  }
  /// out[i] = i.
  void number_out() {
    std::vector<float> numbers(64 * 64);
    std::iota(numbers.begin(), numbers.end(), 0.0f);
    device_->upload(*out_, numbers.data());
  }
  float first_of_out() {
    std::vector<float> v(64 * 64);
    device_->download(v.data(), *out_);
    return v[0];
  }
  TensorMap map_of_X(int64_t rows, int box_rows) {
    return tensor_map<fp16>(*X_, 64, rows, 1, 1, box_rows);
  }

  /// Expects that a run ends in a fault that names the kernel and says all of `parts`.
  template <class Kernel>
  void expect(Kernel kernel, int mistake, std::initializer_list<std::string> parts,
              int threads = 128) {
    const std::string message = said(kernel, mistake, threads);
    EXPECT_NE(message.find("rung test, kernel planted, block (0,0,0), thread ("), std::string::npos)
        << "mistake " << mistake << ": " << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos)
          << "mistake " << mistake << ": no \"" << part << "\" in: " << message;
  }

  /// Of the last run: what of HBM was touched; and what each warp asked of barriers and engines, as
  /// what, name, number, amount, barrier, and in brackets what its first lane counted before.
  struct Told {
    std::string accesses;
    std::map<int, std::string> of;
  };
  Told told() {
    const std::set<std::string> other = {"read",  "write",      "compute",        "store",
                                         "round", "__syncwarp", "__shfl_xor_sync"};
    Told told;
    for (const TraceEvent& e : device_->take_trace().events) {
      if (e.what == "read" || e.what == "write")
        for (const Strided& r : e.ranges)
          told.accesses += fmt::format("{} {} {}+{}, ", e.name, e.what, r.begin, r.bytes);
      if (other.contains(e.what)) continue;
      std::string& line = told.of[e.warp];
      line += e.what + (e.name.empty() ? "" : " " + e.name);
      if (e.what != "exit") line += fmt::format(" {}", e.number);
      if (e.amount) line += fmt::format(" {}", e.amount);
      if (!e.barrier.empty()) line += " " + e.barrier;
      if (e.lane_exps || e.lane_other_flops)
        line += fmt::format(" ({}, {})", e.lane_exps, e.lane_other_flops);
      line += "; ";
    }
    return told;
  }

  std::unique_ptr<Device> device_;
  Array *X_ = nullptr, *Y_ = nullptr, *out_ = nullptr;
};

// ------------------------------------------------------------------------------ a product's
// registers

/// sums = A·B twice over with A from registers, all ones.
__global__ void multiply(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap,
                         Hbm<float> out, int mistake) {
  SharedMemory smem;
  const Stage B{smem.take<fp16>("B", kElements)};
  const auto rest = smem.take<fp16>("rest", kElements);
  const int thread = static_cast<int>(threadIdx.x);
  if (mistake != kUnwritten)
    for (int i = thread; i < kElements; i += 128) B.data[i] = rest[i] = fp16(1.0f);
  if (mistake != kNoProxyFence || thread != 77) fence_proxy_async();
  __syncthreads();

  Operand<fp16, 16, 64> a;
  for (auto& piece : a.r[0])
    for (unsigned& pair : piece) pair = pack<fp16>(1, 1);
  Accumulator<16, 64> acc, other;
  if (mistake == kNoFence)
    wgmma_fence(a);
  else if (mistake == kNoFenceOfOperand)
    wgmma_fence(acc, other);
  else
    wgmma_fence(acc, other, a);
  if (mistake == kWritesAfterFence && thread == 5) acc.r[0][1][2] = 3;
  if (mistake == kPartOfWarpgroup && thread >= 96) return;
  wgmma_AB(mistake == kOtherAccumulator && thread == 9 ? other : acc, a,
           mistake == kPastTheEnd ? Stage{rest + 3 * kElements} : B);
  if (mistake == kScalesBetween && thread == 5) acc.r[0][1][2] *= 0.5f;
  if (mistake == kOtherGroup && thread == 9) wgmma_commit();
  if (mistake == kOtherShape) {  // its first half as the sums of 64 × 32
    Accumulator<16, 32>& half = reinterpret_cast<Accumulator<16, 32>&>(acc);
    wgmma_AB(half, a, SwizzledTile<fp16, 64, 32>{B.data});
  }
  wgmma_AB(acc, a, mistake == kOtherTile && thread == 9 ? Stage{rest} : B);
  if (mistake == kOtherCount && thread == 9) wgmma_AB(acc, a, B);
  if (mistake != kNoCommit) wgmma_commit();
  if (mistake == kOtherWait && thread == 9) wgmma_commit();
  if (mistake == kNoWait) return;
  if (mistake == kReadsBeforeWait) out[thread] = 2 * acc.r[0][0][0];
  if (mistake == kWritesBeforeWait && thread == 37) acc.r[0][3][1] = 0;
  if (mistake == kWritesOperandBeforeWait && thread == 37) a.r[0][2][3] = 0;
  if (mistake == kStoresBeforeWait && thread == 3) B.data[130] = fp16(2.0f);
  if (mistake == kStoresUnderSecondWgmma) {  // the first that reads B has ended, this one has not
    wgmma_AB(other, a, B);
    wgmma_commit();
    wgmma_wait<1>(acc);
    if (thread == 3) B.data[130] = fp16(2.0f);
  }
  if (mistake == kWaitsForOther)
    wgmma_wait<0>(other);
  else
    wgmma_wait<0>(acc, other);
  for_each(acc, [&](int i, int j, float x) { out[(16 * (thread / 32) + i) * 64 + j] = x; });
}

TEST_F(HopperFaults, RegistersOfAProduct) {
  EXPECT_EQ(said(multiply, kNone), "no fault");
  EXPECT_EQ(first_of_out(), 128);
  expect(multiply, kNoWait, {"ends with a wgmma that was never waited for"});
  expect(multiply, kNoCommit, {"uses an accumulator of a wgmma before the wgmma_wait() for it"});
  expect(multiply, kReadsBeforeWait,
         {"thread (0,0,0): uses an accumulator of a wgmma before the wgmma_wait() for it"});
  expect(multiply, kWaitsForOther,
         {"thread (0,0,0): uses an accumulator of a wgmma before the wgmma_wait() for it"});
  expect(
      multiply, kWritesBeforeWait,
      {"thread (37,0,0): accumulator of a wgmma m64n64k16, row 17, column 27: other code wrote"});
  expect(multiply, kScalesBetween,
         {"thread (5,0,0): accumulator of a wgmma m64n64k16, row 9, column 10: other code wrote"});
  expect(multiply, kNoFence, {"wgmma without a wgmma_fence() of its accumulator before"});
  expect(multiply, kNoFenceOfOperand, {"wgmma without a wgmma_fence() of its left operand before"});
  expect(multiply, kWritesAfterFence,
         {"thread (5,0,0): wgmma: its accumulator changed since the last wgmma_fence() of it"});
  expect(multiply, kWritesOperandBeforeWait,
         {"thread (37,0,0): left operand of a wgmma: other code wrote to its registers"});
  expect(multiply, kOtherAccumulator, {"lanes of a warpgroup disagree on a wgmma"});
  expect(multiply, kOtherTile, {"lanes of a warpgroup disagree on a wgmma: its descriptors"});
  expect(multiply, kOtherGroup, {"lanes of a warpgroup disagree on a wgmma: its descriptors"});
  expect(multiply, kOtherCount,
         {"lanes of a warpgroup disagree at wgmma_wait() on which wgmmas they have issued"});
  expect(multiply, kOtherShape,
         {"wgmma m64n32k16 on the accumulator of an m64n64k16 not waited for"});
  expect(multiply, kOtherWait,
         {"lanes of a warpgroup disagree at wgmma_wait() on which wgmmas they have issued"});
  expect(multiply, kPartOfWarpgroup,
         {"deadlock: 32 of 128 threads have ended",
          "thread (0,0,0) and 95 after it for wgmma_wait, "
          "where 32 of 128 threads are missing (warpgroup.h:"});
  expect(multiply, kNone, {"wgmma by a warpgroup of fewer than 128 threads"}, 96);
}

TEST_F(HopperFaults, SharedMemoryOfAProduct) {
  expect(multiply, kNoProxyFence,
         {"wgmma of shared B[77] (element of 2 bytes), written with no fence_proxy_async() since"});
  expect(
      multiply, kStoresBeforeWait,
      {"thread (3,0,0): write under a wgmma or TMA store that was not waited for and still reads "
       "shared B[130]"});
  for (const auto order : {Schedule::Order::forward, Schedule::Order::reverse}) {
    options({.schedule = {order, 0}});
    expect(multiply, kStoresUnderSecondWgmma,
           {"thread (3,0,0): write under a wgmma or TMA store that was not waited for and still "
            "reads shared B[130]"});
  }
  options({});
  expect(multiply, kUnwritten, {"wgmma of shared B[0] (element of 2 bytes), which nobody wrote"});
  expect(multiply, kPastTheEnd, {"wgmma of shared memory at byte"});
}

/// Block 0 writes B before it uses anything of Hopper's, and fences nothing. In block 1 thread 1
/// writes it, which thread 0's fence does not cover.
__global__ void multiply_in_second_block(const __grid_constant__ TensorMap,
                                         const __grid_constant__ TensorMap, Hbm<float>, int) {
  SharedMemory smem;
  const Stage B{smem.take<fp16>("B", kElements)};
  if (blockIdx.x == 1) fence_mbarrier_init();
  if (threadIdx.x == 1)
    for (int i = 0; i < kElements; ++i) B.data[i] = fp16(1.0f);
  __syncthreads();
  if (blockIdx.x == 0) return fence_mbarrier_init();
  if (threadIdx.x == 0) fence_proxy_async();
  __syncthreads();
  Accumulator<16, 64> acc;
  wgmma_fence(acc);
  wgmma_ABt(acc, B, 0, B);
  wgmma_commit();
  wgmma_wait<0>(acc);
}

TEST_F(HopperFaults, ABlockKnowsNothingOfTheOneBefore) {
  options({.threads = 1});
  const std::string message = said(multiply_in_second_block, 0, 128, 2);
  EXPECT_NE(message.find("block (1,0,0)"), std::string::npos) << message;
  EXPECT_NE(message.find("wgmma of shared B[0] (element of 2 bytes), written with no "
                         "fence_proxy_async() since"),
            std::string::npos)
      << message;
}

// ---------------------------------------------------------------------------------- a ring of
// stages

/// out[0] = the sum of products of two rounds through one stage, which a producer (warpgroup 1)
/// fills and a consumer (warpgroup 0) multiplies with itself.
__global__ void pipeline(const __grid_constant__ TensorMap X, const __grid_constant__ TensorMap,
                         Hbm<float> out, int mistake) {
  SharedMemory smem;
  const auto all = smem.take<fp16>("stage", 2 * kElements);
  const Stage stage{all};
  const auto full = smem.take<Mbarrier>("full", 1), free = smem.take<Mbarrier>("free", 1);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    if (mistake == kBarrierBeforeTheFirst) full[-1].init(1);
    if (mistake != kNoInit)
      full[0].init(mistake == kTooFewArrivals  ? 2
                   : mistake == kCountOf0      ? 0
                   : mistake == kCountTooLarge ? 1 << 20
                                               : 1);
    if (mistake == kInitTwice) full[0].init(1);
    free[0].init(4);
    if (mistake == kLoadsOntoOrdinaryStores) stage.data[8] = fp16(1.0f);
  }
  if (mistake == kNoInitFence ? thread != 0 : true) fence_mbarrier_init();
  __syncthreads();

  if (thread >= 128) {
    if (thread > 128) return;
    for (int round = 0; round < 2; ++round) {
      free[0].wait(1 - round);
      full[0].arrive_expect_tx(Stage::kBytes + (mistake == kTooManyBytes    ? 16
                                                : mistake == kTooFewBytes   ? -16
                                                : mistake == kLoadsTwice    ? Stage::kBytes
                                                : mistake == kMegabyte      ? 1 << 20
                                                : mistake == kNegativeBytes ? -2 * Stage::kBytes
                                                                            : 0));
      if (mistake == kTooManyArrivals) full[0].arrive();
      const Stage target{mistake == kMisaligned    ? all + 64
                         : mistake == kBoxTooLarge ? all + (kElements + 512)
                                                   : all};
      tma_load(X, full[0], target, 0, 64 * round, 0, 0);
      if (mistake == kLoadsTwice) tma_load(X, full[0], target, 0, 64 * round, 0, 0);
    }
    return;
  }
  if (mistake == kNobodyWaits) return;
  Accumulator<16, 64> acc;
  for (int round = 0; round < 2; ++round) {
    if (mistake == kReadsBeforeBarrier) out[thread] = float(stage.data[thread]);
    if (mistake == kEarlyPhase)
      full[0].wait(1 - round);
    else if (mistake == kLatePhase)
      full[0].wait(0);
    else if (mistake == kParityOfRound)
      full[0].wait(round + 2);
    else if (mistake != kMultipliesBeforeBarrier)
      full[0].wait(round);
    wgmma_fence(acc);
    wgmma_ABt(acc, stage, 0, stage);
    wgmma_commit();
    if (mistake == kLoadsUnderWgmma && thread % 32 == 0) free[0].arrive();
    if (mistake == kLoadsUnderWgmma) named_barrier_sync(1, 128);
    wgmma_wait<0>(acc);
    if (mistake != kLoadsUnderWgmma && thread % 32 == 0) free[0].arrive();
  }
  if (thread == 0) out[0] = acc.r[0][0][0];
}

TEST_F(HopperFaults, RingOfStages) {
  for (const auto order :
       {Schedule::Order::forward, Schedule::Order::reverse, Schedule::Order::random}) {
    options({.schedule = {order, 3}});
    EXPECT_EQ(said(pipeline, kNone, 256), "no fault");
    EXPECT_EQ(first_of_out(), 128);
    const auto expect_256 = [&](int mistake, std::initializer_list<std::string> parts) {
      expect(pipeline, mistake, parts, 256);
    };
    if (order == Schedule::Order::reverse) {  // the producer goes first
      expect_256(kReadsBeforeBarrier,
                 {"read before its asynchronous copy was waited for: shared stage["});
      expect_256(kMultipliesBeforeBarrier,
                 {"wgmma of shared stage[0] (element of 2 bytes), the target of a copy that was "
                  "not waited for"});
      expect_256(kEarlyPhase, {"deadlock",
                               "thread (0,0,0) and 127 after it for mbarrier full[0], "
                               "the end of phase 1 (parity 1), where 1 of 1 arrivals"});
    } else if (order == Schedule::Order::forward) {  // the consumer
      expect_256(kReadsBeforeBarrier, {"read of unwritten shared stage["});
      expect_256(kMultipliesBeforeBarrier,
                 {"wgmma of shared stage[0] (element of 2 bytes), which nobody wrote"});
      expect_256(kEarlyPhase,
                 {"wgmma of shared stage[0] (element of 2 bytes), which nobody wrote"});
    }
    expect_256(
        kTooManyBytes,
        {"deadlock: 127 of 256 threads have ended, the others wait: thread (0,0,0) and 127 "
         "after it for mbarrier full[0], the end of phase 0 (parity 0), where 0 of 1 "
         "arrivals and 16 bytes are missing (hopper_faults_test.cpp:",
         "; thread (128,0,0) for mbarrier free[0], the end of phase 0 (parity 0), where 4 of "
         "4 arrivals and 0 bytes are missing"});
    expect_256(kTooFewBytes, {"mbarrier full[0], the end of phase 0 (parity 0), where 0 of 1 "
                              "arrivals and -16 bytes are missing"});
    expect_256(kTooFewArrivals, {"mbarrier full[0], the end of phase 0 (parity 0), where 1 of 2 "
                                 "arrivals and 0 bytes are missing"});
    expect_256(kTooManyArrivals,
               {"thread (128,0,0): arrives at mbarrier full[0] in phase 0, where all 1 have"});
    expect_256(kLoadsUnderWgmma, {"thread (128,0,0): TMA load onto shared stage[0], which a wgmma "
                                  "or TMA store not waited for still reads"});
    expect_256(kLoadsTwice,
               {"TMA load onto shared stage[0], the target of a copy that was not waited for"});
    expect_256(kLoadsOntoOrdinaryStores,
               {"TMA load onto shared stage[8], which was written with no fence_proxy_async()"});
    expect_256(kNoInit, {"mbarrier full[0] is used before its init"});
    expect_256(kCountOf0, {"mbarrier full[0]: a count of 0"});
    expect_256(kCountTooLarge, {"mbarrier full[0]: a count of 1048576"});
    expect_256(kBarrierBeforeTheFirst, {"mbarrier full[-1] of 1"});
    expect_256(kMegabyte, {"mbarrier full[0]: 1056768 bytes promised, and less than 2²⁰ is"});
    expect_256(kNegativeBytes, {"mbarrier full[0]: -8192 bytes promised"});
    expect_256(kInitTwice, {"mbarrier full[0] initialised a second time"});
    expect_256(kNoInitFence, {"TMA load to mbarrier full[0] without fence_mbarrier_init()"});
    expect_256(kMisaligned, {"shared stage[64] not aligned to 1024 bytes"});
    expect_256(kBoxTooLarge, {"TMA load: a box of 64 rows × 128 bytes at shared stage[4608] ends "
                              "past its 8192 elements"});
    expect_256(kParityOfRound, {"waits for parity 2 of mbarrier full[0]: it is 0 or 1"});
    expect_256(kNobodyWaits, {order == Schedule::Order::forward
                                  ? "thread (128,0,0) for mbarrier free[0], the end of phase 0"
                                  : "mbarrier free[0], the end of phase 0"});
  }
  options({});
  // The second wait asks for the phase before, finds it over, and multiplies the first round's
  // data again or what is being copied.
  EXPECT_NE(said(pipeline, kLatePhase, 256), "no fault");
}

/// The same with Stages: three rounds through two of them.
__global__ void pipeline_of_stages(const __grid_constant__ TensorMap X,
                                   const __grid_constant__ TensorMap, Hbm<float> out, int mistake) {
  SharedMemory smem;
  Stages<Stage, 2> K{smem, "K"};
  if (mistake != kStagesWithoutInit) K.init(smem, "K_full", "K_free", 4);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) fence_mbarrier_init();
  __syncthreads();

  if (thread >= 128) {
    if (thread > 128) return;
    for (int step = 0; step < 3; ++step) {
      if (mistake != kFillsWithoutAcquire) K.acquire();
      K.fill(X, 0, 64 * (step % 2), 0, 0);
    }
    return;
  }
  Accumulator<16, 64> acc, other;
  for (int step = 0; step < 3; ++step) {
    if (mistake != kMultipliesWithoutWait) K.wait();
    wgmma_fence(acc);
    wgmma_ABt(acc, K.tile(), 0, K.tile());
    wgmma_commit();
    if (mistake == kReleasesUnderSecondWgmma) {  // only the first of two is waited for
      wgmma_fence(other);
      wgmma_ABt(other, K.tile(), 0, K.tile());
      wgmma_commit();
      wgmma_wait<1>(acc);
    } else if (mistake != kReleasesUnderWgmma) {
      wgmma_wait<0>(acc);
    }
    if (mistake == kForgetsRelease && warp_id() == 2)
      K.at.next();
    else
      K.release();
    wgmma_wait<0>(acc, other);
  }
  if (thread == 0) out[0] = acc.r[0][0][0];
}

TEST_F(HopperFaults, Stages) {
  for (const auto order :
       {Schedule::Order::forward, Schedule::Order::reverse, Schedule::Order::random}) {
    options({.schedule = {order, 3}});
    EXPECT_EQ(said(pipeline_of_stages, kNone, 256), "no fault");
    EXPECT_EQ(first_of_out(), 192);
    const auto expect_256 = [&](int mistake, std::initializer_list<std::string> parts) {
      expect(pipeline_of_stages, mistake, parts, 256);
    };
    if (order == Schedule::Order::reverse) {  // the producer goes first
      expect_256(kFillsWithoutAcquire,
                 {"thread (128,0,0): TMA load onto shared K[0], the target of a copy that was not "
                  "waited for"});
      expect_256(kMultipliesWithoutWait,
                 {"wgmma of shared K[0] (element of 2 bytes), the target of a copy that was not "
                  "waited for"});
    } else if (order == Schedule::Order::forward) {  // the consumer
      expect_256(kFillsWithoutAcquire,
                 {"thread (128,0,0): arrives at mbarrier K_full[0] in phase 0, where all 1 have"});
      expect_256(kMultipliesWithoutWait,
                 {"wgmma of shared K[0] (element of 2 bytes), which nobody wrote"});
    } else {
      EXPECT_NE(said(pipeline_of_stages, kFillsWithoutAcquire, 256), "no fault");
      EXPECT_NE(said(pipeline_of_stages, kMultipliesWithoutWait, 256), "no fault");
    }
    expect_256(kForgetsRelease,
               {"deadlock: 127 of 256 threads have ended, the others wait: thread (0,0,0) and 127 "
                "after it for mbarrier K_full[0], the end of phase 1 (parity 1), where 1 of 1 "
                "arrivals and 0 bytes are missing",
                "; thread (128,0,0) for mbarrier K_free[0], the end of phase 0 (parity 0), where 1 "
                "of 4 arrivals and 0 bytes are missing"});
    expect_256(kStagesWithoutInit, {"mbarrier [0] of 0"});
    // Found whether or not the producer comes to overwrite the stage in time.
    for (const int mistake : {kReleasesUnderWgmma, kReleasesUnderSecondWgmma})
      expect_256(mistake, {"releases shared K[0] (element of 2 bytes), which a "
                           "wgmma not waited for still reads"});
  }
}

__global__ void load_and_leave(const __grid_constant__ TensorMap X,
                               const __grid_constant__ TensorMap, Hbm<float>, int) {
  SharedMemory smem;
  const Stage stage{smem.take<fp16>("stage", kElements)};
  const auto full = smem.take<Mbarrier>("full", 1);
  full[0].init(1);
  fence_mbarrier_init();
  full[0].arrive_expect_tx(Stage::kBytes);
  tma_load(X, full[0], stage, 0, 0, 0, 0);
}

TEST_F(HopperFaults, LoadThatNobodyWaitsFor) {
  for (const auto order : {Schedule::Order::forward, Schedule::Order::reverse}) {
    options({.schedule = {order, 0}});
    expect(load_and_leave, 0,
           {"the block ends with a load to mbarrier full[0] that nobody waited for"}, 1);
  }
}

// ------------------------------------------------------------------------------------------ stores

/// Y = thread numbers, through shared memory.
__global__ void store_out(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap Y,
                          Hbm<float>, int mistake) {
  SharedMemory smem;
  const Stage stage{smem.take<fp16>("stage", kElements)};
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < 32; ++i) stage.data[32 * thread + i] = fp16(float(thread));
  if (mistake != kStoreWithoutProxyFence) fence_proxy_async();
  __syncthreads();
  if (thread == 32 && mistake == kOtherThreadOverwritesSource) stage.data[3] = fp16(0.0f);
  if (thread != 0) return;
  tma_store(mistake == kMapOfNothing ? TensorMap{} : Y,
            mistake == kBeforeShared ? Stage{stage.data + -kElements} : stage, 0,
            mistake == kStoresBeforeRow0 ? -8 : 0, 0, 0);
  if (mistake == kNoStoreWait) return;
  tma_store_commit();
  if (mistake == kOverwritesSource) stage.data[3] = fp16(0.0f);
  tma_store_wait_read<0>();
  stage.data[3] = fp16(0.0f);
}

TEST_F(HopperFaults, Stores) {
  EXPECT_EQ(said(store_out, kNone), "no fault");
  expect(store_out, kStoreWithoutProxyFence,
         {"thread (0,0,0): TMA store of shared stage[0] (element of 2 bytes), written with no "
          "fence_proxy_async() since"});
  expect(store_out, kOverwritesSource,
         {"write under a wgmma or TMA store that was not waited for and still reads shared "
          "stage[3]"});
  expect(store_out, kStoresBeforeRow0,
         {"TMA store to place -8: a box to store cannot start before 0"});
  expect(store_out, kNoStoreWait, {"ends with a TMA store that was never waited for"});
  expect(store_out, kOtherThreadOverwritesSource,
         {"thread (32,0,0): write under a wgmma or TMA store that was not waited for and still "
          "reads shared stage[3]"});
  expect(store_out, kMapOfNothing, {"TMA store: a tensor map of nothing"});
  expect(store_out, kBeforeShared,
         {"TMA store: a box of 64 rows × 128 bytes at shared stage[-4096] ends past"});
}

// ---------------------------------------------------------------------------------- floats in a
// row

/// x = 64 floats of out, from 128 on.
__global__ void load_floats(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap,
                            Hbm<float> out, int mistake) {
  SharedMemory smem;
  const auto x = smem.take<float>("x", 64);
  const auto full = smem.take<Mbarrier>("full", 1);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    if (mistake != kNoInit) full[0].init(1);
    if (mistake != kNoInitFence) fence_mbarrier_init();
    if (mistake == kLoadsOntoOrdinaryStores) x[8] = 1;
    full[0].arrive_expect_tx(256 + (mistake == kTooManyBytes  ? 16
                                    : mistake == kTooFewBytes ? -16
                                                              : 0));
    const auto from = out + (mistake == kSourceMisaligned ? 130
                             : mistake == kPastArray      ? 4096 - 32
                             : mistake == kBeforeArray    ? -4
                                                          : 128);
    const int n = mistake == k62Floats     ? 62
                  : mistake == kNoFloats   ? 0
                  : mistake == kPastShared ? 68
                                           : 64;
    bulk_load(full[0],
              x + (mistake == kTargetMisaligned ? 1
                   : mistake == kBeforeShared   ? -4
                                                : 0),
              from, n);
    if (mistake == kLoadsTwice) bulk_load(full[0], x + 60, from, 4);
    if (mistake == kAddsTooEarly) bulk_add(out, x, 64);
  }
  __syncthreads();
  if (mistake == kNobodyWaits) return;
  if (mistake == kReadsBeforeBarrier) out[thread] = x[thread % 64];
  if (mistake == kStoresBeforeWait) x[thread % 64] = 0;
  full[0].wait(mistake == kEarlyPhase ? 1 : 0);
  if (thread < 64) out[thread] = x[thread];
  if (mistake != kNoSyncwarp) __syncwarp();
  // What the lane itself reads may be its to release, and what lies beside that another's to read.
  const int lane = lane_id();
  const float last = lane < 3 ? x[lane == 0 ? 20 : lane == 1 ? 15 : 48] : 0;
  warp_sum(last);  // where lanes meet, but that orders no memory
  if (lane == 0) done_with(x + 16, 32);
}

TEST_F(HopperFaults, LoadsOfFloats) {
  for (const auto order :
       {Schedule::Order::forward, Schedule::Order::reverse, Schedule::Order::random}) {
    options({.schedule = {order, 3}});
    expect(load_floats, kNone, {"read of unwritten out[128] (element of 4 bytes;"});
    number_out();
    EXPECT_EQ(said(load_floats, kNone), "no fault");
    EXPECT_EQ(first_of_out(), 128);
    expect(load_floats, kReadsBeforeBarrier,
           {"read before its asynchronous copy was waited for: shared x["});
    expect(load_floats, kStoresBeforeWait,
           {"write under an asynchronous copy that was not waited for: shared x["});
    if (order == Schedule::Order::forward)
      expect(load_floats, kEarlyPhase,
             {"read before its asynchronous copy was waited for: shared x["});
    else if (order == Schedule::Order::reverse)  // the phase is over when they come
      expect(load_floats, kEarlyPhase, {"deadlock", "the end of phase 1 (parity 1)"});
    expect(load_floats, kTooManyBytes,
           {"mbarrier full[0], the end of phase 0 (parity 0), where 0 "
            "of 1 arrivals and 16 bytes are missing"});
    expect(load_floats, kTooFewBytes,
           {"mbarrier full[0], the end of phase 0 (parity 0), where 0 "
            "of 1 arrivals and -16 bytes are missing"});
    expect(load_floats, kLoadsTwice,
           {"bulk_load onto shared x[60], the target of a copy that was not waited for"});
    expect(load_floats, kLoadsOntoOrdinaryStores,
           {"bulk_load onto shared x[8], which was written with no fence_proxy_async() since"});
    expect(load_floats, kNoInit, {"mbarrier full[0] is used before its init"});
    expect(load_floats, kNoInitFence,
           {"bulk_load to mbarrier full[0] without fence_mbarrier_init()"});
    expect(load_floats, kNobodyWaits,
           {"thread (0,0,0): the block ends with a load to mbarrier full[0] that nobody waited"});
    expect(load_floats, kNoSyncwarp,
           {"releases shared x[", "of the block read with no __syncwarp or barrier since"});
    expect(load_floats, kSourceMisaligned, {"bulk_load: out[130] not aligned to 16 bytes"});
    expect(load_floats, kTargetMisaligned, {"bulk_load: shared x[1] not aligned to 16 bytes"});
    expect(load_floats, kBeforeShared, {"bulk_load: 64 floats at shared x[-4] end past its 64"});
    expect(load_floats, k62Floats, {"bulk_load of 62 floats: their number is a positive multiple"});
    expect(load_floats, kNoFloats, {"bulk_load of 0 floats: their number is a positive multiple"});
    expect(load_floats, kPastShared,
           {"bulk_load: 68 floats at shared x[0] end past its 64 elements"});
    expect(load_floats, kPastArray, {"read of out[4096] (element of 4 bytes; the array has 4096)"});
    expect(load_floats, kBeforeArray, {"read of out[-4] (element of 4 bytes; the array has 4096)"});
    expect(load_floats, kAddsTooEarly,
           {"bulk_add of shared x[0] (element of 4 bytes), the target of a copy that was not "
            "waited for"});
  }
}

// Who takes the phase before for the one to come reads too early if the copy ends late, and waits
// for ever if it has ended.
TEST_F(HopperFaults, InRandomSchedulesCopiesEndEarlyOrLate) {
  int early = 0, late = 0;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    options({.schedule = {Schedule::Order::random, seed}});
    number_out();
    const std::string message = said(load_floats, kEarlyPhase);
    early += message.find("deadlock") != std::string::npos;
    late += message.find("before its asynchronous copy") != std::string::npos;
  }
  EXPECT_EQ(early + late, 16);
  EXPECT_GT(early, 0);
  EXPECT_GT(late, 0);
}

/// Adds 2 to 64 floats of out.
__global__ void add_floats(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap,
                           Hbm<float> out, int mistake) {
  SharedMemory smem;
  const auto x = smem.take<float>("x", 64);
  const auto full = smem.take<Mbarrier>("full", 1);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 64 && (mistake != kAddsUnwritten || thread != 9)) x[thread] = 2;
  if (thread == 0) full[0].init(1);
  fence_mbarrier_init();
  if (mistake != kStoreWithoutProxyFence || thread != 7) fence_proxy_async();
  __syncthreads();
  if (thread != 0) return;
  const auto to = out + (mistake == kTargetMisaligned ? 2
                         : mistake == kPastArray      ? 4096 - 32
                         : mistake == kBeforeArray    ? -4
                                                      : 0);
  const int n = mistake == k62Floats     ? 62
                : mistake == kNoFloats   ? -4
                : mistake == kPastShared ? 68
                                         : 64;
  bulk_add(to, mistake == kSourceMisaligned ? x + 1 : x, n);
  if (mistake == kNoStoreWait) return;
  if (mistake != kNoCommit) tma_store_commit();
  if (mistake == kOverwritesSource) x[3] = 0;
  if (mistake == kLoadsUnderAddition) {
    full[0].arrive_expect_tx(16);
    bulk_load(full[0], x + 12, out, 4);
  }
  tma_store_wait_read<0>();
  x[3] = 0;
}

TEST_F(HopperFaults, AdditionsOfFloats) {
  for (const auto order :
       {Schedule::Order::forward, Schedule::Order::reverse, Schedule::Order::random}) {
    options({.schedule = {order, 3}});
    expect(add_floats, kNone, {"read of unwritten out[0] (element of 4 bytes; the array has"});
    number_out();
    EXPECT_EQ(said(add_floats, kNone), "no fault");
    EXPECT_EQ(first_of_out(), 2);
    expect(add_floats, kStoreWithoutProxyFence,
           {"thread (0,0,0): bulk_add of shared x[7] (element of 4 bytes), written with no "
            "fence_proxy_async() since"});
    expect(add_floats, kAddsUnwritten,
           {"bulk_add of shared x[9] (element of 4 bytes), which nobody wrote"});
    for (const int mistake : {kOverwritesSource, kNoCommit})  // the next wait is not for it
      expect(add_floats, mistake,
             {"write under a wgmma or TMA store that was not waited for and still reads shared "
              "x[3]"});
    expect(add_floats, kLoadsUnderAddition,
           {"bulk_load onto shared x[12], which a wgmma or TMA store not waited for still reads"});
    expect(add_floats, kNoStoreWait, {"ends with a bulk_add that was never waited for"});
    expect(add_floats, kSourceMisaligned, {"bulk_add: shared x[1] not aligned to 16 bytes"});
    expect(add_floats, kTargetMisaligned, {"bulk_add: out[2] not aligned to 16 bytes"});
    expect(add_floats, k62Floats, {"bulk_add of 62 floats: their number is a positive multiple"});
    expect(add_floats, kNoFloats, {"bulk_add of -4 floats: their number is a positive multiple"});
    expect(add_floats, kPastShared, {"bulk_add: 68 floats at shared x[0] end past its 64"});
    expect(add_floats, kPastArray,
           {"atomic addition to out[4096] (element of 4 bytes; the array has 4096)"});
    expect(add_floats, kBeforeArray,
           {"atomic addition to out[-4] (element of 4 bytes; the array has 4096)"});
  }
}

/// Adds 64 floats in two groups, waits for the first, and then writes to x[overwritten].
__global__ void add_in_groups(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap,
                              Hbm<float> out, int overwritten) {
  SharedMemory smem;
  const auto x = smem.take<float>("x", 64);
  for (int i = 0; i < 64; ++i) x[i] = 2;
  fence_proxy_async();
  for (int half = 0; half < 2; ++half) {
    bulk_add(out + 32 * half, x + 32 * half, 32);
    tma_store_commit();
  }
  tma_store_wait_read<1>();
  x[overwritten] = 0;
  tma_store_wait<0>();
}

TEST_F(HopperFaults, GroupsOfAdditions) {
  for (const auto order :
       {Schedule::Order::forward, Schedule::Order::reverse, Schedule::Order::random}) {
    options({.schedule = {order, 3}});
    number_out();
    EXPECT_EQ(said(add_in_groups, 31, 1), "no fault");
    EXPECT_EQ(first_of_out(), 2);
    expect(add_in_groups, 32, {"that was not waited for and still reads shared x[32]"}, 1);
  }
}

/// What a wgmma still owns is not stored as four either.
__global__ void store_sums(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap,
                           Hbm<float>, int mistake) {
  SharedMemory smem;
  const Stage B{smem.take<fp16>("B", kElements)};
  const auto sums = smem.take<float>("sums", 64 * 64);
  for (int i = static_cast<int>(threadIdx.x); i < kElements; i += 128) B.data[i] = fp16(1.0f);
  fence_proxy_async();
  __syncthreads();
  Accumulator<16, 64> acc;
  wgmma_fence(acc);
  wgmma_ABt(acc, B, 0, B);
  wgmma_commit();
  if (mistake == kReadsBeforeWait) write_as_they_lie(sums, acc);
  wgmma_wait<0>(acc);
  write_as_they_lie(mistake == kMisaligned ? sums + 2 : sums, acc);
}

TEST_F(HopperFaults, SumsAsTheyLie) {
  EXPECT_EQ(said(store_sums, kNone), "no fault");
  expect(store_sums, kReadsBeforeWait,
         {"uses an accumulator of a wgmma before the wgmma_wait() for it"});
  expect(store_sums, kMisaligned, {"store of 4 floats to shared sums not aligned to 16 bytes"});
}

// ---------------------------------------------------------------------------------- named barriers

__global__ void meet(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap,
                     Hbm<float>, int mode) {
  const bool first = threadIdx.x < 128;
  if (mode == 0) named_barrier_sync(first ? 1 : 2, 256);
  if (mode == 1) named_barrier_sync(1, first ? 256 : 128);
  if (mode == 2 && first) {
    named_barrier_arrive(1, 256);
    named_barrier_arrive(1, 256);
  }
  if (mode == 3) named_barrier_sync(0, 256);
  if (mode == 4) named_barrier_sync(1, 100);
  if (mode == 5) {  // the block splits: part of it never comes to the barrier of all
    if (first) return;
    named_barrier_sync(1, 128);
    __syncthreads();
  }
  if (mode == 6) {
    if (first) named_barrier_sync(1, 256);
    __syncthreads();
  }
  if (mode == 7 && !first) named_barrier_arrive(1, 256);
  if (mode == 8) named_barrier_sync(16, 256);
  if (mode == 9) named_barrier_sync(1, 0);
  if (mode == 10) named_barrier_sync(1, 1056);
}

TEST_F(HopperFaults, NamedBarriers) {
  const auto expect_256 = [&](int mode, std::initializer_list<std::string> parts) {
    expect(meet, mode, parts, 256);
  };
  expect_256(0, {"deadlock: 0 of 256 threads have ended, the others wait: thread (0,0,0) and 127 "
                 "after it for named barrier 1, where 128 of 256 threads are missing",
                 "; thread (128,0,0) and 127 after it for named barrier 2, where 128 of 256"});
  expect_256(1, {"named barrier 1 of 128 threads, where others came to one of 256"});
  expect_256(2, {"comes to named barrier 1 a second time, 1 of 256 threads being there"});
  expect_256(3, {"named barrier 0: they are 1 to 15"});
  expect_256(4, {"named barrier 1 of 100 threads: whole warps"});
  expect_256(8, {"named barrier 16: they are 1 to 15"});
  expect_256(9, {"named barrier 1 of 0 threads: whole warps"});
  expect_256(10, {"named barrier 1 of 1056 threads: whole warps, 1024 at most"});
  expect_256(5, {"deadlock: waits at __syncthreads",
                 "which thread (0,0,0) never reaches: it has "
                 "ended"});
  expect_256(6, {"thread (0,0,0) and 127 after it for named barrier 1",
                 "; thread (128,0,0) and 127 after it for __syncthreads (hopper_faults_test.cpp:"});
  expect_256(7, {"thread (128,0,0): the block ends with 128 of 256 threads at named barrier 1"});
}

template <int more>
__global__ void share_registers(const __grid_constant__ TensorMap,
                                const __grid_constant__ TensorMap, Hbm<float>, int) {
  if (threadIdx.x < 128)
    setmaxnreg_dec<32>();
  else
    setmaxnreg_inc<more>();
}

// A block of 384 threads starts with 168 each, since 65,536 / 384 rounds down to a multiple of 8.
// So less than an SM has is too much.
__global__ void share_all_registers_of_an_sm(const __grid_constant__ TensorMap,
                                             const __grid_constant__ TensorMap, Hbm<float>, int) {
  if (threadIdx.x < 128)
    setmaxnreg_dec<32>();
  else
    setmaxnreg_inc<240>();
}

TEST_F(HopperFaults, MoreRegistersThanThereAre) {
  EXPECT_EQ(said(share_registers<160>, 0, 512), "no fault");
  expect(
      share_registers<168>, 0,
      {"the block's warpgroups want 68608 registers, and its 512 threads were started with 65536"},
      512);
  expect(share_all_registers_of_an_sm, 0,
         {"want 65536 registers, and its 384 threads were started with 64512"}, 384);
}

// ---------------------------------------------------------------------------------------- the host

TEST_F(HopperFaults, TensorMaps) {
  EXPECT_NO_THROW(map_of_X(128, 256));
  EXPECT_THROW(map_of_X(128, 257), Fault);
  EXPECT_THROW(map_of_X(128, 0), Fault);
  EXPECT_THROW(map_of_X(127, 64), Fault);
  // Of e4m3 X is 128 × 128. Rows are a multiple of 16 bytes, boxes are 32, 64 or 128 wide.
  const auto of_e4m3 = [&](int d, int rows, int box_bytes) {
    device_->run("test", [&] { tensor_map<e4m3>(*X_, d, rows, 1, 1, 64, box_bytes); });
  };
  EXPECT_NO_THROW(of_e4m3(128, 128, 128));
  EXPECT_NO_THROW(of_e4m3(16, 1024, 64));
  EXPECT_THROW(of_e4m3(8, 2048, 64), Fault);
  EXPECT_NO_THROW(of_e4m3(128, 128, 32));
  EXPECT_THROW(of_e4m3(128, 128, 16), Fault);
  EXPECT_THROW(of_e4m3(64, 128, 64), Fault);  // that would be another array
}

// ------------------------------------------------------------------------------------------ e4m3

/// sums = A·Bᵀ of e4m3, all ones, B loaded by the copy engine in boxes of 64 bytes.
__global__ void multiply_e4m3(const __grid_constant__ TensorMap B_of, Hbm<float> out, int mistake) {
  using TileB = SwizzledTile<e4m3, 64, 64>;
  SharedMemory smem;
  const auto memory = smem.take<e4m3>("B", 2 * TileB::kElements);
  const TileB B{memory + (mistake == kMisaligned ? 256 : 0)};
  const auto full = smem.take<Mbarrier>("full", 1);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    full[0].init(1);
    fence_mbarrier_init();
    full[0].arrive_expect_tx(TileB::kBytes);
    tma_load(B_of, full[0], mistake == kPastTheEnd ? TileB{memory + TileB::kElements + 512} : B, 0,
             0, 0, 0);
  }
  __syncthreads();
  if (mistake != kMultipliesBeforeBarrier) full[0].wait(0);
  Operand<e4m3, 16, 64> a;
  for (auto& piece : a.r[0])
    for (unsigned& four : piece) four = pack<e4m3>(1, 1, 1, 1);
  Accumulator<16, 64> acc;
  if (mistake == kNoFence)
    wgmma_fence(a);
  else if (mistake == kNoFenceOfOperand)
    wgmma_fence(acc);
  else
    wgmma_fence(acc, a);
  wgmma_ABt(acc, a, B);
  wgmma_commit();
  if (mistake == kNoWait) return;
  if (mistake == kReadsBeforeWait) a = as_permuted_operand<e4m3>(acc);
  if (mistake == kWritesBeforeWait && thread == 37) acc.r[0][3][1] = 0;
  if (mistake == kWritesOperandBeforeWait && thread == 37) a.r[0][1][3] = 0;
  if (mistake == kStoresBeforeWait && thread == 3) memory[130] = e4m3(2.0f);
  wgmma_wait<0>(acc, a);
  for_each(acc, [&](int i, int j, float x) { out[(16 * (thread / 32) + i) * 64 + j] = x; });
}

TEST_F(HopperFaults, ProductsOfE4m3) {
  const std::vector<e4m3> ones(2 * 128 * 64, e4m3(1.0f));
  device_->upload(*X_, ones.data());
  const auto said_of_e4m3 = [&](int mistake) -> std::string {
    try {
      device_->run("test", [&] {
        launch("planted", multiply_e4m3, dim3(1), dim3(128),
               shared_bytes<e4m3>(2 * 64 * 64) + shared_bytes<Mbarrier>(1),
               tensor_map<e4m3>(*X_, 64, 256, 1, 1, 64, 64), hbm<float>(*out_), mistake);
      });
    } catch (const Fault& fault) {
      return fault.what();
    }
    return "no fault";
  };
  const auto expect_of_e4m3 = [&](int mistake, const std::string& part) {
    const std::string said = said_of_e4m3(mistake);
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  EXPECT_EQ(said_of_e4m3(kNone), "no fault");
  EXPECT_EQ(first_of_out(), 64);
  expect_of_e4m3(kMisaligned, "TMA load: shared B[256] not aligned to 512 bytes");
  expect_of_e4m3(kPastTheEnd,
                 "a box of 64 rows × 64 bytes at shared B[4608] ends past its 8192 elements");
  expect_of_e4m3(kMultipliesBeforeBarrier, "wgmma of shared B[0] (element of 1 bytes), the target");
  expect_of_e4m3(kNoFence, "wgmma without a wgmma_fence() of its accumulator before");
  expect_of_e4m3(kNoFenceOfOperand, "wgmma without a wgmma_fence() of its left operand before");
  expect_of_e4m3(kNoWait, "ends with a wgmma that was never waited for");
  expect_of_e4m3(kReadsBeforeWait, "uses an accumulator of a wgmma before the wgmma_wait() for it");
  expect_of_e4m3(kWritesBeforeWait, "accumulator of a wgmma m64n64k32, row 17, column 27");
  expect_of_e4m3(kWritesOperandBeforeWait,
                 "thread (37,0,0): left operand of a wgmma: other code wrote to its registers");
  expect_of_e4m3(kStoresBeforeWait, "thread (3,0,0): write under a wgmma");
}

TEST_F(HopperFaults, TracesShowBulkCopies) {
  options({.trace_file = "unused: the device only records"});
  EXPECT_EQ(said(pipeline, kNone, 256), "no fault");
  EXPECT_EQ(told().accesses, "X read 0+8192, X read 8192+8192, out write 0+4, ");
  EXPECT_EQ(said(store_out, kNone), "no fault");
  EXPECT_EQ(told().accesses, "Y write 0+8192, ");
  number_out();
  EXPECT_EQ(said(load_floats, kNone), "no fault");
  EXPECT_EQ(told().accesses, "out read 512+256, out write 0+128, out write 128+128, ");
  EXPECT_EQ(said(add_floats, kNone), "no fault");
  EXPECT_EQ(told().accesses, "out read 0+256, out write 0+256, ");
}

TEST_F(HopperFaults, TracesTellWhoWaitsForWhat) {
  for (const auto order :
       {Schedule::Order::forward, Schedule::Order::reverse, Schedule::Order::random}) {
    options({.schedule = {order, 3}, .trace_file = "in memory"});
    EXPECT_EQ(said(pipeline, kNone, 256), "no fault");
    auto of = told().of;
    EXPECT_EQ(of[4],  // the producer
              "__syncthreads 0; mbarrier_wait free[0] -1; mbarrier_arrive full[0] 0; tma_load X 0 "
              "8192 full[0]; "
              "mbarrier_wait free[0] 0; mbarrier_arrive full[0] 1; tma_load X 1 8192 full[0]; "
              "exit; ");
    for (int warp = 0; warp < 4; ++warp)
      EXPECT_EQ(of[warp],
                "__syncthreads 0; mbarrier_wait full[0] 0; wgmma stage 0 524288; wgmma_wait 1; "
                "mbarrier_arrive free[0] 0; mbarrier_wait full[0] 1; wgmma stage 1 524288; "
                "wgmma_wait 2; mbarrier_arrive free[0] 1; exit; ");
    EXPECT_EQ(of[5], "__syncthreads 0; exit; ");

    number_out();
    EXPECT_EQ(said(load_floats, kNone), "no fault");
    EXPECT_EQ(told().of[0],
              "mbarrier_arrive full[0] 0; bulk_load out 0 256 full[0]; "
              "__syncthreads 0; mbarrier_wait full[0] 0; exit; ");
    EXPECT_EQ(said(add_floats, kNone), "no fault");
    EXPECT_EQ(told().of[0], "__syncthreads 0; bulk_add out 0 256; tma_store_wait 1; exit; ");
  }
}

/// Two products in a group, a barrier twice, a store; between them, what is counted.
__global__ void work(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap Y,
                     Hbm<float> out, int) {
  SharedMemory smem;
  const Stage A{smem.take<fp16>("A", kElements)}, B{smem.take<fp16>("B", kElements)};
  const auto done = smem.take<Mbarrier>("done", 1);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kElements; i += 128) A.data[i] = B.data[i] = fp16(1.0f);
  if (thread == 0) done[0].init(1);
  fence_mbarrier_init();
  fence_proxy_async();
  count_flops(thread % 32 == 0 ? 3 : 7);
  __syncthreads();

  Accumulator<16, 64> S, T;
  count_flops(2);
  wgmma_fence(S, T);
  wgmma_ABt(S, A, 0, A, 0);
  wgmma_ABt(T, A, 0, B, 0);
  wgmma_commit();
  float x = exp2f(1.0f);
  wgmma_wait<0>(S, T);
  if (thread == 33) done[0].arrive();
  x += exp2f(2.0f) + exp2f(3.0f);
  named_barrier_sync(3, 128);
  named_barrier_sync(3, 128);
  if (thread == 0) {
    tma_store(Y, A, 0, 0, 0, 0);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
  count_flops(2);
  if (thread == 0) out[0] = x;
}

TEST_F(HopperFaults, TracesTellWhatWasCountedBetween) {
  options({.trace_file = "in memory"});
  EXPECT_EQ(said(work, kNone), "no fault");
  const std::string begin =
      "__syncthreads 0 (0, 3); wgmma A 0 524288 (0, 2); wgmma B 0 524288; wgmma_wait 1 (1, 0); ";
  const std::string barriers = "named_barrier_sync 3 0 (2, 0); named_barrier_sync 3 1; ";
  auto of = told().of;
  EXPECT_EQ(of[0], begin + barriers + "tma_store Y 0 8192; tma_store_wait 1; exit (0, 2); ");
  // Another lane than the first tells what it alone does, in its turn, and not what it counted.
  EXPECT_EQ(of[1], begin + "mbarrier_arrive done[0] 0; " + barriers + "exit (0, 2); ");
  EXPECT_EQ(of[2], begin + barriers + "exit (0, 2); ");
  // Without --trace there is nothing.
  options({});
  EXPECT_EQ(said(work, kNone), "no fault");
  EXPECT_TRUE(told().of.empty());
}

}  // namespace
}  // namespace ladder::sim
