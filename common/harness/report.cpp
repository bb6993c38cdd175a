// Formats the result of a run as JSON or as a table and, with --verbose, a block's budget.
// common/tests/harness/report.md shows all of them.
#include "harness/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/options.h"

namespace ladder {
namespace {

using json::Members;

/// Returns n, or nullopt if n is 0: the plan then contains no such quantity.
std::optional<int> or_null(int n) {
  return n ? std::optional(n) : std::nullopt;
}

/// Returns the bytes that traffic() predicts for one kernel, or for all if `kernel` is empty.
std::optional<ReadWrite> predicted_traffic_of(const Report& r, const std::string& kernel = "") {
  std::optional<ReadWrite> sum;
  for (const auto& k : r.predicted_traffic) {
    if (!kernel.empty() && k.kernel != kernel) continue;
    if (!sum) sum.emplace();
    for (const auto& a : k.arrays) *sum += {a.read, a.write};
  }
  return sum;
}

/// Returns the sum of all kernels' counts, or nullopt if they were not counted.
std::optional<Counts> sum_of(const Report& r) {
  std::optional<Counts> sum;
  for (const auto& k : r.kernels) {
    if (!k.counts) return {};
    if (!sum) sum.emplace();
    *sum += *k.counts;
  }
  return sum;
}

template <class C, class T>
std::optional<T> member_of(const std::optional<C>& c, T C::*member) {
  return c ? std::optional((*c).*member) : std::nullopt;
}
std::optional<ReadWrite> bytes_of(const std::optional<Counts>& c, ReadWrite HbmCounts::*member) {
  return c ? std::optional(c->hbm.*member) : std::nullopt;
}

/// Adds the members that the run and each kernel share: the predicted bytes `traffic`, the
/// simulator's counts `c` and the DRAM bytes. What was not counted is null.
void add_counts(Members& m, const std::optional<ReadWrite>& traffic, const std::optional<Counts>& c,
                const std::optional<ReadWrite>& dram) {
  const auto add = [&](const std::string& of, const std::optional<ReadWrite>& bytes) {
    m.add(of + "_read_bytes", member_of(bytes, &ReadWrite::read));
    m.add(of + "_write_bytes", member_of(bytes, &ReadWrite::write));
  };
  add("model", traffic);
  add("requested", bytes_of(c, &HbmCounts::requested));
  add("distinct", bytes_of(c, &HbmCounts::distinct));
  for (const auto& [key, member] : kAmounts)
    m.add(key, c ? std::optional((*c).*member) : std::nullopt);
  add("dram", dram);
}

/// Returns the kernels with their arrays: the simulator's counts or, on a GPU, predicted bytes.
std::string kernels_json(const Report& r) {
  return json::array(r.kernels, [&](const KernelReport& k) {
    Members arrays;
    if (k.counts) {
      for (const auto& [name, c] : k.counts->arrays)
        arrays.raw(name, Members()
                             .add("read", c.requested.read)
                             .add("write", c.requested.write)
                             .add("distinct_read", c.distinct.read)
                             .add("distinct_write", c.distinct.write)
                             .add("read_sectors", c.sectors.read)
                             .add("write_sectors", c.sectors.write)
                             .object());
    } else {
      for (const auto& kernel : r.predicted_traffic)
        if (kernel.kernel == k.name)
          for (const auto& a : kernel.arrays)
            arrays.raw(a.array, Members().add("read", a.read).add("write", a.write).object());
    }
    Members m;
    m.add("name", k.name).add("time_ms", k.time_ms);
    add_counts(m, predicted_traffic_of(r, k.name), k.counts, k.dram);
    return m.raw("arrays", arrays.object()).object();
  });
}

// ------------------------------------------------------------------------------------------- table

/// Formats x with three significant digits, in the largest unit in which it is at least 1. `units`
/// contains (size, name), the largest first. A whole number of the last unit gets no decimals.
std::string in_units(double x, std::initializer_list<std::pair<double, const char*>> units) {
  const auto last = std::prev(units.end());
  // 999.6 would round to 1000, so such a number takes the next larger unit.
  const auto& [size, name] = *std::find_if(
      units.begin(), last, [&](const auto& unit) { return std::abs(x) >= 0.9995 * unit.first; });
  const double scaled = x / size, absolute = std::abs(scaled);
  const bool whole = size == last->first && scaled == std::floor(scaled);
  const int decimals = whole ? 0 : 2 - (absolute >= 9.995) - (absolute >= 99.95);
  return fmt::format("{:.{}f} {}", scaled, decimals, name);
}

std::string bytes_text(auto bytes) {
  return in_units(static_cast<double>(bytes),
                  {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}});
}

std::string ms_text(double ms) {
  return in_units(ms, {{1e3, "s"}, {1, "ms"}, {1e-3, "µs"}});
}

std::string traffic_table(const Report& r) {
  // The simulator shows counted requests and distinct bytes. A GPU shows predicted requests (tests
  // compare them with the counts) and, with --dram, its counters.
  std::string out = "\n";
  const auto line = [&](const auto&... cells) {
    out += fmt::format("{:<22}{:>10}{:>16}{:>12}{:>16}{:>12}\n", cells...);
  };
  const auto row = [&](const std::string& name, const std::optional<double>& ms,
                       const std::optional<ReadWrite>& traffic, const std::optional<Counts>& c,
                       const std::optional<ReadWrite>& dram) {
    const auto text = [](const std::optional<ReadWrite>& bytes, int64_t ReadWrite::*member) {
      return bytes ? bytes_text((*bytes).*member) : "–";
    };
    const auto hbm = c ? bytes_of(c, &HbmCounts::requested) : traffic;
    const auto beside = r.dram ? dram : bytes_of(c, &HbmCounts::distinct);
    line(name, ms ? ms_text(*ms) : "–", text(hbm, &ReadWrite::read), text(hbm, &ReadWrite::write),
         text(beside, &ReadWrite::read), text(beside, &ReadWrite::write));
  };
  line("kernel", "time", "requests: read", "write", r.dram ? "DRAM: read" : "distinct: read",
       "write");
  for (const auto& k : r.kernels)
    row(k.name, k.time_ms, predicted_traffic_of(r, k.name), k.counts, k.dram);
  row("all", member_of(r.timing, &Timing::median_ms), predicted_traffic_of(r), sum_of(r), r.dram);
  out += "\n";
  return out;
}

/// Formats the budget that 05_flash_v2/design_a_tile.md explains: a block's fraction of an SM's
/// resources, FLOPs per byte, and the waves of blocks. A step without tiles gets only the waves.
std::string budget_text(const Report& r) {
  const Plan& plan = r.plan;
  std::string out;
  const auto line = [&]<class... Parts>(fmt::format_string<Parts...> text, Parts&&... parts) {
    out += "budget: " + fmt::format(text, std::forward<Parts>(parts)...) + "\n";
  };
  int64_t at_once = 0;  // the most blocks that run on one SM concurrently
  if (plan.block_q) {
    const int64_t room = r.device.blocks_per_sm(plan.smem_bytes);
    at_once = std::min<int64_t>(room, 64 / plan.warps);  // an SM holds at most 64 warps
    line("{} B of shared memory per block, of {}: {} blocks fit an SM", plan.smem_bytes,
         r.device.smem_bytes, room);
    bool keeps_rows = false;  // whether a block keeps O across all keys; yes if it writes LSE
    for (const KernelTraffic& kernel : r.predicted_traffic)
      for (const ArrayTraffic& a : kernel.arrays) keeps_rows |= a.array == "LSE" && a.write > 0;
    if (keeps_rows && !r.backward()) {
      // Each warp that computes holds 16 rows of S and O. Other warps (producers) hold none.
      const int threads = 32 * std::clamp(plan.block_q / 16, 1, plan.warps);
      const int S = plan.block_q * plan.block_kv / threads;
      const int O = plan.block_q * plan.head_dim / threads;
      at_once = std::min<int64_t>(at_once, 65536 / (threads * (S + O)));  // registers of an SM
      line("{} registers per thread for S and {} for O, of 255", S, O);
      // With several stages, the copies of K and V to all of them may be in flight at once.
      line("{} B of K or V per copy, at most {} in flight",
           plan.block_kv * plan.head_dim * (plan.quantisation ? 1 : kIoBytes),
           plan.stages > 1 ? 2 * plan.stages : 1);
    }
    const Problem& p = r.workload.problem;
    const ReadWrite asked = *predicted_traffic_of(r);
    const int64_t once = 2 * kIoBytes * p.B * p.d * (int64_t{p.N} * p.H + int64_t{p.N_kv} * p.Hk);
    line("{:.3g} FLOPs per requested byte; {:.3g} if inputs and outputs moved once",
         r.flops() / static_cast<double>(asked.read + asked.write),
         r.flops() / static_cast<double>(r.backward() ? 2 * once : once));
    if (const auto sum = sum_of(r); sum && sum->sram_operands)
      line("{:.3g} FLOPs per byte of operands in shared memory",
           static_cast<double>(sum->matmul_flops) / static_cast<double>(sum->sram_operands));
  }
  for (const KernelReport& k : r.kernels) {
    const bool multiplies = at_once && k.counts && k.counts->matmul_flops;
    if (!k.occupancy && !multiplies) continue;
    // The driver's numbers if known, otherwise the estimate from the lines above.
    const Occupancy o = k.occupancy.value_or(
        Occupancy{0, static_cast<int>(at_once), multiplies ? k.counts->blocks : 0});
    line("{}: {} blocks, {} at once on each of {} SMs: {:.2f} waves{}", k.name, o.blocks,
         o.blocks_per_sm, r.device.multiprocessors,
         static_cast<double>(o.blocks) / (o.blocks_per_sm * r.device.multiprocessors),
         o.registers ? fmt::format("; {} registers per thread", o.registers)
                     : " or more, depending on registers");
  }
  return out;
}

}  // namespace

