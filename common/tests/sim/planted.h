// Helpers for testing Hopper kernels with planted mistakes. A test writes one correct kernel and,
// at each place where it could be wrong, `if (wrong(message))` followed by the mistake. expect()
// runs the kernel once without mistakes, and once per mistake, which must cause this message.
#pragma once

#include <map>

#include "machine/hopper.h"
#include "tests/sim/sim_test.h"
#include "tile/rows.h"
#include "tile/warpgroup.h"

namespace ladder::sim {

using Stage = SwizzledTile<fp16, 64, 64>;
constexpr int kElements = Stage::kElements;

const std::string kBeingCopied =
    "to which an asynchronous copy is still writing: wait for the copy first";
const std::string kUnfenced = "which a thread wrote without calling fence_proxy_async() afterwards";
const std::string kStillRead =
    "which a wgmma, TMA store or bulk_add is still reading: wait for it first";

/// The message that a mistake must cause and, if it differs, the one under reverse schedules.
struct Said {
  std::string forward, in_reverse;
};
using Place = std::pair<unsigned, unsigned>;  // line, column
inline std::map<Place, Said> mistakes;        // the mistakes in the kernel run last
inline Place made;                            // the mistake switched on; {0, 0}: none

/// Returns whether to make the mistake at this place in a kernel. For `said` see expect_says().
inline bool wrong(const std::string& said, const std::string& in_reverse = "",
                  Where where = Where::current()) {
  const Place here = {where.line(), where.column()};
  if (made == Place{}) mistakes.try_emplace(here, Said{said, in_reverse});
  return made == here;
}

class Planted : public SimTest {
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
  /// Returns a tensor map of X as `rows` × 64 fp16 numbers, with boxes of `box_rows` rows.
  TensorMap map_of_X(int64_t rows, int box_rows, int box_bytes = 128) {
    return tensor_map<fp16>(*array_of_X_, 64, rows, 1, 1, box_rows, box_bytes);
  }
  void number_out() { device().upload(out.array(), iota(64 * 64).data()); }

  /// Expects that the correct kernel ends without a fault, and that each planted mistake is found.
  /// Under random schedules the message may be the one for forward or for reverse schedules.
  void expect(int threads, const Kernel& kernel, Schedule::Order order = {}) {
    mistakes.clear();
    EXPECT_EQ(fault_of(1, threads, kernel), "no fault");
    for (const auto& [place, said] : std::map(mistakes)) {
      SCOPED_TRACE(testing::Message() << "line " << place.first << ", order " << int(order));
      made = place;
      const std::string message = fault_of(1, threads, kernel);
      made = {};
      expect_says(message, "rung test, kernel planted, block (0,0,0), thread (");
      if (said.in_reverse.empty() || order == Schedule::Order::forward)
        expect_says(message, said.forward);
      else if (order == Schedule::Order::reverse)
        expect_says(message, said.in_reverse);
    }
  }
  /// Calls expect() in each thread order, after setting out[i] = i; out[0] must become `right`.
  void expect_in_every_order(int threads, float right, const Kernel& kernel) {
    for (const auto order : kOrders) {
      options({.schedule = {order, 3}});
      number_out();
      EXPECT_EQ(fault_of(1, threads, kernel), "no fault");
      EXPECT_EQ(values(out)[0], right);
      expect(threads, kernel, order);
    }
  }

  TensorMap X, Y;  // of 128 × 64 fp16 ones, and of 64 × 64 fp16 numbers, not written at first
  Hbm<float> out;  // 64 × 64, not written at first
  Array* array_of_X_ = nullptr;
};

}  // namespace ladder::sim
