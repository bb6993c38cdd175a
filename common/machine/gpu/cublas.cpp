// cuBLAS is opened at run time and by this file alone. What it uses of cublas_v2.h it declares: the
// Toolkit need not have that.
#include "machine/cublas.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <library_types.h>

#include <climits>

#include "machine/gpu/library.h"

namespace ladder {
namespace {

// As in cublas_v2.h; enumerations are passed as int. A library has the Toolkit's major version.
using Handle = struct cublasContext*;
constexpr int kSuccess = 0, kNotTransposed = 0, kTransposed = 1, kCompute32F = 68, kDefault = -1;
using Create = int(Handle*);
using StatusName = const char*(int);
// cublasGemmStridedBatchedEx
using Gemm = int(Handle, int transpose_A, int transpose_B, int m, int n, int k, const void* alpha,
                 const void* A, cudaDataType, int lda, long long stride_A, const void* B,
                 cudaDataType, int ldb, long long stride_B, const void* beta, void* C, cudaDataType,
                 int ldc, long long stride_C, int batch, int compute, int algorithm);

struct Cublas {
  Cublas() { check(library.function<Create>("cublasCreate_v2")(&handle), "cublasCreate"); }
  void check(int status, const char* doing) const {
    if (status != kSuccess) gpu::no_device("{}: {}", doing, status_name(status));
  }

  // Where the system's loader finds it, else where the Toolkit of the build had it.
  const gpu::Library library{
      "cuBLAS", fmt::format("libcublas.so.{}", CUDART_VERSION / 1000), {"", LADDER_CUBLAS_FOLDER}};
  StatusName* const status_name = library.function<StatusName>("cublasGetStatusName");
  Gemm* const gemm = library.function<Gemm>("cublasGemmStridedBatchedEx");
  Handle handle = nullptr;
};

const Cublas& cublas() {
  static const Cublas library;
  return library;
}

}  // namespace

void open_cublas() {
  cublas();
}

void cublas_product(const char* name, DType dtype, bool transpose_B, int64_t rows, int64_t columns,
                    int64_t inner, float alpha, const MatrixBatch& A, const MatrixBatch& B,
                    const MatrixBatch& C, int batch) {
  for (const int64_t size : {rows, columns, inner, A.pitch, B.pitch, C.pitch})
    if (size > INT_MAX)
      throw Error(Exit::bad_usage,
                  fmt::format("cuBLAS counts in 32 bits, and {} has a size of {}", name, size));
  const auto integer = [](int64_t size) { return static_cast<int>(size); };
  const cudaDataType type = dtype == DType::fp16 ? CUDA_R_16F : CUDA_R_16BF;
  const float beta = 0;
  // cuBLAS counts by columns, and so sees every matrix here transposed: Cᵀ = Bᵀ·Aᵀ.
  gpu::launch_as(name, [&] {
    cublas().check(
        cublas().gemm(cublas().handle, transpose_B ? kTransposed : kNotTransposed, kNotTransposed,
                      integer(columns), integer(rows), integer(inner), &alpha, B.array->data, type,
                      integer(B.pitch), B.stride, A.array->data, type, integer(A.pitch), A.stride,
                      &beta, C.array->data, type, integer(C.pitch), C.stride, batch, kCompute32F,
                      kDefault),
        "cublasGemmStridedBatchedEx");
  });
}

}  // namespace ladder
