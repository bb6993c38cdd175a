// What the sim finds in kernels for Hopper: each mistake is planted in a small kernel and must be
// told with who and where.

#include <fmt/format.h>

#include <map>
#include <set>

#include "machine/hopper.h"
#include "tests/sim/sim_test.h"
#include "tile/rows.h"
#include "tile/warpgroup.h"

namespace ladder::sim {
namespace {

using Stage = SwizzledTile<fp16, 64, 64>;
constexpr int kElements = Stage::kElements;

const std::string kUsedEarly = "uses an accumulator of a wgmma before the wgmma_wait() for it";
const std::string kBeingCopied = "the target of a copy that was not waited for";
const std::string kUnfenced = "which was written with no fence_proxy_async() since";
const std::string kStillRead = "which a wgmma or TMA store not waited for still reads";

class HopperFaults : public SimTest {
 protected:
  void options(const SimOptions& o) override {
    SimTest::options(o);
    array_of_X_ = &array("X", 128 * 64 / 2).array();
    X = map_of_X(128, 64);
    Y = tensor_map<fp16>(array("Y", 64 * 64 / 2).array(), 64, 64, 1, 1, 64);
    out = array("out", 64 * 64);
    const std::vector<fp16> ones(128 * 64, fp16(1.0f));
    device().upload(*array_of_X_, ones.data());
  }
  void SetUp() override { options({}); }
  TensorMap map_of_X(int64_t rows, int box_rows, int box_bytes = 128) {
    return tensor_map<fp16>(*array_of_X_, 64, rows, 1, 1, box_rows, box_bytes);
  }
  /// In every order of threads, with out[i] = i: the kernel ends with out[0] = right, and mistakes
  /// are found.
  void expect_in_every_order(int threads, float right, const Mistakes& mistakes,
                             const Kernel& kernel) {
    for (const auto order : kOrders) {
      options({.schedule = {order, 3}});
      number_out();
      expect(threads, {{"", "no fault"}}, kernel, order);
      EXPECT_EQ(values(out)[0], right);
      expect(threads, mistakes, kernel, order);
    }
  }
  /// out[i] = i.
  void number_out() { device().upload(out.array(), iota(64 * 64).data()); }

