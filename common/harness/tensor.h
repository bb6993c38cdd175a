// Tensors on the host in the I/O type, and random inputs.
#pragma once

#include <cstdint>
#include <vector>

#include "rung.h"

namespace ladder {

/// Values of the I/O type, row-major, with the same bits as in the device's arrays.
struct Tensor {
  DType dtype = DType::fp16;
  std::vector<uint16_t> bits;

  int64_t size() const { return static_cast<int64_t>(bits.size()); }
  int64_t bytes() const { return size() * kIoBytes; }
  float operator[](int64_t i) const;
};

/// Rounds x to the I/O type, to nearest even, and returns its bits. widen() returns their value.
uint16_t round_to(DType dtype, float x);
float widen(DType dtype, uint16_t bits);
/// Rounds a float64 value to the I/O type and returns it as float64. (It rounds to float32 first;
/// the tolerance covers the difference that this makes.)
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

/// The streams of a seed's random numbers, one per input tensor.
enum class Stream { Q, K, V, dO };

/// Draws `size` values from a stream of the seed. The bits are the same on every platform.
Tensor draw(DType dtype, int64_t size, Input input, uint64_t seed, Stream stream);

}  // namespace ladder
