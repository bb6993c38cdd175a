// What a program says: on stdout its results, on stderr all else.
#pragma once

#include <fmt/format.h>

#include <future>
#include <string>
#include <utility>

#include "machine/device.h"

namespace ladder {

/// Throws Error(bad_usage) with this message.
template <class... Parts>
[[noreturn]] void bad_usage(fmt::format_string<Parts...> message, Parts&&... parts) {
  throw Error(Exit::bad_usage, fmt::format(message, std::forward<Parts>(parts)...));
}

/// Prints to stdout. Throws Error(bad_usage) where that cannot be written to.
void print(const std::string& text);
/// Prints a line to stderr. Where that is closed or full there is nobody to tell.
void say(const std::string& line);

/// Says on stderr what a long task is at, once it has taken two seconds; lives as long as the task.
class Progress {
 public:
  explicit Progress(const std::string& task);
  ~Progress() { over_.set_value(); }

 private:
  std::promise<void> over_;
  std::future<void> shown_;  // waits for its thread when it is destroyed
};

}  // namespace ladder
