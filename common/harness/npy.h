// Reads and writes NumPy's .npy files: version 1.0, little-endian float16 or float32, C order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rung.h"

namespace ladder {

/// The contents of a .npy file. float16 values are widened to float without loss.
struct NpyArray {
  std::vector<int64_t> shape;  // extents of at least 1; empty for a single number
  std::vector<float> values;   // in C order, all finite; their number is the product of `shape`
};

/// Reads a file. Throws Error(bad_usage), which names the path and the defect, for a file that is
/// missing or not valid, and Error(no_device) for one that does not fit into the host's memory.
NpyArray read_npy(const std::string& path);

/// Parses a file from the `size` bytes at `data`. `name` names the file in messages.
NpyArray parse_npy(const std::string& name, const unsigned char* data, size_t size);

enum class NpyType { float16, float32 };

/// Returns the bytes of a .npy file. For float16, values are rounded to nearest, ties to even;
/// infinity and NaN are kept. The number of values must equal the product of `shape`.
std::string npy_bytes(const std::vector<int64_t>& shape, const std::vector<float>& values,
                      NpyType type);

/// Returns a shape as NumPy prints it, for messages: "(1, 2, 256, 64)".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace ladder
