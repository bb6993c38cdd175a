// A workload: the sizes, the inputs and the references.
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

/// A workload as the options ask for it.
struct WorkloadSpec {
  Problem problem;  // with `load` the files give the shapes, once they are read
  Input input = Input::normal;
  uint64_t seed = 0;
  std::string load;            // folder of the inputs; empty: they are drawn
  std::optional<float> scale;  // --scale; empty: 1/√d
  Check check = Check::automatic;
  bool operator==(const WorkloadSpec&) const = default;

  /// Sets the problem's scale and checks its sizes. Throws Error(bad_usage) for a head size or head
  /// count that is not allowed, and for more than 2³⁰ rows in all heads.
  void complete();
};

/// Adds the shapes, type, scale, input and seed under the options' names.
void add_workload(json::Members& members, const WorkloadSpec& spec);

/// A workload that several runs share. Inputs and references are made when they are first needed.
class Workload {
 public:
  explicit Workload(WorkloadSpec spec) : spec_(std::move(spec)) {}
  /// Uses inputs that exist already.
  Workload(WorkloadSpec spec, Inputs inputs) : spec_(std::move(spec)), inputs_(std::move(inputs)) {}

  const WorkloadSpec& spec() const { return spec_; }
  const Problem& problem() const { return spec_.problem; }
  /// Returns whether the sizes are known without reading a file.
  bool has_shapes() const { return spec_.load.empty() || inputs_; }
  bool is_checked() const { return spec_.check != Check::off; }

  /// Returns the inputs, with dO for a backward pass. Throws Error(bad_usage) for a file that is
  /// missing or not valid.
  const Inputs& inputs(bool backward);
  /// Returns the reference for the rows to check of a step whose inputs are quantised in this way.
  const Reference& reference(const Step& step, const std::optional<Quantisation>& quantisation);

 private:
  WorkloadSpec spec_;
  std::optional<Inputs> inputs_;
  std::map<std::tuple<Rounding, std::optional<Quantisation>, bool>, Reference> references_;
};

}  // namespace ladder
