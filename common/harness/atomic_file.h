// Writes a file of --save or --trace completely or not at all, even if the disk is full.
#pragma once

#include <string>

namespace ladder {

/// Writes `bytes` to a temporary file in the same folder, then renames it to `path`; writes in
/// place if that is not a regular file (/dev/null, a pipe). Throws Error(bad_usage) on failure.
void write_file(const std::string& path, const std::string& bytes);

/// Throws Error(bad_usage) if `path` cannot be written, so that a long run does not fail only at
/// its end. Leaves no file. A pipe is not tried, because its reader would see the end of the data.
void require_writable(const std::string& path);

}  // namespace ladder
