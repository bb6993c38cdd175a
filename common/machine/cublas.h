// cuBLAS's matrix products (GEMMs), which a rung's are compared with. It is opened at run time, so
// that programs start even where it is missing.
#pragma once

#include <cstdint>

#include "rung.h"

namespace ladder {

/// Row-major matrices of the I/O type in an array, one after the other: elements from row to row,
/// and from one matrix to the next.
struct MatrixBatch {
  Array* array;
  int64_t pitch, stride;
};

/// Opens the library. Throws Error(no_device) where there is none, or no GPU.
void open_cublas();

/// Queues C = alpha·A·B, or A·Bᵀ, for each of `batch` triples of matrices, accumulated in fp32 and
/// reported as one kernel of that name. C: rows × columns, A: rows × inner. Throws
/// Error(no_device), or Error(bad_usage) where sizes exceed the library's 32 bits.
void cublas_product(const char* name, DType dtype, bool transpose_B, int64_t rows, int64_t columns,
                    int64_t inner, float alpha, const MatrixBatch& A, const MatrixBatch& B,
                    const MatrixBatch& C, int batch);

}  // namespace ladder
