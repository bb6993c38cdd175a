#include "harness/atomic_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "harness/bad_usage.h"

namespace ladder {

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  // A file over the limit of `ulimit -f` then fails with EFBIG, which is reported, instead of
  // ending the program.
  std::signal(SIGXFSZ, SIG_IGN);
  struct stat status = {};
  const bool in_place = stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  if (!in_place) {
    // Unique among processes that share the folder, in other containers too.
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    temporary_ =
        fmt::format("{}.ladder-{}-{:x}.tmp", path.substr(0, path.rfind('/') + 1), getpid(), now);
  }
  // In place this fails for a folder, as it should.
  file_ = std::fopen((in_place ? path : temporary_).c_str(), in_place ? "w" : "wx");
  if (!file_) throw error();
}

AtomicFile::~AtomicFile() {
  if (file_) std::fclose(file_);
  unlink(temporary_.c_str());  // fails, as it should, after a rename, and where there is none
}

Error AtomicFile::error() const {
  return Error(Exit::bad_usage,
               fmt::format("cannot write '{}': {}; make room or choose another place", path_,
                           std::strerror(errno)));
}

void AtomicFile::write(const void* data, size_t bytes) {
  if (!file_) throw std::logic_error("written after finish(): " + path_);
  if (std::fwrite(data, 1, bytes, file_) != bytes) throw error();
}

void AtomicFile::finish() {
  if (!file_) return;
  // Without fsync a full disk may show only after the rename. Pipes and devices cannot sync.
  if (std::fflush(file_) != 0 || (!temporary_.empty() && fsync(fileno(file_)) != 0) ||
      std::fclose(std::exchange(file_, nullptr)) != 0)
    throw error();
}

void AtomicFile::commit() {
  finish();
  if (!temporary_.empty() && std::rename(temporary_.c_str(), path_.c_str()) != 0) throw error();
}

void require_writable(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_other(path, ignored)) AtomicFile try_it(path);
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directory(path, error);
  if (error) bad_usage("cannot create the folder '{}': {}; choose another", path, error.message());
}

}  // namespace ladder
