#include "harness/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "host_cores.h"

namespace ladder {

Progress::Progress(const std::string& step) {
  if (host_cores() == 1) return;  // a program with one core has one thread, for debuggers and qemu
  thread_ = std::thread([this, step] {
    const bool terminal = isatty(STDERR_FILENO);
    std::unique_lock lock(mutex_);
    int seconds = 2;
    bool shown = false;
    for (auto next = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
         !ended_.wait_until(lock, next, [&] { return over_; });
         ++seconds, next += std::chrono::seconds(1)) {
      if (terminal)
        fmt::print(stderr, "\r{} … {} s\033[K", step, seconds);
      else if (!shown)
        fmt::print(stderr, "{} …\n", step);
      std::fflush(stderr);
      shown = true;
    }
    if (shown && terminal) fmt::print(stderr, "\r\033[K");
  });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace ladder
