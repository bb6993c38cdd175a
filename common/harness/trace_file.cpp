#include "harness/trace_file.h"

#include <fmt/format.h>

#include "harness/json.h"
#include "harness/source_lines.h"

namespace ladder {
namespace {

using json::Members;

std::string ranges_json(const std::vector<Strided>& ranges) {
  return json::array(
      ranges, [](const Strided& r) { return json::list(r.begin, r.bytes, r.step, r.count); });
}

Members of_run(const Variant& variant, const Problem& p) {
  Members m;
  m.add("rung", variant.rung).add("variant", variant.name);
  return add_shape(m, p);
}

Members of_plan(const Outputs& run) {
  Members arrays;
  for (const auto& [name, bytes] : run.arrays) arrays.add(name, bytes);
  return Members()
      .raw("arrays", arrays.object())
      .add("block_q", run.plan.block_q)
      .add("block_kv", run.plan.block_kv)
      .add("warps", run.plan.warps)
      .add("stages", run.plan.stages);
}

Members of_launch(size_t number, const Trace::Launch& l) {
  return Members()
      .add("launch", number)
      .add("kernel", l.kernel)
      .raw("grid", json::list(l.grid[0], l.grid[1], l.grid[2]))
      .raw("block", json::list(l.block[0], l.block[1], l.block[2]))
      .raw("shared", json::array(l.shared, [](const Trace::Launch::Shared& s) {
             return json::list(s.array, s.begin, s.bytes);
           }));
}

std::string place(const std::vector<std::string>& lines, int site) {
  return site < 0 ? "" : lines[static_cast<size_t>(site)];
}

Members of_event(const TraceEvent& e, const std::vector<std::string>& lines) {
  Members m;
  m.add("do", e.what).add("launch", e.launch).add("block", e.block).add("warp", e.warp);
  m.add_if_any("line", place(lines, e.site)).add_if_any("from", place(lines, e.from));
  m.add_if_any("name", e.name).add_if_any("barrier", e.barrier);
  m.add_if_any("number", e.number).add_if_any("amount", e.amount).add_if_any("bytes", e.bytes);
  if (!e.ranges.empty()) m.raw("ranges", ranges_json(e.ranges));
  if (!e.shared.empty())
    m.raw("shared", json::array(e.shared, [](const TraceEvent::Touch& t) {
            return fmt::format("[{}, {}, {}]", json::value(t.array), t.write ? 1 : 0,
                               ranges_json(t.ranges));
          }));
  m.add_if_any("matmul_flops", e.matmul_flops).add_if_any("exps", e.exps);
  m.add_if_any("other_flops", e.other_flops).add_if_any("sram_read", e.sram_read);
  m.add_if_any("sram_write", e.sram_write).add_if_any("lane_exps", e.lane_exps);
  return m.add_if_any("lane_other_flops", e.lane_other_flops);
}

}  // namespace

void write_trace(AtomicFile& file, const std::string& path, const Variant& variant,
                 const Outputs& run, Device& device) {
  if (path.ends_with(".gz")) file.compress();
  const auto write = [&](const Members& line) { file.write(line.object() + "\n"); };
  write(of_run(variant, run.problem));
  write(of_plan(run));
  const Trace trace = device.take_trace();
  const auto lines = source_lines(trace.sites);
  for (size_t i = 0; i < trace.launches.size(); ++i) write(of_launch(i, trace.launches[i]));
  for (const TraceEvent& e : trace.events) write(of_event(e, lines));
  if (const auto& f = trace.fault; !f.message.empty())
    write(Members()
              .add("fault", f.message)
              .add("launch", f.launch)
              .add("block", f.block)
              .add("thread", f.thread)
              .add("line", place(lines, f.site)));
  file.commit();
}

}  // namespace ladder
