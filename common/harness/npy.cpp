#include "harness/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "float16.h"
#include "rung.h"

namespace ladder {
namespace {

static_assert(std::endian::native == std::endian::little, "bytes of a file are used as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
// NumPy's own headers take 118 bytes; longer ones are possible, but no float array needs one this
// long.
constexpr size_t kMaxHeader = 1 << 16;
constexpr const char* kWayOut =
    "; write it with numpy.save(path, numpy.ascontiguousarray(array, dtype='float32'))";

[[noreturn]] void bad(const std::string& name, const std::string& problem) {
  throw Error(Exit::bad_usage, fmt::format("'{}' {}", name, problem));
}

/// Text from a file made fit for a message: no control characters, not too long.
std::string printable(std::string_view text) {
  std::string result(text.substr(0, 40));
  for (char& c : result)
    if (c < ' ' || c > '~') c = '?';
  return text.size() > 40 ? result + "…" : result;
}

/// What stands before the values.
struct Header {
  std::vector<int64_t> shape;
  int64_t count = 1;   // of values
  int item_bytes = 0;  // 2: float16, 4: float32
  size_t offset = 0;   // of the first value in the file
};

/// Reads the header's Python dictionary: {'descr': '<f2', 'fortran_order': False, 'shape': (2, 3)}.
class Dictionary {
 public:
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;

  Dictionary(const std::string& name, std::string_view text) : name_(name), text_(text) {
    std::optional<std::string> seen[3];
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      const int which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : 3;
      if (which == 3) malformed(fmt::format("unknown key '{}'", printable(key)));
      if (seen[which]) malformed(fmt::format("'{}' stands there twice", key));
      seen[which] = key;
      if (which == 0) read_descr();
      if (which == 1) read_fortran_order();
      if (which == 2) read_shape();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!text_.empty()) malformed("something follows the closing brace");
    if (!seen[0] || !seen[1] || !seen[2])
      malformed("it needs the keys 'descr', 'fortran_order' and 'shape'");
  }

 private:
  [[noreturn]] void malformed(const std::string& why) const {
    bad(name_, fmt::format("has a malformed header: {}{}", why, kWayOut));
  }

  void skip_space() {
    while (!text_.empty() && std::strchr(" \t\r\n", text_[0]) && text_[0] != '\0')
      text_.remove_prefix(1);
  }

  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!accept(c))
      malformed(text_.empty() ? fmt::format("it ends where '{}' should stand", c)
                              : fmt::format("'{}' should stand before '{}'", c, printable(text_)));
  }

