// cuBLAS is opened at run time and by this file alone, so that programs start where it is missing.
#include "machine/gpu/cublas.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <climits>
#include <memory>
#include <string>
#include <vector>

#include "machine/gpu/launch.h"

namespace ladder::gpu {
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
      throw Error(Exit::no_device,
                  fmt::format("--baseline cublas: cuBLAS is not there ({}); it comes with the CUDA "
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

  /// Row-major matrices: elements from row to row, and from one matrix of the batch to the next.
  struct Matrix {
    void* data;
    int64_t pitch, stride;
  };
  /// `batch` products C = alpha·A·B (or A·Bᵀ), C rows × columns, accumulated in fp32.
  void product(DType dtype, bool transpose_B, int rows, int columns, int inner, float alpha,
               const Matrix& A, const Matrix& B, const Matrix& C, int batch) const {
    const cudaDataType type = dtype == DType::fp16 ? CUDA_R_16F : CUDA_R_16BF;
    const float beta = 0;
    // cuBLAS counts by columns, and so sees every matrix here transposed: Cᵀ = Bᵀ·Aᵀ.
    check(gemm_(handle_, transpose_B ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, columns, rows, inner,
                &alpha, B.data, type, static_cast<int>(B.pitch), B.stride, A.data, type,
                static_cast<int>(A.pitch), A.stride, &beta, C.data, type, static_cast<int>(C.pitch),
                C.stride, batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx");
  }

 private:
  template <class F>
  void find(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library_, symbol));
    if (!function)
      throw Error(Exit::no_device, fmt::format("--baseline cublas: this cuBLAS has no {}", symbol));
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

}  // namespace

std::function<void(const Problem&, const Arrays&)> open_cublas_products() {
  return [cublas = std::make_shared<const Cublas>()](const Problem& p, const Arrays& a) {
    // The query heads that share a K/V head follow one another, and so do their rows: each K/V head
    // is one product of H/Hk·N rows.
    const int64_t rows = int64_t{p.H} / p.Hk * p.N;
    const int64_t pitch = a["P"].bytes / (int64_t{p.B} * p.H * p.N * kIoBytes);
    const int batch = p.B * p.Hk;
    if (rows > INT_MAX || pitch > INT_MAX)
      throw Error(Exit::bad_usage,
                  "--baseline cublas: cuBLAS counts rows in 32 bits, and the query "
                  "heads of one K/V head have more");
    const Cublas::Matrix Q{a["Q"].data, p.d, rows * p.d},
        K{a["K"].data, p.d, int64_t{p.N_kv} * p.d}, V{a["V"].data, p.d, int64_t{p.N_kv} * p.d},
        S{a["S"].data, pitch, rows * pitch}, P{a["P"].data, pitch, rows * pitch},
        O{a["O"].data, p.d, rows * p.d};
    const int n = static_cast<int>(rows);
    launch_as("scores",
              [&] { cublas->product(p.dtype, true, n, p.N_kv, p.d, p.scale, Q, K, S, batch); });
    launch_as("output",
              [&] { cublas->product(p.dtype, false, n, p.d, p.N_kv, 1, P, V, O, batch); });
  };
}

}  // namespace ladder::gpu
