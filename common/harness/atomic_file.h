// Files that are written whole or not at all, also when the disk is full.
#pragma once

#include <string>

namespace ladder {

/// Writes a file whole or not at all: as a temporary file in the same folder, which takes the name
/// once it is complete, replacing what has that. A name of what is no regular file (/dev/null, a
/// pipe) cannot be replaced, so that is written in place. Throws Error(bad_usage) where it fails.
void write_file(const std::string& path, const std::string& bytes);

/// Throws Error(bad_usage) where a file cannot be written, so that this is found out before a long
/// run. Nothing of the try is left. (A pipe is not tried: its reader would take that for the end.)
void require_writable(const std::string& path);

}  // namespace ladder
