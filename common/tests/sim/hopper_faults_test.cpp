// Tests the faults reported for misused products, stages and registers in Hopper kernels. planted.h
// says how the mistakes are planted; each message must name the thread and the place.

#include "tests/sim/planted.h"

namespace ladder::sim {
namespace {

using HopperFaults = Planted;

/// The kernel computes out = A·B twice, with A in registers; all elements are 1.
TEST_F(HopperFaults, RegistersOfAProduct) {
  const std::string kUsedEarly = "uses an accumulator of a wgmma before the wgmma_wait() for it";
  const std::string of_0 = "thread (0,0,0): " + kUsedEarly;
  const std::string disagree = "lanes of a warpgroup disagree on a wgmma: its descriptors";
  const std::string other_wgmmas =
      "lanes of a warpgroup disagree at wgmma_wait() on which wgmmas they have issued";
  const std::string overwrites =
      "thread (3,0,0): write to shared B[130] (element of 2 bytes), " + kStillRead;
  const auto multiply = [&] {
    SharedMemory smem;
    const auto before = smem.take<fp16>("before", 512);
    const Stage B{smem.take<fp16>("B", kElements)};
    const auto rest = smem.take<fp16>("rest", kElements);
    if (!wrong("wgmma of shared B[0] (element of 2 bytes), which is unwritten"))
      for (int i = thread(); i < kElements; i += 128) B.data[i] = rest[i] = fp16(1.0f);
    if (!wrong("wgmma of shared B[77] (element of 2 bytes), " + kUnfenced) || thread() != 77)
      fence_proxy_async();
    __syncthreads();

    Operand<fp16, 16, 64> a;
    for (auto& piece : a.r[0])
      for (unsigned& pair : piece) pair = pack<fp16>(1, 1);
    Accumulator<16, 64> acc, other;
    if (!wrong("wgmma without a wgmma_fence() of its accumulator before")) wgmma_fence(acc, other);
    if (!wrong("wgmma without a wgmma_fence() of its left operand before")) wgmma_fence(a);
    if (wrong("thread (5,0,0): wgmma: its accumulator changed since the last wgmma_fence() of it"))
      if (thread() == 5) acc.r[0][1][2] = 3;
    if (wrong("deadlock: 32 of 128 threads have ended … thread (0,0,0) and 95 after it for "
              "wgmma_wait, where 32 of 128 threads are missing (warpgroup.h:"))
      if (thread() >= 96) return;
    const bool past_the_end = wrong("wgmma of 16 bytes at byte … of shared memory, but");
    wgmma_AB(wrong("lanes of a warpgroup disagree") && thread() == 9 ? other : acc, a,
             past_the_end ? Stage{rest + 3 * kElements} : B);
    if (wrong("thread (5,0,0): accumulator of a wgmma m64n64k16, row 9, column 10: other code"))
      if (thread() == 5) acc.r[0][1][2] *= 0.5f;
    if (wrong(disagree) && thread() == 9) wgmma_commit();
    if (wrong("wgmma m64n32k16 on the accumulator of an m64n64k16 that was not waited")) {
      // The first half of `acc`, used as a 64 × 32 accumulator.
      Accumulator<16, 32>& half = reinterpret_cast<Accumulator<16, 32>&>(acc);
      wgmma_AB(half, a, SwizzledTile<fp16, 64, 32>{B.data});
    }
    wgmma_AB(acc, a, wrong(disagree) && thread() == 9 ? Stage{rest} : B);
    if (wrong(other_wgmmas) && thread() == 9) wgmma_AB(acc, a, B);
    done_with(before, 512), done_with(rest, kElements);  // no product reads these
    if (!wrong(kUsedEarly)) wgmma_commit();
    if (wrong(other_wgmmas) && thread() == 9) wgmma_commit();
    if (wrong("ends with a wgmma that was never waited for")) return;
    if (wrong(of_0)) out[thread()] = 2 * acc.r[0][0][0];
    if (wrong(of_0)) store_4(smem.take<float>("four", 4), acc.r[0][0]);
    if (wrong(of_0)) out[thread()] = exp2_fast(acc.r[0][0][0]);
    if (wrong(kUsedEarly)) as_permuted_operand<e4m3>(acc);
    if (wrong("thread (37,0,0): accumulator of a wgmma m64n64k16, row 17, column 27: other code"))
      if (thread() == 37) acc.r[0][3][1] = 0;
    const std::string other_code = "thread (37,0,0): left operand of a wgmma: other code wrote to";
    if (wrong(other_code) && thread() == 37) a.r[0][2][3] = 0;
    if (wrong(overwrites) && thread() == 3) B.data[130] = fp16(2.0f);
    if (wrong("asynchronous copy to shared B[136] (element of 2 bytes), " + kStillRead))
      if (thread() == 3) cp_async(B.data + 136, hbm<fp16>(*array_of_X_));
    if (wrong(overwrites)) {  // an earlier product that reads B has ended, but this one has not
      wgmma_AB(other, a, B);
      wgmma_commit();
      wgmma_wait<1>(acc);
      if (thread() == 3) B.data[130] = fp16(2.0f);
    }
    if (wrong(of_0))
      wgmma_wait<0>(other);
    else
      wgmma_wait<0>(acc, other);
    if (wrong(other_code) && thread() == 37) a.r[0][2][3] = 0;
    if (!wrong("thread (0,0,0): ends with a left operand of a wgmma that no")) wgmma_fence(a);
    for_each(acc, [&](int i, int j, float x) { out[(16 * (thread() / 32) + i) * 64 + j] = x; });
  };
  expect(128, multiply);
  expect_says(fault_of(1, 96, multiply), "wgmma by a warpgroup of fewer than 128 threads");
  EXPECT_EQ(fault_of(1, 128, multiply), "no fault");
  EXPECT_EQ(values(out)[0], 128);
}

/// A producer (warpgroup 1) fills one stage twice, and a consumer (warpgroup 0) multiplies its
/// contents by their transpose. The sum of the two products goes to out[0].
TEST_F(HopperFaults, RingOfStages) {
  // Under a forward schedule the consumer runs first, under a reverse schedule the producer.
  const std::string in_phase_0 = "mbarrier full[0], the end of phase 0 (parity 0), where ";
  const std::string of_free = "mbarrier free[0], the end of phase 0";
  const std::string of_stage = " shared stage[0] (element of 2 bytes), ";
  const std::string releases =
      "releases" + of_stage + "which a wgmma is still reading: wait for it first";
  const auto pipeline = [&] {
    SharedMemory smem;
    const auto all = smem.take<fp16>("stage", 2 * kElements);
    const Stage stage{all};
    const auto full = smem.take<Mbarrier>("full", 1), free = smem.take<Mbarrier>("free", 1);
    if (thread() == 0) {
      if (wrong("mbarrier full[-1]: the array has 1")) full[-1].init(1);
      if (wrong("mbarrier full[1]: the array has 1")) full[1].init(1);
      int count = 1;
      if (wrong(in_phase_0 + "1 of 2 arrivals and 0 bytes are missing")) count = 2;
      if (wrong("mbarrier full[0]: a count of 0")) count = 0;
      if (wrong("mbarrier full[0]: a count of 1048576")) count = 1 << 20;
      if (!wrong("mbarrier full[0] is used before its init")) full[0].init(count);
      if (wrong("mbarrier full[0] initialised a second time")) full[0].init(1);
      free[0].init(4);
      for (int i = 0; i < 2; ++i)
        if (wrong("mbarrier free[0]: 1048576 bytes promised, which must be fewer than 2²⁰"))
          free[0].arrive_expect_tx(1 << 19);
      if (wrong("TMA load onto shared stage[8] (element of 2 bytes), " + kUnfenced))
        stage.data[8] = fp16(1.0f);
    }
    const bool of_another = wrong("TMA load to mbarrier full[0] without fence_mbarrier_init()");
    if (thread() == of_another) fence_mbarrier_init();  // another thread's fence does not count
    __syncthreads();

    const bool loads_twice = wrong("TMA load onto" + of_stage + kBeingCopied);
    if (thread() >= 128) {
      if (thread() > 128) return;
      for (int round = 0; round < 2; ++round) {
        free[0].wait(1 - round);
        int bytes = loads_twice ? 2 * Stage::kBytes : Stage::kBytes;
        if (wrong(
                "deadlock: 127 of 256 threads have ended, the others wait: thread (0,0,0) and 127 "
                "after it for " +
                in_phase_0 +
                "0 of 1 arrivals and 16 bytes are missing "
                "(hopper_faults_test.cpp: … ; thread (128,0,0) for " +
                of_free + " (parity 0), where 4 of 4 arrivals and 0 bytes are missing"))
          bytes += 16;
        if (wrong(in_phase_0 + "0 of 1 arrivals and -16 bytes are missing")) bytes -= 16;
        if (wrong("mbarrier full[0]: -8192 bytes promised")) bytes = -Stage::kBytes;
        full[0].arrive_expect_tx(bytes);
        if (wrong("thread (128,0,0): arrives at mbarrier full[0] in phase 0, where all 1 have"))
          full[0].arrive();
        Stage target = stage;
        if (wrong("TMA load: shared stage[64] (element of 2 bytes) not aligned to 1024 bytes"))
          target.data = all + 64;
        if (wrong("TMA load: 8192 bytes from shared stage[4608] (element of 2 bytes) on reach past "
                  "the array's 8192 elements"))
          target.data = all + (kElements + 512);
        tma_load(X, full[0], target, 0, 64 * round, 0, 0);
        if (loads_twice) tma_load(X, full[0], target, 0, 64 * round, 0, 0);
      }
      return;
    }
    if (wrong("thread (128,0,0) for " + of_free, of_free)) return;
    const bool releases_second = wrong(releases);
    const bool loads_under = wrong("thread (128,0,0): TMA load onto" + of_stage + kStillRead);
    Accumulator<16, 64> acc, other;
    for (int round = 0; round < 2; ++round) {
      if (wrong("read of shared stage[ … , which is unwritten",
                "read of shared stage[ … , " + kBeingCopied))
        out[thread()] = float(stage.data[thread()]);
      int parity = round;
      if (wrong(
              "wgmma of" + of_stage + "which is unwritten",
              "deadlock … thread (0,0,0) and 127 after it for mbarrier full[0], the end of phase 1 "
              "(parity 1), where 1 of 1 arrivals"))
        parity = 1 - round;
      if (wrong("waits for parity 2 of mbarrier full[0]: a parity is 0 or 1")) parity = round + 2;
      if (!wrong("wgmma of" + of_stage + "which is unwritten",
                 "wgmma of" + of_stage + kBeingCopied))
        full[0].wait(parity);
      wgmma_fence(acc);
      wgmma_ABt(acc, stage, stage);
      wgmma_commit();
      if (releases_second) {  // waits only for the first of two products
        wgmma_fence(other);
        wgmma_ABt(other, stage, stage);
        wgmma_commit();
        wgmma_wait<1>(acc);
      }
      // The mistake is found even if the producer has not overwritten the stage yet.
      if (wrong(releases) || releases_second) done_with(stage.data, kElements);
      if (loads_under && thread() % 32 == 0) free[0].arrive();
      if (loads_under) named_barrier_sync(1, 128);
      wgmma_wait<0>(acc);
      Operand<fp16, 16, 64> a;
      if (wrong("releases shared stage[ … of the block read: no __syncwarp or barrier followed"))
        load(a, stage, 0);
      done_with(stage.data, kElements);
      if (!loads_under && thread() % 32 == 0) free[0].arrive();
    }
    if (thread() == 0) out[0] = acc.r[0][0][0];
  };
  expect_in_every_order(256, 128, pipeline);

  // A box with 64-byte rows and 64-byte swizzle must be aligned to 512 bytes instead of 1,024.
  const auto load_narrow = [&] {
    SharedMemory smem;
    const Stage stage{smem.take<fp16>("stage", 2 * kElements) + 64};
    tma_load(map_of_X(128, 64, 64), smem.take<Mbarrier>("full", 1)[0], stage, 0, 0, 0, 0);
  };
  expect_says(fault_of(1, 1, load_narrow),
              "shared stage[64] (element of 2 bytes) not aligned to 512");
}

/// Warpgroup 0 keeps 32 registers per thread, and all others ask for `more`.
template <int more>
void share_registers() {
  if (thread() < 128)
    setmaxnreg_dec<32>();
  else
    setmaxnreg_inc<more>();
}

TEST_F(HopperFaults, TooManyRegisters) {
  EXPECT_EQ(fault_of(1, 512, share_registers<160>), "no fault");
  expect_says(fault_of(1, 512, share_registers<168>),
              "the block's warpgroups ask for 68608 registers, but its 512 threads started with "
              "65536");
  // 384 threads start with 168 registers each: 65,536 / 384, rounded down to a multiple of 8.
  expect_says(fault_of(1, 384, share_registers<240>),
              "ask for 65536 registers, but its 384 threads started with 64512");
}

TEST_F(HopperFaults, TensorMaps) {
  EXPECT_NO_THROW(map_of_X(128, 256));
  EXPECT_THROW(map_of_X(128, 257), Fault);  // boxes are 1 to 256 rows high
  EXPECT_THROW(map_of_X(128, 0), Fault);
  EXPECT_THROW(map_of_X(127, 64), Fault);  // not the array's size
  // As e4m3, X is 128 × 128. Rows must be a multiple of 16 bytes, boxes 64 or 128 bytes wide.
  const auto of_e4m3 = [&](int d, int rows, int box_bytes) {
    device().run("test", [&] { tensor_map<e4m3>(*array_of_X_, d, rows, 1, 1, 64, box_bytes); });
  };
  EXPECT_NO_THROW(of_e4m3(128, 128, 128));
  EXPECT_NO_THROW(of_e4m3(16, 1024, 64));
  EXPECT_THROW(of_e4m3(8, 2048, 64), Fault);
  EXPECT_THROW(of_e4m3(128, 128, 32), Fault);
  EXPECT_THROW(of_e4m3(64, 128, 64), Fault);  // not the array's size
}

/// A descriptor's address must not overflow, and layouts that the simulator lacks are refused.
TEST_F(HopperFaults, Descriptors) {
  EXPECT_EQ(advanced(0x4000000000003ffe, 16), 0x4000000000003fff);
  EXPECT_THROW(advanced(0x4000000000003ffe, 32), Fault);
  EXPECT_THROW(advanced(0, 8), Fault);
  const auto expect_unknown = [&](bool transposed, int swizzle, int base_offset, const char* says) {
    const uint64_t b = uint64_t(swizzle) << 62 | uint64_t(base_offset) << 49;
    const auto multiply = [=] {
      float d[4][4];
      unsigned a[4];
      (transposed ? wgmma_m64<fp16, true, 4> : wgmma_m64<fp16, false, 4>)(d, a, b, 0);
    };
    expect_says(fault_of(1, 128, multiply), std::string("wgmma: ") + says);
  };
  expect_unknown(false, 0, 0, "a matrix descriptor without swizzle, or with one of 32 bytes");
  expect_unknown(false, 3, 0, "a matrix descriptor without swizzle, or with one of 32 bytes");
  expect_unknown(true, 2, 0, "a transposed operand with another swizzle than 128 bytes");
  for (const int base_offset : {1, 2, 4})
    expect_unknown(false, 1, base_offset, "a matrix descriptor with a base offset");
}

/// Descriptors of a 64 × 128 tile, used as K and, transposed, as V; 05's lesson on Hopper has them.
TEST_F(HopperFaults, DescriptorsOfATile) {
  using Tile = SwizzledTile<fp16, 64, 128>;
  const auto multiply = [&] {
    SharedMemory smem;
    smem.take<fp16>("before", 0x1400 / 2);
    const Tile tile{smem.tiles<Tile>("K")};
    for (int i = thread(); i < Tile::kElements; i += 128) tile.data[i] = fp16(1);
    fence_proxy_async();
    __syncthreads();
    const uint64_t rows = by_rows(tile, 0), columns = by_columns(tile, 0);
    EXPECT_EQ(rows, 0x4000004000010140);
    EXPECT_EQ(advanced(rows, tile.bytes(0, 16)), 0x4000004000010142);
    EXPECT_EQ(advanced(rows, tile.bytes(0, 64)), 0x4000004000010340);
    EXPECT_EQ(columns, 0x4000004002000140);
    EXPECT_EQ(advanced(columns, tile.bytes(16, 0)), 0x40000040020001c0);

    const auto of = [&](int leading, int stride, int line = 128) {
      return matrix_descriptor(tile.data, leading, stride, line);
    };
    const std::string of_K = "wgmma of shared K[0] (element of 2 bytes): its descriptor has the ";
    uint64_t a = rows, b = columns;
    if (wrong(of_K + "stride byte offset 128, and the tile's layout needs 1024")) a = of(16, 128);
    if (wrong(of_K + "swizzle width 64, and the tile's layout needs 128")) a = of(16, 512, 64);
    if (wrong(of_K + "stride byte offset 8192, and the tile's layout needs 1024"))
      b = of(1024, 8192);
    if (wrong(of_K + "leading byte offset 1024, and the tile's layout needs 8192"))
      b = of(1024, 1024);
    Accumulator<16, 128> acc;
    wgmma_fence(acc);
    wgmma_m64<fp16, false, true>(acc.r[0], a, b, 0);
    // The leading byte offset does not matter for 64 columns, nor for untransposed operands.
    Accumulator<16, 64> half;
    wgmma_fence(half);
    wgmma_m64<fp16, false, true>(half.r[0], of(1024, 1024), of(1024, 1024), 0);
    wgmma_commit(), wgmma_wait<0>(acc, half);
  };
  expect(128, multiply);
}

/// One lane's wgmma differs in width, type, layout or operands, or in whether it adds to d.
TEST_F(HopperFaults, LanesDisagreeOnAWgmma) {
  using D = float(&)[8][4];
  constexpr void (*kOthers[])(D, uint64_t) = {
      [](D d, uint64_t s) { wgmma_m64<fp16, 0, 0>((float(&)[4][4])d, s, s, 1); },
      [](D d, uint64_t s) { wgmma_m64<bf16, 0, 0>(d, s, s, 1); },
      [](D d, uint64_t s) { wgmma_m64<fp16, 0>(d, (unsigned(&)[4])d, s, 1); },
      [](D d, uint64_t s) { wgmma_m64<fp16, 1, 0>(d, s, s, 1); },
      [](D d, uint64_t s) { wgmma_m64<fp16, 0, 1>(d, s, s, 1); },
      [](D d, uint64_t s) { wgmma_m64<fp16, 0, 0>(d, advanced(s, 32), s, 1); },
      [](D d, uint64_t s) { wgmma_m64<fp16, 0, 0>(d, s, advanced(s, 32), 1); },
      [](D d, uint64_t s) { wgmma_m64<fp16, 0, 0>(d, s, s, 0); }};
  for (const auto other : kOthers) {
    const auto multiply = [=] {
      SharedMemory smem;
      const Stage stage{smem.take<fp16>("stage", kElements)};
      for (int i = 0; i < 32; ++i) stage.data[32 * thread() + i] = fp16(1);
      fence_proxy_async();
      __syncthreads();
      Accumulator<16, 64> acc;
      wgmma_fence(acc);
      const uint64_t s = by_rows(stage, 0);
      thread() == 9 ? other(acc.r[0], s) : wgmma_m64<fp16, 0, 0>(acc.r[0], s, s, 1);
      wgmma_commit(), wgmma_wait<0>(acc);
    };
    expect_says(fault_of(1, 128, multiply), "(9,0,0): lanes of a warpgroup disagree on a wgmma:");
  }
}

}  // namespace
}  // namespace ladder::sim