std::optional<bool> Report::pass() const {
  if (!errors) return {};
  if (!std::ranges::all_of(*errors, &TensorError::pass)) return false;
  return std::ranges::any_of(*errors, &TensorError::undecided) ? std::nullopt : std::optional(true);
}

double Report::flops() const {
  const Problem& p = workload.problem;
  const double forward = 4.0 * p.N * p.N_kv * p.d * p.H * p.B * (p.causal ? 0.5 : 1);
  return backward() ? 2.5 * forward : forward;
}

std::string to_json(const Report& r) {
  Members m;
  m.add("rung", r.rung).add("step", r.step).add("direction", r.direction);
  m.add("device", r.device.kind == DeviceKind::gpu ? "gpu" : "sim");
  m.add("device_name", r.device.name);
  add_workload(m, r.workload);
  Members settings;
  for (const auto& [name, chosen] : r.plan.settings) settings.add(name, chosen);
  m.raw("settings", settings.object());
  m.add("block_q", or_null(r.plan.block_q)).add("block_kv", or_null(r.plan.block_kv));
  m.add("warps", or_null(r.plan.warps)).add("stages", or_null(r.plan.stages));
  m.add("smem_bytes", r.plan.smem_bytes);
  m.add("time_ms", member_of(r.timing, &Timing::median_ms));
  m.add("time_ms_min", member_of(r.timing, &Timing::min_ms));
  m.add("time_ms_max", member_of(r.timing, &Timing::max_ms));
  m.add("samples", member_of(r.timing, &Timing::samples));
  m.add("tflops",
        r.timing ? std::optional<double>(r.flops() / r.timing->median_ms * 1e-9) : std::nullopt);
  add_counts(m, predicted_traffic_of(r), sum_of(r), r.dram);
  m.add("workspace_bytes", r.workspace_bytes);
  m.raw("kernels", kernels_json(r));
  Members errors;
  for (const auto& e : r.errors.value_or(std::vector<TensorError>())) {
    Members of_it;
    of_it.add("max", e.max).add("rel", e.rel).add("rms", e.rms).add("tolerance", e.tolerance);
    of_it.add("nonfinite", e.nonfinite).add("decides", e.decides());
    errors.raw(e.name, of_it.object());
  }
  m.raw("errors", r.errors ? errors.object() : "null");
  return m.add("pass", r.pass()).object();
}

