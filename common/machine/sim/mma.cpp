// The arithmetic of mma.m16n8k16. Apart from its header, with which every kernel would compile it
// again, and less optimised.
#include "machine/sim/sim_machine.h"

namespace ladder::sim {

template <class T>
void multiply_as(MmaLane* const* lanes) {
  const auto unpack = [](unsigned pair, int half) -> float {
    return T::from_bits(static_cast<uint16_t>(pair >> 16 * half));
  };
  using Row [[gnu::vector_size(8 * sizeof(float))]] = float;
  float A[16][16];
  Row B[16];
  for (int l = 0; l < 32; ++l) {
    const int g = l / 4, t = l % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i)  // a0, a1: columns 0–7 of rows g, g + 8; a2, a3: columns 8–15
        A[g + 8 * (i % 2)][2 * t + half + 8 * (i / 2)] = unpack(lanes[l]->a[i], half);
      for (int i = 0; i < 2; ++i) B[2 * t + half + 8 * i][g] = unpack(lanes[l]->b[i], half);
    }
  }
  for (int row = 0; row < 16; ++row) {
    Row sums = {};
    for (int k = 0; k < 16; ++k) sums += A[row][k] * B[k];
    for (int column = 0; column < 8; ++column)
      lanes[row % 8 * 4 + column / 2]->c[row / 8 * 2 + column % 2] += sums[column];
  }
}
void multiply(MmaLane* const* lanes, bool is_bf16) {
  is_bf16 ? multiply_as<bf16>(lanes) : multiply_as<fp16>(lanes);
}

}  // namespace ladder::sim
