#include "harness/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "harness/bad_usage.h"
#include "harness/steps.h"
#include "parallel.h"

namespace ladder {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

/// Says on stderr what a long phase is, once it has taken two seconds; lives as long as the phase.
class Progress {
 public:
  explicit Progress(const std::string& phase) {
    if (host_cores() == 1) return;  // such a program has one thread, for debuggers and qemu
    shown_ = std::async(kThread, [phase, over = over_.get_future()] {
      if (over.wait_for(std::chrono::seconds(2)) == std::future_status::timeout) say(phase + " …");
    });
  }
  ~Progress() { over_.set_value(); }

 private:
  std::promise<void> over_;
  std::future<void> shown_;  // waits for its thread when it is destroyed
};

/// Throws Error(no_device) where inputs, outputs and workspace do not fit into the device's memory.
void require_memory(const Variant& variant, const Problem& p, const Plans& plans,
                    const DeviceInfo& device) {
  const double q = 1.0 * p.B * p.H * p.N * p.d * kIoBytes;
  const double kv = 1.0 * p.B * p.Hk * p.N_kv * p.d * kIoBytes;
  double io = (2 * q + 2 * kv) * (variant.backward ? 2 : 1), workspace = 0;
  if (variant.has_lse) io += 4.0 * p.B * p.H * p.N;
  for (const Plan* plan : {&plans.forward, &plans.backward})
    for (const auto& array : plan->workspace) workspace += static_cast<double>(array.bytes);
  if (io + workspace <= static_cast<double>(device.memory_free)) return;
  std::string what =
      fmt::format("{} needs {:.1f} GiB of {}: {:.1f} for inputs and outputs", variant.rung,
                  (io + workspace) / kGiB,
                  device.kind == DeviceKind::gpu
                      ? "GPU memory"
                      : "memory (a quarter of the host's: the simulator tracks every byte)",
                  io / kGiB);
  if (workspace > 0) what += fmt::format(", {:.1f} for its workspace", workspace / kGiB);
  if (variant.rounding == Rounding::S_and_P_stored)
    what += variant.backward ? " (S, P and dP)" : " (S and P)";
  what += fmt::format("; {:.1f} GiB of {:.1f} are free. ",
                      static_cast<double>(device.memory_free) / kGiB,
                      static_cast<double>(device.memory_bytes) / kGiB);
  what += variant.less_memory.empty()
              ? "A smaller --batch, --heads or --seqlen needs less"
              : "No S and no P is stored by " + variant.less_memory +
                    ", which need only O(N) more than the inputs and outputs";
  throw Error(Exit::no_device, what);
}

/// A line for each kernel whose occupancy is known.
void print_occupancy(const Report& r) {
  for (const auto& kernel : r.kernels) {
    if (!kernel.occupancy) continue;
    const Occupancy& o = *kernel.occupancy;
    const int64_t resident = int64_t{o.blocks_per_sm} * r.device.multiprocessors;
    say(fmt::format(
        "{}: {} registers a thread; blocks: {}, {} at once on each of {} SMs: {:.2f} waves",
        kernel.name, o.registers, o.blocks, o.blocks_per_sm, r.device.multiprocessors,
        static_cast<double>(o.blocks) / static_cast<double>(resident)));
  }
}

/// Says which values of a tensor are not finite because they cannot be.
void say_out_of_range(const Variant& v, const Problem& p, const TensorError& e) {
  if (e.out_of_range > 0)
    say(
        fmt::format("{}: {} values of {} are beyond {}, or come of such: no wrong result, for they "
                    "are in exact arithmetic too",
                    v.rung, e.out_of_range, e.name,
                    p.dtype == DType::fp16 ? "fp16 (65504; --dtype bf16 holds up to 3.4e38)"
                                           : "bf16 and float32 (3.4e38; use smaller inputs)"));
}

/// Adds what HBM served to the reports of `works`; a line on stderr where that cannot be counted.
void count_dram(Device& device, const std::vector<std::function<void()>>& works,
                std::vector<Report>& reports) {
  try {
    const Progress progress("counting DRAM bytes");
    for (size_t i = 0; i < works.size(); ++i) {
      Report& r = reports[i];
      const DramReport dram = device.dram(works[i]);
      r.dram = dram.all;
      for (auto& kernel : r.kernels) kernel.dram = dram.kernels.at(kernel.name);
    }
  } catch (const Error& e) {
    if (e.status != Exit::no_device) throw;
    say(fmt::format("--dram: no DRAM bytes: {}", e.what()));
  }
}

const Inputs& inputs_of(Workload& workload, Options& options, bool backward) {
  if (!workload.problem || (backward && workload.inputs.dO.bits.empty())) {
    const Progress progress("making the inputs");
    workload.inputs = make_inputs(options, backward);
    workload.problem = options.problem;
  }
  options.problem = *workload.problem;
  return workload.inputs;
}

}  // namespace

