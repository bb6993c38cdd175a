#include "harness/source_lines.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#ifdef __APPLE__
#include <dlfcn.h>
#else
#include <link.h>
#endif

namespace ladder {
namespace {

bool in_a_rung(const std::string& file) {
  return !file.empty() && file[0] != '?' && file.find("/common/") == std::string::npos &&
         file.rfind("/usr/", 0) != 0;
}

/// The name quoted for a shell.
std::string quoted(std::string name) {
  for (size_t at = 0; (at = name.find('\'', at)) != std::string::npos; at += 4)
    name.replace(at, 1, "'\\''");
  return "'" + name + "'";
}

/// The lines that the command prints, trailing spaces apart; none where it fails.
std::vector<std::string> run(const std::string& command) {
  std::FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (!pipe) return {};
  std::vector<std::string> lines(1);
  for (int c; (c = std::fgetc(pipe)) != EOF;) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += static_cast<char>(c);
  }
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return {};
  for (std::string& line : lines) line.resize(line.find_last_not_of(' ') + 1);
  return lines;
}

#ifdef __APPLE__

constexpr const char* kTool = "atos (of Xcode's command line tools)";

uintptr_t load_address() {
  return 0;  // atos subtracts it
}

/// Address → its line in a rung, or nothing.
std::map<uintptr_t, std::string> ask(const std::vector<uintptr_t>& addresses) {
  Dl_info program;
  if (!dladdr(reinterpret_cast<const void*>(&quoted), &program)) return {};
  std::string command =
      fmt::format("atos -i -fullPath -d '\t' -o {} -l {:#x}", quoted(program.dli_fname),
                  reinterpret_cast<uintptr_t>(program.dli_fbase));
  for (const uintptr_t address : addresses) command += fmt::format(" {:#x}", address);
  // A line for each address: "function (in program) (file:line)", and after a tab what it is
  // inlined in.
  std::vector<std::string> lines = run(command);
  std::erase(lines, "");
  if (lines.size() != addresses.size()) return {};
  std::map<uintptr_t, std::string> found;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string& line = found[addresses[i]];
    for (size_t begin = 0, end; line.empty() && begin < lines[i].size(); begin = end + 1) {
      end = std::min(lines[i].find('\t', begin), lines[i].size());
      const std::string frame = lines[i].substr(begin, end - begin);
      const size_t place = frame.rfind(" (/");
      if (place == std::string::npos || frame.back() != ')') continue;
      const std::string text = frame.substr(place + 2, frame.size() - place - 3);
      if (in_a_rung(text)) line = text;
    }
  }
  return found;
}

#else

constexpr const char* kTool = "addr2line (package binutils)";

/// Where the program was loaded: what addresses in its file have to be added to.
uintptr_t load_address() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        *static_cast<uintptr_t*>(found) = info->dlpi_addr;
        return 1;  // the program itself comes first
      },
      &address);
  return address;
}

/// Address → its line in a rung, or nothing.
std::map<uintptr_t, std::string> ask(const std::vector<uintptr_t>& addresses) {
  std::array<char, 4096> program;
  const ssize_t length = readlink("/proc/self/exe", program.data(), program.size());
  if (length < 0) return {};
  std::string command =
      fmt::format("addr2line -a -i -e {}", quoted({program.data(), static_cast<size_t>(length)}));
  for (const uintptr_t address : addresses) command += fmt::format(" {:#x}", address);
  std::map<uintptr_t, std::string> found;
  std::string* line = nullptr;
  for (std::string& text : run(command)) {
    if (text.rfind("0x", 0) == 0) {
      line = &found[std::stoull(text, nullptr, 16)];
    } else if (line && line->empty()) {
      const size_t note = text.find(" (discriminator");
      if (note != std::string::npos) text.resize(note);
      if (in_a_rung(text) && text.back() != '?') *line = text;
    }
  }
  return found;
}

#endif

}  // namespace

std::vector<std::string> source_lines(const std::vector<std::vector<uintptr_t>>& chains) {
  const uintptr_t base = load_address();
  std::map<uintptr_t, std::string> lines;
  for (const auto& chain : chains)
    for (const uintptr_t address : chain) lines[address - base];
  std::vector<uintptr_t> addresses;
  for (const auto& [address, line] : lines) addresses.push_back(address);
  constexpr size_t kAtOnce = 2000;  // as many as a command line surely takes
  bool missing = false;
  for (size_t i = 0; i < addresses.size(); i += kAtOnce) {
    const auto some =
        ask({addresses.begin() + static_cast<ptrdiff_t>(i),
             addresses.begin() + static_cast<ptrdiff_t>(std::min(i + kAtOnce, addresses.size()))});
    missing |= some.empty();
    for (const auto& [address, line] : some) lines[address] = line;
  }
  if (missing)
    fmt::print(stderr,
               "the trace has no source lines: they need {} and a program with line tables\n",
               kTool);
  std::vector<std::string> found;
  for (const auto& chain : chains) {
    std::string& line = found.emplace_back();
    for (const uintptr_t address : chain)
      if (line.empty()) line = lines[address - base];
  }
  return found;
}

}  // namespace ladder
