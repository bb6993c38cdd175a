// Quantises inputs on the host as an FP8 step does, for the reference of that step's output.
#pragma once

#include <vector>

#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// The rows of an operand: `columns` e4m3 values and one scale per row, row-major; x ≈ scale·value.
struct QuantisedRows {
  int columns = 0;
  std::vector<float> values, scales;
};

/// Replaces the n elements of x with H·(±x)/√n: applies the signs of hadamard_sign(), then the fast
/// Walsh–Hadamard transform. n is 32, 64, 128 or 256. The transform is orthogonal, so the dot
/// product of two transformed rows equals that of the original rows.
void hadamard(float* x, int n);

/// The quantised inputs Q (B, H, N, columns), K (B, Hk, N_kv, columns) and V (B, Hk, N_kv, d).
/// `columns` is d, padded to a power of 2 if the step applies hadamard().
struct QuantisedInputs {
  QuantisedInputs(const Problem& p, const Quantisation& how, const Inputs& inputs);
  QuantisedRows Q, K, V;
};

}  // namespace ladder