  /// Of a run with no mistake: what of HBM was touched; and what each warp asked of barriers and
  /// engines, as what, name, number, amount, barrier, and in brackets what its first lane counted
  /// before.
  struct Told {
    std::string accesses;
    std::map<int, std::string> of;
  };
  Told told(int threads, const Kernel& kernel, const SimOptions& o = {.trace_file = "in memory"}) {
    options(o);
    number_out();
    expect(threads, {{"", "no fault"}}, kernel);
    const std::set<std::string> other = {"read",  "write",      "compute",        "store",
                                         "round", "__syncwarp", "__shfl_xor_sync"};
    Told told;
    for (const TraceEvent& e : device().take_trace().events) {
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

  TensorMap X, Y;
  Hbm<float> out;

  Array* array_of_X_ = nullptr;
};

// --------------------------------------------------------------------------- a product's registers

/// out = A·B twice over with A from registers, all ones.
TEST_F(HopperFaults, RegistersOfAProduct) {
  const auto multiply = [&] {
    SharedMemory smem;
    const Stage B{smem.take<fp16>("B", kElements)};
    const auto rest = smem.take<fp16>("rest", kElements);
    if (!made("unwritten"))
      for (int i = thread(); i < kElements; i += 128) B.data[i] = rest[i] = fp16(1.0f);
    if (!made("no proxy fence") || thread() != 77) fence_proxy_async();
    __syncthreads();

    Operand<fp16, 16, 64> a;
    for (auto& piece : a.r[0])
      for (unsigned& pair : piece) pair = pack<fp16>(1, 1);
    Accumulator<16, 64> acc, other;
    if (made("no fence"))
      wgmma_fence(a);
    else if (made("no fence of operand"))
      wgmma_fence(acc, other);
    else
      wgmma_fence(acc, other, a);
    if (made("writes after fence") && thread() == 5) acc.r[0][1][2] = 3;
    if (made("part of warpgroup") && thread() >= 96) return;
    wgmma_AB(made("other accumulator") && thread() == 9 ? other : acc, a,
             made("past the end") ? Stage{rest + 3 * kElements} : B);
    if (made("scales between") && thread() == 5) acc.r[0][1][2] *= 0.5f;
    if (made("other group") && thread() == 9) wgmma_commit();
    if (made("other shape")) {  // its first half as the sums of 64 × 32
      Accumulator<16, 32>& half = reinterpret_cast<Accumulator<16, 32>&>(acc);
      wgmma_AB(half, a, SwizzledTile<fp16, 64, 32>{B.data});
    }
    wgmma_AB(acc, a, made("other tile") && thread() == 9 ? Stage{rest} : B);
    if (made("other count") && thread() == 9) wgmma_AB(acc, a, B);
    if (!made("no commit")) wgmma_commit();
    if (made("other wait") && thread() == 9) wgmma_commit();
    if (made("no wait")) return;
    if (made("reads before wait")) out[thread()] = 2 * acc.r[0][0][0];
    if (made("stores four before wait")) store_4(smem.take<float>("four", 4), acc.r[0][0]);
    if (made("permutes before wait")) as_permuted_operand<e4m3>(acc);
    if (made("writes before wait") && thread() == 37) acc.r[0][3][1] = 0;
    if (made("writes operand before wait") && thread() == 37) a.r[0][2][3] = 0;
    if (made("stores before wait") && thread() == 3) B.data[130] = fp16(2.0f);
    if (made("stores under second wgmma")) {  // the first that reads B has ended, this one has not
      wgmma_AB(other, a, B);
      wgmma_commit();
      wgmma_wait<1>(acc);
      if (thread() == 3) B.data[130] = fp16(2.0f);
    }
    if (made("waits for other"))
      wgmma_wait<0>(other);
    else
      wgmma_wait<0>(acc, other);
    for_each(acc, [&](int i, int j, float x) { out[(16 * (thread() / 32) + i) * 64 + j] = x; });
  };
  const std::string of_0 = "thread (0,0,0): " + kUsedEarly;
  const std::string disagree = "lanes of a warpgroup disagree on a wgmma";
  const std::string overwrites =
      "thread (3,0,0): write to shared B[130] (element of 2 bytes), " + kStillRead;
  const std::string other_wgmmas =
      "lanes of a warpgroup disagree at wgmma_wait() on which wgmmas they have issued";
  expect(128, {{"", "no fault"}}, multiply);
  EXPECT_EQ(values(out)[0], 128);
  expect(
      128,
      {{"no wait", "ends with a wgmma that was never waited for"},
       {"no commit", kUsedEarly},
       {"reads before wait", of_0},
       {"stores four before wait", of_0},
       {"permutes before wait", kUsedEarly},
       {"waits for other", of_0},
       {"writes before wait",
        "thread (37,0,0): accumulator of a wgmma m64n64k16, row 17, column 27: other code wrote"},
       {"scales between",
        "thread (5,0,0): accumulator of a wgmma m64n64k16, row 9, column 10: other code wrote"},
       {"no fence", "wgmma without a wgmma_fence() of its accumulator before"},
       {"no fence of operand", "wgmma without a wgmma_fence() of its left operand before"},
       {"writes after fence",
        "thread (5,0,0): wgmma: its accumulator changed since the last wgmma_fence() of it"},
       {"writes operand before wait",
        "thread (37,0,0): left operand of a wgmma: other code wrote to its registers"},
       {"other accumulator", disagree},
       {"other tile", disagree + ": its descriptors"},
       {"other group", disagree + ": its descriptors"},
       {"other count", other_wgmmas},
       {"other shape", "wgmma m64n32k16 on the accumulator of an m64n64k16 not waited for"},
       {"other wait", other_wgmmas},
       {"part of warpgroup",
        "deadlock: 32 of 128 threads have ended … thread (0,0,0) and 95 after it for wgmma_wait, "
        "where 32 of 128 threads are missing (warpgroup.h:"},
       {"no proxy fence", "wgmma of shared B[77] (element of 2 bytes), " + kUnfenced},
       {"stores before wait", overwrites},
       {"stores under second wgmma", overwrites},
       {"unwritten", "wgmma of shared B[0] (element of 2 bytes), which is unwritten"},
       {"past the end", "wgmma of shared memory at byte"}},
      multiply);
  expect(96, {{"", "wgmma by a warpgroup of fewer than 128 threads"}}, multiply);
  options({.schedule = {Schedule::Order::reverse, 0}});
  expect(128, {{"stores under second wgmma", overwrites}}, multiply);
}

// -------------------------------------------------------------------------------- a ring of stages

/// out[0] = the sum of products of two rounds through one stage, which a producer (warpgroup 1)
/// fills and a consumer (warpgroup 0) multiplies with itself.
TEST_F(HopperFaults, RingOfStages) {
  const auto pipeline = [&] {
    SharedMemory smem;
    const auto all = smem.take<fp16>("stage", 2 * kElements);
    const Stage stage{all};
    const auto full = smem.take<Mbarrier>("full", 1), free = smem.take<Mbarrier>("free", 1);
    if (thread() == 0) {
      if (made("barrier before the first")) full[-1].init(1);
      if (made("barrier past the last")) full[1].init(1);
      if (!made("no init"))
        full[0].init(made("too few arrivals")  ? 2
                     : made("count of 0")      ? 0
                     : made("count too large") ? 1 << 20
                                               : 1);
      if (made("init twice")) full[0].init(1);
      free[0].init(4);
      if (made("loads onto ordinary stores")) stage.data[8] = fp16(1.0f);
    }
    if (made("no init fence") ? thread() != 0 : true) fence_mbarrier_init();
    __syncthreads();

    if (thread() >= 128) {
      if (thread() > 128) return;
      for (int round = 0; round < 2; ++round) {
        free[0].wait(1 - round);
        full[0].arrive_expect_tx(Stage::kBytes + (made("too many bytes")   ? 16
                                                  : made("too few bytes")  ? -16
                                                  : made("loads twice")    ? Stage::kBytes
                                                  : made("megabyte")       ? 1 << 20
                                                  : made("negative bytes") ? -2 * Stage::kBytes
                                                                           : 0));
        if (made("too many arrivals")) full[0].arrive();
        const Stage target{made("misaligned")      ? all + 64
                           : made("box too large") ? all + (kElements + 512)
                                                   : all};
        tma_load(X, full[0], target, 0, 64 * round, 0, 0);
        if (made("loads twice")) tma_load(X, full[0], target, 0, 64 * round, 0, 0);
      }
      return;
    }
    if (made("nobody waits")) return;
    Accumulator<16, 64> acc, other;
    for (int round = 0; round < 2; ++round) {
      if (made("reads before barrier")) out[thread()] = float(stage.data[thread()]);
      if (made("early phase"))
        full[0].wait(1 - round);
      else if (made("late phase"))
        full[0].wait(0);
      else if (made("parity of round"))
        full[0].wait(round + 2);
      else if (!made("multiplies before barrier"))
        full[0].wait(round);
      wgmma_fence(acc);
      wgmma_ABt(acc, stage, 0, stage);
      wgmma_commit();
      if (made("releases under second wgmma")) {  // only the first of two is waited for
        wgmma_fence(other);
        wgmma_ABt(other, stage, 0, stage);
        wgmma_commit();
        wgmma_wait<1>(acc);
      }
      // Found whether or not the producer comes to overwrite the stage in time.
      if (made("releases under wgmma") || made("releases under second wgmma"))
        done_with(stage.data, kElements);
      if (made("loads under wgmma") && thread() % 32 == 0) free[0].arrive();
      if (made("loads under wgmma")) named_barrier_sync(1, 128);
      wgmma_wait<0>(acc);
      done_with(stage.data, kElements);
      if (!made("loads under wgmma") && thread() % 32 == 0) free[0].arrive();
    }
    if (thread() == 0) out[0] = acc.r[0][0][0];
  };
  // Forward the consumer goes first, in reverse the producer.
  const std::string in_phase_0 = "mbarrier full[0], the end of phase 0 (parity 0), where ";
  const std::string of_free = "mbarrier free[0], the end of phase 0";
  const std::string releases =
      "releases shared stage[0] (element of 2 bytes), which a wgmma not waited for still reads";
  expect_in_every_order(
      256, 128,
      {{"reads before barrier", "read of shared stage[ … , which is unwritten",
        "read of shared stage[ … , " + kBeingCopied},
       {"multiplies before barrier",
        "wgmma of shared stage[0] (element of 2 bytes), which is unwritten",
        "wgmma of shared stage[0] (element of 2 bytes), " + kBeingCopied},
       {"early phase", "wgmma of shared stage[0] (element of 2 bytes), which is unwritten",
        "deadlock … thread (0,0,0) and 127 after it for mbarrier full[0], the end of phase 1 "
        "(parity 1), where 1 of 1 arrivals"},
       {"too many bytes",
        "deadlock: 127 of 256 threads have ended, the others wait: thread (0,0,0) and 127 after "
        "it for " +
            in_phase_0 +
            "0 of 1 arrivals and 16 bytes are missing "
            "(hopper_faults_test.cpp: … ; thread (128,0,0) for " +
            of_free + " (parity 0), where 4 of 4 arrivals and 0 bytes are missing"},
       {"too few bytes", in_phase_0 + "0 of 1 arrivals and -16 bytes are missing"},
       {"too few arrivals", in_phase_0 + "1 of 2 arrivals and 0 bytes are missing"},
       {"too many arrivals",
        "thread (128,0,0): arrives at mbarrier full[0] in phase 0, where all 1 have"},
       {"loads under wgmma",
        "thread (128,0,0): TMA load onto shared stage[0] (element of 2 bytes), " + kStillRead},
       {"releases under wgmma", releases},
       {"releases under second wgmma", releases},
       {"loads twice", "TMA load onto shared stage[0] (element of 2 bytes), " + kBeingCopied},
       {"loads onto ordinary stores",
        "TMA load onto shared stage[8] (element of 2 bytes), " + kUnfenced},
       {"no init", "mbarrier full[0] is used before its init"},
       {"count of 0", "mbarrier full[0]: a count of 0"},
       {"count too large", "mbarrier full[0]: a count of 1048576"},
       {"barrier before the first", "mbarrier full[-1] of 1"},
       {"barrier past the last", "mbarrier full[1] of 1"},
       {"megabyte", "mbarrier full[0]: 1056768 bytes promised, and less than 2²⁰ is"},
       {"negative bytes", "mbarrier full[0]: -8192 bytes promised"},
       {"init twice", "mbarrier full[0] initialised a second time"},
       {"no init fence", "TMA load to mbarrier full[0] without fence_mbarrier_init()"},
       {"misaligned", "TMA load: shared stage[64] (element of 2 bytes) not aligned to 1024 bytes"},
       {"box too large",
        "TMA load: 8192 bytes from shared stage[4608] (element of 2 bytes) on end past the array's "
        "8192 elements"},
       {"parity of round", "waits for parity 2 of mbarrier full[0]: it is 0 or 1"},
       {"nobody waits", "thread (128,0,0) for " + of_free, of_free}},
      pipeline);
  options({});
  // The second wait asks for the phase before, finds it over, and multiplies the first round's
  // data again or what is being copied.
  expect(256, {{"late phase", ""}}, pipeline);

  // A box of 64 bytes a row, swizzled by as many, has another alignment.
  X = map_of_X(128, 64, 64);
  expect(256, {{"misaligned", "not aligned to 512 bytes"}}, pipeline);

  for (const auto order : kOrders) {
    auto [accesses, of] = told(256, pipeline, {.schedule = {order, 3}, .trace_file = "in memory"});
    EXPECT_EQ(accesses, "X read 0+8192, X read 8192+8192, out write 0+4, ");
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
  }
}

// ---------------------------------------------------------------- stores, additions, floats in a
// row

/// Stores Y, in a second group adds 2 to 64 floats of out, in a third to 32 more; waits for the
/// first two, overwrites their sources, and waits for all.
TEST_F(HopperFaults, StoresAndAdditions) {
  const auto store = [&] {
    SharedMemory smem;
    const Stage stage{smem.take<fp16>("stage", kElements)};
    const auto x = smem.take<float>("x", 64);
    const auto full = smem.take<Mbarrier>("full", 1);
    for (int i = 0; i < 32; ++i) stage.data[32 * thread() + i] = fp16(float(thread()));
    if (thread() < 64 && (!made("adds unwritten") || thread() != 9)) x[thread()] = 2;
    if (thread() == 0) full[0].init(1);
    fence_mbarrier_init();
    if (!made("no proxy fence") || thread() != 7) fence_proxy_async();
    __syncthreads();
    if (thread() != 0) return;
    tma_store(made("map of nothing") ? TensorMap{} : Y,
              made("before shared") ? Stage{stage.data + -kElements} : stage,
              made("within 16 bytes") ? 4 : 0, made("stores before row 0") ? -8 : 0, 0, 0);
    if (made("no store wait")) return;
    tma_store_commit();
    bulk_add(out + (made("past array") ? 4096 - 32 : 0), x, 64);
    if (!made("no commit")) tma_store_commit();
    if (made("overwrites store")) stage.data[3] = fp16(0.0f);
    if (made("overwrites addition")) x[3] = 0;
    if (made("loads under addition")) {
      full[0].arrive_expect_tx(16);
      bulk_load(full[0], x + 12, out, 4);
    }
    bulk_add(out + 64, x + 32, 32);
    tma_store_commit();
    tma_store_wait_read<1>();
    stage.data[3] = fp16(0.0f);
    x[made("overwrites the last") ? 32 : 3] = 0;
    tma_store_wait<0>();
  };
  expect(128, {{"", "read of unwritten out[0] (element of 4 bytes; the array has"}}, store);
  const std::string overwrites_x_3 = "write to shared x[3] (element of 4 bytes), " + kStillRead;
  expect_in_every_order(
      128, 2,
      {{"no proxy fence",
        "thread (0,0,0): TMA store of shared stage[248] (element of 2 bytes), " + kUnfenced},
       {"adds unwritten", "bulk_add of shared x[9] (element of 4 bytes), which is unwritten"},
       {"overwrites store", "write to shared stage[3] (element of 2 bytes), " + kStillRead},
       {"overwrites addition", overwrites_x_3},
       {"overwrites the last", "write to shared x[32] (element of 4 bytes), " + kStillRead},
       {"no commit", overwrites_x_3},  // the next wait is not for it
       {"loads under addition", "bulk_load onto shared x[12] (element of 4 bytes), " + kStillRead},
       {"no store wait", "ends with a TMA store that was never waited for"},
       {"past array", "atomic addition to out[4096] (element of 4 bytes; the array has 4096)"},
       {"map of nothing", "TMA store: a tensor map of nothing"},
       {"within 16 bytes", "TMA store: a box from column 4 on, within 16 bytes"},
       {"stores before row 0", "TMA store to place -8: a box to store cannot start before 0"},
       {"before shared", "TMA store: 8192 bytes from shared stage[-4096] (element of 2 bytes) on"}},
      store);
  const auto [accesses, of] = told(128, store);
  EXPECT_EQ(accesses,
            "Y write 0+8192, out read 0+256, out write 0+256, out read 256+128, "
            "out write 256+128, ");
  EXPECT_EQ(of.at(0),
            "__syncthreads 0; tma_store Y 0 8192; bulk_add out 1 256; bulk_add out 2 128; "
            "tma_store_wait 2; tma_store_wait 3; exit; ");
}

/// x = 64 floats of out, from 128 on.
TEST_F(HopperFaults, LoadsOfFloats) {
  const auto load_floats = [&] {
    SharedMemory smem;
    const auto x = smem.take<float>("x", 64);
    const auto full = smem.take<Mbarrier>("full", 1);
    if (thread() == 0) {
      full[0].init(1);
      fence_mbarrier_init();
      full[0].arrive_expect_tx(256);
      const int from = made("misaligned") ? 130 : made("past array") ? 4096 - 32 : 128;
      bulk_load(full[0], x, out + from, made("62 floats") ? 62 : made("no floats") ? 0 : 64);
    }
    __syncthreads();
    if (made("nobody waits")) return;
    full[0].wait(made("early phase") ? 1 : 0);
    if (thread() < 64) out[thread()] = x[thread()];
    if (!made("no syncwarp")) __syncwarp();
    // What the lane itself reads may be its to release, and what lies beside that another's to
    // read.
    const int lane = lane_id();
    const float last = lane < 3 ? x[lane == 0 ? 20 : lane == 1 ? 15 : 48] : 0;
    warp_sum(last);  // where lanes meet, but that orders no memory
    if (lane == 0) done_with(x + 16, 32);
  };
  const std::string early = "read of shared x[ … , " + kBeingCopied;
  const std::string late = "deadlock … the end of phase 1 (parity 1)";
  expect_in_every_order(
      128, 128,
      {{"early phase", early, late},  // in reverse the phase is over when they come
       {"nobody waits",
        "thread (0,0,0): the block ends with a load to mbarrier full[0] that nobody waited"},
       {"no syncwarp",
        "releases shared x[ … of the block read with no __syncwarp or barrier since"},
       {"misaligned", "bulk_load: out[130] not aligned to 16 bytes"},
       {"62 floats", "bulk_load of 62 floats: their number is a positive multiple"},
       {"no floats", "bulk_load of 0 floats: their number is a positive multiple"},
       {"past array", "read of out[4096] (element of 4 bytes; the array has 4096)"}},
      load_floats);
  // At random copies end at either time.
  std::set<bool> deadlocks;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    options({.schedule = {Schedule::Order::random, seed}});
    number_out();
    mistake = "early phase";
    const std::string message = fault_of(1, 128, load_floats);
    const bool deadlock = message.find("deadlock") != std::string::npos;
    expect_says(message, deadlock ? late : early);
    deadlocks.insert(deadlock);
  }
  EXPECT_EQ(deadlocks.size(), 2u);

  const auto [accesses, of] = told(128, load_floats);
  EXPECT_EQ(accesses, "out read 512+256, out write 0+128, out write 128+128, ");
  EXPECT_EQ(of.at(0),
            "mbarrier_arrive full[0] 0; bulk_load out 0 256 full[0]; "
            "__syncthreads 0; mbarrier_wait full[0] 0; exit; ");
}

// ---------------------------------------------------------------------------------- named barriers

TEST_F(HopperFaults, NamedBarriers) {
  const auto meet = [&] {
    const bool first = threadIdx.x < 128;
    if (made("two barriers")) named_barrier_sync(first ? 1 : 2, 256);
    if (made("")) first ? named_barrier_sync(1, 256) : named_barrier_arrive(1, 256);
    if (made("two counts")) named_barrier_sync(1, first ? 256 : 128);
    if (made("arrives twice") && first) {
      named_barrier_arrive(1, 256);
      named_barrier_arrive(1, 256);
    }
    if (made("barrier 0")) named_barrier_sync(0, 256);
    if (made("no whole warps")) named_barrier_sync(1, 100);
    if (made("part ends")) {  // the block splits: part of it never comes to the barrier of all
      if (first) return;
      named_barrier_sync(1, 128);
      __syncthreads();
    }
    if (made("part waits")) {
      if (first) named_barrier_sync(1, 256);
      __syncthreads();
    }
    if (made("part arrives") && !first) named_barrier_arrive(1, 256);
    if (made("barrier 16")) named_barrier_sync(16, 256);
    if (made("0 threads")) named_barrier_sync(1, 0);
    if (made("1056 threads")) named_barrier_sync(1, 1056);
  };
  expect(256,
         {{"", "no fault"},
          {"two barriers",
           "deadlock: 0 of 256 threads have ended, the others wait: thread (0,0,0) and 127 after "
           "it for named barrier 1, where 128 of 256 threads are missing … ; thread (128,0,0) and "
           "127 after it for named barrier 2, where 128 of 256"},
          {"two counts", "named barrier 1 of 128 threads, where others came to one of 256"},
          {"arrives twice", "comes to named barrier 1 a second time, 1 of 256 threads being there"},
          {"barrier 0", "named barrier 0: they are 1 to 15"},
          {"no whole warps", "named barrier 1 of 100 threads: whole warps"},
          {"barrier 16", "named barrier 16: they are 1 to 15"},
          {"0 threads", "named barrier 1 of 0 threads: whole warps"},
          {"1056 threads", "named barrier 1 of 1056 threads: whole warps, 1024 at most"},
          {"part ends",
           "deadlock: waits at __syncthreads … which thread (0,0,0) never reaches: it has ended"},
          {"part waits",
           "thread (0,0,0) and 127 after it for named barrier 1 … ; thread (128,0,0) and 127 after "
           "it for __syncthreads (hopper_faults_test.cpp:"},
          {"part arrives",
           "thread (128,0,0): the block ends with 128 of 256 threads at named barrier 1"}},
         meet);
}

template <int more>
void share_registers() {
  if (threadIdx.x < 128)
    setmaxnreg_dec<32>();
  else
    setmaxnreg_inc<more>();
}

TEST_F(HopperFaults, MoreRegistersThanThereAre) {
  expect(512, {{"", "no fault"}}, share_registers<160>);
  expect(512,
         {{"",
           "the block's warpgroups want 68608 registers, and its 512 threads were started with "
           "65536"}},
         share_registers<168>);
  // 384 threads start with 168 each, since 65,536 / 384 rounds down to a multiple of 8: less than
  // an SM has is too much.
  expect(384, {{"", "want 65536 registers, and its 384 threads were started with 64512"}},
         share_registers<240>);
}

// ---------------------------------------------------------------------------------------- the host

TEST_F(HopperFaults, TensorMaps) {
  EXPECT_NO_THROW(map_of_X(128, 256));
  EXPECT_THROW(map_of_X(128, 257), Fault);
  EXPECT_THROW(map_of_X(128, 0), Fault);
  EXPECT_THROW(map_of_X(127, 64), Fault);
  // Of e4m3 X is 128 × 128. Rows are a multiple of 16 bytes, boxes are 64 or 128 wide.
  const auto of_e4m3 = [&](int d, int rows, int box_bytes) {
    device().run("test", [&] { tensor_map<e4m3>(*array_of_X_, d, rows, 1, 1, 64, box_bytes); });
  };
  EXPECT_NO_THROW(of_e4m3(128, 128, 128));
  EXPECT_NO_THROW(of_e4m3(16, 1024, 64));
  EXPECT_THROW(of_e4m3(8, 2048, 64), Fault);
  EXPECT_THROW(of_e4m3(128, 128, 32), Fault);
  EXPECT_THROW(of_e4m3(64, 128, 64), Fault);  // that would be another array
}

TEST_F(HopperFaults, DescriptorsAdvanceWithinTheirStart) {
  EXPECT_EQ(advanced(0x4000000000003ffe, 16), 0x4000000000003fff);
  EXPECT_THROW(advanced(0x4000000000003ffe, 32), Fault);
  EXPECT_THROW(advanced(0, 8), Fault);
}

/// Two products in a group, a barrier twice, a store; between them, what is counted.
TEST_F(HopperFaults, TracesTellWhatWasCountedBetween) {
  const auto work = [&] {
    SharedMemory smem;
    const Stage A{smem.take<fp16>("A", kElements)}, B{smem.take<fp16>("B", kElements)};
    const auto done = smem.take<Mbarrier>("done", 1);
    for (int i = thread(); i < kElements; i += 128) A.data[i] = B.data[i] = fp16(1.0f);
    if (thread() == 0) done[0].init(1);
    fence_mbarrier_init();
    fence_proxy_async();
    count_flops(thread() % 32 == 0 ? 3 : 7);
    __syncthreads();

    Accumulator<16, 64> S, T;
    count_flops(2);
    wgmma_fence(S, T);
    wgmma_ABt(S, A, 0, A, 0);
    wgmma_ABt(T, A, 0, B, 0);
    wgmma_commit();
    float x = exp2f(1.0f);
    wgmma_wait<0>(S, T);
    if (thread() == 33) done[0].arrive();
    x += exp2f(2.0f) + exp2f(3.0f);
    named_barrier_sync(3, 128);
    named_barrier_sync(3, 128);
    if (thread() == 0) {
      tma_store(Y, A, 0, 0, 0, 0);
      tma_store_commit();
      tma_store_wait_read<0>();
    }
    count_flops(2);
    if (thread() == 0) out[0] = x;
  };
  const std::string begin =
      "__syncthreads 0 (0, 3); wgmma A 0 524288 (0, 2); wgmma B 0 524288; wgmma_wait 1 (1, 0); ";
  const std::string barriers = "named_barrier_sync 3 0 (2, 0); named_barrier_sync 3 1; ";
  auto of = told(128, work).of;
  EXPECT_EQ(of[0], begin + barriers + "tma_store Y 0 8192; tma_store_wait 1; exit (0, 2); ");
  // Another lane than the first tells what it alone does, in its turn, and not what it counted.
  EXPECT_EQ(of[1], begin + "mbarrier_arrive done[0] 0; " + barriers + "exit (0, 2); ");
  EXPECT_EQ(of[2], begin + barriers + "exit (0, 2); ");
  // Without --trace there is nothing.
  EXPECT_TRUE(told(128, work, {}).of.empty());
}

}  // namespace
}  // namespace ladder::sim
