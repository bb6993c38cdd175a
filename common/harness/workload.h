// Defines a workload: its sizes, its inputs, and the references that outputs are compared with.
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

struct WorkloadSpec {
  Problem problem;  // with `load`, the files determine the shapes once they are read
  Input input = Input::normal;
  uint64_t seed = 0;           // of all drawn inputs
  std::string load;            // folder of the input files; empty: inputs are drawn
  std::optional<float> scale;  // --scale; empty: 1/√d
  Check check = Check::automatic;
  bool operator==(const WorkloadSpec&) const = default;

  /// Sets the problem's scale and checks its sizes. Throws Error(bad_usage) for a head size or head
  /// count that is not allowed, and for more than 2³⁰ rows in all heads together.
  void complete();
};

/// Adds a workload's shapes, type, scale, input and seed, under the keys of common/CONTRACTS.md.
void add_workload(json::Members& members, const WorkloadSpec& spec);

/// A workload that several runs share, such as those of --step A,B. Inputs and references are
/// computed when first needed, and kept.
class Workload {
 public:
  explicit Workload(WorkloadSpec spec) : spec_(std::move(spec)) {}
  /// Uses these inputs instead of drawing or loading them.
  Workload(WorkloadSpec spec, Inputs inputs) : spec_(std::move(spec)), inputs_(std::move(inputs)) {}

  const WorkloadSpec& spec() const { return spec_; }
  const Problem& problem() const { return spec_.problem; }
  /// Returns whether the shapes are known without reading a file.
  bool has_shapes() const { return spec_.load.empty() || inputs_; }
  bool is_checked() const { return spec_.check != Check::off; }

  /// Returns the inputs, with dO if `backward`. If they are loaded, the first call sets the
  /// problem's shapes. Throws Error(bad_usage) for a missing or bad file.
  const Inputs& inputs(bool backward);
  /// Returns the reference for the rows to check, with the step's roundings. If `quantisation` is
  /// given, the inputs are first quantised in this way.
  const Reference& reference(const Step& step, const std::optional<Quantisation>& quantisation);

 private:
  WorkloadSpec spec_;
  std::optional<Inputs> inputs_;
  /// The references, keyed by rounding, quantisation and whether they have gradients.
  std::map<std::tuple<Rounding, std::optional<Quantisation>, bool>, Reference> references_;
};

}  // namespace ladder
