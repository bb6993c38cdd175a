// The host half of bulk tensor copies, apart from gpu_hopper.h so that the host compiler can build
// tensor_map.cpp.
#pragma once

#include <array>
#include <cstdint>

#include "rung.h"

namespace ladder::gpu {

/// An array's type of elements, as the driver wants it told.
enum class Element { fp16, bf16, e4m3 };

/// What a bulk tensor copy reads or writes: the driver's CUtensorMap. A kernel takes it as a
/// `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

/// The map of an array with these extents, the innermost first, in boxes of `box_bytes` (64 or 128)
/// of a row × `box_rows` × 1 × 1, swizzled by as many bytes, filled with zeros past the extents.
TensorMap encode_tensor_map(const Array& array, Element element,
                            const std::array<int64_t, 4>& extents, int box_rows, int box_bytes);

}  // namespace ladder::gpu
