// 03 · Online softmax, third step: attention in one pass, key by key.
//
//   build/bin/03_online_softmax --step one_pass --seqlen 512
//
//   m_j = max(m_(j−1), s_j),   α = exp(m_(j−1) − m_j)
//   l_j = α·l_(j−1) + exp(s_j − m_j)
//   o_j = α·o_(j−1) + exp(s_j − m_j)·V_j          O = o_n / l_n
//
// Since `two_pass`: the output is accumulated in the same loop, before the maximum is final, and
// rescaled like the sum whenever the maximum grows. K and V are read once.

#include <cfloat>

#include "machine/machine.h"
#include "rung.h"

namespace ladder::MACHINE {
namespace {

constexpr int kRowThreads = 128;  // threads per block, one per row of Q

/// O = softmax(scale·Q·Kᵀ)·V, one thread for each row of Q. Dh is d padded to a compiled size.
/// grid: (B·H, row blocks).
template <class T, int Dh>
__global__ void __launch_bounds__(kRowThreads)
    attention(Hbm<const T> Q, Hbm<const T> K, Hbm<const T> V, Hbm<T> O, Problem p) {
  const int64_t bh = blockIdx.x;
  const int i = blockIdx.y * kRowThreads + threadIdx.x;
  if (i >= p.N) return;

  const int64_t q_row = (p.q_row(bh) + i) * p.d;
  Chunk<T> q[Dh / 8];
  for (int c = 0; c < Dh / 8; ++c)
    if (8 * c < p.d) q[c] = read_chunk(Q + (q_row + 8 * c));

  // The lowest finite float, not −∞, because −∞ − (−∞) would be NaN.
  float m = -FLT_MAX, l = 0, o[Dh] = {};
  for (int j = 0; j < p.keys(i); ++j) {
    const int64_t kv_row = (p.kv_row(bh) + j) * p.d;
    float s = 0;
    for (int c = 0; c < Dh / 8; ++c)
      if (8 * c < p.d) {
        const auto k = read_chunk(K + (kv_row + 8 * c));
        for (int e = 0; e < 8; ++e) s = fmaf(float(q[c][e]), float(k[e]), s);
      }
    s *= p.scale;

    const float m_new = fmaxf(m, s);
    const float alpha = expf(m - m_new);
    const float weight = expf(s - m_new);
    l = alpha * l + weight;
    m = m_new;
    for (int c = 0; c < Dh / 8; ++c)
      if (8 * c < p.d) {
        const auto v = read_chunk(V + (kv_row + 8 * c));
        for (int e = 0; e < 8; ++e) o[8 * c + e] = fmaf(weight, float(v[e]), alpha * o[8 * c + e]);
      }
  }

  const float inverse = l > 0 ? 1 / l : 0;  // a row that attends to no key gives O = 0
  for (int c = 0; c < Dh / 8; ++c)
    if (8 * c < p.d) {
      Chunk<T> out;
      for (int e = 0; e < 8; ++e) out[e] = T(o[8 * c + e] * inverse);
      write_chunk(O + (q_row + 8 * c), out);
    }
}

Plan plan(const Problem& p, const DeviceInfo&, const TileRequest&) {
  grid_blocks(p.N, kRowThreads);  // throws beyond 65,535 blocks
  return {.head_dim = padded_head_dim(p.d), .warps = kRowThreads / 32};
}

void forward(const Problem& p, const Plan&, const Arrays& a) {
  with_type_and_head_dim(p, [&]<class T, int Dh>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto O = hbm<T>(a["O"]);
    launch("attention", attention<T, Dh>, dim3(p.B * p.H, grid_blocks(p.N, kRowThreads)),
           dim3(kRowThreads), 0, Q, K, V, O, p);
  });
}

/// Predicts the requested bytes: each query reads each of its keys and values once.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q or O
  int64_t pairs = 0;                               // pairs of a query and a key that it attends to
  for (int i = 0; i < p.N; ++i) pairs += p.keys(i);
  const int64_t k = heads * pairs * p.d * kIoBytes;
  return {{"attention", {{"Q", q, 0}, {"K", k, 0}, {"V", k, 0}, {"O", 0, q}}}};
}

const Register step{{
    .rung = "03_online_softmax",
    .name = "one_pass",
    .after = "two_pass",
    .shown = {.idea = "one fused pass",
              .change = {"requested_bytes", "less"},
              .summary = "attention in one pass over K and V, key by key",
              .colour = "#009E73",
              .grid_limit = {4096, 2048}},
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
