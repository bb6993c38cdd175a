// 03 · Online softmax, second step: the three kernels fused into one, in two passes over K.
//
//   build/bin/03_online_softmax --step two_pass --seqlen 512
//
//   first pass:   m and l of the row, by the recurrence of `softmax`
//   second pass:  o = Σ_j exp(s_j − m)·V_j,       O = o / l
//
// Since `softmax`: nothing of size N × N is stored. Each score is computed twice, once in each
// pass. A thread computes a whole row of O without tensor cores, so that the recurrence is easy
// to read; the tensor cores return in `one_pass_tile`.

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

  const auto score = [&](int j) {
    const int64_t k_row = (p.kv_row(bh) + j) * p.d;
    float s = 0;
    for (int c = 0; c < Dh / 8; ++c)
      if (8 * c < p.d) {
        const auto k = read_chunk(K + (k_row + 8 * c));
        for (int e = 0; e < 8; ++e) s = fmaf(float(q[c][e]), float(k[e]), s);
      }
    return p.scale * s;
  };

  // The lowest finite float, not −∞, because −∞ − (−∞) would be NaN.
  float m = -FLT_MAX, l = 0, o[Dh] = {};
  for (int j = 0; j < p.keys(i); ++j) {
    const float s = score(j);
    const float m_new = fmaxf(m, s);
    l = l * expf(m - m_new) + expf(s - m_new);
    m = m_new;
  }
  for (int j = 0; j < p.keys(i); ++j) {
    const float weight = expf(score(j) - m);
    const int64_t v_row = (p.kv_row(bh) + j) * p.d;
    for (int c = 0; c < Dh / 8; ++c)
      if (8 * c < p.d) {
        const auto v = read_chunk(V + (v_row + 8 * c));
        for (int e = 0; e < 8; ++e) o[8 * c + e] = fmaf(weight, float(v[e]), o[8 * c + e]);
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

/// Predicts the requested bytes: each query reads each of its keys twice and each value once.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t heads = int64_t{p.B} * p.H;
  const int64_t q = heads * p.N * p.d * kIoBytes;  // bytes of Q or O
  int64_t pairs = 0;                               // pairs of a query and a key that it attends to
  for (int i = 0; i < p.N; ++i) pairs += p.keys(i);
  const int64_t k = heads * pairs * p.d * kIoBytes;
  return {{"attention", {{"Q", q, 0}, {"K", 2 * k, 0}, {"V", k, 0}, {"O", 0, q}}}};
}

const Register step{{
    .rung = "03_online_softmax",
    .name = "two_pass",
    .after = "softmax",
    .shown = {.idea = "no N×N stored",
              .change = {"workspace_bytes", "to 0"},
              .summary = "attention in two passes over K, nothing N×N stored",
              .colour = "#009E73",
              .grid_limit = {4096, 2048}},
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
