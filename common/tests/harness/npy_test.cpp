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
#include <limits>
#include <stdexcept>

#include "rung.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

/// A folder for one test, removed with everything in it.
class Folder {
 public:
  Folder() {
    std::string name = testing::TempDir() + "/ladder_npy_test_XXXXXX";
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  /// Names of what is in it, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(path_))
      result.push_back(entry.path().filename().string());
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  fs::path path_;
};

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

/// The file is refused, and the message says why and where.
void expect_bad(const std::string& file, const std::string& word) {
  try {
    parse(file);
    FAIL() << "accepted, expected: " << word;
  } catch (const Error& error) {
    EXPECT_EQ(error.status, Exit::bad_usage);
    const std::string message = error.what();
    EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_NE(message.find("x.npy"), std::string::npos) << message;
  }
}

const std::vector<float> kSix = {1, -2, 0.5f, 0, 65504, 1e-7f};

TEST(Npy, ReadsEveryVersionOfFloat32) {
  for (const int major : {1, 2, 3}) {
    const NpyArray array = parse(npy(header_of("<f4", "(2, 3)"), bytes_of(kSix), major));
    EXPECT_EQ(array.shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(array.values, kSix);
  }
}

TEST(Npy, ReadsEveryVersionOfFloat16) {
  // 1, −2, the smallest subnormal, the largest finite value.
  const std::string halves("\x00\x3c\x00\xc0\x01\x00\xff\x7b", 8);
  for (const int major : {1, 2, 3}) {
    const NpyArray array = parse(npy(header_of("<f2", "(4,)"), halves, major));
    EXPECT_EQ(array.shape, (std::vector<int64_t>{4}));
    EXPECT_EQ(array.values, (std::vector<float>{1, -2, 0x1p-24f, 65504}));
  }
}

TEST(Npy, ReadsADictionaryWrittenInOtherWays) {
  for (const std::string header : {
           "{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}",
           "  { 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , 'descr' : '<f4' }  \n",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\t\n\r\n",
       })
    EXPECT_EQ(parse(npy(header, bytes_of(kSix))).values, kSix) << header;
}

TEST(Npy, ReadsASingleNumber) {
  const NpyArray array = parse(npy(header_of("<f4", "()"), bytes_of({7})));
  EXPECT_TRUE(array.shape.empty());
  EXPECT_EQ(array.values, (std::vector<float>{7}));
}

TEST(Npy, RefusesWhatIsNoNpyFile) {
  expect_bad("", "is empty");
  expect_bad("PK\x03\x04 a zip file, as numpy.savez writes", "is not a .npy file");
  expect_bad("\x93", "truncated");
  expect_bad("\x93NUMPY", "truncated");
  expect_bad(std::string("\x93NUMPY\x01\x00", 8), "truncated");
  expect_bad(std::string("\x93NUMPY\x02\x00\x10\x00", 10), "truncated");
  expect_bad(npy(header_of("<f4", "(6,)"), bytes_of(kSix), 4), "version 4.0");
  expect_bad(npy(header_of("<f4", "(6,)"), bytes_of(kSix), 1, 1), "version 1.1");
  expect_bad(npy(header_of("<f4", "(6,)"), bytes_of(kSix), 0), "version 0.0");
}

TEST(Npy, RefusesTruncationAtEveryByte) {
  const std::string file = npy(header_of("<f4", "(2, 3)"), bytes_of(kSix));
  for (size_t size = 1; size < file.size(); ++size) expect_bad(file.substr(0, size), "truncated");
}

TEST(Npy, RefusesAHeaderThatIsNone) {
  const std::string values = bytes_of(kSix);
  for (const std::string header : {
           "",
           "\n",
           "hello",
           "{",
           "{}",
           "{'descr'",
           "{'descr': ",
           "{'descr: '<f4'}",
           "{'descr': <f4, 'fortran_order': False, 'shape': (6,)}",
           "{'descr': '<f4', 'fortran_order': False}",
           "{'descr': '<f4', 'shape': (6,)}",
           "{'fortran_order': False, 'shape': (6,)}",
           "{'descr': '<f4', 'fortran_order': 0, 'shape': (6,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': [6]}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (6)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': 6}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (6.0,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (six,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (6,}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (6,)",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} 1",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'shape': (6,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'more': 1}",
           "{'descr': '<f4' 'fortran_order': False, 'shape': (6,)}",
       })
    expect_bad(npy(header, values), "malformed header");
  expect_bad(npy(std::string(70000, ' ') + header_of("<f4", "(6,)"), values, 2), "header of 70058");
  // What stands in the file reaches a terminal: control characters must not.
  try {
    parse(npy(header_of("\x1b[2J", "(6,)"), values));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\x1b'), std::string::npos);
  }
}

TEST(Npy, RefusesOtherTypesAndOrders) {
  const std::string values(48, '\0');
  expect_bad(npy(header_of(">f4", "(12,)"), values), "big-endian");
  expect_bad(npy(header_of(">f2", "(24,)"), values), "big-endian");
  expect_bad(npy(header_of("<f8", "(6,)"), values), "float64");
  expect_bad(npy(header_of("<i4", "(12,)"), values), "integers");
  expect_bad(npy(header_of("|u1", "(48,)"), values), "unsigned integers");
  expect_bad(npy(header_of("|b1", "(48,)"), values), "truth values");
  expect_bad(npy(header_of("<c8", "(6,)"), values), "complex");
  expect_bad(npy(header_of("|O", "(6,)"), values), "another type");
  expect_bad(npy(header_of("", "(6,)"), values), "unknown type");
  expect_bad(npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (12,), }", values),
             "records");
  expect_bad(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }", values),
             "Fortran order");
}

