// Files that are written whole or not at all, also when the disk is full.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ladder {

/// Writes files, each a path and its bytes, all or none: they go to temporary files in the same
/// folders, which take their names, replacing what has them, once all are complete. A name of what
/// is no regular file (/dev/null, a pipe) cannot be replaced, so that is written in place. Throws
/// Error(bad_usage) where one cannot be written.
void write_files(const std::vector<std::pair<std::string, std::string>>& files);

/// Throws Error(bad_usage) where a file cannot be written, so that this is found out before a long
/// run. Nothing of the try is left. (A pipe is not tried: its reader would take that for the end.)
void require_writable(const std::string& path);

/// Creates a folder where there is none; its parent must exist. Throws Error(bad_usage) when that
/// fails or when the name is taken by something else.
void make_folder(const std::string& path);

}  // namespace ladder