  std::string string() {
    skip_space();
    const char quote = text_.empty() ? '\0' : text_[0];
    if (quote != '\'' && quote != '"')
      malformed(fmt::format("a string should stand before '{}'", printable(text_)));
    const size_t end = text_.find(quote, 1);
    if (end == std::string_view::npos) malformed("a string has no end");
    std::string result(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return result;
  }

  void read_descr() {
    skip_space();
    if (text_.starts_with('['))
      bad(name_, fmt::format("holds records, not float16 or float32{}", kWayOut));
    descr = string();
  }

  void read_fortran_order() {
    skip_space();
    fortran_order = text_.starts_with("True");
    if (!fortran_order && !text_.starts_with("False"))
      malformed("'fortran_order' is neither True nor False");
    text_.remove_prefix(fortran_order ? 4 : 5);
  }

  void read_shape() {
    expect('(');
    while (!accept(')')) {
      skip_space();
      int64_t size = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (error == std::errc::result_out_of_range)
        bad(name_, "has a dimension that exceeds 2⁶³; use smaller sizes");
      if (error != std::errc{} || size < 0)
        malformed(fmt::format("'shape' is not a tuple of sizes at '{}'", printable(text_)));
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      shape.push_back(size);
      if (accept(',')) continue;
      expect(')');
      // In Python a single number in parentheses is not a tuple.
      if (shape.size() == 1) malformed("'shape' is a number, not a tuple");
      break;
    }
  }

  const std::string& name_;
  std::string_view text_;
};

int item_bytes_of(const std::string& name, const std::string& descr) {
  if (descr == "<f2") return 2;
  if (descr == "<f4") return 4;
  if (descr.starts_with('>'))
    bad(name,
        fmt::format("is big-endian ('{}'), little-endian is read{}", printable(descr), kWayOut));
  const std::string kind = descr == "<f8"     ? "float64"
                           : descr.size() < 2 ? "of an unknown type"
                           : descr[1] == 'i'  ? "of integers"
                           : descr[1] == 'u'  ? "of unsigned integers"
                           : descr[1] == 'b'  ? "of truth values"
                           : descr[1] == 'c'  ? "of complex numbers"
                                              : "of another type";
  bad(name,
      fmt::format("is {} ('{}'), float16 and float32 are read{}", kind, printable(descr), kWayOut));
}

/// Reads the header from the file's first bytes: all of them, or at least kMaxHeader + 12. Holds
/// the sizes it states against those of the file.
Header parse_header(const std::string& name, const unsigned char* data, size_t size,
                    uint64_t file_size) {
  if (file_size == 0) bad(name, "is empty");
  if (std::memcmp(data, kMagic.data(), std::min(size, kMagic.size())) != 0)
    bad(name, fmt::format("is not a .npy file: it does not begin with \\x93NUMPY{}", kWayOut));
  // One byte each of major and minor version, then the header's length: 2 bytes, from 2.0 on 4.
  if (size < 8) bad(name, fmt::format("is truncated: it ends after {} bytes", file_size));
  const int major = data[6], minor = data[7];
  if (major < 1 || major > 3 || minor != 0)
    bad(name,
        fmt::format("has .npy version {}.{}; 1.0, 2.0 and 3.0 are read{}", major, minor, kWayOut));
  const size_t begin = major == 1 ? 10 : 12;
  if (size < begin) bad(name, fmt::format("is truncated: it ends after {} bytes", file_size));
  size_t length = data[8] | size_t{data[9]} << 8;
  if (major > 1) length |= size_t{data[10]} << 16 | size_t{data[11]} << 24;
  if (length > kMaxHeader && begin + length <= file_size)
    bad(name, fmt::format("has a header of {} bytes, {} at most are read{}", length, kMaxHeader,
                          kWayOut));
  if (begin + length > size)
    bad(name, fmt::format("is truncated: its header should have {} bytes, {} are there", length,
                          file_size - begin));

  const Dictionary dictionary(
      name, std::string_view(reinterpret_cast<const char*>(data) + begin, length));
  Header header;
  header.item_bytes = item_bytes_of(name, dictionary.descr);
  if (dictionary.fortran_order)
    bad(name, fmt::format("is in Fortran order, C order is read{}", kWayOut));
  header.shape = dictionary.shape;
  header.offset = begin + length;
  if (std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end())
    bad(name, fmt::format("has shape {}: no dimension may be 0", shape_text(header.shape)));
  int64_t bytes = header.item_bytes;
  for (const int64_t extent : header.shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes))
      bad(name, fmt::format("has shape {}, which exceeds 2⁶³ bytes; use smaller sizes",
                            shape_text(header.shape)));
  header.count = bytes / header.item_bytes;
  const uint64_t there = file_size - header.offset;
  if (there < static_cast<uint64_t>(bytes))
    bad(name, fmt::format("is truncated: shape {} needs {} bytes of values, {} are there",
                          shape_text(header.shape), bytes, there));
  if (there > static_cast<uint64_t>(bytes))
    bad(name, fmt::format("has {} bytes more than its shape {} needs",
                          there - static_cast<uint64_t>(bytes), shape_text(header.shape)));
  return header;
}

/// "[0, 1, 7]", the place of the index-th value in C order.
std::string place(const std::vector<int64_t>& shape, int64_t index) {
  std::vector<int64_t> place(shape.size());
  for (size_t i = shape.size(); i-- > 0; index /= shape[i]) place[i] = index % shape[i];
  return fmt::format("[{}]", fmt::join(place, ", "));
}

/// Widens `bytes` bytes of values to the end of `array.values`.
void append_values(const std::string& name, const Header& header, const unsigned char* data,
                   size_t bytes, NpyArray& array) {
  for (size_t i = 0; i < bytes; i += static_cast<size_t>(header.item_bytes)) {
    float value;
    if (header.item_bytes == 2) {
      uint16_t bits;
      std::memcpy(&bits, data + i, 2);
      value = fp16::from_bits(bits);
    } else {
      std::memcpy(&value, data + i, 4);
    }
    if (!std::isfinite(value))
      bad(name, fmt::format("holds {} at {}: values must be finite", value,
                            place(header.shape, static_cast<int64_t>(array.values.size()))));
    array.values.push_back(value);
  }
}

