// Fuzz target of the .npy reader: no bytes may make it do anything but return an array that is what
// it says, or throw Error. Without libFuzzer, the main() below mutates the files of a folder:
//   npy_fuzz FOLDER --seconds 60     or     --iterations 20000, and --seed S (default 1)
// With it: clang++ -fsanitize=fuzzer,address,undefined -DLADDER_LIBFUZZER on this file, npy.cpp and
// atomic_file.cpp.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "harness/npy.h"
#include "rung.h"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "npy_fuzz: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const ladder::NpyArray array = ladder::parse_npy("fuzz.npy", data, size);
    uint64_t count = 1;
    for (const int64_t extent : array.shape) {
      require(extent > 0, "a dimension is not positive");
      count *= static_cast<uint64_t>(extent);
    }
    require(count == array.values.size(), "as many values as the shape says");
    require(array.values.capacity() * 2 <= size, "more memory than the file calls for");
    for (const float value : array.values) require(std::isfinite(value), "a value is not finite");
  } catch (const ladder::Error& error) {
    require(error.status == ladder::Exit::bad_usage, "the status of bad input");
    for (const char* c = error.what(); *c; ++c)
      require(static_cast<unsigned char>(*c) >= ' ', "a control character in a message");
  }
  return 0;
}

#ifndef LADDER_LIBFUZZER

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#ifdef LADDER_SANITIZE
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

using Bytes = std::string;
using Random = std::mt19937_64;

uint64_t seed = 1, iteration = 0;

#ifdef LADDER_SANITIZE
void say_where() {
  std::fprintf(stderr, "npy_fuzz: seed %llu, iteration %llu\n",
               static_cast<unsigned long long>(seed), static_cast<unsigned long long>(iteration));
}
#endif

size_t below(Random& random, size_t end) {
  return end ? random() % end : 0;
}

/// Writes the header's length anew, so that what changed behind it is read at all.
void mend_length(Bytes& file) {
  const size_t end = file.find('\n');
  if (file.size() < 12 || end == Bytes::npos) return;
  const size_t begin = file[6] == 1 ? 10 : 12;
  if (end < begin) return;
  for (size_t i = 8; i < begin; ++i)
    file[i] = static_cast<char>((end + 1 - begin) >> 8 * (i - 8) & 0xff);
}

void mutate(Random& random, Bytes& file, const std::vector<Bytes>& corpus) {
  static const char* const kWords[] = {"'descr'",
                                       "'fortran_order'",
                                       "'shape'",
                                       "'<f2'",
                                       "'<f4'",
                                       "'>f4'",
                                       "True",
                                       "False",
                                       "(",
                                       ")",
                                       "{",
                                       "}",
                                       ",",
                                       ":",
                                       "'",
                                       "\"",
                                       "\n",
                                       "0",
                                       "1",
                                       "-1",
                                       "1,1,1,1",
                                       "65536",
                                       "2147483648",
                                       "4611686018427387904",
                                       "9223372036854775807",
                                       "18446744073709551616"};
  const size_t at = below(random, file.size() + 1);
  const size_t length = below(random, 1 + below(random, 32));
  switch (below(random, 9)) {
    case 0:
      if (at < file.size()) file[at] = static_cast<char>(file[at] ^ 1 << below(random, 8));
      break;
    case 1:
      if (at < file.size()) file[at] = static_cast<char>(random());
      break;
    case 2:
      file.erase(at, length);
      break;
    case 3:
      file.insert(at, file.substr(below(random, file.size() + 1), length));
      break;
    case 4:
      file.resize(at);
      break;
    case 5:
      file.insert(at, length, static_cast<char>(random()));
      break;
    case 6: {
      const Bytes& other = corpus[below(random, corpus.size())];
      file = file.substr(0, at) + other.substr(std::min(at, other.size()));
      break;
    }
    default: {
      // Into the header, where words mean something, and mostly in place of a word.
      const Bytes word = kWords[below(random, std::size(kWords))];
      const size_t header = std::min<size_t>(file.size(), 10 + below(random, 64));
      const size_t end = file.find_first_of(",:)} ", header);
      file.replace(header, end == Bytes::npos || below(random, 4) == 0 ? 0 : end - header, word);
      mend_length(file);
    }
  }
}

std::vector<Bytes> read_corpus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());  // the order of a folder differs between systems
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void run(const Bytes& file) {
  // A copy of exactly its size, so that the address sanitizer sees one byte too many.
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[file.size()]);
  std::memcpy(copy.get(), file.data(), file.size());
  LLVMFuzzerTestOneInput(copy.get(), file.size());
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0;
  uint64_t iterations = 0;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--seconds") seconds = std::atof(argv[i + 1]);
    if (option == "--iterations") iterations = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  if (argc < 4 || (seconds <= 0 && iterations == 0)) {
    std::fprintf(stderr, "usage: npy_fuzz FOLDER --seconds S | --iterations N [--seed S]\n");
    return 2;
  }
  const std::vector<Bytes> corpus = read_corpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "npy_fuzz: no files in '%s'\n", argv[1]);
    return 2;
  }
#ifdef LADDER_SANITIZE
  __sanitizer_set_death_callback(say_where);
#endif

  for (const Bytes& file : corpus) run(file);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto enough = [&] {
    if (iterations) return iteration >= iterations;
    return std::chrono::duration<double>(Clock::now() - start).count() >= seconds;
  };
  for (; !enough(); ++iteration) {
    Random random(seed * 0x9e3779b97f4a7c15 + iteration);  // each can be repeated by itself
    Bytes file = corpus[below(random, corpus.size())];
    for (size_t n = 1 + below(random, 5); n > 0; --n) mutate(random, file, corpus);
    run(file);
  }
  std::printf("npy_fuzz: %llu inputs, seed %llu, nothing found\n",
              static_cast<unsigned long long>(iteration), static_cast<unsigned long long>(seed));
}

#endif
