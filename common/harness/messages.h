// Prints a program's results on stdout and everything else on stderr, and raises usage errors.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "rung.h"

namespace ladder {

/// Throws Error(bad_usage) with this message, which names the bad value and a remedy.
template <class... Parts>
[[noreturn]] void bad_usage(fmt::format_string<Parts...> message, Parts&&... parts) {
  throw Error(Exit::bad_usage, fmt::format(message, std::forward<Parts>(parts)...));
}

/// Prints `text` to stdout and flushes it. Throws Error(bad_usage) if stdout cannot be written to.
inline void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    bad_usage("cannot write to stdout: {}", std::strerror(errno));
}
/// Prints `line` and a newline to stderr. Ignores errors, because nowhere is left to report them.
inline void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
}

/// Names the running task on stderr, if that is a terminal, while the object exists.
class Progress {
 public:
  explicit Progress(const std::string& task) {
    if (shown_) fmt::print(stderr, "{} …\r", task);
  }
  ~Progress() {
    if (shown_) fmt::print(stderr, "\033[K");
  }

 private:
  const bool shown_ = isatty(STDERR_FILENO);
};

}  // namespace ladder
