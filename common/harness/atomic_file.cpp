// Writes a file under a temporary name and renames it, so that it never appears partly written.
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

/// Writes the file. If not `keep`, removes the temporary file instead of renaming it.
void write(const std::string& path, const std::string& bytes, bool keep) {
  std::error_code ignored;
  const bool in_place =
      std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
  const std::string temporary = in_place ? path : fmt::format("{}.{}.tmp", path, getpid());
  // With this signal ignored, a write beyond `ulimit -f` fails with EFBIG, which is reported.
  std::signal(SIGXFSZ, SIG_IGN);
  std::ofstream file(temporary, std::ios::binary);  // fails if the path is a folder
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  const bool good = file && (in_place || !keep || !std::rename(temporary.c_str(), path.c_str()));
  const int error = errno;
  if (!in_place) unlink(temporary.c_str());  // does nothing if it has been renamed
  if (!good)
    bad_usage("cannot write '{}': {}; make room or choose another place", path,
              std::strerror(error));
}

}  // namespace

void write_file(const std::string& path, const std::string& bytes) {
  write(path, bytes, true);
}

void require_writable(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_other(path, ignored)) write(path, "", false);
}

}  // namespace ladder
