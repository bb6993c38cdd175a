// The mistakes that mistakes.py plants, one of which can be made at a time.
#pragma once

#include <ostream>
#include <stdexcept>
#include <string>

#include "ladder/mutate/switch.h"

namespace ladder {

struct Mistake {
  int number;
  const char *name, *rung, *step;
  const char *how, *says;  // one of the ways in which it must be caught, and a fault's words
  const char* gone;        // why it cannot be made, if so
};
inline void PrintTo(const Mistake& m, std::ostream* out) {
  *out << m.name;
}
inline const Mistake kMistakes[] = {
#include "mistakes.inc"
};

/// The mistake is made as long as this lives.
class Making {
 public:
  explicit Making(const std::string& name) {
    for (const Mistake& m : kMistakes)
      if (m.name == name) {
        if (*m.gone) throw std::logic_error(name + " cannot be planted: " + m.gone);
        mutant::active = m.number;
        return;
      }
    throw std::logic_error("no mistake is called " + name);
  }
  ~Making() {
    mutant::active = -1;
  }
  Making(const Making&) = delete;
};

}  // namespace ladder
