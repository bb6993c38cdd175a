#include "harness/source_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>

#ifdef __APPLE__
#include <dlfcn.h>
#else
#include <link.h>
#endif

namespace ladder {
namespace {

bool in_a_rung(const std::string& line) {
  return !line.starts_with('?') && !line.ends_with('?') && !line.starts_with("/usr/") &&
         line.find("/common/") == line.npos;
}

/// The name quoted for a shell.
std::string quoted(std::string name) {
  for (size_t at = 0; (at = name.find('\'', at)) != std::string::npos; at += 4)
    name.replace(at, 1, "'\\''");
  return "'" + name + "'";
}

/// What the command prints with the addresses as arguments; nothing where it fails.
std::istringstream run(std::string command, const std::vector<uintptr_t>& addresses) {
  for (const uintptr_t address : addresses) command += fmt::format(" {:#x}", address);
  std::string text;
  std::FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
  for (int c; pipe && (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  const bool good = pipe && pclose(pipe) == 0;
  return std::istringstream(good ? text : "");
}

/// Address → its line in a rung, or nothing.
using Lines = std::map<uintptr_t, std::string>;

#ifdef __APPLE__

constexpr const char* kTool = "atos (of Xcode's command line tools)";

uintptr_t load_address() {
  return 0;  // atos subtracts it
}

Lines ask(const std::vector<uintptr_t>& addresses) {
  Dl_info program;
  if (!dladdr(reinterpret_cast<const void*>(&quoted), &program)) return {};
  // A line for each address: "function (in program) (file:line)", and after a tab what it is
  // inlined in.
  std::istringstream text =
      run(fmt::format("atos -i -fullPath -d '\t' -o {} -l {:#x}", quoted(program.dli_fname),
                      reinterpret_cast<uintptr_t>(program.dli_fbase)),
          addresses);
  Lines found;
  auto address = addresses.begin();
  for (std::string all; address != addresses.end() && std::getline(text, all);) {
    if (all.empty()) continue;
    std::string& line = found[*address++];
    std::istringstream frames(all);
    for (std::string frame; line.empty() && std::getline(frames, frame, '\t');) {
      const size_t place = frame.rfind(" (/"), end = frame.rfind(')');
      if (place == frame.npos || end == frame.npos || end < place) continue;
      frame = frame.substr(place + 2, end - place - 2);
      if (in_a_rung(frame)) line = frame;
    }
  }
  return found;
}

#else

constexpr const char* kTool = "addr2line (package binutils)";

/// Where the program was loaded: what addresses in its file have to be added to.
uintptr_t load_address() {
  uintptr_t address = 0;
  const auto first = [](dl_phdr_info* info, size_t, void* found) {
    *static_cast<uintptr_t*>(found) = info->dlpi_addr;
    return 1;  // the program itself comes first
  };
  dl_iterate_phdr(first, &address);
  return address;
}

Lines ask(const std::vector<uintptr_t>& addresses) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  std::istringstream text = run("addr2line -a -i -e " + quoted(program), addresses);
  Lines found;
  std::string* line = nullptr;
  for (std::string one; std::getline(text, one);) {
    one = one.substr(0, one.find(" (discriminator"));
    if (one.starts_with("0x"))
      line = &found[std::stoull(one, nullptr, 16)];
    else if (line && line->empty() && in_a_rung(one))
      *line = one;
  }
  return found;
}

#endif

}  // namespace

std::vector<std::string> source_lines(const std::vector<std::vector<uintptr_t>>& chains) {
  const uintptr_t base = load_address();
  Lines lines;
  for (const auto& chain : chains)
    for (const uintptr_t address : chain) lines[address - base];
  constexpr size_t kAtOnce = 2000;  // as many as a command line surely takes
  bool missing = false;
  for (auto at = lines.begin(); at != lines.end();) {
    std::vector<uintptr_t> some;
    for (; at != lines.end() && some.size() < kAtOnce; ++at) some.push_back(at->first);
    const Lines found = ask(some);
    missing |= found.empty();
    for (const auto& [address, line] : found) lines[address] = line;
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
