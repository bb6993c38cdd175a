// NumPy's .npy files, of version 1.0: little-endian float16 or float32, C order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rung.h"

namespace ladder {

/// An array as a .npy file holds it. float16 values are widened to float, which is exact.
struct NpyArray {
  std::vector<int64_t> shape;  // no dimension is 0; empty for a single number
  std::vector<float> values;   // C order, all finite; as many as the product of shape
};

/// Reads a file. Throws Error(bad_usage) naming the path and what is wrong with it, and
/// Error(no_device) for a file larger than the host's memory.
NpyArray read_npy(const std::string& path);

/// The same from memory. `name` stands in messages.
NpyArray parse_npy(const std::string& name, const unsigned char* data, size_t size);

enum class NpyType { float16, float32 };

/// A file's bytes. Values are rounded to nearest even for float16; what is not finite stays as it
/// is. `shape` has as many elements as `values`.
std::string npy_bytes(const std::vector<int64_t>& shape, const std::vector<float>& values,
                      NpyType type);

/// A shape as NumPy prints it, for messages: "(1, 2, 256, 64)".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace ladder
