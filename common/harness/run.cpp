#include "harness/run.h"

#include "harness/messages.h"

namespace ladder {

std::vector<Report> run_step(Device& device, const Step& step, const RunOptions& options,
                             Workload& workload, Outputs* outputs) {
  const auto planned = [&] {
    Plans made = plan_run(step, workload.problem(), options.tile, device.info());
    require_memory(step, workload.problem(), made, device.info());
    return made;
  };
  if (workload.has_shapes()) planned();  // before the host fills its memory with the inputs
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
    if (!step.library) r.model = pass.traffic(p, plan);
    passes.push_back({[&] { pass.launch(p, plan, memory.arrays()); }, std::move(r)});
  };
  add("fwd", plans.forward, step.forward);
  if (step.backward) add("bwd", plans.backward, step.backward);

  Outputs unwanted;
  Outputs& out = outputs ? *outputs : unwanted;
  out = {.plan = plans.forward, .arrays = memory.sizes()};
  try {
    execute(device, passes);
  } catch (const Error&) {  // it may come of what cannot be finite
    explain_fault(step, plans, workload);
    throw;
  }
  memory.download(out);
  verify(step, plans, out, workload, passes);
  measure(device, options, passes);
  std::vector<Report> reports;
  for (PassRun& pass : passes) reports.push_back(std::move(pass.report));
  return reports;
}

}  // namespace ladder
