// Host model of an FP8 step's inputs: what its output is compared with is computed from these.
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

/// (B, H, N, columns), (B, Hk, N_kv, columns), (B, Hk, N_kv, d); columns: d, padded by hadamard().
struct QuantisedInputs {
  QuantisedInputs(const Problem& p, const Quantisation& how, const Inputs& inputs);
  QuantisedRows Q, K, V;
};

}  // namespace ladder
