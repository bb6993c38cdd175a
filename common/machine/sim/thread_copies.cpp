#include "machine/sim/thread_copies.h"

#include <fmt/format.h>

#include "machine/sim/fault.h"

namespace ladder::sim {

void ThreadCopies::start_block(int threads) {
  threads_.resize(static_cast<size_t>(threads));
  for (OfThread& thread : threads_) {
    thread.copies.clear();
    thread.group = 0;
  }
}

void ThreadCopies::start(const SharedPlace& target, const char* source, int bytes, int element) {
  memory_.check_inside("asynchronous copy to", target, bytes, element);
  if (target.at % bytes != 0 || reinterpret_cast<uintptr_t>(source) % unsigned(bytes) != 0)
    fault(fmt::format("asynchronous copy to {} not aligned to {} bytes", target.name, bytes));
  memory_.begin_copy(target, bytes, element, block_.running());
  block_.counts.sram_write += bytes;
  mine().copies.push_back({target.at, source, bytes, mine().group});
  if (Recorder* const r = block_.recorder()) [[unlikely]]
    r->copy(target, bytes, !source);
}

void ThreadCopies::commit() {
  block_.trace_event_of_warp("cp_async_commit", "", mine().group);
  ++mine().group;
}

void ThreadCopies::wait(int groups_left) {
  const int ended = mine().group - groups_left;  // groups below this number
  block_.trace_event_of_warp("cp_async_wait", "", ended);
  std::vector<Copy>& copies = mine().copies;
  size_t kept = 0;
  for (const Copy& copy : copies) {
    if (copy.group >= ended)
      copies[kept++] = copy;
    else
      memory_.end_copy(copy.target, copy.source, copy.bytes, block_.running());
  }
  copies.resize(kept);
}

void ThreadCopies::end_thread() {
  if (!mine().copies.empty()) fault("ends with an asynchronous copy that was never waited for");
}

}  // namespace ladder::sim
