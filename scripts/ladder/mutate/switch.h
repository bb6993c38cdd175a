// What scripts/mutate and mistakes.py write into their copies of sources, so that one build holds
// many mutants: each is a choice made while the program runs, by the number in LADDER_MUTANT. Where
// the compiler needs a constant it gets the sound one. Needs no other header of the project.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace ladder::mutant {

inline int active = [] {
  const char* const number = std::getenv("LADDER_MUTANT");
  return number ? std::atoi(number) : -1;
}();

/// Says once on stderr that the active mutant cannot be: it is of other types. Ends the program.
[[noreturn]] inline void misfit() {
  constexpr char kText[] = "mutant does not fit\n";
  _exit(write(2, kText, sizeof(kText) - 1) < 0 ? 2 : 1);
}

/// Says once, on stderr, that the active mutant did something.
[[gnu::noinline, gnu::cold]] inline void note_reached() {
  static std::atomic_flag said;
  constexpr char kText[] = "mutant reached\n";
  if (!said.test_and_set() && write(2, kText, sizeof(kText) - 1) < 0) std::abort();
}

/// Whether this mutant is the active one.
constexpr bool on(int number) {
  if (std::is_constant_evaluated()) return false;
  if (number != active) return false;
  note_reached();
  return true;
}

/// `now` where the mutant is active.
template <class T>
constexpr T number(int id, T was, T now) {
  return on(id) ? now : was;
}

/// a, or b where the mutant is active. Both must be of one type.
template <class A, class B>
constexpr A&& pick(int id, A&& a, B&& b) {
  if constexpr (std::is_same_v<std::remove_cvref_t<A>, std::remove_cvref_t<B>>) {
    if (on(id)) return static_cast<A&&>(const_cast<std::remove_cvref_t<A>&>(b));
  } else if (on(id)) {
    misfit();
  }
  return static_cast<A&&>(a);
}

/// x, or what is left of it after rounding to T where the mutant is active: of a float, or of all
/// the floats of some rows.
template <class T, class X>
constexpr X rounded(int id, const X& x) {
  if constexpr (std::is_same_v<X, float>) {
    if (on(id)) return float(T(x));
  } else if constexpr (requires { float(*x.r); }) {
    if (on(id)) {
      X all = x;
      for (auto& one : all.r) one = float(T(one));
      return all;
    }
  } else if (on(id)) {
    misfit();
  }
  return x;
}

// `a + M + b` stands for a + b, or a − b where the mutant M is active: M takes its place between
// the two without a change of precedence. So for other operators; `a < M > b` stands for a < b.
#define LADDER_MUTANT_OPERATOR(Name, OP, THEN, SOUND, MUTATED) \
  struct Name {                                                \
    int id;                                                    \
  };                                                           \
  template <class A>                                           \
  struct Name##After {                                         \
    A&& a;                                                     \
    int id;                                                    \
  };                                                           \
  template <class A>                                           \
  constexpr Name##After<A> operator OP(A&& a, Name m) {        \
    return {std::forward<A>(a), m.id};                         \
  }                                                            \
  template <class A, class B>                                  \
  constexpr auto operator THEN(Name##After<A> left, B&& b) {   \
    auto& a = left.a;                                          \
    using R = std::remove_cvref_t<decltype(a SOUND b)>;        \
    if constexpr (requires { R(MUTATED); }) {                  \
      if (on(left.id)) return R(MUTATED);                      \
    } else if (on(left.id)) {                                  \
      misfit();                                                \
    }                                                          \
    return R(a SOUND b);                                       \
  }
#define LADDER_SIMPLE(Name, OP, THEN, OTHER) LADDER_MUTANT_OPERATOR(Name, OP, THEN, OP, a OTHER b)

LADDER_SIMPLE(Less, <, >, <=)
LADDER_SIMPLE(LessEqual, <=, >=, <)
LADDER_SIMPLE(Greater, >, <, >=)
LADDER_SIMPLE(GreaterEqual, >=, <=, >)
LADDER_SIMPLE(Equal, ==, ==, !=)
LADDER_SIMPLE(NotEqual, !=, !=, ==)
LADDER_SIMPLE(Minus, -, -, +)
LADDER_SIMPLE(Times, *, *, +)
LADDER_SIMPLE(Over, /, /, *)
LADDER_MUTANT_OPERATOR(Modulo, %, %, %, a)

/// Not all that a number can be added to can have one subtracted.
template <class A, class B>
constexpr auto minus(A& a, B& b) {
  if constexpr (requires { a - b; })
    return a - b;
  else
    return a + -b;
}
LADDER_MUTANT_OPERATOR(Plus, +, +, +, minus(a, b))

/// f(…), or g(…) where the mutant is active.
#define LADDER_MUTANT_CALL(id, f, g)                                       \
  [&](auto&&... x) -> decltype(f(std::forward<decltype(x)>(x)...)) {       \
    if (ladder::mutant::on(id)) return g(std::forward<decltype(x)>(x)...); \
    return f(std::forward<decltype(x)>(x)...);                             \
  }

/// atomicAdd and atomic_add_pair, done plainly.
template <class Array, class T>
T plain_add(Array target, T x) {
  const T before = target[0];
  target[0] = before + x;
  return before;
}
template <class Array>
void plain_add_pair(Array target, float a, float b) {
  plain_add(target, a);
  plain_add(target + 1, b);
}

}  // namespace ladder::mutant
