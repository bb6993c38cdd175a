// .npy files as NumPy writes them, as nobody should, and files that are written whole or not at
// all.
#include "harness/npy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <set>
#include <stdexcept>

namespace ladder {
namespace {

namespace fs = std::filesystem;

/// A folder for one test, removed with everything in it.
class Folder {
 public:
  Folder() : path_(testing::TempDir() + "/ladder_npy_test_XXXXXX") {
    if (!mkdtemp(path_.data())) throw std::runtime_error("mkdtemp");
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(path_)) all.insert(entry.path().filename());
    return all;
  }

 private:
  std::string path_;
};
using Names = std::set<std::string>;

std::string file_content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

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

/// Fails unless `work` is refused with this status and a message that has these words in it.
void expect_bad(const std::function<void()>& work, std::initializer_list<std::string> words,
                Exit status = Exit::bad_usage) {
  try {
    work();
    ADD_FAILURE() << "accepted, not refused as " << *words.begin();
  } catch (const Error& error) {
    EXPECT_EQ(error.status, status);
    const std::string message = error.what();
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << message << "\nlacks\n" << word;
    // What stands in a file reaches a terminal: control characters must not.
    EXPECT_TRUE(
        std::none_of(message.begin(), message.end(), [](char c) { return 0 <= c && c < ' '; }));
  }
}

const std::vector<float> kSix = {1, -2, 0.5f, 0, 65504, 1e-7f};
const std::string kValues = bytes_of(kSix);
// 1, −2, the smallest subnormal, the largest finite value.
const std::string kHalves("\x00\x3c\x00\xc0\x01\x00\xff\x7b", 8);

std::string good(int version) {
  return npy(header_of("'<f4'", "(2, 3)"), kValues, version);
}
std::string halves(int version) {
  return npy(header_of("'<f2'", "(4,)"), kHalves, version);
}
std::string with_value(size_t at, float value) {
  std::vector<float> values = kSix;
  values[at] = value;
  return npy(header_of("'<f4'", "(2, 3)"), bytes_of(values));
}

const std::pair<std::string, const char*> kBad[] = {
    {"", "is not a .npy file"},
    {"PK\x03\x04 a zip file, as numpy.savez writes", "is not a .npy file"},
    {"\x92" + good(1).substr(1), "is not a .npy file"},
    {good(4), "version 1.0, 2.0 or 3.0"},
    {good(0), "version 1.0, 2.0 or 3.0"},
    {npy(header_of("'<f4'", "(6,)"), kValues, 1, 1), "version 1.0, 2.0 or 3.0"},
    {npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,), }", kValues), "('x'"},
    {npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", kValues), "Fortran order"},
    {npy("{'descr': '<f4', 'fortran_order': False}", kValues), "lacks 'shape':"},
    {npy("{'descr': '<f4', 'shape': (6,)}", kValues), "lacks 'fortran_order':"},
    {npy("hello", kValues), "lacks 'descr':"},
    {npy("{'descr':", kValues), "of type \"\""},
    {with_value(4, INFINITY), "holds inf as number 5 of 6"},
    {with_value(1, NAN), "holds nan as number 2 of 6"},
    {npy(header_of("'<f2'", "(2,)"), std::string("\x00\x00\x00\xfc", 4)), "-inf as number 2 of 2"},
};
constexpr const char* kBadTypes[] = {"'>f4'", "'>f2'", "'<f8'", "'<i4'", "'|b1'",    "'<c8'",
                                     "'|O'",  "''",    "<f4",   "",      "'\x1b[2J'"};
// In the place of (6,), and with which word they are refused.
constexpr std::pair<const char*, const char*> kBadShapes[] = {
    {"(5,)", "is too long: shape (5,) needs 20 bytes of values, 24 are there"},
    {"(7,)", "is truncated: shape (7,) needs 28"},
    {"()", "shape () needs 4 bytes"},
    {"(0,)", "no number above 0"},
    {"(2, 0, 3)", "at \"0, 3)"},
    {"(-6,)", "at \"-6"},
    {"(6.0,)", "at \".0,)"},
    {"(six,)", "at \"six"},
    {"(6,", "at \"}"},
    {"(", "at \", }"},
    {"[6]", "no tuple"},
    {"6", "no tuple"},
    {"(9223372036854775807,)", "exceeds 2⁶³"},
    {"(99999999999999999999,)", "exceeds 2⁶³"},
    {"(4294967296, 4294967296)", "exceeds 2⁶³"},
    {"(4611686018427387910,)", "exceeds 2⁶³"},  // wraps to 24 bytes in 64 bits
};

TEST(Npy, ReadsEveryVersion) {
  for (const int version : {1, 2, 3}) {
    EXPECT_EQ(parse(good(version)).shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(parse(good(version)).values, kSix);
    EXPECT_EQ(parse(halves(version)).values, (std::vector<float>{1, -2, 0x1p-24f, 65504}));
  }
  EXPECT_EQ(parse(npy("{'shape':(2,3),'descr':'<f4','fortran_order':False}", kValues)).values,
            kSix);
  const NpyArray single = parse(npy(header_of("'<f4'", "()"), bytes_of({7})));
  EXPECT_TRUE(single.shape.empty());
  EXPECT_EQ(single.values, (std::vector<float>{7}));
}

TEST(Npy, RefusesAllElse) {
  const auto refuses = [](const std::string& file, const char* word) {
    expect_bad([&] { parse(file); }, {word, "x.npy"});
  };
  for (const auto& [file, word] : kBad) refuses(file, word);
  for (const char* type : kBadTypes) refuses(npy(header_of(type, "(6,)"), kValues), "of type");
  for (const auto& [shape, word] : kBadShapes)
    refuses(npy(header_of("'<f4'", shape), kValues), word);
  for (size_t size = 1; size < good(1).size(); ++size)
    refuses(good(1).substr(0, size), size < 12 ? "is not a .npy file" : "truncated");
}

// No bytes may make it do anything but return an array that is what it says, or throw Error.
TEST(Npy, TakesOrRefusesWhateverBytesThereAre) {
  std::vector<std::string> pieces = {
      "'descr':", "'shape':", "'<f2'", "'<f4'", "False", "(",  ")",          ",",
      "0",        "1",        "-1",    "1,1,1", "65536", "\n", "4294967296", "9223372036854775807"};
  std::vector<std::string> corpus = {good(1), good(2), good(3), halves(1), halves(2), halves(3)};
  for (const auto& [file, word] : kBad) corpus.push_back(file);
  pieces.insert(pieces.end(), corpus.begin(), corpus.end());
  int good = 0;
  for (uint64_t i = 0; i < 50'000; ++i) {
    std::mt19937_64 random(0x9e3779b97f4a7c15 + i);  // each can be repeated by itself
    const auto below = [&](size_t end) { return end ? random() % end : 0; };
    std::string file = corpus[below(corpus.size())];
    for (size_t n = 1 + below(2); n > 0; --n) {
      const std::string& piece = pieces[below(pieces.size())];
      const size_t gone = below(2) ? below(8) : 0;
      file.replace(below(file.size() + 1), gone, piece.substr(below(3) ? 0 : below(piece.size())));
      if (below(2) && !file.empty()) file[below(file.size())] = static_cast<char>(random());
    }
    const size_t end = file.find('\n');
    if (below(2) && end != file.npos && end > 12)  // the header's length anew, so that it is read
      file[8] = static_cast<char>(end + 1 - (file[6] == 1 ? 10 : 12)), file[9] = 0;
    try {
      const NpyArray array = parse(file);
      ++good;
      uint64_t count = 1;
      for (const int64_t extent : array.shape) {
        ASSERT_GT(extent, 0) << i;
        count *= static_cast<uint64_t>(extent);
      }
      ASSERT_EQ(count, array.values.size()) << i;
      ASSERT_LE(array.values.capacity() * 2, file.size()) << i;
      for (const float value : array.values) ASSERT_TRUE(std::isfinite(value)) << i;
    } catch (const Error& error) {
      ASSERT_EQ(error.status, Exit::bad_usage) << i;
      for (const char* c = error.what(); *c; ++c)
        ASSERT_GE(static_cast<unsigned char>(*c), ' ') << i;
    }
  }
  EXPECT_GT(good, 400);  // so that what is read is tried, too
}

// ------------------------------------------------------------------------------------------ files

TEST(Npy, WritesWhatNumPyWouldWrite) {
  const Folder folder;
  write_npy(folder / "x.npy", {2, 3}, kSix, NpyType::float32);
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  header.resize(117, ' ');
  EXPECT_EQ(file_content(folder / "x.npy"), npy(header + '\n', bytes_of(kSix)));
  // Rounded to nearest even, and infinities.
  write_npy(folder / "y.npy", {5}, {1 + 0x1p-11f, 1 + 0x3p-11f, 65520, -INFINITY, 0x1p-25f},
            NpyType::float16);
  const std::string file = file_content(folder / "y.npy");
  EXPECT_NE(file.find("'shape': (5,), }"), file.npos);
  EXPECT_EQ(file.substr(128), std::string("\x00\x3c\x02\x3c\x00\x7c\x00\xfc\x00\x00", 10));
  EXPECT_EQ(folder.names(), (Names{"x.npy", "y.npy"}));
  EXPECT_EQ(read_npy(folder / "x.npy").values, kSix);
}

TEST(Npy, SaysWhyAFileCannotBeRead) {
  const Folder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  put(folder / "empty.npy", "");
  for (const auto& [path, word] : {std::pair{folder / "missing.npy", "No such file"},
                                   {folder / ".", "not a regular file"},
                                   {folder / "pipe", "not a regular file"},
                                   {"/dev/zero", "not a regular file"},
                                   {std::string(5000, 'x'), "too long"},
                                   {folder / "empty.npy", "is not a .npy file"}})
    expect_bad([&] { read_npy(path); }, {word, path});
  // One that only claims to be large: nothing is allocated.
  const std::string path = folder / "huge.npy";
  put(path, good(1));
  if (truncate(path.c_str(), sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)) == 0)
    expect_bad([&] { read_npy(path); }, {"GiB", path}, Exit::no_device);
}

TEST(AtomicFile, AppearsWithCommitAndNotBefore) {
  const Folder folder;
  put(folder / "x", "old");
  for (const bool committed : {false, true}) {
    AtomicFile file(folder / "x");
    file.write("new");
    if (!committed) {
      file.finish();
      EXPECT_THROW(file.write("more"), std::logic_error);
    }
    EXPECT_EQ(file_content(folder / "x"), "old");
    EXPECT_EQ(folder.names().size(), 2u);
    if (committed) file.commit();
  }
  EXPECT_EQ(file_content(folder / "x"), "new");
  {
    AtomicFile compressed(folder / "y");
    compressed.compress();
    compressed.write("half of it");
  }
  EXPECT_EQ(folder.names(), Names{"x"});
}

TEST(AtomicFile, RefusesPlacesThatCannotBeWritten) {
  const Folder folder;
  put(folder / "file", "");
  for (const std::string& path :
       {folder / "missing/x", folder / "file/x", folder / ".", std::string("/proc/x"),
        folder / std::string(300, 'x'), std::string(5000, 'x'), std::string("/dev/full")})
    expect_bad(
        [&] {
          AtomicFile file(path);
          file.write("x");
          file.commit();
        },
        {"cannot write", path});
  EXPECT_EQ(folder.names(), Names{"file"});
  // Devices stay what they are.
  AtomicFile file("/dev/null");
  file.write("x");
  EXPECT_NO_THROW(file.commit());
  EXPECT_TRUE(fs::is_character_file("/dev/null") && fs::is_character_file("/dev/full"));
}

/// Runs `work` in a child process, because it changes limits or ends by a signal.
int in_child(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(AtomicFile, ReportsALimitOnFileSizesAndLeavesNothing) {
  const Folder folder;
  const int status = in_child([&] {
    const rlimit limit = {100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_npy(folder / "x.npy", {100'000}, std::vector<float>(100'000), NpyType::float32);
    } catch (const Error& error) {
      _exit(std::strstr(error.what(), "File too large") ? 7 : 8);
    }
  });
  EXPECT_EQ(status, 7 << 8);  // its exit
  EXPECT_TRUE(folder.names().empty());
}

TEST(AtomicFile, IsRemovedWhenASignalEndsTheProgram) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    const Folder folder;
    const int status = in_child([&] {
      std::signal(SIGPIPE, SIG_DFL);  // compress() ignores it
      const rlimit no_core = {0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      AtomicFile one(folder / "x"), two(folder / "y");
      one.write("half of it");
      if (folder.names().size() == 2) raise(signal);
    });
    EXPECT_EQ(status, signal);  // ended by it
    EXPECT_TRUE(folder.names().empty()) << signal;
  }
}

TEST(MakeFolder, CreatesOneUnlessItIsThere) {
  const Folder folder;
  for (int twice = 0; twice < 2; ++twice) make_folder(folder / "new");
  EXPECT_EQ(folder.names(), Names{"new"});
  put(folder / "file", "");
  for (const std::string& path : {folder / "file", folder / "missing/sub"})
    EXPECT_THROW(make_folder(path), Error) << path;
}

}  // namespace
}  // namespace ladder
