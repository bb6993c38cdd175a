#include "harness/quantised.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "float16.h"
#include "machine/sim/fp8_sums.h"
#include "parallel.h"

namespace ladder {
namespace {

constexpr int kStep = 32;  // products that are added in one go

/// Rows (heads of them, `rows` each) in e4m3, a scale for each tile of `tile` rows, each head or
/// all.
QuantisedRows quantise(std::vector<float> x, int columns, int rows, int tile,
                       Quantisation::Scope scope) {
  const int64_t all = std::ssize(x) / columns;
  const auto group = [&](int64_t row) {  // what its scale is for: a number for each
    return scope == Quantisation::Scope::tensor ? 0
           : scope == Quantisation::Scope::head
               ? row / rows
               : row / rows * ceil_div(rows, tile) + row % rows / tile;
  };
  std::vector<float> largest(static_cast<size_t>(group(all - 1) + 1), 0.0f);
  for (int64_t row = 0; row < all; ++row)
    for (int c = 0; c < columns; ++c) {
      float& of_group = largest[static_cast<size_t>(group(row))];
      of_group = std::max(of_group, std::abs(x[static_cast<size_t>(row * columns + c)]));
    }
  QuantisedRows out{columns, std::move(x), std::vector<float>(static_cast<size_t>(all))};
  parallel_for(all, [&](int64_t row) {
    const float scale = e4m3_scale(largest[static_cast<size_t>(group(row))]), inverse = 1 / scale;
    out.scales[static_cast<size_t>(row)] = scale;
    for (int c = 0; c < columns; ++c) {
      float& value = out.values[static_cast<size_t>(row * columns + c)];
      value = e4m3(value * inverse);
    }
  });
  return out;
}

/// The rows of a tensor, padded to `columns` and transformed if wished.
std::vector<float> rows_of(const Tensor& tensor, int d, int columns, bool transformed) {
  const int64_t rows = tensor.size() / d;
  std::vector<float> x(static_cast<size_t>(rows * columns), 0.0f);
  parallel_for(rows, [&](int64_t row) {
    float* const to = &x[static_cast<size_t>(row * columns)];
    for (int c = 0; c < d; ++c) to[c] = tensor[row * d + c];
    if (transformed) hadamard(to, columns);
  });
  return x;
}

}  // namespace

void hadamard(float* x, int n) {
  for (int c = 0; c < n; ++c)
    if (hadamard_sign(c)) x[c] = -x[c];
  for (int step = 1; step < n; step *= 2)
    for (int c = 0; c < n; ++c)
      if ((c & step) == 0) {
        const float a = x[c], b = x[c + step];
        x[c] = a + b;
        x[c + step] = a - b;
      }
  for (int c = 0; c < n; ++c) x[c] *= hadamard_factor(n);
}

QuantisedAttention::QuantisedAttention(const Problem& p, const Quantisation& how, const Inputs& in)
    : p_(p), how_(how) {
  const int columns = how.hadamard ? padded_head_dim(p.d) : p.d, Bc = how.tile_kv;
  Q_ = quantise(rows_of(in.Q, p.d, columns, how.hadamard), columns, p.N, how.tile_q, how.scope);
  K_ = quantise(rows_of(in.K, p.d, columns, how.hadamard), columns, p.N_kv, Bc, how.scope);
  V_ = quantise(rows_of(in.V, p.d, p.d, false), p.d, p.N_kv, Bc, how.scope);

  tiles_ = static_cast<int>(ceil_div(p.N_kv, Bc));
  const int padded = static_cast<int>(ceil_div(columns, kStep)) * kStep;
  const int64_t heads = int64_t{p.B} * p.Hk;
  Kt_.assign(static_cast<size_t>(heads * tiles_ * padded * Bc), 0.0f);
  V_pad_.assign(static_cast<size_t>(heads * tiles_ * Bc * p.d), 0.0f);
  parallel_for(heads * p.N_kv, [&](int64_t row) {
    const int64_t head = row / p.N_kv, key = row % p.N_kv, tile = head * tiles_ + key / Bc;
    for (int c = 0; c < columns; ++c)
      Kt_[static_cast<size_t>((tile * padded + c) * Bc + key % Bc)] =
          K_.values[static_cast<size_t>(row * columns + c)];
    for (int c = 0; c < p.d; ++c)
      V_pad_[static_cast<size_t>((tile * Bc + key % Bc) * p.d + c)] =
          V_.values[static_cast<size_t>(row * p.d + c)];
  });
}

QuantisedAttention::Row QuantisedAttention::row(int head, int i) const {
  const Problem& p = p_;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const int Bc = how_.tile_kv, columns = Q_.columns;
  const int padded = static_cast<int>(ceil_div(columns, kStep)) * kStep;
  const int keys = p.keys(i);
  Row out{std::vector<float>(static_cast<size_t>(p.d), 0.0f), -kInf};
  if (keys == 0) return out;
  // Tiles that the last of the rows of its tile of Q sees: empty steps shorten its sums too.
  const int64_t end = (int64_t{i} / how_.tile_q + 1) * how_.tile_q;
  const auto last = static_cast<int>(std::min<int64_t>(end, p.N) - 1);
  const int64_t steps = ceil_div(p.keys(last), Bc);

  const int64_t q_row = p.q_row(head) + i, kv_row = p.kv_row(head);
  const int64_t first_tile = kv_row / p.N_kv * tiles_;
  std::vector<float> q(static_cast<size_t>(padded), 0.0f), S(static_cast<size_t>(Bc));
  std::copy_n(&Q_.values[static_cast<size_t>(q_row * columns)], columns, q.data());
  std::vector<float>& O = out.o;
  std::vector<float> of_tile(O.size());
  float m = -kInf, l = 0;
  for (int64_t step = 0; step < steps; ++step) {
    std::fill(S.begin(), S.end(), 0.0f);
    const float* const Kt = &Kt_[static_cast<size_t>((first_tile + step) * padded * Bc)];
    for (int k = 0; k < padded; k += kStep)
      sim::add_fp8_products(S.data(), &q[static_cast<size_t>(k)], Kt + k * Bc, Bc);

    const auto at = static_cast<size_t>(kv_row + step * Bc);  // the tile's first key
    const float scales = Q_.scales[static_cast<size_t>(q_row)] * K_.scales[at];
    const float c = std::max(p.scale * 1.44269504f * scales, 1e-37f);
    float largest = -kInf;
    for (int j = 0; j < Bc; ++j) {
      if (step * Bc + j >= keys) S[static_cast<size_t>(j)] = -kInf;
      largest = std::max(largest, S[static_cast<size_t>(j)]);
    }
    // V's scale is part of P, so m is the maximum of c·s + log2 s_V: finite, as key 0 is seen.
    const float of_V = std::log2(V_.scales[at]), m_new = c * largest + of_V;
    if (m_new - m > how_.slack) {
      const float alpha = std::exp2(m - m_new);
      m = m_new;
      l *= alpha;
      for (float& o : O) o *= alpha;
    }
    float sum = 0;
    for (float& s : S) {
      s = std::exp2(s * c - (m - (static_cast<float>(how_.p_exponent) + of_V)));
      sum += s;
      s = e4m3(s);
    }
    l += std::exp2(-of_V) * sum;

    std::vector<float>& sums = how_.two_level ? of_tile : O;
    if (how_.two_level) std::fill(sums.begin(), sums.end(), 0.0f);
    const float* const V = &V_pad_[static_cast<size_t>((first_tile + step) * Bc * p.d)];
    for (int k = 0; k < Bc; k += kStep)
      sim::add_fp8_products(sums.data(), &S[static_cast<size_t>(k)], V + k * p.d, p.d);
    if (how_.two_level)
      for (size_t j = 0; j < O.size(); ++j) O[j] += of_tile[j];
  }
  for (float& o : O) o /= l;
  out.lse = (static_cast<double>(m) - how_.p_exponent) * std::log(2.0) + std::log(double{l});
  return out;
}

}  // namespace ladder
