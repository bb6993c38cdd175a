// Tensors on the host in the I/O type, and the seeded inputs.
#pragma once

#include <cstdint>
#include <vector>

#include "rung.h"

namespace ladder {

/// Values of the I/O type, as the device's arrays hold them.
struct Tensor {
  DType dtype = DType::fp16;
  std::vector<uint16_t> bits;

  int64_t size() const { return static_cast<int64_t>(bits.size()); }
  int64_t bytes() const { return size() * kIoBytes; }
  float operator[](int64_t i) const;
};

/// x rounded to nearest even in the I/O type.
uint16_t round_to(DType dtype, float x);
float widen(DType dtype, uint16_t bits);
/// The same rounding for a float64 value, back as float64. (Through float32: what rounds twice
/// is within the tolerance's own margin.)
double rounded(DType dtype, double x);
Tensor round_all(DType dtype, const std::vector<float>& values);
std::vector<float> widen_all(const Tensor& tensor);

/// Q, K, V and, for a backward pass, dO.
struct Inputs {
  Tensor Q, K, V, dO;
};

/// How values are drawn: standard normal, or with outliers as in the FlashAttention-3 paper (Shah
/// et al. 2024, §4.3): N(0,1) + N(0,100)·Bernoulli(0.001).
enum class Input { normal, outliers };

/// Which stream of the seed's random numbers a tensor is drawn from.
enum class Stream { Q, K, V, dO };

/// `size` values from the seed, the same bits on every platform.
Tensor draw(DType dtype, int64_t size, Input input, uint64_t seed, Stream stream);

}  // namespace ladder
