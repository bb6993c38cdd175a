// cuBLAS is opened at run time and by this file alone.
#include "machine/cublas.h"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#include <fmt/format.h>

#include <climits>

#include "machine/gpu/library.h"

namespace ladder {
namespace {

// cublasGemmStridedBatchedEx; written out, because the header overloads it.
using Gemm = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n,
                            int k, const void* alpha, const void* A, cudaDataType, int lda,
                            long long stride_A, const void* B, cudaDataType, int ldb,
                            long long stride_B, const void* beta, void* C, cudaDataType, int ldc,
                            long long stride_C, int batch, cublasComputeType_t, cublasGemmAlgo_t);

struct Cublas {
  Cublas() {
    check(library.function<decltype(cublasCreate_v2)>("cublasCreate_v2")(&handle), "cublasCreate");
  }
  void check(cublasStatus_t status, const char* doing) const {
    if (status != CUBLAS_STATUS_SUCCESS)
      throw Error(Exit::no_device, fmt::format("{}: {}", doing, status_name(status)));
  }

  // Where the system's loader finds it, else where the Toolkit of the build had it.
  const gpu::Library library{
      "cuBLAS", fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR), {"", LADDER_CUBLAS_FOLDER}};
  decltype(cublasGetStatusName)* const status_name =
      library.function<decltype(cublasGetStatusName)>("cublasGetStatusName");
  Gemm* const gemm = library.function<Gemm>("cublasGemmStridedBatchedEx");
  cublasHandle_t handle = nullptr;
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
        cublas().gemm(cublas().handle, transpose_B ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N,
                      integer(columns), integer(rows), integer(inner), &alpha, B.array->data, type,
                      integer(B.pitch), B.stride, A.array->data, type, integer(A.pitch), A.stride,
                      &beta, C.array->data, type, integer(C.pitch), C.stride, batch,
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx");
  });
}

}  // namespace ladder
#else
namespace ladder {
void open_cublas() {
  throw Error(Exit::no_device, "this program has no cuBLAS, because the CUDA Toolkit that built it "
                               "had no cublas_v2.h; install libcublas-dev, then scripts/run");
}
void cublas_product(const char*, DType, bool, int64_t, int64_t, int64_t, float, const MatrixBatch&,
                    const MatrixBatch&, const MatrixBatch&, int) {
  open_cublas();
}
}  // namespace ladder
#endif
