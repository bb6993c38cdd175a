#include "harness/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "rung.h"

namespace ladder {
namespace {

// The names of temporary files, where a signal handler may read them; null: free.
std::atomic<char*> temporaries[16];
static_assert(std::atomic<char*>::is_always_lock_free);

extern "C" void end_by_signal(int signal) {
  remove_temporary_files();
  // The handler was installed with SA_RESETHAND: raised again, the signal ends the program, and the
  // shell sees which one it was.
  raise(signal);
}

void install_handlers() {
  static const bool once = [] {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
      struct sigaction old = {};
      sigaction(signal, nullptr, &old);
      if (old.sa_handler != SIG_DFL) continue;  // ignored, as under nohup: leave it so
      struct sigaction action = {};
      action.sa_handler = end_by_signal;
      action.sa_flags = SA_RESETHAND;
      sigemptyset(&action.sa_mask);
      sigaction(signal, &action, nullptr);
    }
    // A file over the limit of `ulimit -f` then fails with EFBIG, which is reported, instead of
    // ending the program.
    std::signal(SIGXFSZ, SIG_IGN);
    return true;
  }();
  (void)once;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

std::string follow_links(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  if (!real) return path;  // does not exist yet
  std::string result = real;
  std::free(real);
  return result;
}

[[noreturn]] void cannot_write(const std::string& path) {
  const int error = errno;
  throw Error(Exit::bad_usage,
              fmt::format("cannot write '{}': {}{}", path, std::strerror(error),
                          error == ENOSPC || error == EDQUOT || error == EFBIG
                              ? "; make room or choose another place"
                              : "; choose a folder that exists and can be written"));
}

}  // namespace

void remove_temporary_files() noexcept {
  for (const char* const path : temporaries)
    if (path) unlink(path);
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(follow_links(path)) {
  install_handlers();
  struct stat status = {};
  int fd = -1;
  if (stat(target_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    fd = open(target_.c_str(), O_WRONLY | O_CLOEXEC);  // fails for a folder, as it should
  } else {
    take_slot();
    fd = open(temporaries[slot_], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (fd >= 0) file_ = fdopen(fd, "w");
  if (!file_) {
    const int error = errno;
    remove_temporary();
    errno = error;
    fail();
  }
}

void AtomicFile::take_slot() {
  // Unique among processes that share the folder, in other containers too.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string name = fmt::format("{}.ladder-{}-{:x}.tmp", folder_of(target_), getpid(), now);
  // Before the file exists: an interruption between the two must find the name.
  char* const path = strdup(name.c_str());
  for (int i = 0; i < static_cast<int>(std::size(temporaries)) && slot_ < 0; ++i)
    if (char* none = nullptr; temporaries[i].compare_exchange_strong(none, path)) slot_ = i;
  if (slot_ < 0) throw std::logic_error("too many files are being written at once");
}

AtomicFile::~AtomicFile() {
  if (gzip_) close_gzip();
  if (file_) std::fclose(file_);
  remove_temporary();
}

void AtomicFile::fail() const {
  cannot_write(path_);
}

void AtomicFile::remove_temporary() {
  if (slot_ < 0) return;
  unlink(temporaries[slot_]);  // fails, as it should, after a rename
  std::free(temporaries[slot_].exchange(nullptr));
  slot_ = -1;
}

void AtomicFile::write(const void* data, size_t bytes) {
  if (!file_) throw std::logic_error("written after finish(): " + path_);
  if (std::fwrite(data, 1, bytes, gzip_ ? gzip_ : file_) != bytes) fail();
}

void AtomicFile::compress() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &on_broken_pipe_);  // where gzip cannot write, this program says so
  // A child's standard output is what this one's is when it starts.
  std::fflush(stdout);
  const int out = dup(STDOUT_FILENO);
  dup2(fileno(file_), STDOUT_FILENO);
  gzip_ = popen("exec gzip -n", "w");
  dup2(out, STDOUT_FILENO);
  close(out);
  if (!gzip_) fail();
}

int AtomicFile::close_gzip() {
  const int status = pclose(std::exchange(gzip_, nullptr));
  sigaction(SIGPIPE, &on_broken_pipe_, nullptr);
  return status;
}

void AtomicFile::finish() {
  if (!file_) return;
  if (gzip_ && close_gzip() != 0) errno = EIO, fail();
  if (std::fflush(file_) != 0) fail();
  // Without fsync a full disk may show only after the rename. Pipes and devices cannot sync.
  if (slot_ >= 0 && fsync(fileno(file_)) != 0) fail();
  std::FILE* file = file_;
  file_ = nullptr;
  if (std::fclose(file) != 0) fail();
}

void AtomicFile::commit() {
  finish();
  if (slot_ < 0) return;
  if (std::rename(temporaries[slot_], target_.c_str()) != 0) fail();
  remove_temporary();
}

void make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0) return;
  const int error = errno;
  struct stat status = {};
  if (error == EEXIST && stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return;
    throw Error(Exit::bad_usage,
                fmt::format("'{}' is a file, not a folder; choose another place", path));
  }
  throw Error(Exit::bad_usage, fmt::format("cannot create the folder '{}': {}; choose a place that "
                                           "exists and can be written",
                                           path, std::strerror(error)));
}

}  // namespace ladder
