// 00 · Naive attention: O = softmax(scale·Q·Kᵀ)·V in three kernels, as a textbook writes it.
//
//   build/bin/00_naive --step naive --seqlen 512
//
//   S = scale·Q·Kᵀ     one thread for each element of S
//   P = softmax(S)     one thread for each row:  P_ij = exp(S_ij) / Σ_j exp(S_ij)
//   O = P·V            one thread for each element of O
//
// S and P are N × N_kv matrices and live in HBM between the kernels. No maximum is subtracted, so
// exp overflows on large scores; 02 fixes that. rung.h explains plan(), forward() and traffic().

#include "machine/machine.h"
#include "rung.h"

namespace ladder::MACHINE {
namespace {

constexpr int kBlock = 16;        // scores and output: 16 × 16 threads per block
constexpr int kRowThreads = 128;  // softmax: threads per block, one per row

/// S = scale·Q·Kᵀ, or −∞ where the causal mask masks the key. Thread (x, y) computes S[i, j] with
/// i = 16·blockIdx.y + y, j = 16·blockIdx.z + x; blockIdx.x is the head.
template <class T>
__global__ void scores(Hbm<const T> Q, Hbm<const T> K, Hbm<T> S, Problem p) {
  const int64_t bh = blockIdx.x;
  const int i = blockIdx.y * kBlock + threadIdx.y;
  const int j = blockIdx.z * kBlock + threadIdx.x;
  if (i >= p.N || j >= p.N_kv) return;

  const int64_t q = (p.q_row(bh) + i) * p.d;
  const int64_t k = (p.kv_row(bh) + j) * p.d;
  float s = 0;
  for (int c = 0; c < p.d; ++c) s = fmaf(float(Q[q + c]), float(K[k + c]), s);
  S[(bh * p.N + i) * p.N_kv + j] = T(p.attends(i, j) ? p.scale * s : -INFINITY);
}

/// P = softmax(S), one thread for each of the B·H·N rows.
template <class T>
__global__ void softmax(Hbm<const T> S, Hbm<T> P, Problem p) {
  const int64_t row = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (row >= int64_t{p.B} * p.H * p.N) return;

  const int64_t first = row * p.N_kv;
  float sum = 0;
  for (int j = 0; j < p.N_kv; ++j) sum += expf(float(S[first + j]));
  const float inverse = sum > 0 ? 1 / sum : 0;  // a row that attends to no key gives P = 0
  for (int j = 0; j < p.N_kv; ++j) P[first + j] = T(expf(float(S[first + j])) * inverse);
}

/// O = P·V. Thread (x, y) computes O[i, c] with i = 16·blockIdx.y + y, c = 16·blockIdx.z + x.
template <class T>
__global__ void output(Hbm<const T> P, Hbm<const T> V, Hbm<T> O, Problem p) {
  const int64_t bh = blockIdx.x;
  const int i = blockIdx.y * kBlock + threadIdx.y;
  const int c = blockIdx.z * kBlock + threadIdx.x;
  if (i >= p.N || c >= p.d) return;

  const int64_t row = (bh * p.N + i) * p.N_kv;
  const int64_t v = p.kv_row(bh) * p.d + c;
  float o = 0;
  for (int j = 0; j < p.N_kv; ++j) o = fmaf(float(P[row + j]), float(V[v + int64_t{j} * p.d]), o);
  O[(p.q_row(bh) + i) * p.d + c] = T(o);
}

Plan plan(const Problem& p, const DeviceInfo&, const TileRequest&) {
  grid_blocks(p.N, kBlock), grid_blocks(p.N_kv, kBlock);  // throws beyond 65,535 blocks
  const int64_t elements = int64_t{p.B} * p.H * p.N * p.N_kv;
  return {.head_dim = p.d,
          .warps = kBlock * kBlock / 32,
          .workspace = {{"S", elements * kIoBytes}, {"P", elements * kIoBytes}}};
}

void forward(const Problem& p, const Plan&, const Arrays& a) {
  with_type(p, [&]<class T>() {
    const auto Q = hbm<const T>(a["Q"]), K = hbm<const T>(a["K"]), V = hbm<const T>(a["V"]);
    const auto S = hbm<T>(a["S"]), P = hbm<T>(a["P"]), O = hbm<T>(a["O"]);
    const unsigned heads = p.B * p.H;
    const unsigned rows = grid_blocks(p.N, kBlock);
    const dim3 block(kBlock, kBlock);

    launch("scores", scores<T>, dim3(heads, rows, grid_blocks(p.N_kv, kBlock)), block, 0, Q, K, S,
           p);
    launch("softmax", softmax<T>, dim3(ceil_div(int64_t{heads} * p.N, kRowThreads)),
           dim3(kRowThreads), 0, S, P, p);
    launch("output", output<T>, dim3(heads, rows, grid_blocks(p.d, kBlock)), block, 0, P, V, O, p);
  });
}

/// Predicts the requested bytes, {array, read, written}: every thread reads all of its operands.
Traffic traffic(const Problem& p, const Plan&) {
  const int64_t S = int64_t{p.B} * p.H * p.N * p.N_kv * kIoBytes;  // bytes of S or P
  const int64_t O = int64_t{p.B} * p.H * p.N * p.d * kIoBytes;
  return {{"scores", {{"Q", S * p.d, 0}, {"K", S * p.d, 0}, {"S", 0, S}}},
          {"softmax", {{"S", 2 * S, 0}, {"P", 0, S}}},
          {"output", {{"P", S * p.d, 0}, {"V", S * p.d, 0}, {"O", 0, O}}}};
}

const Register step{{
    .rung = "00_naive",
    .name = "naive",
    .is_default = true,
    .shown = {.idea = "three plain kernels",
              .summary = "three kernels, S and P in HBM, no maximum subtracted",
              .colour = "#5a5a5a",
              .grid_limit = {4096, 2048}},
    .needs = {.max_subtracted_by = "02_safe_softmax",
              .less_memory = "03_online_softmax and the rungs after it"},
    .rounding = Rounding::S_and_P_stored,
    .forward = {plan, forward, traffic},
}};

}  // namespace
}  // namespace ladder::MACHINE
