// Checks accesses to global memory for races between blocks, and counts their bytes and sectors.
#include "machine/sim/global_memory.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

namespace ladder::sim {

namespace {

/// Returns the number of 32-byte sectors that the accesses of a warp's n lanes touch, and removes
/// their runs. The k-th accesses of all lanes form one access of the warp, in which a sector counts
/// once. lanes[i] holds lane i's runs in reverse order.
int64_t take_sectors(AccessRuns* lanes, int n) {
  constexpr int64_t kSector = 32;
  for (int64_t sum = 0;;) {
    // If all lanes continue with the same stride, take as many accesses as the shortest run has
    // left; otherwise take one. The number of sectors is periodic: after `period` accesses, all
    // addresses have moved by whole sectors.
    int64_t at[32], stride = 0, length = INT64_MAX;
    int active = 0;
    bool alike = true;
    for (int i = 0; i < n; ++i) {
      if (lanes[i].empty()) continue;
      const AccessRun& run = lanes[i].back();
      alike &= active == 0 || run.stride == stride;
      stride = run.stride;
      length = std::min(length, run.count);
      at[active++] = run.begin;
    }
    if (!active) return sum;
    if (!alike) length = 1;
    if (!std::is_sorted(at, at + active)) std::sort(at, at + active);
    const int64_t period = std::min(length, kSector / std::gcd(kSector, stride));
    for (int64_t k = 0; k < period; ++k) {
      int64_t sectors = 1;
      for (int i = 1; i < active; ++i)
        sectors += (at[i] + k * stride) / kSector != (at[i - 1] + k * stride) / kSector;
      sum += sectors * ((length - k + period - 1) / period);
    }
    for (int i = 0; i < n; ++i) {
      if (lanes[i].empty()) continue;
      AccessRun& run = lanes[i].back();
      run.begin += length * run.stride;
      if ((run.count -= length) == 0) lanes[i].pop_back();
    }
  }
}

/// All arrays, keyed by Array::data, the address that host code gets.
std::map<char*, const TrackedArray*> arrays_by_address;

/// Handles SIGSEGV and SIGBUS. If code touched an array's `data`, ends the program with a message;
/// otherwise returns, so that the access faults again, with the default action (SA_RESETHAND).
void end_of_touching(int, siginfo_t* signal, void*) {
  char* const at = static_cast<char*>(signal->si_addr);
  auto found = arrays_by_address.upper_bound(at);
  if (found == arrays_by_address.begin() || at - (--found)->first > found->second->bytes) return;
  const std::string message = fmt::format(
      "{} is in HBM: host code cannot touch it, and a kernel only through Hbm, which counts the "
      "access.\n",
      found->second->name);
  static_cast<void>(!write(STDERR_FILENO, message.data(), message.size()));
  _exit(static_cast<int>(Exit::wrong_result));
}

}  // namespace

TrackedArray::TrackedArray(const std::string& array_name, int64_t size, int workers) try
    : addresses_(map_zeros(size + 1, PROT_NONE)),  // + 1, because a mapping must not be empty
      contents_(map_zeros(size + 1)),
      shadow_memory_(map_zeros(size + 1)),  // + 1, because bytes are read in pairs
      first_memory_(map_zeros(2 * (size + 1))),
      runs_(map_zeros(int64_t{2} * kMaxThreads * workers * int64_t{sizeof(AccessRun)})),
      shadow_(static_cast<uint8_t*>(shadow_memory_.get())),
      first_(static_cast<uint32_t*>(first_memory_.get())),
      counts_(workers) {
  name = array_name;
  bytes = size;
  data = addresses_.get();
  std::memset(contents(), 0xff, size);  // NaN in every float type
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = end_of_touching;
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    return sigaction(SIGSEGV, &action, nullptr) == 0 && sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  static_cast<void>(installed);
  arrays_by_address[static_cast<char*>(data)] = this;
} catch (const std::bad_alloc&) {
  throw Error(Exit::no_device,
              fmt::format("out of host memory: {} bytes for {} and its tracking; use smaller sizes",
                          kBytesForEach * size, array_name));
}

TrackedArray::~TrackedArray() {
  arrays_by_address.erase(static_cast<char*>(data));
}

void TrackedArray::check_slow(Block& block, Access access, int64_t at, int n, int element) {
  constexpr const char* kWhat[] = {"read of", "write to", "atomic addition to"};
  constexpr const char* kDoes[] = {"reads", "writes", "adds atomically to"};
  constexpr const char* kDid[] = {"read", "wrote", "added to atomically"};
  const auto i = static_cast<int>(access);
  const auto place = [&] {
    return fmt::format("{}[{}] (element of {} bytes; the array has {})", name,
                       at >= 0 ? at / element : -((-at + element - 1) / element), element,
                       bytes / element);
  };
  if (at < 0 || at + n > bytes) fault("{} {}", kWhat[i], place());
  for (int64_t b = at; b < at + n; ++b) {
    const unsigned seen = __atomic_load_n(&shadow_[b], __ATOMIC_RELAXED);
    if (access != Access::write && !(seen & kWritten)) fault("read of unwritten {}", place());
    const bool written = seen & kWrittenBefore, read = seen & kReadBefore;
    if (block.early() && (written || (read && access != Access::read)))
      fault(
          "{} {}, which the previous kernel may still {}: this kernel starts early, and this "
          "thread has not called wait_for_kernel_before()",
          kDoes[i], place(), written ? "write" : "read");
  }
  // A block first marks its access, then claims the bytes unless another block already has. Of two
  // blocks with conflicting accesses, the later one therefore always finds the earlier one's mark.
  const uint16_t here = n > 1 ? 0xffff : at % 2 ? 0xff00 : 0xff;
  for (int64_t two = at / 2; 2 * two < at + n; ++two) {
    auto* const shadow = reinterpret_cast<uint16_t*>(shadow_) + two;
    const auto mark = [&](unsigned bits) {
      return __atomic_fetch_or(shadow, repeat<2>(bits) & here, __ATOMIC_ACQ_REL) & here;
    };
    unsigned seen = mark(kWritten | mark_of(access));
    uint32_t first = 0;
    const bool alone = __atomic_compare_exchange_n(&first_[two], &first, block.number(), false,
                                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
                       first == block.number();
    if (!alone) seen = mark(kShared);
    if (alone && !(seen & repeat<2>(kShared))) continue;
    for (const Access did : {Access::read, Access::add, Access::write})
      if (seen & repeat<2>(mark_of(did)) && (did != access || access == Access::write))
        fault("{} {}, which {} {} in the same kernel: blocks run in no defined order", kDoes[i],
              place(), alone ? "another block" : "block " + block.index_of(first),
              kDid[static_cast<int>(did)]);
  }
}

void TrackedArray::start_run(Block& block, bool writes, int64_t place) {
  Counted& counted = counts_[block.worker()][writes];
  if (counted.before.empty()) counted.before.resize(kMaxThreads);
  AccessRun& run = run_of(block, writes);
  if (run.count && !run.stride && place == run.begin) {  // the same place again
    ++run.count;
  } else if (run.count == 1 && !run.stride &&
             place >> AccessRun::kWidth ==
                 run.begin >> AccessRun::kWidth) {  // the run's second access sets its stride
    run.stride = place - run.begin;
    run.next = place + run.stride;
  } else {
    if (run.count)
      counted.before[block.running()].push_back(run);
    else
      block.touches(*this);
    run = {place, 0, 0, 1};
  }
}

void TrackedArray::count_recorded(Block& block, int warp) {
  const int first = 32 * warp, lanes = std::min(32, block.threads() - first);
  for (const bool writes : {false, true}) {
    Counted& counted = counts_[block.worker()][writes];
    if (counted.before.empty()) continue;
    int64_t sum = 0;
    for (int t = first; t < first + lanes; ++t) {
      AccessRun& now = (&run_of(block, writes))[t - block.running()];
      if (!now.count) continue;
      AccessRuns& runs = counted.before[t];
      runs.push_back(std::exchange(now, {}));
      std::reverse(runs.begin(), runs.end());  // take_sectors() takes them from the back
      for (AccessRun& run : runs) {            // `begin` holds width and offset; keep the offset
        if (run.stride) run.count = (run.next - run.begin) / run.stride;
        sum += run.count * (run.begin >> AccessRun::kWidth);
        run.begin &= (int64_t{1} << AccessRun::kWidth) - 1;
      }
    }
    count(block, writes, sum, take_sectors(&counted.before[first], lanes));
  }
}

void TrackedArray::count(Block& block, bool writes, int64_t n, int64_t sectors) {
  Counted& counted = counts_[block.worker()][writes];
  counted.bytes += n;
  counted.sectors += sectors;
  (writes ? block.counts.write_sectors : block.counts.read_sectors) += sectors;
}

void TrackedArray::mark_written() {
  std::memset(shadow_, kWritten, bytes);
}

HbmCounts TrackedArray::take_kernel_counts() {
  HbmCounts sum;
  for (auto& [reads, writes] : counts_) {
    sum.requested += {std::exchange(reads.bytes, 0), std::exchange(writes.bytes, 0)};
    sum.sectors += {std::exchange(reads.sectors, 0), std::exchange(writes.sectors, 0)};
  }
  if (sum.requested == ReadWrite{}) return sum;
  touched_ = true;
  for (int64_t i = 0; i < bytes; ++i) {
    sum.distinct.read += (shadow_[i] & (kReadHere | kAddedHere)) != 0;
    sum.distinct.write += (shadow_[i] & (kWrittenHere | kAddedHere)) != 0;
  }
  return sum;
}

void TrackedArray::start_kernel(bool early) {
  if (!touched_) return;
  touched_ = early;  // what an early kernel's predecessor touched matters to the next one, too
  for (int64_t i = 0; i < bytes; ++i) {
    const bool read = shadow_[i] & (kReadHere | kReadBefore);
    const bool written = shadow_[i] & (kWrittenHere | kAddedHere | kWrittenBefore);
    shadow_[i] =
        (shadow_[i] & kWritten) | (early ? read * kReadBefore | written * kWrittenBefore : 0);
  }
  std::memset(first_, 0, 2 * bytes + 2);
}

}  // namespace ladder::sim
