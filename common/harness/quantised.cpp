// Quantises inputs on the host with one scale per tile, head or tensor, as an FP8 step does.
#include "harness/quantised.h"

#include <algorithm>
#include <cmath>

#include "float16.h"
#include "parallel.h"

namespace ladder {
namespace {

/// Quantises x, heads of `rows` rows with `columns` elements each, to e4m3. `scope` says whether a
/// tile of `tile` rows, a head or the whole tensor shares a scale.
QuantisedRows quantise(std::vector<float> x, int columns, int rows, int tile,
                       Quantisation::Scope scope) {
  const int64_t all = std::ssize(x) / columns;
  const auto group = [&](int64_t row) {  // the number of the group of rows that shares a scale
    return scope == Quantisation::Scope::tensor ? 0
           : scope == Quantisation::Scope::head
               ? row / rows
               : row / rows * ceil_div(rows, tile) + row % rows / tile;
  };
  std::vector<float> largest(group(all - 1) + 1, 0.0f);
  for (int64_t row = 0; row < all; ++row)
    for (int c = 0; c < columns; ++c) {
      float& of_group = largest[group(row)];
      of_group = std::max(of_group, std::abs(x[row * columns + c]));
    }
  QuantisedRows out{columns, std::move(x), std::vector<float>(all)};
  parallel_for(all, [&](int64_t row) {
    const float scale = e4m3_scale(largest[group(row)]), inverse = 1 / scale;
    out.scales[row] = scale;
    for (int c = 0; c < columns; ++c) {
      float& value = out.values[row * columns + c];
      value = e4m3(value * inverse);
    }
  });
  return out;
}

/// Returns a tensor's rows in fp32, zero-padded to `columns`, after hadamard() if `transformed`.
std::vector<float> rows_of(const Tensor& tensor, int d, int columns, bool transformed) {
  const int64_t rows = tensor.size() / d;
  std::vector<float> x(rows * columns, 0.0f);
  parallel_for(rows, [&](int64_t row) {
    float* const to = &x[row * columns];
    for (int c = 0; c < d; ++c) to[c] = tensor[row * d + c];
    if (transformed) hadamard(to, columns);
  });
  return x;
}

}  // namespace

void hadamard(float* x, int n) {
  for (int c = 0; c < n; ++c)
    if (hadamard_sign(c)) x[c] = -x[c];
  for (int bit = 1; bit < n; bit *= 2)  // combines the elements whose numbers differ in this bit
    for (int c = 0; c < n; ++c)
      if ((c & bit) == 0) {
        const float a = x[c], b = x[c + bit];
        x[c] = a + b;
        x[c + bit] = a - b;
      }
  for (int c = 0; c < n; ++c) x[c] *= hadamard_factor(n);
}

QuantisedInputs::QuantisedInputs(const Problem& p, const Quantisation& how, const Inputs& in) {
  const int columns = how.hadamard ? padded_head_dim(p.d) : p.d;
  Q = quantise(rows_of(in.Q, p.d, columns, how.hadamard), columns, p.N, how.tile_q, how.scope);
  K = quantise(rows_of(in.K, p.d, columns, how.hadamard), columns, p.N_kv, how.tile_kv, how.scope);
  V = quantise(rows_of(in.V, p.d, p.d, false), p.d, p.N_kv, how.tile_kv, how.scope);
}

}  // namespace ladder