TEST(Npy, RefusesShapesThatTheFileDoesNotHold) {
  const std::string values = bytes_of(kSix);
  expect_bad(npy(header_of("<f4", "(0,)"), ""), "no dimension may be 0");
  expect_bad(npy(header_of("<f4", "(2, 0, 3)"), ""), "(2, 0, 3)");
  expect_bad(npy(header_of("<f4", "(5,)"), values), "4 bytes more");
  expect_bad(npy(header_of("<f4", "(7,)"), values), "needs 28 bytes of values, 24 are there");
  expect_bad(npy(header_of("<f4", "(9223372036854775807,)"), values), "exceeds 2⁶³");
  expect_bad(npy(header_of("<f4", "(99999999999999999999,)"), values), "exceeds 2⁶³");
  expect_bad(npy(header_of("<f2", "(4294967296, 4294967296)"), values), "exceeds 2⁶³");
  // The product wraps to 24 bytes in 64 bits.
  expect_bad(npy(header_of("<f4", "(4611686018427387910,)"), values), "exceeds 2⁶³");
}

TEST(Npy, RefusesValuesThatAreNotFinite) {
  std::vector<float> values = kSix;
  values[4] = std::numeric_limits<float>::infinity();
  expect_bad(npy(header_of("<f4", "(2, 3)"), bytes_of(values)), "inf at [1, 1]");
  values[1] = std::numeric_limits<float>::quiet_NaN();
  expect_bad(npy(header_of("<f4", "(2, 3)"), bytes_of(values)), "nan at [0, 1]");
  expect_bad(npy(header_of("<f2", "(2,)"), std::string("\x00\x00\x00\xfc", 4)), "-inf at [1]");
}

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
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"x.npy", "y.npy"}));
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
  const auto expect = [](const std::string& path, const std::string& word) {
    try {
      read_npy(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.status, Exit::bad_usage);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  };
  expect(folder / "missing.npy", "No such file");
  expect(folder / ".", "not a regular file");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect(folder / "pipe", "not a regular file");
  expect("/dev/zero", "not a regular file");
  put(folder / "empty.npy", "");
  expect(folder / "empty.npy", "is empty");
}

TEST(Npy, AllocatesNothingForAFileThatOnlyClaimsToBeLarge) {
  const Folder folder;
  const std::string path = folder / "huge.npy";
  const auto size = static_cast<off_t>(4) * sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  put(path, "not an array");
  if (truncate(path.c_str(), size) != 0) GTEST_SKIP() << "no sparse files here";
  try {
    read_npy(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status, Exit::bad_usage);
  }
  const std::string header = header_of("<f2", fmt::format("({},)", size / 2 - 512));
  std::string start = npy(header + std::string(1024 - 10 - header.size(), ' '), "");
  put(path, start);
  ASSERT_EQ(truncate(path.c_str(), size), 0);
  try {
    read_npy(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status, Exit::no_device);
    EXPECT_NE(std::string(error.what()).find("GiB"), std::string::npos) << error.what();
  }
}

TEST(AtomicFile, AppearsWithCommitAndNotBefore) {
  const Folder folder;
  put(folder / "x", "old");
  {
    AtomicFile file(folder / "x");
    file.write("new");
    file.finish();
    EXPECT_EQ(file_content(folder / "x"), "old");
    EXPECT_EQ(folder.names().size(), 2u);
  }
  EXPECT_EQ(file_content(folder / "x"), "old");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"x"}));
  {
    AtomicFile file(folder / "x");
    file.write("new");
    file.commit();
  }
  EXPECT_EQ(file_content(folder / "x"), "new");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"x"}));
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
        folder / std::string(300, 'x'), std::string(5000, 'x')}) {
    try {
      AtomicFile file(path);
      file.commit();
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.status, Exit::bad_usage);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"file"}));
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
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(folder.names().empty());
}

TEST(AtomicFile, IsRemovedWhenASignalEndsTheProgram) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    const Folder folder;
    const int status = in_child([&] {
      const rlimit no_core = {0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      AtomicFile one(folder / "x"), two(folder / "y");
      one.write("half of it");
      if (folder.names().size() != 2) _exit(9);
      raise(signal);
    });
    EXPECT_TRUE(WIFSIGNALED(status)) << signal;
    EXPECT_EQ(WTERMSIG(status), signal);
    EXPECT_TRUE(folder.names().empty()) << signal;
  }
}

TEST(AtomicFile, RemovesTemporariesForCodeThatExits) {
  const Folder folder;
  in_child([&] {
    AtomicFile file(folder / "x");
    file.write("half of it");
    remove_temporary_files();
    _exit(0);
  });
  EXPECT_TRUE(folder.names().empty());
}

TEST(MakeFolder, CreatesOneUnlessItIsThere) {
  const Folder folder;
  make_folder(folder / "new");
  make_folder(folder / "new");
  EXPECT_TRUE(fs::is_directory(folder / "new"));
  put(folder / "file", "");
  EXPECT_THROW(make_folder(folder / "file"), Error);
  EXPECT_THROW(make_folder(folder / "file/sub"), Error);
  EXPECT_THROW(make_folder(folder / "missing/sub"), Error);
  EXPECT_THROW(make_folder("/proc/sub"), Error);
}

}  // namespace
}  // namespace ladder