std::unique_ptr<Device> open_device(const Options& options) {
  const bool automatic = options.device == DeviceChoice::automatic;
  SimOptions sim = options.sim;
  if (options.sram_bytes) sim.sram_bytes = options.sram_bytes;
  if (options.device == DeviceChoice::sim) return open_sim(sim);
  if (automatic && !options.sim_option.empty()) {
    say(fmt::format("running on the sim: --{} is for the sim", options.sim_option));
    return open_sim(sim);
  }
  try {
    return open_gpu(options.sram_bytes);
  } catch (const Error& e) {
    if (!automatic) throw;
    say(fmt::format("running on the sim: {}", e.what()));
  }
  return open_sim(sim);
}

std::vector<Variant> variants_for(DeviceKind device) {
  std::vector<Variant> found;
  for (const Variant* v : steps_of(variants().front().rung))
    if (v->device == device) found.push_back(*v);
  return found;
}

Variant choose_variant(const Options& options, const DeviceInfo& device) {
  if (options.problem.dtype == DType::bf16 && !device.has_bf16())
    bad_usage(
        "--dtype bf16: the tensor cores of {} have fp16 alone (bf16 comes with compute "
        "capability 8.0); --dtype fp16 runs on it",
        device.name);
  const TileRequest& asked = options.tile;
  const auto all = variants_for(device.kind);
  std::vector<const Variant*> candidates;  // the best first
  if (!options.variant.empty()) {
    std::string names;
    for (const Variant& v : all) {
      names += (names.empty() ? "" : ", ") + v.name;
      if (v.name == options.variant) candidates = {&v};
    }
    if (candidates.empty())
      bad_usage("--variant '{}': unknown on the {}; give one of {}", options.variant,
                device.kind == DeviceKind::gpu ? "gpu" : "sim", names);
    const Variant& v = *candidates.front();
    if (!v.runs_on(device))
      throw Error(Exit::no_device,
                  fmt::format("variant {} needs compute capability {}, and {} runs code for "
                              "{}.{}; --device sim runs it on the CPU",
                              v.name, v.needed_capability(), device.name,
                              device.compute_capability / 10, device.compute_capability % 10));
  }
  for (auto v = all.rbegin(); v != all.rend() && candidates.empty(); ++v)
    if (v->is_default && v->runs_on(device)) candidates = back_to_the_first(*v);

  const auto has_tile = [&](const Variant* v) {
    return asked.any() || std::any_of(v->tiles.begin(), v->tiles.end(),
                                      [&](const TileSize& tile) { return asked.matches(tile); });
  };
  const auto chosen = std::find_if(candidates.begin(), candidates.end(), has_tile);
  if (chosen == candidates.end()) {
    std::string given;
    if (asked.block_q) given += fmt::format(" --block-q {}", asked.block_q);
    if (asked.block_kv) given += fmt::format(" --block-kv {}", asked.block_kv);
    const std::string tiles = tiles_text(candidates);
    bad_usage(
        "no tile is compiled for{}; {}", given,
        tiles.empty() ? candidates.front()->name + " takes no tile size" : "give one of " + tiles);
  }
  for (const auto& [name, value] : asked.settings) {
    std::string known;
    bool good = false;
    for (const Setting& setting : (*chosen)->settings) {
      known += (known.empty() ? "" : ", ") + setting_text(setting);
      good |= name == setting.name && std::find(setting.values.begin(), setting.values.end(),
                                                value) != setting.values.end();
    }
    if (!good)
      bad_usage("--set {}={}: {} takes {}", name, value, (*chosen)->name,
                known.empty() ? "no settings; name a --variant that does" : known);
  }
  return **chosen;
}

