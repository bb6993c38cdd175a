#include "harness/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "harness/messages.h"

namespace ladder {
namespace {

/// Removes itself, unless it has got another name by then.
struct Temporary {
  std::string path;  // empty: there is none
  ~Temporary() { unlink(path.c_str()); }
};

[[noreturn]] void cannot_write(const std::string& path) {
  bad_usage("cannot write '{}': {}; make room or choose another place", path, std::strerror(errno));
}

/// Writes the bytes to a temporary file beside the path, or in place.
void write_beside(const std::string& path, const std::string& bytes, Temporary& temporary) {
  std::error_code ignored;
  const bool in_place =
      std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
  if (!in_place) temporary.path = fmt::format("{}.{}.tmp", path, getpid());
  // A file over the limit of `ulimit -f` then fails with EFBIG, which is reported.
  std::signal(SIGXFSZ, SIG_IGN);
  std::ofstream file(in_place ? path : temporary.path, std::ios::binary);  // of a folder it fails
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) cannot_write(path);
}

}  // namespace

void write_files(const std::vector<std::pair<std::string, std::string>>& files) {
  std::vector<Temporary> temporaries(files.size());
  for (size_t i = 0; i < files.size(); ++i)
    write_beside(files[i].first, files[i].second, temporaries[i]);
  for (size_t i = 0; i < files.size(); ++i)
    if (const std::string& from = temporaries[i].path; !from.empty())
      if (std::rename(from.c_str(), files[i].first.c_str()) != 0) cannot_write(files[i].first);
}

void require_writable(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_other(path, ignored)) return;
  Temporary removed;
  write_beside(path, "", removed);
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directory(path, error);
  if (error) bad_usage("cannot create the folder '{}': {}; choose another", path, error.message());
}

}  // namespace ladder
