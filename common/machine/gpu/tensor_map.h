// The host half of bulk tensor copies, apart from gpu_hopper.h so that the host compiler can build
// tensor_map.cpp.
#pragma once

#include <array>
#include <cstdint>

#include "rung.h"

namespace ladder::gpu {

/// What a bulk tensor copy reads or writes: the driver's CUtensorMap. A kernel takes it as a
/// `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

/// The map of a 16-bit array with these extents, the innermost first, in boxes of 64 × `box_rows`
/// × 1 × 1, swizzled by 128 bytes, filled with zeros past the extents.
TensorMap encode_tensor_map(const Array& array, bool is_bf16, const std::array<int64_t, 4>& extents,
                            int box_rows);

}  // namespace ladder::gpu
