// Draws random inputs, and rounds numbers to the I/O types.
#include "harness/tensor.h"

#include <algorithm>
#include <cmath>

#include "float16.h"
#include "parallel.h"

namespace ladder {
namespace {

/// The generator splitmix64 (Steele, Lea and Flood 2014); each starting state gives its own stream.
class Random {
 public:
  explicit Random(uint64_t state) : state_(state) {}
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)

  /// Draws from N(0, 1) by Marsaglia's polar method. It uses only +, −, ·, / and √, which IEEE 754
  /// rounds identically everywhere; the C library's log does not promise that.
  double normal() {
    for (;;) {
      const double u = 2 * uniform() - 1, v = 2 * uniform() - 1;
      const double s = u * u + v * v;
      if (s > 0 && s < 1) return u * std::sqrt(-2 * log(s) / s);
    }
  }

 private:
  /// Returns the natural logarithm of x > 0, from the series of artanh, accurate to about 1e-15.
  static double log(double x) {
    int exponent;
    double m = std::frexp(x, &exponent);  // x = m·2^exponent, m in [0.5, 1)
    if (m < 0.70710678118654752) {        // moves m to [√½, √2), where the series is short
      m *= 2;
      --exponent;
    }
    const double t = (m - 1) / (m + 1), t2 = t * t;
    double sum = 0;
    for (int k = 21; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
    return 2 * t * sum + exponent * 0.69314718055994531;
  }
  uint64_t state_;
};

constexpr int64_t kChunk = 4096;  // elements drawn by one generator; cores draw chunks in parallel

}  // namespace

uint16_t round_to(DType dtype, float x) {
  return dtype == DType::fp16 ? fp16(x).bits : bf16(x).bits;
}

float widen(DType dtype, uint16_t bits) {
  return dtype == DType::fp16 ? float(fp16::from_bits(bits)) : float(bf16::from_bits(bits));
}

double rounded(DType dtype, double x) {
  return widen(dtype, round_to(dtype, static_cast<float>(x)));
}

float Tensor::operator[](int64_t i) const {
  return widen(dtype, bits[i]);
}

Tensor round_all(DType dtype, const std::vector<float>& values) {
  Tensor t{dtype, std::vector<uint16_t>(values.size())};
  std::ranges::transform(values, t.bits.begin(), [&](float x) { return round_to(dtype, x); });
  return t;
}

std::vector<float> widen_all(const Tensor& tensor) {
  std::vector<float> values(tensor.bits.size());
  std::ranges::transform(tensor.bits, values.begin(),
                         [&](auto b) { return widen(tensor.dtype, b); });
  return values;
}

Tensor draw(DType dtype, int64_t size, Input input, uint64_t seed, Stream stream) {
  Tensor t{dtype, std::vector<uint16_t>(size)};
  parallel_for(ceil_div(size, kChunk), [&](int64_t chunk) {
    // Each chunk has its own generator. Seed, stream and chunk reach its state through next(), so
    // that neighbouring seeds and chunks have unrelated numbers.
    Random key(seed * 4 + static_cast<uint64_t>(stream));
    Random random(Random(key.next() + static_cast<uint64_t>(chunk)).next());
    for (int64_t i = chunk * kChunk; i < std::min(size, (chunk + 1) * kChunk); ++i) {
      double x = random.normal();
      if (input == Input::outliers && random.uniform() < 0.001) x += 10 * random.normal();
      t.bits[i] = round_to(dtype, static_cast<float>(x));
    }
  });
  return t;
}

}  // namespace ladder
