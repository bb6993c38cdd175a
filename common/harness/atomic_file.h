// Writes files whole or not at all, even when the disk is full.
#pragma once

#include <string>

namespace ladder {

/// Writes `bytes` to a temporary file in the same folder, and renames it to `path` once it is
/// complete; a file of that name is replaced. Something that is not a regular file (/dev/null, a
/// pipe) cannot be replaced, so it is written in place. Throws Error(bad_usage) if that fails.
void write_file(const std::string& path, const std::string& bytes);

/// Throws Error(bad_usage) if a file cannot be written, so that a long run does not fail at its
/// end. The attempt leaves nothing behind. (A pipe is not tried, because its reader would take the
/// attempt for the end of the data.)
void require_writable(const std::string& path);

}  // namespace ladder
