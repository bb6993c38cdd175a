// What belongs to a warpgroup, 128 threads: its asynchronous products (wgmma), and its share of the
// registers (setmaxnreg). From its issue until the
// wait for it its accumulator holds NaN and its operands must not be touched, so that
// reading or writing them too early is caught. Its registers have to be named after the wait, by it
// or by the next fence: a compiler may move what else uses them to before the wait.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "machine/sim/block.h"
#include "machine/sim/shared_memory.h"

namespace ladder::sim {

enum class Element { fp16, bf16, e4m3 };

/// A wgmma, m64nNk16 or of e4m3 m64nNk32, as each of its lanes issues it.
struct Wgmma {
  int N;
  Element element;
  bool a_in_registers, transposed_a, transposed_b;
  uint64_t a, b;  // descriptors
  int scale_d;
  bool operator==(const Wgmma&) const = default;
  int bytes() const { return element == Element::e4m3 ? 1 : 2; }  // of an element
  int k() const { return 32 / bytes(); }
  int64_t flops() const { return int64_t{2} * 64 * N * k(); }
};

/// Row and column of a lane's register i of an accumulator.
constexpr std::pair<int, int> accumulator_element(int lane, int i) {
  return {lane / 32 * 16 + lane % 32 / 4 + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

class Warpgroup {
 public:
  /// Of the warpgroup whose first thread that is.
  Warpgroup(Block& block, int first_thread)
      : block_(block), memory_(block.memory), first_thread_(first_thread) {}

  int registers = 0;  // of each thread, since its setmaxnreg

  // Called on fibers.
  /// The program names registers, after a wait or before a product.
  void fence_registers(const void* registers, size_t bytes);
  /// `d`: the lane's N/2 registers of sums; `a`: its 4 of the left operand, or null.
  void issue(const Wgmma& wgmma, float* d, unsigned* a);
  void commit();
  void wait(int groups_left, Where where);
  /// Faults where a product that was not waited for still reads there.
  void done_with(const SharedPlace& place, int64_t bytes) const;
  /// Faults where the thread has not waited for a product, or not named its left operand since.
  void end_thread();

  /// Ends the products that the whole warpgroup waits for. False if it does not.
  bool deliver();

 private:
  // Wgmmas on one accumulator, from the first until it is named after all of them have ended.
  struct Chain {
    int N = 0, k = 0, ops = 0;
    float* lanes[128] = {};
    std::vector<float> sums;       // 64 × N
    float& sum(int lane, int i) {  // of its register i
      const auto [row, column] = accumulator_element(lane, i);
      return sums[row * N + column];
    }
  };
  struct Op {
    Wgmma wgmma;
    int group;
    std::shared_ptr<Chain> chain;
    std::vector<std::array<unsigned, 4>> a;  // of each lane
    std::vector<int64_t> reads;              // the 16 bytes that begin at each
  };
  struct Lane {
    int64_t issued = 0;
    int group = 0, waited = 0;  // the next; below which all have been waited for
    std::map<const char*, std::vector<char>> fenced;  // registers and what was in them
    struct Operand {
      std::array<unsigned, 4> contents;
      int64_t last_op;
    };
    std::map<unsigned*, Operand> operands;      // registers that wgmmas read, until they are named
    std::vector<std::shared_ptr<Chain>> ended;  // whose registers were not named since
  };

  Lane& lane() { return lanes_[block_.running() % 128]; }
  void hand_over(const void* registers, size_t bytes, const char* what);
  void check_untouched(int lane, const Chain& chain) const;
  void start(const Wgmma& wgmma, const float* d);
  void finish(Op& op);
  /// The product's operands, A as [row][k], B as [k][column], of e4m3 as [column][k].
  void read_operands(const Op& op, std::vector<float>& A, std::vector<float>& B);

  Block& block_;
  SharedBytes& memory_;
  const int first_thread_;
  std::deque<Op> ops_;  // not waited for
  int64_t first_op_ = 0;
  Lane lanes_[128];
  int waiting_ = 0;  // threads
  int done_ = 0;     // for wgmmas of groups below this number
};

}  // namespace ladder::sim
