# Sourced by scripts/run and scripts/test.
#   ready          sets up the machine to build: checks for what is needed and, on Debian and
#                  Ubuntu as root or with passwordless sudo, installs what is missing
#   build PRESET [TARGET...]   configures and builds quietly, all if no target is named
# Both end the script with a message that names the way out when they cannot.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
me=scripts/$(basename "$0")
monitor_pid=
updated=
lock= # the open file that says that a build is under way

say() { printf '%s\n' "$*" >&2; }
die() {
  say "$me: $*"
  exit 1
}

# Ctrl-C reaches the command that runs as well, which then cleans up after itself.
trap 'stop_monitor; exit 130' INT
trap 'stop_monitor; exit 143' TERM
stop_monitor() {
  if [[ $monitor_pid ]]; then
    kill "$monitor_pid" 2>/dev/null || true
    wait "$monitor_pid" 2>/dev/null || true
    monitor_pid=
    if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
  fi
}

# quietly WHAT LOG COMMAND...: the command's output goes to LOG, progress to stderr once it has
# taken two seconds: on a terminal a line that is rewritten, else a line every half minute.
quietly() {
  local what=$1 log=$2 status=0
  shift 2
  : >"$log"
  monitor "$what" "$log" >/dev/null &
  monitor_pid=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  stop_monitor
  return $status
}

monitor() {
  local seconds last done_of
  trap - INT TERM
  SECONDS=0
  last=-30
  # The parent may be killed without a chance to stop this one.
  while sleep 0.5 2>/dev/null && kill -0 $$ 2>/dev/null; do
    seconds=$SECONDS
    # Ninja's own count of what is done, where there is one.
    done_of=$(tail -n 1 "$2" 2>/dev/null | sed -n 's/^\[\([0-9]*\/[0-9]*\)\].*/ \1/p')
    if ((seconds < 2)); then
      continue
    elif [[ -t 2 ]]; then
      printf '\r\033[K%s%s, %d s' "$1" "$done_of" "$seconds" >&2
    elif ((seconds - last >= 30)); then
      say "$1$done_of ..."
      last=$seconds
    fi
  done
}

# ---- what is needed ----

# Runs the compiler over the given source; further arguments are its options.
probe() { "${compiler[@]}" -std=c++20 -x c++ "${@:2}" - >/dev/null 2>&1 <<<"$1"; }

has_compiler() {
  # <source_location> came with g++ 11.
  [[ ${compiler[*]} ]] && probe '#include <source_location>
#if __cplusplus < 202002L
#error
#endif' -E
}

has_cmake() {
  local version
  command -v cmake ctest >/dev/null || return 1
  version=$(cmake --version | sed -n '1s/.* version //p')
  [[ $(printf '%s\n' 3.24 "$version" | sort -V | head -n 1) == 3.24 ]]
}

# A library's header, wherever the compiler or CMake would look for it.
has_header() {
  if [[ ! ${compiler[*]} ]]; then
    [[ -e /usr/include/$1 ]]
    return
  fi
  local prefix includes=() prefixes
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}" "${fmt_ROOT:-}" "${GTest_ROOT:-}"; do
    if [[ $prefix ]]; then includes+=("-I$prefix/include"); fi
  done
  probe "#if !__has_include(<$1>)
#error
#endif" -E "${includes[@]}"
}

python_has() { "$1" -c "import importlib.util as u, sys; sys.exit(sys.version_info < (3, 9) or not u.find_spec('$2'))" 2>/dev/null; }

# The system's own python3 is asked too: another one that comes first on PATH need not see the
# system's packages.
has_matplotlib() { python_has python3 matplotlib || python_has /usr/bin/python3 matplotlib; }

# Fills `missing` (for people) and `packages` (Debian's names).
check() {
  missing=() packages=() compiler=()
  local candidate
  # The order in which CMake looks.
  for candidate in "${CXX:-}" c++ g++ clang++; do
    read -ra compiler <<<"$candidate"
    if [[ ${compiler[*]} ]] && command -v "${compiler[0]}" >/dev/null; then break; fi
    compiler=()
  done
  lacks() { missing+=("$1") packages+=("$2"); }
  has_compiler || lacks "a C++20 compiler (g++ 11 or newer)" g++
  has_cmake || lacks "CMake 3.24 or newer" cmake
  command -v ninja >/dev/null || lacks "Ninja" ninja-build
  has_header fmt/core.h || lacks "fmt" libfmt-dev
  has_header gtest/gtest.h || lacks "GoogleTest" libgtest-dev
  python_has python3 unittest || lacks "Python 3.9 or newer" python3
}

# ---- getting it ----

can_install() {
  command -v apt-get >/dev/null && { ((EUID == 0)) || sudo -n true 2>/dev/null; }
}

apt() {
  local as_root=()
  if ((EUID)); then as_root=(sudo -n); fi
  # A dead network should not cost minutes; another apt-get that is at work is worth waiting for.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q \
    -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=120 "$@"
}

update_and_install() {
  # A failed update need not matter: the lists may be there.
  if [[ ! $updated ]]; then apt update || true; fi
  updated=yes
  apt install -y --no-install-recommends "$@"
}

