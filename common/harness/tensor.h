// Tensors on the host in the I/O type, and the random inputs.
#pragma once

#include <cstdint>
#include <vector>

#include "rung.h"

namespace ladder {

/// Values of the I/O type, bit for bit as the device's arrays hold them, row-major.
struct Tensor {
  DType dtype = DType::fp16;
  std::vector<uint16_t> bits;

  int64_t size() const { return static_cast<int64_t>(bits.size()); }
  int64_t bytes() const { return size() * kIoBytes; }
  float operator[](int64_t i) const;
};

/// Rounds x to the I/O type, to nearest even, and returns its bits; widen() is the inverse.
uint16_t round_to(DType dtype, float x);
float widen(DType dtype, uint16_t bits);
/// Rounds a float64 value to the I/O type and returns it as float64. (It rounds to float32 first;
/// the tolerance covers the difference.)
double rounded(DType dtype, double x);
Tensor round_all(DType dtype, const std::vector<float>& values);
std::vector<float> widen_all(const Tensor& tensor);

/// Q, K, V and, for a backward pass, dO.
struct Inputs {
  Tensor Q, K, V, dO;
};

/// The distribution of the inputs: standard normal, or with outliers as in the FlashAttention-3
/// paper (Shah et al. 2024, §4.3): N(0,1) + N(0,100)·Bernoulli(0.001).
enum class Input { normal, outliers };

/// The stream of the seed's random numbers that a tensor is drawn from.
enum class Stream { Q, K, V, dO };

/// Draws `size` values from a stream of the seed: the same bits on every platform.
Tensor draw(DType dtype, int64_t size, Input input, uint64_t seed, Stream stream);

}  // namespace ladder
