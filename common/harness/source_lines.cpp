#include "harness/source_lines.h"

#include <fmt/format.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>

namespace ladder {
namespace {

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

bool in_a_rung(const std::string& file) {
  return !file.empty() && file[0] != '?' && file.find("/common/") == std::string::npos &&
         file.rfind("/usr/", 0) != 0;
}

/// Address → its line in a rung, or nothing.
std::map<uintptr_t, std::string> ask(const std::vector<uintptr_t>& addresses) {
  std::array<char, 4096> buffer;
  const ssize_t length = readlink("/proc/self/exe", buffer.data(), buffer.size() - 1);
  if (length < 0) return {};
  std::string program(buffer.data(), static_cast<size_t>(length));
  for (size_t at = 0; (at = program.find('\'', at)) != std::string::npos; at += 4)
    program.replace(at, 1, "'\\''");
  std::string command = fmt::format("addr2line -a -i -e '{}'", program);
  for (const uintptr_t address : addresses) command += fmt::format(" {:#x}", address);
  command += " 2>/dev/null";
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (!pipe) return {};
  std::map<uintptr_t, std::string> found;
  std::string* line = nullptr;
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe)) {
    std::string text = buffer.data();
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    if (text.rfind("0x", 0) == 0) {
      line = &found[std::stoull(text, nullptr, 16)];
    } else if (line && line->empty()) {
      const size_t note = text.find(" (discriminator");
      if (note != std::string::npos) text.resize(note);
      if (in_a_rung(text) && text.back() != '?') *line = text;
    }
  }
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return {};
  return found;
}

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
               "the trace has no source lines: they need addr2line (package binutils) and a "
               "program with line tables\n");
  std::vector<std::string> found;
  for (const auto& chain : chains) {
    std::string& line = found.emplace_back();
    for (const uintptr_t address : chain)
      if (line.empty()) line = lines[address - base];
  }
  return found;
}

}  // namespace ladder
