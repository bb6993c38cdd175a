// Which GPUs a program's code runs on. Kept apart from the GPU, so that it can be tested without
// one.
#pragma once

#include <sstream>
#include <string>

namespace ladder::gpu {

/// What a program was built for, "8.6", where it has no code for a GPU of that compute capability
/// (90 for 9.0); else nothing. Architectures as CMake lists them, "80 90a-real": 80 has PTX, which
/// any newer GPU compiles; 86-real is for 8.6 and newer ones of 8.x, and 90a for 9.0 alone.
inline std::string built_for_others(const std::string& architectures, int capability) {
  std::string others;
  std::istringstream all(architectures);
  for (int least; all >> least;) {
    std::string kind;
    std::getline(all, kind, ' ');
    const bool has_ptx = kind.empty() || kind == "-virtual", exact = kind.starts_with('a');
    if (capability == least ||
        (capability > least && !exact && (has_ptx || capability / 10 == least / 10)))
      return "";
    others += (others.empty() ? "" : ", ") + std::to_string(least / 10) + "." +
              std::to_string(least % 10);
  }
  return others;
}

}  // namespace ladder::gpu
