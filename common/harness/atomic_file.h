// Writes a file of --save or --trace completely or not at all, even if the disk is full.
#pragma once

#include <string>

namespace ladder {

/// Writes `bytes` to a temporary file in the same folder and renames it to `path` once it is
/// complete, replacing any file of that name. A path that is not a regular file (/dev/null, a pipe)
/// cannot be replaced, so it is written in place. Throws Error(bad_usage) on failure.
void write_file(const std::string& path, const std::string& bytes);

/// Throws Error(bad_usage) if `path` cannot be written, so that a long run does not fail only at
/// its end. Tries to write next to `path`, and leaves nothing behind. (A pipe is not tried, because
/// its reader would take the attempt for the end of the data.)
void require_writable(const std::string& path);

}  // namespace ladder
