#include <cuda.h>
#include <fmt/format.h>

#include <bit>

#include "machine/gpu/launch.h"
#include "machine/gpu/library.h"

namespace ladder::gpu {

TensorMap encode_tensor_map(const Array& array, int element_bytes,
                            const std::array<int64_t, 4>& extents, int box_rows, int box_bytes) {
  cuuint64_t sizes[4], strides[4];  // bytes from one row, head, batch to the next
  for (int i = 0; i < 4; ++i) {
    sizes[i] = static_cast<cuuint64_t>(extents[i]);
    strides[i] = (i == 0 ? static_cast<cuuint64_t>(element_bytes) : strides[i - 1]) * sizes[i];
  }
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(box_bytes / element_bytes),
                             static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t apart[4] = {1, 1, 1, 1};
  // Nothing is computed with the elements, so their size is all that the map has to know.
  const auto type =
      element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  CUtensorMap map;
  const CUresult result =
      driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled")(
          &map, type, 4, array.data, sizes, strides, box, apart, CU_TENSOR_MAP_INTERLEAVE_NONE,
          box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
          CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(Exit::wrong_result,
                fmt::format("no tensor map of {} ({},{},{},{}) in boxes of {} rows: CUDA error {}",
                            array.name, extents[3], extents[2], extents[1], extents[0], box_rows,
                            static_cast<int>(result)));
  return std::bit_cast<TensorMap>(map);
}

}  // namespace ladder::gpu
