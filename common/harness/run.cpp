#include "harness/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "harness/progress.h"

namespace ladder {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

void require_memory(const Variant& variant, const MemoryNeed& need, const DeviceInfo& device) {
  if (need.io + need.workspace <= static_cast<double>(device.memory_free)) return;
  std::string what = fmt::format("{} needs {:.1f} GiB of {}: {:.1f} for inputs and outputs",
                                 variant.rung, (need.io + need.workspace) / kGiB,
                                 device.kind == DeviceKind::gpu
                                     ? "GPU memory"
                                     : "memory (the sim doubles it: a shadow byte for each byte)",
                                 need.io / kGiB);
  if (need.workspace > 0) what += fmt::format(", {:.1f} for its workspace", need.workspace / kGiB);
  if (variant.rounding == Rounding::S_and_P_stored) what += " (S and P)";
  what += fmt::format("; {:.1f} GiB of {:.1f} are free. ",
                      static_cast<double>(device.memory_free) / kGiB,
                      static_cast<double>(device.memory_bytes) / kGiB);
  what += variant.rounding == Rounding::S_and_P_stored
              ? "03_online_softmax and the rungs after it store no S and no P and need only the "
                "inputs and outputs"
              : "A smaller --batch, --heads or --seqlen needs less";
  throw Error(Exit::no_device, what);
}

}  // namespace

std::unique_ptr<Device> open_device(const Options& options) {
  if (!options.baseline.empty() && options.device == DeviceChoice::automatic) {
    try {
      return open_gpu();
    } catch (const Error& e) {
      throw Error(e.status, fmt::format("--baseline {} needs a GPU; leave it out to run on the sim "
                                        "({})",
                                        options.baseline, e.what()));
    }
  }
  if (options.device == DeviceChoice::gpu) return open_gpu();
  if (options.device == DeviceChoice::automatic) {
    if (!options.sim_option.empty()) {
      fmt::print(stderr, "running on the sim: --{} is for the sim\n", options.sim_option);
      return open_sim(options.sim);
    }
    try {
      return open_gpu();
    } catch (const Error& e) {
      fmt::print(stderr, "running on the sim: {}\n", e.what());
    }
  }
  return open_sim(options.sim);
}

std::vector<Variant> variants_for(DeviceKind device) {
  std::vector<Variant> found;
  for (const Variant& v : variants())
    if (v.device == device) found.push_back(v);
  std::stable_sort(found.begin(), found.end(),
                   [](const Variant& a, const Variant& b) { return a.step < b.step; });
  return found;
}

Variant choose_variant(const Options& options, const DeviceInfo& device) {
  const auto all = variants_for(device.kind);
  if (!options.variant.empty()) {
    for (const Variant& v : all) {
      if (v.name != options.variant) continue;
      if (!v.runs_on(device))
        throw Error(Exit::no_device,
                    fmt::format("variant {} needs compute capability {}, and {} has {}.{}; "
                                "--device sim runs it on the CPU",
                                v.name, v.needed_capability(), device.name,
                                device.compute_capability / 10, device.compute_capability % 10));
      return v;
    }
    throw Error(Exit::bad_usage,
                fmt::format("--variant {}: not among this rung's", options.variant));
  }
  // The last step that has the tile asked for, if any has.
  const auto has_tile = [&](const Variant& v) {
    const TileRequest& asked = options.tile;
    return (!asked.block_q && !asked.block_kv) ||
           std::any_of(v.tiles.begin(), v.tiles.end(), [&](const auto& tile) {
             return (!asked.block_q || asked.block_q == tile.first) &&
                    (!asked.block_kv || asked.block_kv == tile.second);
           });
  };
  for (const bool any_tile : {false, true})
    for (auto v = all.rbegin(); v != all.rend(); ++v)
      if (v->runs_on(device) && !v->by_name_only && (any_tile || has_tile(*v))) return *v;
  throw std::logic_error("no variant is linked for this device");
}

MemoryNeed memory_need(const Variant& variant, const Problem& p, const Plan& plan) {
  const double q = 1.0 * p.B * p.H * p.N * p.d * kIoBytes;
  const double kv = 1.0 * p.B * p.Hk * p.N_kv * p.d * kIoBytes;
  MemoryNeed need{2 * q + 2 * kv, 0};
  if (variant.has_lse) need.io += 4.0 * p.B * p.H * p.N;
  for (const auto& array : plan.workspace) need.workspace += static_cast<double>(array.bytes);
  return need;
}

