// Compiled into a file that scripts/exercise checks, before it: where the file stops by an
// exception, a crash or a limit, the calls under way go to stderr as addresses, which kinds.py
// makes a line of.
#if defined(__linux__) && __has_include(<execinfo.h>)
#include <execinfo.h>
#include <unistd.h>

#include <csignal>
#include <new>

namespace {

/// `exact` is which of the calls has stopped; the others stand behind the call that they wait for.
void say_where(int exact) {
  void* calls[40];
  const int n = backtrace(calls, 40);
  for (int i = 0; i < n; ++i)
    if (i != exact) calls[i] = static_cast<char*>(calls[i]) - 1;
  if (write(STDERR_FILENO, "[where]\n", 8) == 8) backtrace_symbols_fd(calls, n, STDERR_FILENO);
}

const bool guarded = [] {
  static char stack[100'000];  // a handler's own: the thread's may be full
  stack_t handlers = {};
  handlers.ss_sp = stack;
  handlers.ss_size = sizeof stack;
  sigaltstack(&handlers, nullptr);
  struct sigaction action = {};
  action.sa_handler = [](int number) {
    say_where(2);  // after this function and the system's own
    std::raise(number);
  };
  action.sa_flags = SA_ONSTACK | SA_RESETHAND | SA_NODEFER;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGXCPU})
    sigaction(number, &action, nullptr);
  std::set_new_handler([] { throw std::bad_alloc(); });
  void* first[1];
  backtrace(first, 1);  // which loads a library, as no handler should
  return true;
}();

}  // namespace

// Linked with --wrap: what `throw` calls.
extern "C" void __real___cxa_throw(void* thrown, void* type, void* destroy);
extern "C" void __wrap___cxa_throw(void* thrown, void* type, void* destroy) {
  say_where(-1);
  __real___cxa_throw(thrown, type, destroy);
}
#endif
