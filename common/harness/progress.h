// Says on stderr what a long step is at, once it has taken two seconds.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace ladder {

/// Lives as long as the step. On a terminal the seconds count up in place and the line goes away
/// at the end; elsewhere it is one line.
class Progress {
 public:
  explicit Progress(const std::string& step);
  ~Progress();
  Progress(const Progress&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace ladder
