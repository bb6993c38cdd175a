// How many threads are of use on the host.
#pragma once

#include <algorithm>
#include <thread>
#ifdef __linux__
#include <sched.h>
#endif

namespace ladder {

/// The cores that this process may run on, which can be fewer than the machine has (taskset).
inline int host_cores() {
#ifdef __linux__
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof(mine), &mine) == 0) return CPU_COUNT(&mine);
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace ladder
