// Orders a rung's steps. Each step's registration names in Step::after the step that it follows.
#pragma once

#include <string>
#include <vector>

#include "rung.h"

namespace ladder {

/// Returns the rung's steps, each after the step that it follows. Among the followers of a step,
/// asides come first; a step for the GPU comes before the same step for the simulator. Throws
/// std::logic_error if a step follows an unknown one or itself; if two steps follow the same one
/// and neither is an aside; if two have the same name; if there is no default, or two for the same
/// devices; or if a step borrows the forward pass of a step that is not linked.
std::vector<const Step*> steps_of(const std::string& rung);

/// Returns `step` and all its predecessors for the same device; the rung's first step comes last.
std::vector<const Step*> back_to_the_first(const Step& step);

/// Returns whether a step runs only if named: no default on its device is it or builds on it.
bool by_name_only(const Step& step);

/// Returns the steps' tile sizes, block_q x block_kv, each once, as text: "128x64, 64x64".
std::string tiles_text(const std::vector<const Step*>& steps);

/// Returns a setting's name and values as text: "scale=tile|head".
std::string setting_text(const Setting& setting);

}  // namespace ladder
