// Files that are written whole or not at all, also when the disk is full.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "rung.h"

namespace ladder {

/// A file that appears under its name only when it is complete: the bytes go to a temporary file in
/// the same folder, which commit() renames and, unless committed, the destructor removes. A name
/// that exists and is no regular file (/dev/null, a pipe) cannot be replaced by renaming, so it is
/// written in place. Each function throws Error(bad_usage) where it cannot write.
///
/// To write several files all or none: finish() each of them, then commit() each of them.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends bytes.
  void write(const void* data, size_t bytes);
  void write(const std::string& text) { write(text.data(), text.size()); }

  /// Brings every byte to the disk and closes the temporary file; nothing can be written after.
  void finish();

  /// finish(), then gives the file its name, replacing one of that name.
  void commit();

 private:
  Error error() const;  // by errno

  std::string path_, temporary_;  // no temporary name: written in place
  std::FILE* file_ = nullptr;
};

/// Throws Error(bad_usage) where a file cannot be written, so that this is found out before a long
/// run. Nothing of the try is left. (A pipe is not tried: its reader would take that for the end.)
void require_writable(const std::string& path);

/// Creates a folder where there is none; its parent must exist. Throws Error(bad_usage) when that
/// fails or when the name is taken by something else.
void make_folder(const std::string& path);

}  // namespace ladder
