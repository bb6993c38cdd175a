#include "harness/run.h"

#include "harness/messages.h"

namespace ladder {

std::vector<Report> run_variant(Device& device, const Variant& variant, const RunOptions& options,
                                Workload& workload, Outputs* outputs) {
  const auto planned = [&] {
    Plans made = plan_run(variant, workload.problem(), options.tile, device.info());
    require_memory(variant, workload.problem(), made, device.info());
    return made;
  };
  if (workload.has_shapes()) planned();  // before the host fills its memory with the inputs
  const Inputs& inputs = workload.inputs(variant.backward != nullptr);
  const Plans plans = planned();
  const Problem& p = workload.problem();
  for (const Plan* plan : {&plans.forward, &plans.backward})
    if (options.verbose && !plan->note.empty()) say(plan->note);

  const DeviceArrays memory(device, variant, p, plans, inputs);
  std::vector<PassRun> passes;
  const auto add = [&](const char* direction, const Plan& plan, auto* launch, auto* traffic) {
    Report r{.rung = variant.rung,
             .variant = variant.name,
             .direction = direction,
             .workload = workload.spec(),
             .device = device.info(),
             .plan = plan};
    for (const auto& array : plan.workspace) r.workspace_bytes += array.bytes;
    if (!variant.library) r.model = traffic(p, plan);
    passes.push_back({[&, launch] { launch(p, plan, memory.arrays()); }, std::move(r)});
  };
  add("fwd", plans.forward, variant.forward, variant.traffic);
  if (variant.backward) add("bwd", plans.backward, variant.backward, variant.backward_traffic);

  Outputs unwanted;
  Outputs& out = outputs ? *outputs : unwanted;
  out = {.plan = plans.forward, .arrays = memory.sizes()};
  try {
    execute(device, passes);
  } catch (const Error&) {  // it may come of what cannot be finite
    explain_fault(variant, plans, workload);
    throw;
  }
  memory.download(out);
  verify(variant, plans, out, workload, passes);
  measure(device, options, passes);
  std::vector<Report> reports;
  for (PassRun& pass : passes) reports.push_back(std::move(pass.report));
  return reports;
}

}  // namespace ladder
