// What attention is computed of: sizes, values, and what is right for them.
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

/// A workload as it is asked for.
struct WorkloadSpec {
  Problem problem;  // with `load` its shapes are those of the files, once they are read
  Input input = Input::normal;
  uint64_t seed = 0;
  std::string load;            // directory of the inputs; empty: they are drawn
  std::optional<float> scale;  // of the problem; empty: 1/√d
  Check check = Check::automatic;
  bool operator==(const WorkloadSpec&) const = default;

  /// Derives the problem's scale from its sizes, and refuses those with more rows, of all heads,
  /// than an int counts. Throws Error(bad_usage).
  void complete();
};

/// Adds its shapes, type, scale, input and seed, under the names of the options.
void add_workload(json::Members& members, const WorkloadSpec& spec);

/// A workload that several runs share: inputs and references, each made when it is first needed.
class Workload {
 public:
  explicit Workload(WorkloadSpec spec) : spec_(std::move(spec)) {}
  /// Of inputs that are there.
  Workload(WorkloadSpec spec, Inputs inputs) : spec_(std::move(spec)), inputs_(std::move(inputs)) {}

  const WorkloadSpec& spec() const { return spec_; }
  const Problem& problem() const { return spec_.problem; }
  /// Whether the sizes are known without reading a file.
  bool has_shapes() const { return spec_.load.empty() || inputs_; }
  bool is_checked() const { return spec_.check != Check::off; }

  /// With dO where it is for a backward pass. Throws Error(bad_usage) for files that are not right.
  const Inputs& inputs(bool backward);
  /// Of what is to be checked of a step whose inputs are quantised so.
  const Reference& reference(const Step& step, const std::optional<Quantisation>& quantisation);

 private:
  WorkloadSpec spec_;
  std::optional<Inputs> inputs_;
  std::map<std::tuple<Rounding, std::optional<Quantisation>, bool>, Reference> references_;
};

}  // namespace ladder
