#include "harness/messages.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "parallel.h"

namespace ladder {

void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    bad_usage("cannot write to stdout: {}", std::strerror(errno));
}

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
}

Progress::Progress(const std::string& task) {
  if (host_cores() == 1) return;  // such a program has one thread, for debuggers and qemu
  shown_ = std::async(kThread, [task, over = over_.get_future()] {
    if (over.wait_for(std::chrono::seconds(2)) == std::future_status::timeout) say(task + " …");
  });
}

}  // namespace ladder
