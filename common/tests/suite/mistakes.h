// The mistakes that mistakes.py plants, of which none or one is made.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string_view>

#include "../../../scripts/ladder/mutate/switch.h"

namespace ladder {

struct Mistake {
  const char *name, *rung, *step;
  const char *how, *says;  // one of the ways in which it must be caught, and what a fault says
  const char* gone;        // why it cannot be made, if so
};
inline void PrintTo(const Mistake& m, std::ostream* out) {
  *out << m.name;
}
inline constexpr Mistake kMistakes[] = {
#include "mistakes.inc"
};

/// The number in kMistakes of that name.
inline int number_of_mistake(std::string_view name) {
  int number = 0;
  for (const Mistake& m : kMistakes) {
    if (m.name == name) {
      if (*m.gone) std::fprintf(stderr, "%s cannot be planted: %s\n", m.name, m.gone);
      return number;
    }
    ++number;
  }
  std::fprintf(stderr, "no mistake is called %s\n", name.data());
  std::abort();
}

/// What LADDER_MISTAKE chooses.
inline const bool mistake_chosen = [] {
  if (const char* const name = std::getenv("LADDER_MISTAKE"))
    mutant::active = number_of_mistake(name);
  return true;
}();

}  // namespace ladder
