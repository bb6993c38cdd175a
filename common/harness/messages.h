// What a program says: on stdout its results, on stderr all else.
#pragma once

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <iterator>
#include <string>
#include <string_view>

#include "parallel.h"
#include "rung.h"

namespace ladder {

/// Throws Error(bad_usage) with this message.
template <class... Parts>
[[noreturn]] void bad_usage(fmt::format_string<Parts...> message, Parts&&... parts) {
  throw Error(Exit::bad_usage, fmt::format(message, std::forward<Parts>(parts)...));
}

/// "did you mean NAME? " of the first name that differs from the given one in no more than two
/// letters next to each other, more or fewer among them; else "". name_of: of an element its name.
std::string did_you_mean(std::string_view given, const auto& all, auto name_of) {
  for (const auto& each : all) {
    const std::string name{std::invoke(name_of, each)};
    const auto [a, b] = std::ranges::mismatch(given, name);
    const auto [c, d] = std::mismatch(given.rbegin(), std::reverse_iterator(a), name.rbegin(),
                                      std::reverse_iterator(b));
    if (std::max(c.base() - a, d.base() - b) <= 2 && name != given)
      return fmt::format("did you mean {}? ", name);
  }
  return "";
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
