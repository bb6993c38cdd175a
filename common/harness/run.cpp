// Runs a step on a workload: executes it, verifies its outputs and measures it.
#include "harness/run.h"

#include <fmt/format.h>

#include "harness/messages.h"
#include "harness/trace_file.h"

namespace ladder {
namespace {

/// The arrays of a run in the device's memory. Inputs are uploaded; all others start poisoned with
/// NaN, so that an element that no kernel writes fails its check.
struct DeviceArrays {
  std::vector<std::shared_ptr<Array>> all;  // owns the arrays of by_name
  Arrays by_name;

  DeviceArrays(Device& device, const Step& step, const Problem& p, const Plans& plans,
               const Inputs& inputs) {
    const auto make = [&](const std::string& name, int64_t bytes) -> Array& {
      by_name.add(all.emplace_back(device.allocate(name, bytes)).get());
      return *all.back();
    };
    const auto upload = [&](const std::string& name, const Tensor& t) {
      device.upload(make(name, t.bytes()), t.bits.data());
    };
    upload("Q", inputs.Q);
    upload("K", inputs.K);
    upload("V", inputs.V);
    make("O", inputs.Q.bytes());
    if (step.has_lse) make("LSE", int64_t{p.B} * p.H * p.N * 4);
    if (step.backward) {
      upload("dO", inputs.dO);
      make("dQ", inputs.Q.bytes());
      make("dK", inputs.K.bytes());
      make("dV", inputs.V.bytes());
    }
    for (const Plan* plan : {&plans.forward, &plans.backward})
      for (const auto& array : plan->workspace) make(array.name, array.bytes);
  }

