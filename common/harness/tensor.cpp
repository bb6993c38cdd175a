#include "harness/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "float16.h"
#include "harness/npy.h"
#include "harness/parallel.h"

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

std::vector<int64_t> shape_of(const NpyArray& array, const std::string& path) {
  if (array.shape.size() != 4)
    throw Error(Exit::bad_usage,
                fmt::format("{}: has {} dimensions, not the 4 of (batch, heads, length, head size)",
                            path, array.shape.size()));
  for (const int64_t n : array.shape)
    if (n > 0x7fffffff)
      throw Error(Exit::bad_usage, fmt::format("{}: a dimension of {} is too large", path, n));
  return array.shape;
}

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
  Inputs in;
  const auto size = [](int64_t heads, int64_t rows, int64_t d) { return heads * rows * d; };
  if (options.load.empty()) {
    const auto make = [&](int heads, int rows, Stream stream) {
      return draw(p.dtype, size(int64_t{p.B} * heads, rows, p.d), options.input, options.seed,
                  stream);
    };
    in.Q = make(p.H, p.N, Stream::Q);
    in.K = make(p.Hk, p.N_kv, Stream::K);
    in.V = make(p.Hk, p.N_kv, Stream::V);
    if (backward) in.dO = make(p.H, p.N, Stream::dO);
    return in;
  }

  const auto path = [&](const char* file) { return options.load + "/" + file; };
  const auto refuse = [](const std::string& what) -> void { throw Error(Exit::bad_usage, what); };
  const NpyArray q = read_npy(path("q.npy")), k = read_npy(path("k.npy")),
                 v = read_npy(path("v.npy"));
  const auto qs = shape_of(q, path("q.npy")), ks = shape_of(k, path("k.npy")),
             vs = shape_of(v, path("v.npy"));
  if (ks != vs)
    refuse(fmt::format("{} has shape {} and {} has {}: they must agree", path("k.npy"),
                       shape_text(ks), path("v.npy"), shape_text(vs)));
  if (qs[0] != ks[0] || qs[3] != ks[3])
    refuse(fmt::format("{} has shape {} and {} has {}: batch and head size must agree",
                       path("q.npy"), shape_text(qs), path("k.npy"), shape_text(ks)));
  if (qs[1] % ks[1] != 0)
    refuse(fmt::format("{} has {} heads and {} has {}: the second must divide the first",
                       path("q.npy"), qs[1], path("k.npy"), ks[1]));
  if (qs[3] % 8 != 0 || qs[3] > 256)
    refuse(fmt::format("{}: head size {}: it must be a multiple of 8 up to 256", path("q.npy"),
                       qs[3]));
  p.B = static_cast<int>(qs[0]);
  p.H = static_cast<int>(qs[1]);
  p.Hk = static_cast<int>(ks[1]);
  p.N = static_cast<int>(qs[2]);
  p.N_kv = static_cast<int>(ks[2]);
  p.d = static_cast<int>(qs[3]);
  derive_scale(options);
  check_sizes(p);

  const auto take = [&](const char* file, const NpyArray& array) {
    Tensor t = round_all(p.dtype, array.values);
    for (const uint16_t bits : t.bits)
      if (!std::isfinite(widen(p.dtype, bits)))
        refuse(fmt::format("{}: a value is too large for {}", path(file),
                           p.dtype == DType::fp16 ? "fp16; try --dtype bf16" : "bf16"));
    return t;
  };
  in.Q = take("q.npy", q);
  in.K = take("k.npy", k);
  in.V = take("v.npy", v);
  if (backward) {
    if (std::filesystem::exists(path("do.npy"))) {
      const NpyArray d_o = read_npy(path("do.npy"));
      if (shape_of(d_o, path("do.npy")) != qs)
        refuse(fmt::format("{} has shape {} and {} has {}: they must agree", path("do.npy"),
                           shape_text(d_o.shape), path("q.npy"), shape_text(qs)));
      in.dO = take("do.npy", d_o);
    } else {
      in.dO = draw(p.dtype, in.Q.size(), options.input, options.seed, Stream::dO);
    }
  }
  return in;
}

}  // namespace ladder
