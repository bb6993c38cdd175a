// Quantises inputs on the host as an FP8 step does. The reference for its output uses the result.
#pragma once

#include <vector>

#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// Rows of an operand: e4m3 values (row-major, `columns` each) and one scale per row, x ≈
/// scale·value.
struct QuantisedRows {
  int columns = 0;
  std::vector<float> values, scales;
};

/// Replaces x by H·(±x)/√n: applies the signs of hadamard_sign(), then the fast Walsh–Hadamard
/// transform; n is a power of 2. The transform is orthogonal, so products of two rows do not
/// change.
void hadamard(float* x, int n);

/// Q (B, H, N, columns), K (B, Hk, N_kv, columns) and V (B, Hk, N_kv, d), quantised. `columns` is
/// d, padded to a power of 2 if the step applies hadamard().
struct QuantisedInputs {
  QuantisedInputs(const Problem& p, const Quantisation& how, const Inputs& inputs);
  QuantisedRows Q, K, V;
};

}  // namespace ladder
