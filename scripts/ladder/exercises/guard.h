// Compiled into a file that scripts/exercise checks, before it: the program keeps to one core and
// to limits, and where the file stops by an exception, a crash or a limit, the calls under way go to
// stderr as addresses, of which climb.py makes a line.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#if __has_include(<execinfo.h>)
#include <dlfcn.h>
#include <execinfo.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

namespace {

/// `exact`: which of the calls is where it stopped; the others stand behind the call that they wait
/// for.
void say_where(int exact) {
#if __has_include(<execinfo.h>)
  void* calls[40];
  const int n = backtrace(calls, 40);
  for (int i = 0; i < n; ++i)
    if (i != exact) calls[i] = static_cast<char*>(calls[i]) - 1;
  if (write(STDERR_FILENO, "[where]\n", 8) == 8) backtrace_symbols_fd(calls, n, STDERR_FILENO);
#endif
}

void at_signal(int number) {
  say_where(2);  // after this function and the system's own
  std::raise(number);
}

const bool guarded = [] {
  const auto limit = [](auto what, rlim_t most) {
    const rlimit both = {most, what == RLIMIT_CPU ? most + 1 : most};
    setrlimit(what, &both);
  };
  limit(RLIMIT_AS, 4'000'000'000);
  limit(RLIMIT_FSIZE, 30'000'000);
  limit(RLIMIT_CORE, 0);
  if (const char* seconds = std::getenv("LADDER_SECONDS")) limit(RLIMIT_CPU, std::atoi(seconds));
#ifdef __linux__
  if (const char* core = std::getenv("LADDER_CORE")) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(std::atoi(core), &mine);
    sched_setaffinity(0, sizeof mine, &mine);
  }
#endif
  static char stack[100'000];  // a handler's own: the thread's may be full
  stack_t handlers = {};
  handlers.ss_sp = stack;
  handlers.ss_size = sizeof stack;
  sigaltstack(&handlers, nullptr);
  struct sigaction action = {};
  action.sa_handler = at_signal;
  action.sa_flags = SA_ONSTACK | SA_RESETHAND | SA_NODEFER;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGXCPU})
    sigaction(number, &action, nullptr);
#if __has_include(<execinfo.h>)
  void* first[1];
  backtrace(first, 1);  // which loads a library, as no handler should
#endif
  return true;
}();

}  // namespace

#if __has_include(<execinfo.h>)
// What `throw` calls. By another name here, because compilers declare it themselves.
#ifdef __APPLE__
extern "C" void guarded_throw(void* thrown, void* type, void* destroy) asm("___cxa_throw");
#else
extern "C" void guarded_throw(void* thrown, void* type, void* destroy) asm("__cxa_throw");
#endif
void guarded_throw(void* thrown, void* type, void* destroy) {
  say_where(-1);
  reinterpret_cast<decltype(&guarded_throw)>(dlsym(RTLD_NEXT, "__cxa_throw"))(thrown, type, destroy);
  std::abort();
}
#endif
