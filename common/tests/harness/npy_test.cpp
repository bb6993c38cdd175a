// .npy files as NumPy writes them, and as nobody should. What is written, and where it cannot be,
// cli_test.py tests.
#include "harness/npy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace ladder {
namespace {

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string npy(const std::string& header, const std::string& values, int major = 1,
                int minor = 0) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += static_cast<char>(minor);
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i)
    file += static_cast<char>(header.size() >> 8 * i & 0xff);
  return file + header + values;
}

std::string header_of(const std::string& descr, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n";
}

NpyArray parse(const std::string& file) {
  // A copy of exactly its size, so that the address sanitizer sees one byte too many.
  const std::vector<unsigned char> bytes(file.begin(), file.end());
  return parse_npy("x.npy", bytes.data(), bytes.size());
}

const std::vector<float> kSix = {1, -2, 0.5f, 0, 65504, 1e-7f};
const std::string kValues = bytes_of(kSix);
// 1, −2, the smallest subnormal, the largest finite value.
const std::string kHalves("\x00\x3c\x00\xc0\x01\x00\xff\x7b", 8);

std::string good(int version) {
  return npy(header_of("'<f4'", "(2, 3)"), kValues, version);
}

const std::pair<std::string, const char*> kBad[] = {
    {"\x92" + good(1).substr(1), "is not a .npy file"},
    {good(4), "version 1.0, 2.0 or 3.0"},
    {good(0), "version 1.0, 2.0 or 3.0"},
    {npy(header_of("'<f4'", "(6,)"), kValues, 1, 1), "version 1.0, 2.0 or 3.0"},
    {npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,), }", kValues), "header"},
    {npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", kValues), "header"},
    {npy("{'descr': '<f4', 'fortran_order': False}", kValues), "header"},
    {npy("{'descr': '<f4', 'shape': (6,)}", kValues), "header \"{'descr': '<f4', 'shape': (6,)}\""},
    {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6, ", kValues), "at \"\""},
    {npy("{'descr': ", kValues), "header"},
    {npy(header_of("'<f4'", "(2,)"), bytes_of({1, INFINITY})), "holds inf as number 2 of 2"},
    {npy(header_of("'<f4'", "(2,)"), bytes_of({NAN, 1})), "holds nan as number 1 of 2"},
    {npy(header_of("'<f2'", "(2,)"), std::string("\x00\x00\x00\xfc", 4)), "-inf as number 2 of 2"},
};
constexpr const char* kBadTypes[] = {"'>f4'", "'<f8'", "'<i4'", "'|O'", "''", "'\x1b[2J'"};
// In the place of (6,), and with which word they are refused.
constexpr std::pair<const char*, const char*> kBadShapes[] = {
    {"(5,)", "is too long: shape (5,) needs 20 bytes of values, 24 are there"},
    {"(7,)", "is truncated: shape (7,) needs 28"},
    {"()", "shape () needs 4 bytes"},
    {"(2, 0, 3)", "no number above 0, or the product exceeds 2⁶³, at \"0,3)"},
    {"(-6,)", "at \"-6"},
    {"(6.0,)", "at \".0,)"},
    {"(six,)", "at \"six"},
    {"[6]", "header"},
    {"(6,", "at \"}"},
    {"(99999999999999999999,)", "exceeds 2⁶³"},
    {"(4294967296, 4294967296)", "exceeds 2⁶³"},
    {"(4611686018427387910,)", "exceeds 2⁶³"},  // wraps to 24 bytes in 64 bits
};

TEST(Npy, ReadsEveryVersion) {
  for (const int version : {1, 2, 3}) {
    EXPECT_EQ(parse(good(version)).shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(parse(good(version)).values, kSix);
    EXPECT_EQ(parse(npy(header_of("'<f2'", "(4,)"), kHalves, version)).values,
              (std::vector<float>{1, -2, 0x1p-24f, 65504}));
  }
  for (const char* header :
       {"{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
        "{\n\"shape\" : (2 , 3,) ,\t'fortran_order' : False , \"descr\":\"<f4\" ,}"})
    EXPECT_EQ(parse(npy(header, kValues)).shape, (std::vector<int64_t>{2, 3})) << header;
  const NpyArray single = parse(npy(header_of("'<f4'", "()"), bytes_of({7})));
  EXPECT_TRUE(single.shape.empty());
  EXPECT_EQ(single.values, (std::vector<float>{7}));
}

/// Why the file is refused; nothing where it is not.
std::string refusal(const std::string& file) {
  try {
    parse(file);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.status, Exit::bad_usage);
    const std::string message = error.what();
    // What stands in a file reaches a terminal: control characters must not.
    EXPECT_TRUE(
        std::none_of(message.begin(), message.end(), [](char c) { return 0 <= c && c < ' '; }));
    return message;
  }
}

TEST(Npy, RefusesAllElse) {
  const auto refuses = [](const std::string& file, const std::string& words) {
    const std::string message = refusal(file);
    EXPECT_TRUE(message.starts_with("'x.npy' ") && message.find(words) != message.npos)
        << message << "\nlacks\n"
        << words;
  };
  for (const auto& [file, words] : kBad) refuses(file, words);
  for (const char* type : kBadTypes) refuses(npy(header_of(type, "(6,)"), kValues), "header");
  for (const auto& [shape, words] : kBadShapes)
    refuses(npy(header_of("'<f4'", shape), kValues), words);
  for (const int version : {1, 2, 3})
    for (size_t size = 1; size < good(version).size(); ++size)
      refuses(good(version).substr(0, size), size < 12 ? "is not a .npy file" : "truncated");
  // A header whose length is not its own.
  for (int length = 0; length < 256; ++length) {
    std::string file = good(1);
    file[8] = static_cast<char>(length);
    EXPECT_EQ(refusal(file).empty(), file == good(1)) << length;
  }
}

}  // namespace
}  // namespace ladder
