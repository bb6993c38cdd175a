// Whether a run's outputs are right.

#include <fmt/format.h>

#include "harness/messages.h"
#include "harness/run.h"

namespace ladder {
namespace {

/// Says which values of a tensor are not finite because they cannot be.
void say_out_of_range(const Step& step, const Problem& p, const TensorError& e) {
  if (e.out_of_range > 0)
    say(
        fmt::format("{}: {} values of {} are beyond {}, or come of such: no wrong result, for they "
                    "are in exact arithmetic too",
                    step.rung, e.out_of_range, e.name,
                    p.dtype == DType::fp16 ? "fp16 (65504; --dtype bf16 holds up to 3.4e38)"
                                           : "bf16 and float32 (3.4e38; use smaller inputs)"));
}

}  // namespace

void explain_fault(const Step& step, const Plans& plans, Workload& workload) {
  if (!workload.is_checked()) return;
  const Problem& p = workload.problem();
  const Tensor nan{p.dtype, std::vector<uint16_t>(workload.inputs(false).Q.bits.size(), 0xffff)};
  const Reference& reference = workload.reference(step, plans.forward.quantisation);
  say_out_of_range(step, p, compare(reference.o, nan));
}

void verify(const Step& step, const Plans& plans, const Outputs& out, Workload& workload,
            std::vector<PassRun>& passes) {
  if (!workload.is_checked() || step.library) return;
  const Progress progress("checking against the float64 reference");
  const Problem& p = workload.problem();
  Report& r = passes.front().report;
  const Reference& reference = workload.reference(step, plans.forward.quantisation);
  r.errors = {compare(reference.o, out.O)};
  if (step.has_lse) r.errors->push_back(compare(reference.lse, out.LSE));
  if (plans.forward.quantisation)
    r.errors->push_back(compare_with_full_precision(workload.reference(step, {}).o, out.O));
  r.overflowing_rows = reference.overflowing_rows;
  if (!r.pass() && !step.needs.max_subtracted_by.empty() && r.overflowing_rows > 0)
    say(fmt::format(
        "{} subtracts no maximum: Σ exp(S) leaves float32's range in {} of the {} rows checked, "
        "so this failure is expected; {} subtracts it",
        step.rung, r.overflowing_rows, std::ssize(reference.lse.rows),
        step.needs.max_subtracted_by));
  if (step.backward)
    passes.back().report.errors = {compare(reference.dq, out.dQ), compare(reference.dk, out.dK),
                                   compare(reference.dv, out.dV)};
  for (const PassRun& pass : passes)
    for (const TensorError& e : *pass.report.errors) say_out_of_range(step, p, e);
}

}  // namespace ladder
