// Says on stderr what a long step is at, once it has taken two seconds.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <string>

#include "host_cores.h"

namespace ladder {

/// Lives as long as the step. On a terminal the seconds count up in place and the line goes away
/// at the end; elsewhere it is one line.
class Progress {
 public:
  explicit Progress(const std::string& step) {
    if (host_cores() == 1) return;  // such a program has one thread, for debuggers and qemu
    shown_ = std::async(std::launch::async, [step, over = over_.get_future()] {
      const auto lasts = [&](int seconds) {
        return over.wait_for(std::chrono::seconds(seconds)) == std::future_status::timeout;
      };
      if (!lasts(2)) return;
      if (!isatty(STDERR_FILENO)) return fmt::print(stderr, "{} …\n", step);
      int seconds = 2;
      do fmt::print(stderr, "\r{} … {} s\033[K", step, seconds++);
      while (lasts(1));
      fmt::print(stderr, "\r\033[K");
    });
  }
  ~Progress() { over_.set_value(); }
  Progress(const Progress&) = delete;

 private:
  std::promise<void> over_;
  std::future<void> shown_;  // waits for its thread when it is destroyed
};

}  // namespace ladder
