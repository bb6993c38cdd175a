// Q, K, V and P in e4m3 on the host, as the plan of a step says that it rounds them: what such a
// step is compared with.
#pragma once

#include <vector>

#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// Rows of an operand as numbers of e4m3 and the scale of each row: x ≈ scale·value.
struct QuantisedRows {
  int columns = 0;
  std::vector<float> values, scales;
};

/// x ← H·(±x)/√n: the signs of hadamard_sign(), then the fast Walsh–Hadamard transform, n a power
/// of 2. Orthogonal, so that products of two rows stay as they are.
void hadamard(float* x, int n);

/// Attention of single rows in the arithmetic that the step has: operands of e4m3, sums as the
/// tensor cores make them, the softmax in fp32, tile by tile.
class QuantisedAttention {
 public:
  QuantisedAttention(const Problem& p, const Quantisation& how, const Inputs& inputs);

  /// (B, H, N, columns), (B, Hk, N_kv, columns), (B, Hk, N_kv, d): columns is d or, after
  /// hadamard(), d padded.
  const QuantisedRows& Q() const { return Q_; }
  const QuantisedRows& K() const { return K_; }
  const QuantisedRows& V() const { return V_; }

  /// O of query row i, not rounded, and its LSE.
  struct Row {
    std::vector<float> o;
    double lse;
  };
  Row row(int head, int i) const;

 private:
  Problem p_;
  Quantisation how_;
  QuantisedRows Q_, K_, V_;
  int tiles_ = 0;                  // of K and of V of a head
  std::vector<float> Kt_, V_pad_;  // tile by tile: K transposed, V; keys past the last are 0
};

}  // namespace ladder