  void download(Device& device, DType dtype, Outputs& out) const {
    const auto into = [&](const std::string& name, auto& values) {
      const Array* const array = by_name.find(name);
      if (!array) return;
      values.resize(static_cast<size_t>(array->bytes) / sizeof values[0]);
      device.download(values.data(), *array);
    };
    into("LSE", out.LSE);
    for (const auto& [name, tensor] :
         {std::pair{"O", &out.O}, {"dQ", &out.dQ}, {"dK", &out.dK}, {"dV", &out.dV}}) {
      tensor->dtype = dtype;
      into(name, tensor->bits);
    }
  }
};

struct PassRun {
  std::function<void()> launch;
  Report report;
};

/// Prints a line if an output's check decides nothing, and another if values of it overflow
/// although the step computed them correctly.
void explain(const Step& step, const Problem& p, const TensorError& e) {
  if (e.undecided())
    say(fmt::format(
        "{}: the check of {} decides nothing, because its tolerance, {:.2e}, is at least half of "
        "the largest value, {:.2e}. Rounding alone changes values by that much if scores are "
        "large, and dQ and dK also if one key has all the weight; try a smaller --scale, "
        "smaller inputs or more keys",
        step.rung, e.name, e.tolerance, e.largest));
  const bool half = p.dtype == DType::fp16;  // fp16's largest number is 65504, bf16's 3.39e38
  if (e.out_of_range > 0)
    say(fmt::format("{}: {} values of {} {} {}", step.rung, e.out_of_range, e.name,
                    e.largest > (half ? 65504 : 3.38e38)
                        ? "are not finite: even in exact arithmetic they, or numbers that they "
                          "derive from, exceed the range of"
                        : "are not finite, though in exact arithmetic they are: rounded as this "
                          "step rounds them, numbers that they derive from exceed the range of",
                    half ? "fp16 (65504; --dtype bf16 holds up to 3.4e38)"
                         : "bf16 and float32 (3.4e38; use smaller inputs)"));
}

/// Prints, after a fault, how many values of O must overflow, because such a value may have caused
/// the fault. To count them, compares the reference with an O that is all NaN.
void explain_fault(const Step& step, const Plans& plans, Workload& workload) {
  if (!workload.is_checked()) return;
  const Problem& p = workload.problem();
  const Tensor nan{p.dtype, std::vector<uint16_t>(workload.inputs(false).Q.bits.size(), 0xffff)};
  const Reference& reference = workload.reference(step, plans.forward.quantisation);
  explain(step, p, compare(reference.o, nan));
}

/// Compares the outputs with float64, stores the errors in the reports, and explains overflow.
void verify(const Step& step, const Plans& plans, const Outputs& out, Workload& workload,
            std::vector<PassRun>& passes) {
  if (!workload.is_checked()) return;
  const Progress progress("checking against the float64 reference");
  const Problem& p = workload.problem();
  Report& r = passes.front().report;
  const Reference& reference = workload.reference(step, plans.forward.quantisation);
  r.errors = {compare(reference.o, out.O)};
  if (step.has_lse) r.errors->push_back(compare(reference.lse, out.LSE));
  if (plans.forward.quantisation)
    r.errors->push_back(compare_with_full_precision(workload.reference(step, {}).o, out.O));
  r.overflowing_rows = reference.overflowing_rows;
  if (r.pass() == false && !step.needs.max_subtracted_by.empty() && r.overflowing_rows > 0)
    say(fmt::format(
        "{} subtracts no maximum: Σ exp(S) leaves float32's range in {} of the {} rows checked, "
        "so this failure is expected; {} subtracts it",
        step.rung, r.overflowing_rows, std::ssize(reference.lse.rows),
        step.needs.max_subtracted_by));
  if (step.backward)
    passes.back().report.errors = {compare(reference.dq, out.dQ), compare(reference.dk, out.dK),
                                   compare(reference.dv, out.dV)};
  for (const PassRun& pass : passes)
    for (const TensorError& e : *pass.report.errors) explain(step, p, e);
}

void count_dram(Device& device, std::vector<PassRun>& passes) {
  try {
    const Progress progress("counting DRAM bytes");
    for (auto& [launch, r] : passes) {
      const DramReport dram = device.dram(launch);
      r.dram = dram.all;
      for (auto& kernel : r.kernels) kernel.dram = dram.kernels.at(kernel.name);
    }
  } catch (const Error& e) {
    if (e.status != Exit::no_device) throw;
    say(fmt::format("--dram: DRAM bytes were not counted: {}", e.what()));
  }
}

void measure(Device& device, const RunOptions& options, std::vector<PassRun>& passes) {
  const bool timed = device.info().kind == DeviceKind::gpu;
  if (options.time_ms && !timed) say("--time has no effect: the simulator counts and is not timed");
  for (auto& [launch, r] : passes) {
    if (!timed) continue;
    const Progress progress(fmt::format("timing {}{}", r.step, r.backward() ? " backward" : ""));
    r.timing = device.time(launch, options.time_ms.value_or(kTimingMs));
    const auto times = device.time_kernels(launch);
    for (auto& kernel : r.kernels) kernel.time_ms = times.at(kernel.name);
  }
  // Counters come last, because CUPTI stays in the driver and could disturb the timing.
  if (options.dram) count_dram(device, passes);
}

}  // namespace

std::vector<Report> run_step(Device& device, const Step& step, const RunOptions& options,
                             Workload& workload, Outputs* outputs) {
  const auto planned = [&] {
    Plans made = plan_run(step, workload.problem(), options.tile, device.info());
    require_memory(step, workload.problem(), made, device.info());
    return made;
  };
  // Plans that are refused fail here, before the inputs take host memory and time.
  if (workload.has_shapes()) planned();
  const Inputs& inputs = workload.inputs(bool{step.backward});
  const Plans plans = planned();
  const Problem& p = workload.problem();
  for (const Plan* plan : {&plans.forward, &plans.backward})
    if (options.verbose && !plan->note.empty()) say(plan->note);

  const DeviceArrays memory(device, step, p, plans, inputs);
  std::vector<PassRun> passes;
  const auto add = [&](const char* direction, const Plan& plan, const Pass& pass) {
    Report r{.rung = step.rung,
             .step = step.name,
             .direction = direction,
             .workload = workload.spec(),
             .device = device.info(),
             .plan = plan};
    for (const auto& array : plan.workspace) r.workspace_bytes += array.bytes;
    r.predicted_traffic = pass.traffic(p, plan);
    passes.push_back({[&] { pass.launch(p, plan, memory.by_name); }, std::move(r)});
  };
  add("fwd", plans.forward, step.forward);
  if (step.backward) add("bwd", plans.backward, step.backward);

  const auto trace = [&] {
    if (!options.trace_file.empty())
      write_trace(options.trace_file, step, workload.spec(), plans.forward, memory.by_name, device);
  };
  try {
    for (auto& [launch, report] : passes) {
      const Progress progress(fmt::format("running {} {}{} on {}", step.rung, step.name,
                                          report.backward() ? " backward" : "",
                                          device.info().name));
      report.kernels = device.run(step.rung, launch);
    }
  } catch (const Error&) {
    explain_fault(step, plans, workload);
    trace();
    throw;
  }
  trace();
  Outputs unwanted;
  Outputs& out = outputs ? *outputs : unwanted;
  memory.download(device, p.dtype, out);
  verify(step, plans, out, workload, passes);
  measure(device, options, passes);
  std::vector<Report> reports;
  for (PassRun& pass : passes) reports.push_back(std::move(pass.report));
  return reports;
}

}  // namespace ladder
