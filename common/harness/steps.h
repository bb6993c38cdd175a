// The order of a rung's steps, and which of them run without being named. Each registration says
// which step its own follows; nothing else does.
#pragma once

#include <string>
#include <vector>

#include "rung.h"

namespace ladder {

/// The rung's steps, each after the one that it follows, asides of the same one first; of a step
/// that was compiled for two devices the GPU's comes first. Throws std::logic_error for
/// registrations that make no ladder: a step that follows one that is not there, or in a circle;
/// two that follow the same one, neither of them an aside; two of a name; no default, or two for
/// the same devices; one that names the forward pass of a step that is not there.
std::vector<const Step*> steps_of(const std::string& rung);

/// A step and those before it, on its device, back to the rung's first.
std::vector<const Step*> back_to_the_first(const Step& step);

/// Whether a step runs only where it is named: it is no default of its device, nor leads to one.
bool by_name_only(const Step& step);

/// Tile sizes that any of the steps has, each once: "128x64, 64x64".
std::string tiles_text(const std::vector<const Step*>& steps);

/// A setting's name and values: "scale=tile|head".
std::string setting_text(const Setting& setting);

}  // namespace ladder
