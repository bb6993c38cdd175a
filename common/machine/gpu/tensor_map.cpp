#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <cstring>

#include "machine/gpu/launch.h"

namespace ladder::gpu {
namespace {

/// The driver's cuTensorMapEncodeTiled, found at run time: the program starts without a driver.
auto encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || !function)
    throw Error(Exit::no_device, "the NVIDIA driver has no cuTensorMapEncodeTiled: too old");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

TensorMap encode_tensor_map(const Array& array, int element_bytes,
                            const std::array<int64_t, 4>& extents, int box_rows, int box_bytes) {
  static const auto encode = encoder();
  const cuuint64_t sizes[4] = {
      static_cast<cuuint64_t>(extents[0]), static_cast<cuuint64_t>(extents[1]),
      static_cast<cuuint64_t>(extents[2]), static_cast<cuuint64_t>(extents[3])};
  cuuint64_t strides[3];  // bytes from one row, head, batch to the next
  for (int i = 0; i < 3; ++i)
    strides[i] = (i == 0 ? static_cast<cuuint64_t>(element_bytes) : strides[i - 1]) * sizes[i];
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(box_bytes / element_bytes),
                             static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  // Nothing is computed with the elements, so their size is all that the map has to know.
  const auto type =
      element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, 4, array.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(Exit::wrong_result,
                fmt::format("no tensor map of {} ({},{},{},{}) in boxes of {} rows: CUDA error {}",
                            array.name, extents[3], extents[2], extents[1], extents[0], box_rows,
                            static_cast<int>(result)));
  TensorMap out;
  static_assert(sizeof(out) == sizeof(map));
  std::memcpy(&out, &map, sizeof(map));
  return out;
}

}  // namespace ladder::gpu
