// Where in the source an address of this program lies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ladder {

/// For each chain of calls, given by addresses, the innermost first: "file:line" of the first that
/// stands in a rung, not in common/ or a library; empty where it is not known. Asks addr2line,
/// on macOS atos; where that is missing, says so on stderr, and all are empty.
std::vector<std::string> source_lines(const std::vector<std::vector<uintptr_t>>& chains);

}  // namespace ladder