Plans plan_run(const Variant& variant, const Options& options, const DeviceInfo& device) {
  const Problem& p = options.problem;
  const auto plans = [&](const Variant& v) -> Plans {
    Plans made{v.plan(p, device, options.tile), v.backward ? v.backward_plan(p, device) : Plan{}};
    const int64_t most = std::max(made.forward.smem_bytes, made.backward.smem_bytes);
    if (most > device.sram_bytes)
      bad_usage("shared memory: {} needs {} bytes at head-dim {}; there are {}", v.name, most, p.d,
                device.sram_bytes);
    return made;
  };
  try {
    return plans(variant);
  } catch (const Error& e) {
    // Where another step has room, it is named.
    std::string others;
    for (const Variant& v : variants_for(device.kind)) {
      if (v.library || !v.runs_on(device)) continue;
      try {
        plans(v);
        others += (others.empty() ? "" : ", ") + v.name;
      } catch (const Error&) {
      }
    }
    if (others.empty()) throw;
    throw Error(e.status, fmt::format("{}; steps that fit: {}", e.what(), others));
  }
}

std::vector<Report> run_variant(Device& device, const Variant& variant, Options options,
                                Outputs* outputs, Workload* workload) {
  Workload own;
  Workload& shared = workload ? *workload : own;
  Problem& p = options.problem;
  const bool has_backward = variant.backward != nullptr;
  const auto planned = [&] {
    Plans made = plan_run(variant, options, device.info());
    require_memory(variant, p, made, device.info());
    return made;
  };
  if (options.load.empty()) planned();  // before the host fills its memory with the inputs
  const Inputs& inputs = inputs_of(shared, options, has_backward);
  const Plans plans = planned();
  for (const Plan* plan : {&plans.forward, &plans.backward})
    if (options.verbose && !plan->note.empty()) say(plan->note);

  Outputs unwanted;
  Outputs& out = outputs ? *outputs : unwanted;
  out = {.options = options, .plan = plans.forward};
  std::vector<Buffer> buffers;
  Arrays arrays;
  const auto make = [&](const std::string& name, int64_t bytes) {
    buffers.emplace_back(device, name, bytes);
    out.arrays.push_back({name, bytes});
    arrays.add(buffers.back().array());
  };
  const auto upload = [&](const std::string& name, const Tensor& t) {
    make(name, t.bytes());
    device.upload(arrays[name], t.bits.data());
  };
  upload("Q", inputs.Q);
  upload("K", inputs.K);
  upload("V", inputs.V);
  make("O", inputs.Q.bytes());
  if (variant.has_lse) make("LSE", int64_t{p.B} * p.H * p.N * 4);
  if (has_backward) {
    upload("dO", inputs.dO);
    make("dQ", inputs.Q.bytes());
    make("dK", inputs.K.bytes());
    make("dV", inputs.V.bytes());
  }
  for (const Plan* plan : {&plans.forward, &plans.backward})
    for (const auto& array : plan->workspace) make(array.name, array.bytes);

  const std::vector<int> rows = rows_to_check(p, options.check);
  const auto reference_of = [&](const auto& quantisation) -> const Reference& {
    return shared.references
        .try_emplace({variant.rounding, quantisation}, p, inputs, variant.rounding, rows,
                     quantisation)
        .first->second;
  };
  const auto run = [&](const char* direction, const Plan& plan, const std::optional<Traffic>& model,
                       const std::function<void()>& work) {
    Report r{.rung = variant.rung,
             .variant = variant.name,
             .direction = direction,
             .options = options,
             .device = device.info(),
             .plan = plan,
             .model = model};
    for (const auto& array : plan.workspace) r.workspace_bytes += array.bytes;
    const Progress progress(fmt::format("running {} {}{} on {}", variant.rung, variant.name,
                                        r.backward() ? " backward" : "", device.info().name));
    try {
      r.kernels = device.run(variant.rung, work);
    } catch (const Error&) {  // a fault: it may come of what cannot be finite, were O all NaN
      const Tensor nan{p.dtype, std::vector<uint16_t>(inputs.Q.bits.size(), 0xffff)};
      if (options.check != Check::off)
        say_out_of_range(variant, p, reference_of(plans.forward.quantisation).check_o(nan));
      throw;
    }
    return r;
  };
  const auto forward = [&] { variant.forward(p, plans.forward, arrays); };
  const auto backward = [&] { variant.backward(p, plans.backward, arrays); };
  std::optional<Traffic> model;
  if (!variant.library) model = variant.traffic(p, plans.forward);
  std::vector<Report> reports = {run("fwd", plans.forward, model, forward)};
  if (has_backward)
    reports.push_back(
        run("bwd", plans.backward, variant.backward_traffic(p, plans.backward), backward));

  const auto download = [&](const std::string& name) {
    const Array& array = arrays[name];
    Tensor t{p.dtype, std::vector<uint16_t>(static_cast<size_t>(array.bytes / kIoBytes))};
    device.download(t.bits.data(), array);
    return t;
  };
  out.O = download("O");
  if (variant.has_lse) {
    out.LSE.resize(static_cast<size_t>(arrays["LSE"].bytes) / sizeof(float));
    device.download(out.LSE.data(), arrays["LSE"]);
  }
  if (has_backward) {
    out.dQ = download("dQ");
    out.dK = download("dK");
    out.dV = download("dV");
  }

  if (options.check != Check::off && !variant.library) {
    const Progress progress("checking against the float64 reference");
    Report& r = reports.front();
    const Reference& reference = reference_of(plans.forward.quantisation);
    r.errors = {reference.check_o(out.O)};
    if (variant.has_lse) r.errors->push_back(reference.check_lse(out.LSE));
    if (plans.forward.quantisation)
      r.errors->push_back(reference_of(std::nullopt).compare_with_full_precision(out.O));
    r.overflowing_rows = reference.overflowing_rows();
    if (!r.pass() && !variant.max_subtracted_by.empty() && r.overflowing_rows > 0)
      say(fmt::format(
          "{} subtracts no maximum: Σ exp(S) leaves float32's range in {} of the {} rows checked, "
          "so this failure is expected; {} subtracts it",
          variant.rung, r.overflowing_rows, std::ssize(rows) * p.B * p.H,
          variant.max_subtracted_by));
    if (has_backward) {
      const GradientReference& gradients =
          shared.gradient_references
              .try_emplace(variant.rounding, p, inputs, variant.rounding,
                           gradients_to_check(p, options.check))
              .first->second;
      reports.back().errors = {gradients.check_dq(out.dQ), gradients.check_dk(out.dK),
                               gradients.check_dv(out.dV)};
    }
    for (const Report& one : reports)
      for (const TensorError& e : *one.errors) say_out_of_range(variant, p, e);
  }

  std::vector<std::function<void()>> works;  // of each report
  const auto measure = [&](Report& r, const std::function<void()>& work) {
    works.push_back(work);
    if (device.info().kind != DeviceKind::gpu) return;
    const Progress progress(fmt::format("timing {}{}", r.variant, r.backward() ? " backward" : ""));
    r.timing = device.time(work, options.time_ms.value_or(kTimingMs));
    const auto times = device.time_kernels(work);
    for (auto& kernel : r.kernels) kernel.time_ms = times.at(kernel.name);
  };
  measure(reports.front(), forward);
  if (has_backward) measure(reports.back(), backward);
  for (const Report& r : reports)
    if (options.verbose) print_occupancy(r);
  if (options.time_ms && !reports.front().timing) say("--time: the sim is not timed, only counted");
  // Counters come last: CUPTI stays in the driver, where it could be in the way of timing.
  if (options.dram) count_dram(device, works, reports);
  return reports;
}

}  // namespace ladder
