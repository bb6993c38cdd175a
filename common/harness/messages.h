// What a program says: on stdout its results, on stderr all else.
#pragma once

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <string>

#include "parallel.h"
#include "rung.h"

namespace ladder {

/// Throws Error(bad_usage) with this message.
template <class... Parts>
[[noreturn]] void bad_usage(fmt::format_string<Parts...> message, Parts&&... parts) {
  throw Error(Exit::bad_usage, fmt::format(message, std::forward<Parts>(parts)...));
}

/// Prints to stdout. Throws Error(bad_usage) where that cannot be written to.
inline void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    bad_usage("cannot write to stdout: {}", std::strerror(errno));
}
/// Prints a line to stderr. Where that is closed or full there is nobody to tell.
inline void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
}

/// Says on stderr what a long task is at, once it has taken two seconds; on a terminal for how
/// long, in a line that goes away with it. Lives as long as the task.
class Progress {
 public:
  explicit Progress(const std::string& task) {
    constexpr auto kTimeout = std::future_status::timeout;
    if (host_cores() == 1) return;  // such a program has one thread, for debuggers and qemu
    shown_ = std::async(kThread, [task, over = over_.get_future()] {
      const auto begin = std::chrono::steady_clock::now();
      const bool terminal = isatty(STDERR_FILENO);
      for (int s = 2; over.wait_until(begin + std::chrono::seconds(s)) == kTimeout; ++s)
        if (terminal || s == 2)
          fmt::print(stderr, "{} …{}", task, terminal ? fmt::format(" {} s\r", s) : "\n");
      if (terminal) fmt::print(stderr, "\033[K");
    });
  }
  ~Progress() { over_.set_value(); }

 private:
  std::promise<void> over_;
  std::future<void> shown_;  // waits for its thread when it is destroyed
};

}  // namespace ladder
