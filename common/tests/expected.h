// Compares complete texts with a file next to the test, so that each change of a text shows in git.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace ladder {

/// Expects `text` in the file between the first `begin` and the next `end`. If scripts/test
/// --write-expected has set LADDER_WRITE_EXPECTED, writes the text there instead.
inline void expect_in_file(const std::filesystem::path& path, const std::string& begin,
                           const std::string& text, const std::string& end) {
  std::ifstream file(path);
  std::string all{std::istreambuf_iterator<char>(file), {}};
  const size_t at = all.find(begin), from = at + begin.size(), to = all.find(end, from);
  const bool there = at != all.npos && to != all.npos;
  if (std::getenv("LADDER_WRITE_EXPECTED")) {
    all = there ? all.replace(from, to - from, text) : all + begin + text + end;
    std::ofstream(path) << all;
  } else {
    EXPECT_EQ(there ? all.substr(from, to - from) : "", text)
        << path.filename() << ", " << begin << "(scripts/test --write-expected writes it anew)";
  }
}

/// Expects `text` as the code block under the heading `name` of a Markdown file.
inline void expect_written(const std::filesystem::path& path, const std::string& name,
                           const std::string& text) {
  expect_in_file(path, "\n## " + name + "\n\n```\n", text, "\n```\n");
}

}  // namespace ladder
