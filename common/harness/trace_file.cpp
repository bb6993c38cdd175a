// Writes a trace as a file of JSON lines, and finds the source lines of the trace's sites.
#include "harness/trace_file.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#ifdef __APPLE__
#include <dlfcn.h>
#else
#include <link.h>
#endif

#include "harness/atomic_file.h"
#include "harness/json.h"
#include "harness/messages.h"

namespace ladder {
namespace {

/// Returns a file's name quoted for a shell: within single quotes, ' becomes '\''.
std::string quoted(std::string name) {
  for (size_t at = 0; (at = name.find('\'', at)) != std::string::npos; at += 4)
    name.replace(at, 1, "'\\''");
  return "'" + name + "'";
}

/// A tool that finds source lines. `command` takes addresses minus `base` as arguments. For each it
/// prints a line that begins with 0x, then one line per function inlined there, innermost first:
/// file:line, or text that does not begin with a slash.
struct Tool {
  std::string command;
  uintptr_t base = 0;  // the program's load address
};

#ifdef __APPLE__
constexpr const char* kTool = "atos (of Xcode's command line tools)";

Tool find_tool() {
  Dl_info program;
  if (!dladdr(reinterpret_cast<const void*>(&quoted), &program)) return {"false"};
  // atos prints "function (in program) (file:line)" and, after a tab, where that is inlined.
  return {
      fmt::format("atos -i -fullPath -d '\t' -o {} -l {:#x} | sed '/^$/d;s/^/0x\t/' | "
                  "tr '\t' '\n' | sed -n '/^0x$/p;s/.*(\\(\\/.*\\))$/\\1/p'",
                  quoted(program.dli_fname), reinterpret_cast<uintptr_t>(program.dli_fbase))};
}
#else
constexpr const char* kTool = "addr2line (package binutils)";

Tool find_tool() {
  Tool tool{"addr2line -a -i -e " + quoted(std::filesystem::read_symlink("/proc/self/exe"))};
  const auto first = [](dl_phdr_info* info, size_t, void* base) {
    *static_cast<uintptr_t*>(base) = info->dlpi_addr;
    return 1;  // stops at the first entry, which is the program
  };
  dl_iterate_phdr(first, &tool.base);
  return tool;
}
#endif

/// Returns one text per chain of call addresses (innermost first): "file:line" of the first call
/// that is in a rung's file rather than in common/ or a library, or "" if none is known. If the
/// tool is missing, prints a message to stderr and returns "" for all chains.
std::vector<std::string> source_lines(const std::vector<std::vector<uintptr_t>>& chains) {
  std::map<uintptr_t, std::string> lines;  // by address, in the order of the tool's output
  for (const auto& chain : chains)
    for (const uintptr_t address : chain) lines[address];
  const Tool tool = find_tool();
  std::FILE* const addresses = std::tmpfile();
  for (const auto& [address, line] : lines) fmt::print(addresses, "{:#x}\n", address - tool.base);
  std::rewind(addresses);  // also flushes
  // xargs splits the addresses, because one command line might not hold all of them.
  std::FILE* const pipe = popen(
      fmt::format("xargs </dev/fd/{} 2>/dev/null {}", fileno(addresses), tool.command).c_str(),
      "r");
  std::string text;
  for (int c; pipe && (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  if (pipe) pclose(pipe);
  std::fclose(addresses);
  if (text.empty() && !lines.empty())
    say(fmt::format(
        "the trace has no source lines: install {}, or build the program with line tables", kTool));

  // A line that begins with 0x starts the answer for the next address.
  std::istringstream all(text);
  auto next = lines.begin();
  std::string* line = nullptr;
  for (std::string one; std::getline(all, one);)
    if (one.starts_with("0x"))
      line = next != lines.end() ? &next++->second : nullptr;
    else if (line && line->empty() && one.starts_with('/') && !one.ends_with('?') &&
             !one.starts_with("/usr/") && one.find("/common/") == one.npos)
      *line = one.substr(0, one.find(" (discriminator"));

  std::vector<std::string> found;
  for (const auto& chain : chains) {
    std::string& of_chain = found.emplace_back();
    for (const uintptr_t address : chain)
      if (of_chain.empty()) of_chain = lines[address];
  }
  return found;
}

using json::Members;

std::string ranges_json(const ByteRanges& ranges) {
  return json::array(ranges, [](const auto& r) { return json::list(r.first, r.second); });
}

/// Returns the source line of a site, or "" for -1, an unknown site.
std::string place(const std::vector<std::string>& lines, int site) {
  return site < 0 ? "" : lines[site];
}

Members of_event(const TraceEvent& e, const std::vector<std::string>& lines) {
  Members m;
  m.add("kind", text_of(e.kind)).add("launch", e.launch);
  m.add("block", e.block).add("warp", e.warp).add_if_any("line", place(lines, e.site));
  m.add_if_any("start_line", place(lines, e.start_site));
  m.add_if_any("name", e.name).add_if_any("barrier", e.barrier);
  m.add_if_any("number", e.number).add_if_any("amount", e.amount).add_if_any("bytes", e.bytes);
  if (!e.ranges.empty()) m.raw("ranges", ranges_json(e.ranges));
  if (!e.shared.empty())
    m.raw("shared", json::array(e.shared, [](const TraceEvent::Touch& t) {
            return fmt::format("[{}, {}, {}]", json::value(t.array), t.write ? 1 : 0,
                               ranges_json(t.ranges));
          }));
  if (e.counts != Amounts{}) {
    Members counts;
    for (const auto& [key, member] : kAmounts) counts.add_if_any(key, e.counts.*member);
    m.raw("counts", counts.object());
  }
  return m;
}

}  // namespace

void write_trace(const std::string& path, const Step& step, const WorkloadSpec& workload,
                 const Plan& plan, const Arrays& arrays, Device& device) {
  std::string text;
  const auto write = [&](const Members& line) { text += line.object() + "\n"; };
  Members head;
  head.add("rung", step.rung).add("step", step.name);
  add_workload(head, workload);
  write(head.raw("counts", json::array(kAmounts, [](const Amount& amount) {
                   return json::value(amount.key);
                 })));
  Members bytes, planned;
  for (const Array* const array : arrays.all()) bytes.add(array->name, array->bytes);
  planned.raw("arrays", bytes.object()).add("block_q", plan.block_q);
  planned.add("block_kv", plan.block_kv).add("warps", plan.warps);
  write(planned.add("stages", plan.stages));

  const Trace trace = device.take_trace();
  int64_t number = 0;
  for (const Trace::Launch& l : trace.launches) {
    Members m;
    m.add("launch", number++).add("kernel", l.kernel);
    m.raw("grid", json::list(l.grid[0], l.grid[1], l.grid[2]));
    m.raw("block", json::list(l.block[0], l.block[1], l.block[2]));
    write(m.raw("shared", json::array(l.shared, [](const Trace::Launch::Shared& s) {
                  return json::list(s.array, s.begin, s.bytes);
                })));
  }
  const auto lines = source_lines(trace.sites);
  for (const TraceEvent& e : trace.events) write(of_event(e, lines));
  if (const auto& f = trace.fault; !f.message.empty()) {
    Members m;
    m.add("fault", f.message).add("launch", f.launch).add("block", f.block);
    write(m.add("thread", f.thread).add("line", place(lines, f.site)));
  }
  write_file(path, text);
}

}  // namespace ladder
