// Quantises inputs on the host as an FP8 step does. The reference for that step's output starts
// from the quantised inputs, so that it judges the step's arithmetic and not its quantisation.
#pragma once

#include <vector>

#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// The rows of an operand, all heads one after another: each has `columns` e4m3 values (row-major)
/// and a scale, and x ≈ scale·value. Rows that share a scale repeat it.
struct QuantisedRows {
  int columns = 0;
  std::vector<float> values, scales;
};

/// Replaces the n elements of x with H·(±x)/√n: applies the signs of hadamard_sign(), then the fast
/// Walsh–Hadamard transform, whose matrix H has entries ±1. n is 32, 64, 128 or 256. The transform
/// is orthogonal, so the dot product of two transformed rows equals that of the original rows.
void hadamard(float* x, int n);

/// The quantised inputs Q (B, H, N, columns), K (B, Hk, N_kv, columns) and V (B, Hk, N_kv, d).
/// `columns` is d, padded to a power of 2 if the step applies hadamard().
struct QuantisedInputs {
  QuantisedInputs(const Problem& p, const Quantisation& how, const Inputs& inputs);
  QuantisedRows Q, K, V;
};

}  // namespace ladder
