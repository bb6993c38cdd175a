// Reads the .npy files of --load and makes those of --save: NumPy's format version 1.0, with
// little-endian float16 or float32 values in C order.
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

/// Reads a file. Throws Error(bad_usage), which names the path and the defect, if the file is
/// missing or not valid, and Error(no_device) if it does not fit into the host's memory.
NpyArray read_npy(const std::string& path);

/// Parses a file's `size` bytes at `data`, and throws like read_npy(). Messages call it `name`.
NpyArray parse_npy(const std::string& name, const unsigned char* data, size_t size);

enum class NpyType { float16, float32 };

/// Returns the bytes of a .npy file. Rounding to float16 is to nearest, ties to even; infinity and
/// NaN are kept. The number of values must equal the product of `shape`.
std::string npy_bytes(const std::vector<int64_t>& shape, const std::vector<float>& values,
                      NpyType type);

/// Returns a shape as NumPy prints it, for messages: "(1, 2, 256, 64)".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace ladder
