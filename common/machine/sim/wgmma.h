// Simulates a warpgroup of 128 threads: its asynchronous products (wgmma) and registers
// (setmaxnreg). From a wgmma's issue to its wait, its accumulator and its left operand in registers
// hold markers, which reveal a premature access. The wait, or a later fence, must name these
// registers (hold()) to restore them; otherwise a compiler might move other uses before the wait.
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

/// The parameters of a wgmma, m64nNk16 or (for e4m3) m64nNk32, as each lane issues it.
struct Wgmma {
  int N;
  Element element;
  bool a_in_registers, transposed_a, transposed_b;
  uint64_t a, b;  // descriptors
  int scale_d;    // 0: the product overwrites the sums; 1: it is added to them
  bool operator==(const Wgmma&) const = default;
  int bytes() const { return element == Element::e4m3 ? 1 : 2; }  // per element
  int k() const { return 32 / bytes(); }
  int64_t flops() const { return int64_t{2} * 64 * N * k(); }
};

/// Returns the row and column of the sum in a lane's accumulator register i; `lane` is in [0, 128).
constexpr std::pair<int, int> accumulator_element(int lane, int i) {
  return {lane / 32 * 16 + lane % 32 / 4 + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

class Warpgroup {
 public:
  /// Represents the warpgroup of threads [first_thread, first_thread + 128).
  Warpgroup(Block& block, int first_thread)
      : block_(block), memory_(block.memory), first_thread_(first_thread) {}

  int registers = 0;  // per thread, as set by setmaxnreg; 0: not set yet

  // These functions concern the running thread.
  /// Handles a fence or wait that names `bytes` bytes of registers.
  void fence_registers(const void* registers, size_t bytes);
  /// Issues a wgmma for one lane. `d` points to the lane's N/2 accumulator registers, `a` to its 4
  /// registers of the left operand; `a` is null if that operand is in shared memory.
  void issue(const Wgmma& wgmma, float* d, unsigned* a);
  void commit();                            // closes the thread's group of wgmmas
  void wait(int groups_left, Where where);  // until at most `groups_left` groups are in flight
  /// Faults if a product not waited for still reads any of the `bytes` bytes from `place` on.
  void done_with(const SharedPlace& place, int64_t bytes) const;
  /// Faults if the ending thread has not waited for a product, or not named its left operand since.
  void end_thread();

  /// Ends the products that the whole warpgroup waits for; returns false if not all threads wait.
  bool deliver();

 private:
  /// The wgmmas on one accumulator, from the first until the accumulator is named after they end.
  struct Chain {
    int N = 0, k = 0, ops = 0;     // the wgmmas' shape; how many are in flight
    float* lanes[128] = {};        // each lane's accumulator registers
    std::vector<float> sums;       // 64 × N
    float& sum(int lane, int i) {  // the element in the lane's register i
      const auto [row, column] = accumulator_element(lane, i);
      return sums[row * N + column];
    }
  };
  struct Op {
    Wgmma wgmma;
    int group;
    std::shared_ptr<Chain> chain;
    std::vector<std::array<unsigned, 4>> a;  // the left operand's registers, per lane
    std::vector<int64_t> reads;              // byte offsets of the 16-byte chunks that it reads
  };
  struct Lane {
    int64_t issued = 0;         // number of wgmmas issued so far
    int group = 0, waited = 0;  // the current group; groups below `waited` have been waited for
    std::map<const char*, std::vector<char>> fenced;  // named registers and their contents
    struct Operand {
      std::array<unsigned, 4> contents;
      int64_t last_op;  // number of the last wgmma that reads it
    };
    std::map<unsigned*, Operand> operands;      // left operands, until they are named
    std::vector<std::shared_ptr<Chain>> ended;  // chains that ended but were not named since
  };

  Lane& lane() { return lanes_[block_.running() % 128]; }
  void hand_over(const void* registers, size_t bytes, const char* what);
  void check_untouched(int lane, const Chain& chain) const;
  void start(const Wgmma& wgmma, const float* d);
  void finish(Op& op);
  /// Reads the operands: A as [row][k], B as [k][column], or for e4m3 [column][k].
  void read_operands(const Op& op, std::vector<float>& A, std::vector<float>& B);

  Block& block_;
  SharedBytes& memory_;
  const int first_thread_;
  std::deque<Op> ops_;    // wgmmas not waited for
  int64_t first_op_ = 0;  // number of ops_.front()
  Lane lanes_[128];
  int waiting_ = 0;  // number of waiting threads
  int done_ = 0;     // the waiting threads need the end of all groups below this
};

}  // namespace ladder::sim
