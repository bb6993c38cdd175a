// Holds tensors on the host in the I/O type (fp16 or bf16), rounds to that type, and draws inputs.
#pragma once

#include <cstdint>
#include <vector>

#include "rung.h"

namespace ladder {

/// Values of the I/O type, row-major, with the same bits as in the device's arrays. The shape is
/// not stored: it follows from the Problem.
struct Tensor {
  DType dtype = DType::fp16;
  std::vector<uint16_t> bits;

  int64_t size() const { return static_cast<int64_t>(bits.size()); }
  int64_t bytes() const { return size() * kIoBytes; }
  float operator[](int64_t i) const;  // element i, widened
};

/// Rounds x to the I/O type, to nearest even, and returns the bits of the result.
uint16_t round_to(DType dtype, float x);
float widen(DType dtype, uint16_t bits);  // the number that these bits stand for
/// Rounds x to float32 and then to the I/O type; the tolerance covers the double rounding.
double rounded(DType dtype, double x);
Tensor round_all(DType dtype, const std::vector<float>& values);
std::vector<float> widen_all(const Tensor& tensor);

/// Q, K, V and, for a backward pass, dO (otherwise empty). Problem gives the shapes; dO has O's.
struct Inputs {
  Tensor Q, K, V, dO;
};

/// The distribution of the inputs: standard normal, or with outliers as in the FlashAttention-3
/// paper (Shah et al. 2024, §4.3): N(0,1) + N(0,100)·Bernoulli(0.001), where 100 is a variance.
enum class Input { normal, outliers };

/// The streams of random numbers of a seed, one per input tensor.
enum class Stream { Q, K, V, dO };

/// Draws `size` values from the seed's stream. Their bits are the same on every platform.
Tensor draw(DType dtype, int64_t size, Input input, uint64_t seed, Stream stream);

}  // namespace ladder
