// The mistakes that mistakes.py plants, of which none or one is made.
#pragma once

#include <cstdlib>
#include <ostream>
#include <string_view>

#include "../../../scripts/ladder/mutate/switch.h"

namespace ladder {

struct Mistake {
  int number;
  const char *name, *rung, *step;
  const char *how, *says;  // one of the ways in which it must be caught, and what a fault says
};
inline void PrintTo(const Mistake& m, std::ostream* out) {
  *out << m.name;
}
inline constexpr Mistake kMistakes[] = {
#include "mistakes.inc"
};

/// What LADDER_MISTAKE chooses.
inline const bool mistake_chosen = [] {
  const char* const name = std::getenv("LADDER_MISTAKE");
  for (const Mistake& m : kMistakes)
    if (name && std::string_view(name) == m.name) mutant::active = m.number;
  return true;
}();

}  // namespace ladder
