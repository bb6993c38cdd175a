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
#include <sstream>
#include <stdexcept>

#include "rung.h"

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
  /// Names of what is in it, sorted.
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
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

NpyArray parse(const std::string& file) {
  return parse_npy("x.npy", reinterpret_cast<const unsigned char*>(file.data()), file.size());
}

/// Fails unless `work` is refused with this status and a message that has these words in it.
void expect_bad(const std::function<void()>& work, std::initializer_list<std::string> words,
                Exit status = Exit::bad_usage) {
  try {
    work();
    ADD_FAILURE() << "accepted";
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
void expect_bad(const std::string& file, const std::string& word) {
  expect_bad([&] { parse(file); }, {word, "x.npy"});
}

const std::vector<float> kSix = {1, -2, 0.5f, 0, 65504, 1e-7f};
const std::string kValues = bytes_of(kSix);
// 1, −2, the smallest subnormal, the largest finite value.
const std::string kHalves("\x00\x3c\x00\xc0\x01\x00\xff\x7b", 8);

const std::string kGood[] = {
    npy(header_of("<f4", "(2, 3)"), kValues),
    npy(header_of("<f4", "(2, 3)"), kValues, 2),
    npy(header_of("<f4", "(2, 3)"), kValues, 3),
    npy("{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}", kValues),
    npy("  { 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , 'descr' : '<f4' }  \n", kValues),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\t\n\r\n", kValues),
};
const std::string kGoodHalves[] = {npy(header_of("<f2", "(4,)"), kHalves),
                                   npy(header_of("<f2", "(4,)"), kHalves, 2),
                                   npy(header_of("<f2", "(4,)"), kHalves, 3)};

std::string of_shape(const std::string& shape, const std::string& values = kValues) {
  return npy(header_of("<f4", shape), values);
}
std::string of_type(const std::string& descr) {
  return npy(header_of(descr, "(6,)"), std::string(48, '\0'));
}
std::string with_value(size_t at, float value) {
  std::vector<float> values = kSix;
  values[at] = value;
  return of_shape("(2, 3)", bytes_of(values));
}

const std::pair<std::string, const char*> kBad[] = {
    {"", "is empty"},
    {"PK\x03\x04 a zip file, as numpy.savez writes", "is not a .npy file"},
    {std::string("\x93NUMPY\x02\x00\x10\x00", 10), "truncated"},
    {npy(header_of("<f4", "(6,)"), kValues, 4), "version 4.0"},
    {npy(header_of("<f4", "(6,)"), kValues, 1, 1), "version 1.1"},
    {npy(header_of("<f4", "(6,)"), kValues, 0), "version 0.0"},
    {npy(std::string(70000, ' ') + header_of("<f4", "(6,)"), kValues, 2), "header of 70058"},
    {of_type("\x1b[2J"), "of another type ('?[2J')"},
    {of_type(">f4"), "big-endian"},
    {of_type(">f2"), "big-endian"},
    {of_type("<f8"), "float64"},
    {of_type("<i4"), "of integers"},
    {of_type("|u1"), "unsigned integers"},
    {of_type("|b1"), "truth values"},
    {of_type("<c8"), "complex"},
    {of_type("|O"), "another type"},
    {of_type(""), "unknown type"},
    {npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,), }", kValues), "records"},
    {npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", kValues), "Fortran order"},
    {of_shape("(0,)", ""), "no dimension may be 0"},
    {of_shape("(2, 0, 3)", ""), "(2, 0, 3)"},
    {of_shape("(5,)"), "4 bytes more"},
    {of_shape("(7,)"), "needs 28 bytes of values, 24 are there"},
    {of_shape("(9223372036854775807,)"), "exceeds 2⁶³"},
    {of_shape("(99999999999999999999,)"), "exceeds 2⁶³"},
    {of_shape("(4294967296, 4294967296)"), "exceeds 2⁶³"},
    {of_shape("(4611686018427387910,)"), "exceeds 2⁶³"},  // wraps to 24 bytes in 64 bits
    {with_value(4, INFINITY), "inf at [1, 1]"},
    {with_value(1, NAN), "nan at [0, 1]"},
    {npy(header_of("<f2", "(2,)"), std::string("\x00\x00\x00\xfc", 4)), "-inf at [1]"},
};

const char* const kNoDictionaries[] = {"", "\n", "hello", "{", "{}", "{'descr'", "{'descr': "};
const std::string kDictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}";
// Of which, each by itself, this is replaced by that.
constexpr const char* kBadChanges =
    "'descr' -> 'descr|'<f4' -> <f4|'<f4', -> '<f4'|'descr': '<f4',  -> |"
    "'fortran_order': False,  -> |, 'shape': (6,) -> |False -> 0|(6,) -> [6]|(6,) -> (6)|"
    "(6,) -> 6|(6,) -> (-6,)|(6,) -> (6.0,)|(6,) -> (six,)|(6,) -> (2 3)|(6,) -> (6,|} -> |"
    "} -> } 1|} -> , 'shape': (6,)}|} -> , 'more': 1}";

TEST(Npy, ReadsEveryVersionAndWayToWrite) {
  for (const std::string& file : kGood) {
    EXPECT_EQ(parse(file).shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(parse(file).values, kSix);
  }
  for (const std::string& file : kGoodHalves)
    EXPECT_EQ(parse(file).values, (std::vector<float>{1, -2, 0x1p-24f, 65504}));
  const NpyArray single = parse(of_shape("()", bytes_of({7})));
  EXPECT_TRUE(single.shape.empty());
  EXPECT_EQ(single.values, (std::vector<float>{7}));
}

TEST(Npy, RefusesAllElse) {
  for (const auto& [file, word] : kBad) expect_bad(file, word);
  for (const char* header : kNoDictionaries) expect_bad(npy(header, kValues), "malformed header");
  std::istringstream changes(kBadChanges);
  for (std::string change; std::getline(changes, change, '|');) {
    const size_t arrow = change.find(" -> ");
    std::string header = kDictionary;
    header.replace(header.find(change.substr(0, arrow)), arrow, change.substr(arrow + 4));
    expect_bad(npy(header, kValues), "malformed header");
  }
  for (size_t size = 1; size < kGood[0].size(); ++size)
    expect_bad(kGood[0].substr(0, size), "truncated");
}

// ---------------------------------------------------------------------------------------- fuzzing

using Random = std::mt19937_64;

size_t below(Random& random, size_t end) {
  return end ? random() % end : 0;
}

/// Writes the header's length anew, so that what changed behind it is read at all.
void mend_length(std::string& file) {
  const size_t end = file.find('\n');
  if (file.size() < 12 || end == std::string::npos) return;
  const size_t begin = file[6] == 1 ? 10 : 12;
  if (end < begin) return;
  for (size_t i = 8; i < begin; ++i)
    file[i] = static_cast<char>((end + 1 - begin) >> 8 * (i - 8) & 0xff);
}

/// Puts something in the place of a piece of the file: a word that means something, bytes that do
/// not, or a piece of another file.
void change(Random& random, std::string& file, const std::string& other) {
  static const std::string kWords =
      "'descr' 'fortran_order' 'shape' '<f2' '<f4' '>f4' True False ( ) { } , : ' \" \n 0 1 -1 "
      "1,1,1,1 65536 2147483648 4611686018427387904 9223372036854775807 18446744073709551616 ";
  const bool header = below(random, 2);
  const size_t at = std::min(file.size(), header ? 10 + below(random, 64) : below(random, 200));
  const size_t length = below(random, 1 + below(random, 32));
  const size_t word = kWords.find(' ', below(random, kWords.size() - 20)) + 1;
  const std::string pieces[] = {"", kWords.substr(word, kWords.find(' ', word) - word),
                                std::string(length, static_cast<char>(random())),
                                other.substr(below(random, other.size() + 1), length),
                                other.substr(std::min(at, other.size()))};
  const size_t place = std::min(file.find_first_of(",:)} ", at), file.size()) - at;
  const size_t gone[] = {0, 1, length, place, place, file.size()};
  file.replace(at, gone[below(random, 6)], pieces[below(random, 5)]);
  if (header) mend_length(file);
}

// No bytes may make it do anything but return an array that is what it says, or throw Error.
TEST(Npy, TakesOrRefusesWhateverBytesThereAre) {
  std::vector<std::string> corpus(std::begin(kGood), std::end(kGood));
  corpus.insert(corpus.end(), std::begin(kGoodHalves), std::end(kGoodHalves));
  for (const auto& [file, word] : kBad) corpus.push_back(file);
  int good = 0;
  for (uint64_t i = 0; i < 50'000; ++i) {
    Random random(0x9e3779b97f4a7c15 + i);  // each can be repeated by itself
    std::string file = corpus[below(random, corpus.size())];
    for (size_t n = 1 + below(random, 4); n > 0; --n)
      change(random, file, corpus[below(random, corpus.size())]);
    // A copy of exactly its size, so that the address sanitizer sees one byte too many.
    const std::vector<unsigned char> bytes(file.begin(), file.end());
    try {
      const NpyArray array = parse_npy("fuzz.npy", bytes.data(), bytes.size());
      ++good;
      uint64_t count = 1;
      for (const int64_t extent : array.shape) {
        ASSERT_GT(extent, 0) << i;
        count *= static_cast<uint64_t>(extent);
      }
      ASSERT_EQ(count, array.values.size()) << i;
      ASSERT_LE(array.values.capacity() * 2, bytes.size()) << i;
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
  const std::string file = file_content(folder / "x.npy");
  ASSERT_EQ(file.size(), 128 + 24u);
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  header.resize(117, ' ');
  EXPECT_EQ(file, npy(header + '\n', bytes_of(kSix)));
  write_npy(folder / "y.npy", {6}, kSix, NpyType::float16);
  EXPECT_NE(file_content(folder / "y.npy").find("'shape': (6,), }"), std::string::npos);
  EXPECT_EQ(folder.names(), (Names{"x.npy", "y.npy"}));
}

TEST(Npy, ReadsBackTheBitsItWrote) {
  const Folder folder;
  // More than one piece of read_npy's and of write_npy's.
  std::vector<float> values(700'001);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i % 4001) - 2000);
  for (const NpyType type : {NpyType::float16, NpyType::float32}) {
    write_npy(folder / "x.npy", {1, 700'001}, values, type);
    const NpyArray array = read_npy(folder / "x.npy");
    EXPECT_EQ(array.shape, (std::vector<int64_t>{1, 700'001}));
    EXPECT_EQ(array.values, values);
  }
}

TEST(Npy, RoundsToNearestEvenAndWritesInfinities) {
  const Folder folder;
  write_npy(folder / "x.npy", {5}, {1 + 0x1p-11f, 1 + 0x3p-11f, 65520, -INFINITY, 0x1p-25f},
            NpyType::float16);
  const std::string file = file_content(folder / "x.npy");
  EXPECT_EQ(file.substr(128), std::string("\x00\x3c\x02\x3c\x00\x7c\x00\xfc\x00\x00", 10));
}

TEST(Npy, SaysWhyAFileCannotBeRead) {
  const Folder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  put(folder / "empty.npy", "");
  for (const auto& [path, word] : {std::pair{folder / "missing.npy", "No such file"},
                                   {folder / ".", "not a regular file"},
                                   {folder / "pipe", "not a regular file"},
                                   {"/dev/zero", "not a regular file"},
                                   {folder / "empty.npy", "is empty"}})
    expect_bad([&] { read_npy(path); }, {word, path});
}

TEST(Npy, AllocatesNothingForAFileThatOnlyClaimsToBeLarge) {
  const Folder folder;
  const std::string path = folder / "huge.npy";
  const auto size = static_cast<off_t>(4) * sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  put(path, "not an array");
  if (truncate(path.c_str(), size) != 0) GTEST_SKIP() << "no sparse files here";
  expect_bad([&] { read_npy(path); }, {});
  const std::string header = header_of("<f2", fmt::format("({},)", size / 2 - 512));
  std::string start = npy(header + std::string(1024 - 10 - header.size(), ' '), "");
  put(path, start);
  ASSERT_EQ(truncate(path.c_str(), size), 0);
  expect_bad([&] { read_npy(path); }, {"GiB"}, Exit::no_device);
}

TEST(AtomicFile, AppearsWithCommitAndNotBefore) {
  const Folder folder;
  put(folder / "x", "old");
  for (const bool committed : {false, true}) {
    AtomicFile file(folder / "x");
    file.write("new");
    if (!committed) file.finish();
    EXPECT_EQ(file_content(folder / "x"), "old");
    EXPECT_EQ(folder.names().size(), 2u);
    if (committed) file.commit();
  }
  EXPECT_EQ(file_content(folder / "x"), "new");
  EXPECT_EQ(folder.names(), Names{"x"});
}

TEST(AtomicFile, IsGoneIfItIsNotCommittedAndTakesNothingOnceFinished) {
  const Folder folder;
  for (const bool compressed : {false, true}) {
    AtomicFile file(folder / "x");
    if (compressed) file.compress();
    file.write("half of it");
    if (compressed) continue;
    file.finish();
    EXPECT_THROW(file.write("more"), std::logic_error);
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(AtomicFile, WritesThroughALink) {
  const Folder folder;
  put(folder / "x", "old");
  ASSERT_EQ(symlink((folder / "x").c_str(), (folder / "link").c_str()), 0);
  AtomicFile file(folder / "link");
  file.write("new");
  file.commit();
  EXPECT_EQ(file_content(folder / "x"), "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
}

TEST(AtomicFile, RefusesPlacesThatCannotBeWritten) {
  const Folder folder;
  put(folder / "file", "");
  for (const std::string& path :
       {folder / "missing/x", folder / "file/x", folder / ".", std::string("/proc/x"),
        folder / std::string(300, 'x'), std::string(5000, 'x')})
    expect_bad([&] { AtomicFile(path).commit(); }, {path});
  EXPECT_EQ(folder.names(), Names{"file"});
}

TEST(AtomicFile, ReportsAFullDiskAndLeavesDevicesInPlace) {
  {
    AtomicFile file("/dev/full");
    file.write("x");
    EXPECT_THROW(file.commit(), Error);
  }
  struct stat status = {};
  ASSERT_EQ(stat("/dev/full", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  AtomicFile file("/dev/null");
  file.write("x");
  EXPECT_NO_THROW(file.commit());
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

TEST(AtomicFile, IsRemovedWhenASignalOrAnExitEndsTheProgram) {
  for (const int signal : {0, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    const Folder folder;
    const int status = in_child([&] {
      const rlimit no_core = {0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      AtomicFile one(folder / "x"), two(folder / "y");
      one.write("half of it");
      if (folder.names().size() != 2) _exit(9);
      if (signal) raise(signal);
      remove_temporary_files();
      _exit(0);
    });
    EXPECT_EQ(status, signal);  // ended by it, or by _exit(0)
    EXPECT_TRUE(folder.names().empty()) << signal;
  }
}

TEST(MakeFolder, CreatesOneUnlessItIsThere) {
  const Folder folder;
  for (int twice = 0; twice < 2; ++twice) make_folder(folder / "new");
  EXPECT_TRUE(fs::is_directory(folder / "new"));
  put(folder / "file", "");
  for (const std::string& path :
       {folder / "file", folder / "file/sub", folder / "missing/sub", std::string("/proc/sub")})
    EXPECT_THROW(make_folder(path), Error) << path;
}

}  // namespace
}  // namespace ladder