std::string to_table(const Report& r) {
  const Problem& p = r.workload.problem;
  std::string out = fmt::format("{} · {} · {} · {}\n", r.rung, r.step,
                                r.backward() ? "backward" : "forward", r.device.name);
  out += fmt::format("batch {}, heads {}", p.B, p.H);
  if (p.Hk != p.H) out += fmt::format(" ({} of K and V)", p.Hk);
  out += fmt::format(", seqlen {}", p.N);
  if (p.N_kv != p.N) out += fmt::format(" × {}", p.N_kv);
  out += fmt::format(", head-dim {}, {}{}, scale {:.4g}\n", p.d,
                     p.dtype == DType::fp16 ? "fp16" : "bf16", p.causal ? ", causal" : "", p.scale);
  if (r.plan.block_q || r.plan.block_kv)
    out +=
        fmt::format("tiles of {} rows of Q × {} of K and V, {} warps, {} of shared memory\n",
                    r.plan.block_q, r.plan.block_kv, r.plan.warps, bytes_text(r.plan.smem_bytes));
  if (!r.plan.settings.empty()) {
    out += "settings";
    for (const auto& [name, chosen] : r.plan.settings) out += fmt::format(" {}={}", name, chosen);
    out += "\n";
  }
  out += traffic_table(r);
  if (r.timing)
    out += fmt::format("{:.3g} TFLOP/s (median of {} runs, {} to {})\n",
                       r.flops() / r.timing->median_ms * 1e-9, r.timing->samples,
                       ms_text(r.timing->min_ms), ms_text(r.timing->max_ms));
  if (const auto sum = sum_of(r)) {
    out += fmt::format("{} matmul FLOPs, {} exponentials; shared memory {} read, {} written\n",
                       sum->matmul_flops, sum->exps, bytes_text(sum->sram_read),
                       bytes_text(sum->sram_write));
    const ReadWrite counted = sum->hbm.requested, formula = *predicted_traffic_of(r);
    out += fmt::format("requested: {} B counted, {} B predicted by traffic()\n",
                       counted.read + counted.write, formula.read + formula.write);
  } else {
    out += "requests are predicted by traffic(), which the simulator's counts confirm\n";
  }
  if (r.dram)
    out +=
        "DRAM bytes come from the GPU's counters; L2 is empty before each kernel, and before all\n";
  out += fmt::format("workspace {}\n", bytes_text(r.workspace_bytes));
  if (!r.errors) return out + "not checked\n";
  for (const auto& e : *r.errors) {
    const bool open = e.undecided();
    const char* const verdict = open ? "undecided" : e.pass() ? "pass" : "FAIL";
    if (!e.judged()) {
      out += fmt::format("{:<6}: max error {:.2e}, relative {:.2e}, root mean square {:.2e} ({})\n",
                         e.name, e.max, e.rel, e.rms, e.compared);
      continue;
    }
    out += fmt::format("{:<5} {}: max error {:.2e}, tolerance {:.2e}, {} {:.2e}{} ({})\n", e.name,
                       verdict, e.max, e.tolerance, open ? "largest value" : "relative",
                       open ? e.largest : e.rel,
                       e.nonfinite ? fmt::format(", {} not finite", e.nonfinite) : "",
                       e.where.empty() ? e.compared : e.compared + "; " + e.where);
  }
  return out;
}

std::string to_text(const Report& report, const Options& options) {
  if (options.json) return to_json(report) + "\n";
  std::string text = to_table(report);
  if (options.run.verbose) text += budget_text(report);
  for (const KernelReport& k : report.kernels)
    for (const auto& [key, member] : kAmounts)
      if (options.run.verbose && k.counts && (*k.counts).*member)
        text += fmt::format("{}: {} {}\n", k.name, (*k.counts).*member, key);
  return text;
}

}  // namespace ladder
