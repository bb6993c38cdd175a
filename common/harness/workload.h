// Defines a workload: its sizes, inputs and references.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "harness/json.h"
#include "harness/reference.h"
#include "harness/tensor.h"
#include "rung.h"

namespace ladder {

/// A workload as the options specify it.
struct WorkloadSpec {
  Problem problem;  // with `load`, the files determine the shapes once they are read
  Input input = Input::normal;
  uint64_t seed = 0;
  std::string load;            // the inputs' folder; empty: draw them
  std::optional<float> scale;  // --scale; empty: 1/√d
  Check check = Check::automatic;
  bool operator==(const WorkloadSpec&) const = default;

  /// Sets the problem's scale and checks its sizes. Throws Error(bad_usage) for a head size or head
  /// count that is not allowed, and for more than 2³⁰ rows in all heads together.
  void complete();
};

/// Adds the shapes, type, scale, input and seed, under the keys of common/CONTRACTS.md.
void add_workload(json::Members& members, const WorkloadSpec& spec);

/// A workload that several runs share. Inputs and references are computed when first needed.
class Workload {
 public:
  explicit Workload(WorkloadSpec spec) : spec_(std::move(spec)) {}
  /// Uses inputs that exist already.
  Workload(WorkloadSpec spec, Inputs inputs) : spec_(std::move(spec)), inputs_(std::move(inputs)) {}

  const WorkloadSpec& spec() const { return spec_; }
  const Problem& problem() const { return spec_.problem; }
  /// Returns whether the shapes are known without reading a file.
  bool has_shapes() const { return spec_.load.empty() || inputs_; }
  bool is_checked() const { return spec_.check != Check::off; }

  /// Returns the inputs, with dO if `backward`. Throws Error(bad_usage) for a missing or bad file.
  const Inputs& inputs(bool backward);
  /// Returns the reference for the rows to check, with the step's roundings and, if `quantisation`
  /// is given, with inputs quantised in this way.
  const Reference& reference(const Step& step, const std::optional<Quantisation>& quantisation);

 private:
  WorkloadSpec spec_;
  std::optional<Inputs> inputs_;
  std::map<std::tuple<Rounding, std::optional<Quantisation>, bool>, Reference> references_;
};

}  // namespace ladder
