#include "harness/trace_file.h"

#include <fmt/format.h>

#include <functional>

#include "harness/source_lines.h"

namespace ladder {
namespace {

using Write = std::function<void(const std::string&)>;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string list(const std::vector<Strided>& ranges) {
  std::string out = "[";
  for (const Strided& r : ranges)
    out += fmt::format("{}[{}, {}, {}, {}]", out.size() > 1 ? ", " : "", r.begin, r.bytes, r.step,
                       r.count);
  return out + "]";
}

void write_head(const Write& write, const Variant& variant, const Problem& p) {
  write(
      fmt::format("{{\"rung\": \"{}\", \"variant\": \"{}\", \"batch\": {}, \"heads\": {}, "
                  "\"kv_heads\": {}, \"seqlen\": {}, \"seqlen_kv\": {}, \"head_dim\": {}, "
                  "\"causal\": {}}}\n",
                  variant.rung, variant.name, p.B, p.H, p.Hk, p.N, p.N_kv, p.d, p.causal));
}

void write_run(const Write& write, const Outputs& run) {
  std::string arrays;
  for (const auto& [name, bytes] : run.arrays)
    arrays += fmt::format("{}{}: {}", arrays.empty() ? "" : ", ", quoted(name), bytes);
  write(
      fmt::format("{{\"arrays\": {{{}}}, \"block_q\": {}, \"block_kv\": {}, \"warps\": {}, "
                  "\"stages\": {}}}\n",
                  arrays, run.plan.block_q, run.plan.block_kv, run.plan.warps, run.plan.stages));
}

void write_launch(const Write& write, size_t number, const Trace::Launch& l) {
  std::string shared;
  for (const auto& s : l.shared)
    shared += fmt::format("{}[{}, {}, {}]", shared.empty() ? "" : ", ", quoted(s.array), s.begin,
                          s.bytes);
  write(
      fmt::format("{{\"launch\": {}, \"kernel\": {}, \"grid\": [{}, {}, {}], \"block\": [{}, {}, "
                  "{}], \"shared\": [{}]}}\n",
                  number, quoted(l.kernel), l.grid[0], l.grid[1], l.grid[2], l.block[0], l.block[1],
                  l.block[2], shared));
}

std::string place(const std::vector<std::string>& lines, int site) {
  return site < 0 ? "" : lines[static_cast<size_t>(site)];
}

void write_event(const Write& write, const TraceEvent& e, const std::vector<std::string>& lines) {
  std::string out = fmt::format("{{\"do\": {}, \"launch\": {}, \"block\": {}, \"warp\": {}",
                                quoted(e.what), e.launch, e.block, e.warp);
  const auto text = [&](const char* key, const std::string& value) {
    if (!value.empty()) out += fmt::format(", \"{}\": {}", key, quoted(value));
  };
  const auto number = [&](const char* key, int64_t value) {
    if (value) out += fmt::format(", \"{}\": {}", key, value);
  };
  text("line", place(lines, e.site));
  text("from", place(lines, e.from));
  text("name", e.name);
  text("barrier", e.barrier);
  number("number", e.number);
  number("amount", e.amount);
  number("bytes", e.bytes);
  if (!e.ranges.empty()) out += ", \"ranges\": " + list(e.ranges);
  std::string shared;
  for (const auto& t : e.shared)
    shared += fmt::format("{}[{}, {}, {}]", shared.empty() ? "" : ", ", quoted(t.array),
                          t.write ? 1 : 0, list(t.ranges));
  if (!shared.empty()) out += ", \"shared\": [" + shared + "]";
  number("matmul_flops", e.matmul_flops);
  number("exps", e.exps);
  number("other_flops", e.other_flops);
  number("sram_read", e.sram_read);
  number("sram_write", e.sram_write);
  number("lane_exps", e.lane_exps);
  number("lane_other_flops", e.lane_other_flops);
  write(out + "}\n");
}

}  // namespace

void write_trace(AtomicFile& file, const std::string& path, const Variant& variant,
                 const Outputs& run, Device& device) {
  if (path.ends_with(".gz")) file.compress();
  const Write write = [&](const std::string& text) { file.write(text); };
  write_head(write, variant, run.problem);
  write_run(write, run);
  const Trace trace = device.take_trace();
  const auto lines = source_lines(trace.sites);
  for (size_t i = 0; i < trace.launches.size(); ++i) write_launch(write, i, trace.launches[i]);
  for (const TraceEvent& e : trace.events) write_event(write, e, lines);
  if (const auto& f = trace.fault; !f.message.empty())
    write(
        fmt::format("{{\"fault\": {}, \"launch\": {}, \"block\": {}, \"thread\": {}, \"line\": "
                    "{}}}\n",
                    quoted(f.message), f.launch, f.block, f.thread, quoted(place(lines, f.site))));
  file.commit();
}

}  // namespace ladder