join() { # SEPARATOR WORD...
  local separator=$1 text
  shift
  printf -v text "%s$separator" "$@"
  printf '%s' "${text%"$separator"}"
}

# Ends the script, saying what is missing and how to get it.
report_missing() {
  say "$me: this machine lacks $(join ', ' "${missing[@]}")."
  if [[ ${CXX:-} && " ${packages[*]} " == *" g++ "* ]]; then
    say "  CXX=$CXX is not a C++20 compiler: set it to one, or unset it."
  fi
  if command -v apt-get >/dev/null; then
    say "  To install: sudo apt-get install ${packages[*]}"
  else
    say "  Install these packages, then run $me again. Their names on Debian and Ubuntu:"
    say "  ${packages[*]}"
  fi
  if [[ " ${packages[*]} " == *" cmake "* ]] && command -v cmake >/dev/null; then
    say "  The CMake here is $(cmake --version | sed -n '1s/.* version //p');" \
      "where the system's package is too old: python3 -m pip install cmake"
  fi
  exit 1
}

ready() {
  local log=$root/build/ready.log
  # Found by CMake only on PATH or through this variable.
  local nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
  if [[ ! ${CUDACXX:-} && -x $nvcc ]] && ! command -v nvcc >/dev/null; then export CUDACXX=$nvcc; fi

  # All was there the last time; what was removed since, CMake names.
  local seen="CXX=${CXX:-} CMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH:-} PATH=$PATH CI=${CI:-}"
  if [[ -e $root/build/.ready && $(<"$root/build/.ready") == "$seen" ]] &&
    command -v cmake ctest ninja python3 >/dev/null; then
    return
  fi

  mkdir -p "$root/build"
  check
  if ((${#missing[@]})); then
    if ! can_install; then report_missing; fi
    say "$me: installing ${packages[*]}"
    if ! quietly "apt-get install" "$log" update_and_install "${packages[@]}"; then
      tail -n 5 "$log" >&2
      say "$me: apt-get failed (all of its output: build/ready.log)."
      hash -r
      check
      if ((${#missing[@]})); then report_missing; fi
    fi
    hash -r
    check
    if ((${#missing[@]})); then report_missing; fi
  fi

  # Only plots need matplotlib, so nothing stops for want of it.
  if ! has_matplotlib; then
    if can_install; then
      say "$me: installing python3-matplotlib"
      quietly "apt-get install" "$log" update_and_install python3-matplotlib || true
    fi
    if ! has_matplotlib; then
      say "$me: going on without matplotlib, which only plots need (package python3-matplotlib)."
    fi
  fi

  # Only the tests of the explorer's page need a browser. It is large, so nobody is made to have it.
  if [[ ${CI:-} ]] && ! command -v chromium >/dev/null && can_install; then
    say "$me: installing chromium"
    quietly "apt-get install" "$log" update_and_install chromium || true
    if ! command -v chromium >/dev/null; then
      say "$me: going on without chromium, which only tests of scripts/explore need."
    fi
  fi
  printf '%s\n' "$seen" >"$root/build/.ready"
}

# ---- building ----

build() {
  local build_dir=$root/build targets=("${@:2}")
  if [[ $1 != default ]]; then build_dir+=/$1; fi
  mkdir -p "$build_dir"
  local log=$build_dir/build.log stamp=$build_dir/.configured fresh=()
  alone "$build_dir/.lock"

  # What CMake decides once and keeps: with another compiler, or in a folder that has moved, it
  # has to decide again. What it reads (CMakeLists.txt), Ninja watches.
  local from
  from="$root CXX=${CXX:-} CUDACXX=${CUDACXX:-} nvcc=$(command -v nvcc || true) CI=${CI:-}"
  if [[ ! -e $build_dir/build.ninja || ! -e $stamp || $(<"$stamp") != "$from" ||
    $root/CMakePresets.json -nt $stamp ]]; then
    if [[ -e $stamp ]]; then fresh=(--fresh); fi
    rm -f "$stamp"
    if ! quietly "configuring" "$log" cmake -S "$root" "${fresh[@]}" --preset "$1"; then
      rm -f "$root/build/.ready" # look again the next time: perhaps something was removed
      sed -n '/CMake Error/,$p' "$log" >&2
      die "CMake failed (all of its output: ${log#"$root"/})."
    fi
    printf '%s\n' "$from" >"$stamp"
  fi

  if ! NINJA_STATUS='[%f/%t] ' quietly "building" "$log" \
    cmake --build "$build_dir" -j "$(nproc)" ${targets[0]:+--target "${targets[@]}"}; then
    # Ninja prints a line for each step, and what a step printed only if it said something.
    grep -v '^\[[0-9]*/[0-9]*\]' "$log" >&2 || true
    die "the build failed (all of its output: ${log#"$root"/})."
  fi
  exec {lock}>&- # of alone
}

# Two builds in one folder would overwrite each other's files: the second waits for the first.
alone() {
  exec {lock}>"$1"
  if command -v flock >/dev/null && ! flock -n "$lock"; then
    say "$me: another build in this clone is under way; waiting for its end."
    flock "$lock"
  fi
}