std::vector<Report> run_variant(Device& device, const Variant& variant, Options options,
                                Outputs* outputs) {
  Problem& p = options.problem;
  std::function<void(const Problem&, const Arrays&)> baseline;
  if (!options.baseline.empty()) baseline = device.cublas_products();
  Inputs inputs;
  const auto require = [&] {
    require_memory(variant, memory_need(variant, p, variant.plan(p, device.info(), options.tile)),
                   device.info());
  };
  if (options.load.empty()) require();  // before the host fills its memory with them
  {
    const Progress progress("making the inputs");
    inputs = make_inputs(options, false);
  }
  if (!options.load.empty()) require();
  const Plan plan = variant.plan(p, device.info(), options.tile);
  if (options.dram)
    fmt::print(
        stderr,
        "--dram: this version reads no DRAM counters; dram_read_bytes and dram_write_bytes stay "
        "null (ncu reads them: the lesson of 00 says how)\n");
  if (options.verbose && !plan.note.empty()) fmt::print(stderr, "{}\n", plan.note);

  const int64_t o_elements = inputs.Q.size();
  std::vector<Buffer> buffers;
  Arrays arrays;
  const auto make = [&](const std::string& name, int64_t bytes) -> Array& {
    buffers.emplace_back(device, name, bytes);
    arrays.add(buffers.back().array());
    return *buffers.back().array();
  };
  const auto upload = [&](const std::string& name, const Tensor& t) {
    device.upload(make(name, t.bytes()), t.bits.data());
  };
  upload("Q", inputs.Q);
  upload("K", inputs.K);
  upload("V", inputs.V);
  Array& O = make("O", o_elements * kIoBytes);
  Array* LSE = variant.has_lse ? &make("LSE", int64_t{p.B} * p.H * p.N * 4) : nullptr;
  for (const auto& array : plan.workspace) make(array.name, array.bytes);

  Report report{.rung = variant.rung, .variant = variant.name, .direction = "fwd"};
  report.device = device.info();
  report.plan = plan;
  report.model = variant.traffic(p, plan);
  for (const auto& array : plan.workspace) report.workspace_bytes += array.bytes;
  const auto forward = [&] { variant.forward(p, plan, arrays); };
  {
    const Progress progress(
        fmt::format("running {} {} on {}", variant.rung, variant.name, device.info().name));
    report.kernels = device.run(variant.rung, forward);
  }

  Outputs out;
  out.O = Tensor{p.dtype, std::vector<uint16_t>(static_cast<size_t>(o_elements))};
  device.download(out.O.bits.data(), O);
  if (LSE) {
    out.LSE.resize(static_cast<size_t>(LSE->bytes) / sizeof(float));
    device.download(out.LSE.data(), *LSE);
  }

  if (options.check != Check::off) {
    const bool full =
        options.check == Check::full || (options.check == Check::automatic && full_is_quick(p));
    const Progress progress("checking against the float64 reference");
    const Reference reference(p, inputs, variant.rounding, full ? all_rows(p) : sampled_rows(p));
    report.errors = {reference.check_o(out.O)};
    if (LSE) report.errors->push_back(reference.check_lse(out.LSE));
    report.checked_rows = std::ssize(reference.rows());
    report.overflowing_rows = reference.overflowing_rows();
    if (!report.pass() && !variant.subtracts_max && report.overflowing_rows > 0)
      fmt::print(stderr,
                 "{} subtracts no maximum: Σ exp(S) leaves float32's range in {} of the {} rows "
                 "checked, so this failure is expected; 02_safe_softmax subtracts it\n",
                 variant.rung, report.overflowing_rows, report.checked_rows * p.B * p.H);
  }

  const auto measure = [&](Report& r, const std::function<void()>& work) {
    if (device.info().kind != DeviceKind::gpu) return;
    const Progress progress(fmt::format("timing {}", r.variant));
    TimingOptions timing;
    if (options.time_ms) timing.budget_ms = *options.time_ms;
    timing.flush_l2 = !options.warm;
    r.timing = device.time(work, timing);
    const auto times = device.time_kernels(work, timing);
    for (auto& kernel : r.kernels) kernel.time_ms = times.at(kernel.name);
  };
  measure(report, forward);
  report.options = options;
  if (outputs) *outputs = std::move(out);
  std::vector<Report> reports = {report};

  if (baseline) {
    // On the arrays as the variant left them: P holds probabilities, as it does for the variant's
    // own product. (Numbers matter: a GPU runs faster on zeros, or on a P that was never made.)
    const auto products = [&] { baseline(p, arrays); };
    Report& r = reports.emplace_back(
        Report{.rung = variant.rung, .variant = options.baseline, .direction = report.direction});
    r.options = options;
    r.device = report.device;
    r.workspace_bytes = report.workspace_bytes;
    r.kernels = device.run(variant.rung, products);
    measure(r, products);
  }
  return reports;
}

}  // namespace ladder
