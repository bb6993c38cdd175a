// A fault of a kernel: what the sim says where CUDA's rules are broken.
#pragma once

#include <string>

#include "rung.h"

namespace ladder::sim {

/// A kernel did what CUDA forbids. Says rung, kernel, block, thread, array and index.
struct Fault : Error {
  explicit Fault(const std::string& what) : Error(Exit::wrong_result, what) {}
};

/// Throws a Fault that says who and where; called on the fiber at fault.
[[noreturn]] void fault(const std::string& what);

}  // namespace ladder::sim
