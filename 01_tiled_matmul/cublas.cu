// 01 · The same two GEMMs by cuBLAS: what the vendor's library gets out of the GPU, to compare the
// rung's products with. It needs a GPU, and nothing is checked, for this is no attention:
//
//   build/bin/01_tiled_matmul --step cublas
//
// S = scale·Q·Kᵀ is without the mask, and O = S·V: no softmax is between them.

#include "machine/cublas.h"
#include "machine/machine.h"
#include "rung.h"

namespace ladder::MACHINE {
namespace {

/// Elements from one row of S to the next.
constexpr int64_t pitch(const Problem& p) {
  return ceil_div(p.N_kv, 8) * 8;
}

Plan plan(const Problem& p, const DeviceInfo&, const TileRequest&) {
  open_cublas();
  return {.workspace = {{"S", int64_t{p.B} * p.H * p.N * pitch(p) * kIoBytes}}};
}

void forward(const Problem& p, const Plan&, const Arrays& a) {
  // The query heads that share a head of K and V follow one another, and so do their rows: each
  // head of K and V is one product of H/Hk·N rows.
  const int64_t rows = int64_t{p.H} / p.Hk * p.N, k = int64_t{p.N_kv} * p.d;
  const MatrixBatch Q{&a["Q"], p.d, rows * p.d}, K{&a["K"], p.d, k}, V{&a["V"], p.d, k};
  const MatrixBatch S{&a["S"], pitch(p), rows * pitch(p)}, O{&a["O"], p.d, rows * p.d};
  const int heads = p.B * p.Hk;

  cublas_product("scores", p.dtype, true, rows, p.N_kv, p.d, p.scale, Q, K, S, heads);
  cublas_product("output", p.dtype, false, rows, p.d, p.N_kv, 1, S, V, O, heads);
}

const Register step{{
    .rung = "01_tiled_matmul",
    .name = "cublas",
    .after = "pipeline",
    .aside = true,
    .shown = {.summary = "aside: the two products alone, by cuBLAS, unchecked",
              .colour = "#222222"},
    .library = true,
    .forward = {plan, forward},
}};

}  // namespace
}  // namespace ladder::MACHINE
