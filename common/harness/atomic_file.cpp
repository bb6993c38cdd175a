#include "harness/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

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
  if (!in_place) {
    // Unique among processes that share the folder, in other containers too.
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    temporary.path =
        fmt::format("{}.ladder-{}-{:x}.tmp", path.substr(0, path.rfind('/') + 1), getpid(), now);
  }
  // A file over the limit of `ulimit -f` then fails with EFBIG, which is reported, instead of
  // ending the program.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen((in_place ? path : temporary.path).c_str(), in_place ? "w" : "wx"), std::fclose);
  // In place fopen fails for a folder, as it should. Without fsync a full disk may show only after
  // the renaming; pipes and devices cannot sync.
  if (!file || std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size() ||
      std::fflush(file.get()) != 0 || (!in_place && fsync(fileno(file.get())) != 0))
    cannot_write(path);
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
