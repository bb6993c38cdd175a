// cuBLAS is opened at run time and by this file alone.
#include "machine/cublas.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <climits>
#include <string>

#include "machine/gpu/launch.h"

namespace ladder {
namespace {

// cublasGemmStridedBatchedEx; written out, because the header overloads it.
using Gemm = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n,
                            int k, const void* alpha, const void* A, cudaDataType, int lda,
                            long long stride_A, const void* B, cudaDataType, int ldb,
                            long long stride_B, const void* beta, void* C, cudaDataType, int ldc,
                            long long stride_C, int batch, cublasComputeType_t, cublasGemmAlgo_t);

class Cublas {
 public:
  Cublas() {
    // Where the system's loader finds it, else where the Toolkit of the build had it.
    const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
    std::string why;
    for (const std::string& path : {name, fmt::format("{}/{}", LADDER_CUBLAS_FOLDER, name)}) {
      library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library_) break;
      why += fmt::format("{}{}", why.empty() ? "" : "; ", dlerror());
    }
    if (!library_)
      throw Error(Exit::no_device, fmt::format("cuBLAS is not there ({}); it comes with the CUDA "
                                               "Toolkit, and LD_LIBRARY_PATH can name its folder",
                                               why));
    find(create_, "cublasCreate_v2");
    find(destroy_, "cublasDestroy_v2");
    find(status_name_, "cublasGetStatusName");
    find(gemm_, "cublasGemmStridedBatchedEx");
    check(create_(&handle_), "cublasCreate");
  }
  Cublas(const Cublas&) = delete;
  ~Cublas() {
    if (handle_) destroy_(handle_);
    // The library stays open: it may still own what the driver frees at exit.
  }

  void product(DType dtype, bool transpose_B, int rows, int columns, int inner, float alpha,
               const MatrixBatch& A, const MatrixBatch& B, const MatrixBatch& C, int batch) const {
    const cudaDataType type = dtype == DType::fp16 ? CUDA_R_16F : CUDA_R_16BF;
    const float beta = 0;
    // cuBLAS counts by columns, and so sees every matrix here transposed: Cᵀ = Bᵀ·Aᵀ.
    check(
        gemm_(handle_, transpose_B ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, columns, rows, inner,
              &alpha, B.array->data, type, static_cast<int>(B.pitch), B.stride, A.array->data, type,
              static_cast<int>(A.pitch), A.stride, &beta, C.array->data, type,
              static_cast<int>(C.pitch), C.stride, batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx");
  }

 private:
  template <class F>
  void find(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library_, symbol));
    if (!function) throw Error(Exit::no_device, fmt::format("this cuBLAS has no {}", symbol));
  }
  void check(cublasStatus_t status, const char* doing) const {
    if (status != CUBLAS_STATUS_SUCCESS)
      throw Error(Exit::no_device, fmt::format("{}: {}", doing, status_name_(status)));
  }

  void* library_ = nullptr;
  cublasHandle_t handle_ = nullptr;
  decltype(cublasCreate_v2)* create_ = nullptr;
  decltype(cublasDestroy_v2)* destroy_ = nullptr;
  decltype(cublasGetStatusName)* status_name_ = nullptr;
  Gemm* gemm_ = nullptr;
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
  gpu::launch_as(name, [&] {
    cublas().product(dtype, transpose_B, static_cast<int>(rows), static_cast<int>(columns),
                     static_cast<int>(inner), alpha, A, B, C, batch);
  });
}

}  // namespace ladder
