// Says on stderr what a long step is at, once it has taken two seconds.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <string>

#include "host_cores.h"

namespace ladder {

/// Lives as long as the step.
class Progress {
 public:
  explicit Progress(const std::string& step) {
    if (host_cores() == 1) return;  // such a program has one thread, for debuggers and qemu
    shown_ = std::async(std::launch::async, [step, over = over_.get_future()] {
      if (over.wait_for(std::chrono::seconds(2)) == std::future_status::timeout)
        fmt::print(stderr, "{} …\n", step);
    });
  }
  ~Progress() { over_.set_value(); }
  Progress(const Progress&) = delete;

 private:
  std::promise<void> over_;
  std::future<void> shown_;  // waits for its thread when it is destroyed
};

}  // namespace ladder
