#include "harness/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cmath>
#include <filesystem>

#include "float16.h"
#include "harness/bad_usage.h"
#include "harness/npy.h"
#include "parallel.h"

namespace ladder {
namespace {

/// splitmix64 (Steele, Lea and Flood 2014): a stream for each starting state.
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

  /// Marsaglia's polar method. Built from +, −, ·, / and √, which IEEE 754 rounds the same
  /// everywhere; the C library's log does not promise that.
  double normal() {
    for (;;) {
      const double u = 2 * uniform() - 1, v = 2 * uniform() - 1;
      const double s = u * u + v * v;
      if (s > 0 && s < 1) return u * std::sqrt(-2 * log(s) / s);
    }
  }

 private:
  /// Natural logarithm of x > 0 by the series of artanh, to about 1e-15.
  static double log(double x) {
    int exponent;
    double m = std::frexp(x, &exponent);  // m in [0.5, 1)
    if (m < 0.70710678118654752) {
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

constexpr int64_t kChunk = 4096;  // elements drawn from one stream, so that cores can share

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
  return widen(dtype, bits[static_cast<size_t>(i)]);
}

Tensor round_all(DType dtype, const std::vector<float>& values) {
  Tensor t{dtype, std::vector<uint16_t>(values.size())};
  std::transform(values.begin(), values.end(), t.bits.begin(),
                 [&](float x) { return round_to(dtype, x); });
  return t;
}

std::vector<float> widen_all(const Tensor& tensor) {
  std::vector<float> values(tensor.bits.size());
  std::transform(tensor.bits.begin(), tensor.bits.end(), values.begin(),
                 [&](uint16_t b) { return widen(tensor.dtype, b); });
  return values;
}

Tensor draw(DType dtype, int64_t size, Input input, uint64_t seed, Stream stream) {
  Tensor t{dtype, std::vector<uint16_t>(static_cast<size_t>(size))};
  parallel_for(ceil_div(size, kChunk), [&](int64_t chunk) {
    // Two rounds of the generator separate streams whose seeds or chunks are neighbours.
    Random key(seed * 4 + static_cast<uint64_t>(stream));
    Random random(Random(key.next() + static_cast<uint64_t>(chunk)).next());
    for (int64_t i = chunk * kChunk; i < std::min(size, (chunk + 1) * kChunk); ++i) {
      double x = random.normal();
      if (input == Input::outliers && random.uniform() < 0.001) x += 10 * random.normal();
      t.bits[static_cast<size_t>(i)] = round_to(dtype, static_cast<float>(x));
    }
  });
  return t;
}

Inputs make_inputs(Options& options, bool backward) {
  Problem& p = options.problem;
  const auto make = [&](int heads, int rows, Stream stream) {
    return draw(p.dtype, int64_t{p.B} * heads * rows * p.d, options.input, options.seed, stream);
  };
  if (options.load.empty())
    return {make(p.H, p.N, Stream::Q), make(p.Hk, p.N_kv, Stream::K), make(p.Hk, p.N_kv, Stream::V),
            backward ? make(p.H, p.N, Stream::dO) : Tensor{}};

  using Shape = std::vector<int64_t>;
  const auto path = [&](const char* name) { return fmt::format("{}/{}.npy", options.load, name); };
  const auto read = [&](const char* name, Tensor& tensor) -> Shape {
    const NpyArray array = read_npy(path(name));
    if (array.shape.size() != 4 || std::ranges::max(array.shape) > INT_MAX)
      bad_usage("{} has shape {}: it must have the 4 dimensions (batch, heads, length, head size)",
                path(name), shape_text(array.shape));
    tensor = round_all(p.dtype, array.values);
    for (const uint16_t bits : tensor.bits)
      if (!std::isfinite(widen(p.dtype, bits)))
        bad_usage("{}: a value is too large for {}", path(name),
                  p.dtype == DType::fp16 ? "fp16; try --dtype bf16" : "bf16");
    return array.shape;
  };
  const auto agree = [&](const char* one, const Shape& a, const char* other, const Shape& b,
                         std::initializer_list<size_t> dimensions) {
    for (const size_t i : dimensions)
      if (a[i] != b[i])
        bad_usage("{} has shape {} and {} has {}: dimension {} must agree", path(one),
                  shape_text(a), path(other), shape_text(b), i);
  };
  Inputs in;
  const Shape q = read("q", in.Q), k = read("k", in.K), v = read("v", in.V);
  agree("k", k, "v", v, {0, 1, 2, 3});
  agree("q", q, "k", k, {0, 3});
  const auto size = [](int64_t n) { return static_cast<int>(n); };
  p = {size(q[0]), size(q[1]), size(k[1]), size(q[2]), size(k[2]), size(q[3]), p.causal, p.dtype};
  complete(options);
  if (!backward) return in;
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(fs::symlink_status(path("do"), error))) {
    agree("do", read("do", in.dO), "q", q, {0, 1, 2, 3});
    return in;
  }
  for (const auto& file : fs::directory_iterator(options.load, error)) {
    std::string name = file.path().filename().string();
    std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if ((name.starts_with("do") || name.starts_with("grado")) && name.find(".np") != name.npos)
      bad_usage("'{}' is not read: dO is read from do.npy; rename it, or move it elsewhere",
                file.path().string());
  }
  say(fmt::format("{} is not there: dO is drawn from seed {}", path("do"), options.seed));
  in.dO = make(p.H, p.N, Stream::dO);
  return in;
}

}  // namespace ladder
