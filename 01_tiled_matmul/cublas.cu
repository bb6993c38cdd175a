// 01 · The same two GEMMs by cuBLAS: what the vendor's library gets out of the GPU. It is not a
// step of the ladder, but a baseline to compare the rung's products with.
//
//   build/bin/01_tiled_matmul --baseline cublas
//
// S = scale·Q·Kᵀ is without the mask, and P is what the rung's softmax left.

#include "machine/cublas.h"
#include "machine/machine.h"
#include "rung.h"

namespace ladder::MACHINE {
namespace {

Plan plan(const Problem&, const DeviceInfo&, const TileRequest&) {
  open_cublas();
  return {};
}

void forward(const Problem& p, const Plan&, const Arrays& a) {
  // The query heads that share a head of K and V follow one another, and so do their rows: each
  // head of K and V is one product of H/Hk·N rows.
  const int64_t rows = int64_t{p.H} / p.Hk * p.N, k = int64_t{p.N_kv} * p.d;
  const int64_t pitch = a["P"].bytes / (int64_t{p.B} * p.H * p.N * kIoBytes);
  const MatrixBatch Q{&a["Q"], p.d, rows * p.d}, K{&a["K"], p.d, k}, V{&a["V"], p.d, k};
  const MatrixBatch S{&a["S"], pitch, rows * pitch}, P{&a["P"], pitch, rows * pitch};
  const MatrixBatch O{&a["O"], p.d, rows * p.d};
  const int heads = p.B * p.Hk;

  cublas_product("scores", p.dtype, true, rows, p.N_kv, p.d, p.scale, Q, K, S, heads);
  cublas_product("output", p.dtype, false, rows, p.d, p.N_kv, 1, P, V, O, heads);
}

const Register step{{.rung = "01_tiled_matmul",
                     .name = "cublas",
                     .summary = "the two products alone, by cuBLAS",
                     .colour = "#222222",
                     .baseline = true,
                     .plan = plan,
                     .forward = forward}};

}  // namespace
}  // namespace ladder::MACHINE
