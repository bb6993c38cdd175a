// Files that are written whole or not at all, also when the program is interrupted or the disk is
// full.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <string>

namespace ladder {

/// A file that appears under its name only when it is complete: the bytes go to a temporary file in
/// the same folder, which commit() renames. Unless committed, the temporary file is removed by the
/// destructor, and by SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE before they end the program.
/// A name that exists and is no regular file (/dev/null, a pipe) cannot be replaced by renaming, so
/// it is written in place.
///
/// To write several files all or none: finish() each of them, then commit() each of them.
class AtomicFile {
 public:
  /// Throws Error(bad_usage) when the file cannot be created there.
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends bytes. Throws Error(bad_usage) when they cannot be written.
  void write(const void* data, size_t bytes);
  void write(const std::string& text) { write(text.data(), text.size()); }

  /// From now on what is written goes through gzip, the program.
  void compress();

  /// Brings every byte to the disk and closes the temporary file; nothing can be written after.
  /// Throws Error(bad_usage) when the disk is full.
  void finish();

  /// finish(), then gives the file its name, replacing one of that name.
  void commit();

 private:
  [[noreturn]] void fail() const;  // with errno
  void take_slot();
  void remove_temporary();
  int close_gzip();

  std::string path_;    // as given, for messages
  std::string target_;  // the same with symbolic links followed
  std::FILE* file_ = nullptr;
  std::FILE* gzip_ = nullptr;             // after compress(): a pipe to it
  struct sigaction on_broken_pipe_ = {};  // and what SIGPIPE did before
  int slot_ = -1;                         // of the table of temporary names; -1: written in place
};

/// Creates a folder where there is none; its parent must exist. Throws Error(bad_usage) when that
/// fails or when the name is taken by something else.
void make_folder(const std::string& path);

/// Removes every temporary file of this process. For code that ends the program without running
/// destructors (_exit, std::exit); async-signal-safe.
void remove_temporary_files() noexcept;

}  // namespace ladder
