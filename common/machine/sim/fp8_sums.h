// How Hopper's tensor cores add up products of e4m3. Multiplying is exact; adding is not what fp32
// would do. The 32 products of a wgmma m64nNk32 and the sum so far are put side by side as numbers
// with the exponent of the largest of them, of which 13 bits of fraction are kept, and these are
// added. Measured on an H200: of 8,000 random sums all are equal to the bit, and with one bit more
// or less, with other groups than 32, or rounded in another way they are not. The GPU's tests in
// common/tests/tile/fp8_test.cu compare the two again.
#pragma once

namespace ladder::sim {

/// c[j] += Σ_k a[k]·b[k·n + j] for k in [0, 32) and j in [0, n), n ≤ 256. Values of a and b are
/// e4m3's.
///
///   e = the largest of exponent(a[k]) + exponent(b[k·n + j]), of products other than 0, and of
///       exponent(c[j]). A subnormal's exponent is −6, and the product of two significands in
///       [1, 2) may be 2 or more: it is not normalised before.
///   Each product and c[j] lose what is below 2^(e − 13), towards zero; they are added exactly; the
///   sum loses what is below its own leading bit by 13, towards zero.
///
/// A sum with an infinity or a NaN is fp32's.
void add_fp8_products(float* c, const float* a, const float* b, int n);

}  // namespace ladder::sim