void check_host_memory(const std::string& path, const Header& header) {
  constexpr double kGiB = 1 << 30;
  const double there =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const double needed = 4.0 * static_cast<double>(header.count);
  if (needed > there)
    throw Error(Exit::no_device,
                fmt::format("'{}' needs {:.1f} GiB of memory once read, this host has {:.1f} GiB; "
                            "use smaller sizes",
                            path, needed / kGiB, there / kGiB));
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

NpyArray parse_npy(const std::string& name, const unsigned char* data, size_t size) {
  const Header header = parse_header(name, data, size, size);
  NpyArray array;
  array.shape = header.shape;
  array.values.reserve(static_cast<size_t>(header.count));
  append_values(name, header, data + header.offset, size - header.offset, array);
  return array;
}

NpyArray read_npy(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  // Before it is opened: opening a pipe would wait for someone to write to it.
  if (const auto status = fs::status(path, error);
      fs::exists(status) && !fs::is_regular_file(status))
    bad(path, "is not a regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) bad(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  const uint64_t file_size = fs::file_size(path, error);
  if (error) bad(path, fmt::format("cannot be read: {}", error.message()));
  std::vector<unsigned char> chunk;
  const auto read = [&](uint64_t bytes) {
    chunk.resize(bytes);
    file.read(reinterpret_cast<char*>(chunk.data()), static_cast<std::streamsize>(bytes));
    if (!file) bad(path, "cannot be read as far as its size says: was it truncated meanwhile?");
  };
  read(std::min<uint64_t>(file_size, kMaxHeader + 12));
  const Header header = parse_header(path, chunk.data(), chunk.size(), file_size);
  check_host_memory(path, header);

  // In pieces: the file and its widened copy together may not fit where the copy alone does.
  NpyArray array;
  array.shape = header.shape;
  array.values.reserve(static_cast<size_t>(header.count));
  file.seekg(static_cast<std::streamoff>(header.offset));
  for (uint64_t left = file_size - header.offset; left > 0; left -= chunk.size()) {
    read(std::min<uint64_t>(left, 1 << 20));
    append_values(path, header, chunk.data(), chunk.size(), array);
  }
  return array;
}

void write_npy(AtomicFile& file, const std::vector<int64_t>& shape,
               const std::vector<float>& values, NpyType type) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  if (count != static_cast<int64_t>(values.size()))
    throw std::logic_error(fmt::format("{} values for shape {}", values.size(), shape_text(shape)));

  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                   type == NpyType::float16 ? "<f2" : "<f4", shape_text(shape));
  // NumPy pads with spaces, so that values begin at a multiple of 64 bytes.
  const size_t begin = kMagic.size() + 4;
  header.resize((begin + header.size() + 1 + 63) / 64 * 64 - begin - 1, ' ');
  header += '\n';
  file.write(kMagic.data(), kMagic.size());
  const unsigned char version_and_length[] = {1, 0,
                                              static_cast<unsigned char>(header.size() & 0xff),
                                              static_cast<unsigned char>(header.size() >> 8)};
  file.write(version_and_length, sizeof version_and_length);
  file.write(header);

  if (type == NpyType::float32) {
    file.write(values.data(), values.size() * sizeof(float));
    return;
  }
  std::vector<fp16> chunk;
  for (size_t i = 0; i < values.size(); i += chunk.size()) {
    chunk.resize(std::min<size_t>(values.size() - i, 1 << 19));
    for (size_t j = 0; j < chunk.size(); ++j) chunk[j] = fp16(values[i + j]);
    file.write(chunk.data(), chunk.size() * sizeof(fp16));
  }
}

void write_npy(const std::string& path, const std::vector<int64_t>& shape,
               const std::vector<float>& values, NpyType type) {
  AtomicFile file(path);
  write_npy(file, shape, values, type);
  file.commit();
}

}  // namespace ladder
