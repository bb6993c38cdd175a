// How the tensor cores add up products of e4m3. Multiplying is exact; adding is not what fp32 would
// do. The products of a step and the sum so far are put side by side as numbers with the exponent
// of the largest of them, of which a few bits of fraction are kept, and these are added.
#pragma once

namespace ladder::sim {

struct Fp8Sums {
  /// How many products are added in one go to the sum so far.
  int products = 32;
  /// Bits that are kept of each of them after the leading bit of the largest: what is smaller than
  /// 2^(exponent of the largest − fraction_bits) is lost.
  int fraction_bits = 13;
  /// Whether what is cut off is rounded to nearest, else it is dropped: towards zero.
  bool nearest = false;
  /// Bits after the leading one that the fp32 sum has in the end; those below are 0.
  int result_bits = 13;
};

/// c[j] += Σ_k a[k]·b[k·n + j] for k in [0, 32) and j in [0, n), n ≤ 256, as `how` says. Values of
/// a and b are e4m3's. A sum that is not finite, or with a NaN, is fp32's.
void add_fp8_products(const Fp8Sums& how, float* c, const float* a, const float* b, int n);

}  // namespace ladder::sim
