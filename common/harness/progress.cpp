#include "harness/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "host_cores.h"

namespace ladder {

struct Progress::Impl {
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  std::thread thread;
};

Progress::Progress(const std::string& step) : impl_(new Impl) {
  if (host_cores() == 1) return;  // a program with one core has one thread, for debuggers and qemu
  impl_->thread = std::thread([impl = impl_, step] {
    const auto begin = std::chrono::steady_clock::now();
    const bool terminal = isatty(STDERR_FILENO);
    std::unique_lock lock(impl->mutex);
    auto next = begin + std::chrono::seconds(2);
    bool shown = false;
    while (!impl->ended.wait_until(lock, next, [&] { return impl->over; })) {
      const auto passed = std::chrono::steady_clock::now() - begin;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(passed).count();
      if (terminal)
        fmt::print(stderr, "\r{} … {} s\033[K", step, seconds);
      else if (!shown)
        fmt::print(stderr, "{} …\n", step);
      std::fflush(stderr);
      shown = true;
      next += std::chrono::seconds(1);
    }
    if (shown && terminal) fmt::print(stderr, "\r\033[K");
  });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->over = true;
  }
  impl_->ended.notify_one();
  if (impl_->thread.joinable()) impl_->thread.join();
  delete impl_;
}

}  // namespace ladder
