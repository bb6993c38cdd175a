// Reads and makes .npy files. A file consists of NumPy's magic string with the version, the
// header's length in 2 bytes, the header (a Python dictionary as text) and the values.
#include "harness/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string_view>

#include "float16.h"
#include "harness/json.h"
#include "harness/messages.h"
#include "machine/device.h"

namespace ladder {
namespace {

static_assert(std::endian::native == std::endian::little, "a file's bytes are used unchanged");

constexpr std::string_view kMagic("\x93NUMPY\1\0", 8);  // ends with the version, 1.0

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

NpyArray parse_npy(const std::string& path, const unsigned char* data, size_t size) {
  if (size < 10 || std::memcmp(data, kMagic.data(), kMagic.size()) != 0)
    bad_usage("'{}' is not a .npy file of version 1.0; write it with numpy.save", path);
  constexpr size_t kBegin = kMagic.size() + 2;  // where the header begins, after its 2-byte length
  const size_t length = data[8] | size_t{data[9]} << 8;
  if (length > size - kBegin)
    bad_usage("'{}' is truncated: it ends within its header; write it again", path);
  const std::string header(reinterpret_cast<const char*>(data) + kBegin, length);
  static const std::regex kHeader(
      R"(\{'descr': '<f([24])', 'fortran_order': False, 'shape': \(([\d, ]*)\),? ?\}\s*)");
  std::smatch parts;
  // Valid headers are short, and std::regex's recursion on a long one could overflow the stack.
  if (length > 1000 || !std::regex_match(header, parts, kHeader))
    bad_usage(
        "'{}' has the header {}; it must be an array of '<f2' or '<f4' (little-endian float16 or "
        "float32) in C order; write it with numpy.save(path, numpy.ascontiguousarray(array, "
        "dtype='float32'))",
        path, json::value(header.substr(0, 100)));
  const bool half = parts[1] == "2";
  const size_t item_bytes = half ? 2 : 4;
  NpyArray array;
  auto bytes = static_cast<int64_t>(item_bytes);  // of all values
  const std::string shape = parts[2];
  for (const char *at = shape.data(), *const end = at + shape.size(); at != end;) {
    int64_t extent = 0;  // stays 0 if the number is missing or too large
    at = std::from_chars(at, end, extent).ptr;
    if (extent < 1 || __builtin_mul_overflow(bytes, extent, &bytes))
      bad_usage("'{}' has the shape ({}): sizes must be at least 1, and all bytes fewer than 2⁶³",
                path, shape);
    array.shape.push_back(extent);
    at = std::find_if(at, end, [](char c) { return '0' <= c && c <= '9'; });
  }
  const size_t there = size - kBegin - length;
  if (there != static_cast<size_t>(bytes))
    bad_usage("'{}' is {}: shape {} needs {} bytes of values, and the file has {}; write it again",
              path, there < static_cast<size_t>(bytes) ? "truncated" : "too long",
              shape_text(array.shape), bytes, there);

  array.values.resize(there / item_bytes);
  for (size_t i = 0; i < array.values.size(); ++i) {
    const unsigned char* const at = data + kBegin + length + i * item_bytes;
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    if (half)
      array.values[i] = fp16::from_bits(bits);
    else
      std::memcpy(&array.values[i], at, 4);
    if (!is_finite(array.values[i]))
      bad_usage("'{}' holds {} as number {} of {}: values must be finite", path, array.values[i],
                i + 1, array.values.size());
  }
  return array;
}

NpyArray read_npy(const std::string& path) {
  std::error_code error;  // also set for a pipe, whose size is unknown
  const size_t size = std::filesystem::file_size(path, error);
  if (error)
    bad_usage("cannot read '{}': {}; --load DIR needs q.npy, k.npy and v.npy in DIR", path,
              error.message());
  constexpr double kGiB = 1 << 30;
  const double there = static_cast<double>(host_memory()) / kGiB;
  const double needed = 3.0 * static_cast<double>(size) / kGiB;  // file, and values as floats
  if (needed > there)
    throw Error(
        Exit::no_device,
        fmt::format("reading '{}' needs {:.1f} GiB of memory, but this host has {:.1f} GiB; "
                    "use smaller sizes",
                    path, needed, there));
  std::vector<unsigned char> bytes(size);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (!file) bad_usage("cannot read '{}': {}; check the file", path, std::strerror(errno));
  return parse_npy(path, bytes.data(), size);
}

std::string npy_bytes(const std::vector<int64_t>& shape, const std::vector<float>& values,
                      NpyType type) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                   type == NpyType::float16 ? "<f2" : "<f4", shape_text(shape));
  // Like NumPy, pads the header with spaces so that the values start at a multiple of 64 bytes.
  const size_t begin = kMagic.size() + 2;
  header.resize((begin + header.size() + 1 + 63) / 64 * 64 - begin - 1, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::string bytes(kMagic);
  const auto add = [&](const auto* from, size_t n) {
    bytes.append(reinterpret_cast<const char*>(from), n);
  };
  add(&length, sizeof length);
  bytes += header;
  const std::vector<fp16> halves(type == NpyType::float16 ? values.begin() : values.end(),
                                 values.end());  // empty for float32
  if (type == NpyType::float16)
    add(halves.data(), halves.size() * sizeof(fp16));
  else
    add(values.data(), values.size() * sizeof(float));
  return bytes;
}

}  // namespace ladder
