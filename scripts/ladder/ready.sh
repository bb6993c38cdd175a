# Sourced by the scripts that build. They and this must run with bash 3.2 and BSD tools, which macOS
# has; there with `set -u` an empty array is an error, so none sets it.
#   ready [tests] [matplotlib] [chromium]   sets up the machine to build the programs, and what is
#                  named: checks for what is needed and, on Debian and Ubuntu as root or with
#                  passwordless sudo, installs what is missing
#   build PRESET [TARGET...]   configures and builds quietly, all if no target is named
# Both end the script with a message that names the way out when they cannot.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
me=scripts/$(basename "$0")
monitor_pid=
updated=
tests= # whether they are built too

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
# taken two seconds: on a terminal a line that is rewritten, else a line every half minute. Where
# LOG.todo lists Ninja's steps, with how many are done and about how long the rest will take.
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
  local seconds last progress
  trap - INT TERM
  SECONDS=0
  last=-30
  # The parent may be killed without a chance to stop this one.
  while sleep 0.5 2>/dev/null && kill -0 $$ 2>/dev/null; do
    seconds=$SECONDS
    if ((seconds < 2)); then continue; fi
    if [[ ! -t 2 ]] && ((seconds - last < 30)); then continue; fi
    progress=$(steps_done "$2" "$seconds")
    if [[ -t 2 ]]; then
      printf '\r\033[K%s%s' "$1" "${progress:-, $seconds s}" >&2
    else
      say "$1${progress:- ...}"
      last=$seconds
    fi
  done
}

# steps_done LOG SECONDS: " 40/80, about 50 s" of a build; nothing where LOG is of something else. A
# kernel takes nvcc ten times and the host's compiler four times as long as an ordinary file.
steps_done() {
  [[ -e $1.todo ]] || return 0
  awk -v seconds="$2" '
    function work(step) {
      return step ~ /Building CUDA/ ? 15 : step ~ /stubs/ ? 6 : step ~ /Building/ ? 1.5 : 0.3
    }
    !/^\[[0-9]+\/[0-9]+\]/ || /Re-(checking|running)/ { next }
    FNR == NR { all += work($0); steps++; next }
    { finished += work($0); count++ }
    END {
      if (!steps) exit
      printf " %d/%d", count, steps
      left = finished ? seconds * (all - finished) / finished : 0
      if (finished > all / 20 && left > 0)
        printf ", about %d s", (left < 20 ? left + 1 : int(left / 10 + 1) * 10)
      else printf ", %d s so far", seconds
    }' "$1.todo" "$1" 2>/dev/null
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
  local version major minor
  command -v cmake ctest >/dev/null || return 1
  version=$(cmake --version | sed -n '1s/.* version //p')
  major=${version%%.*} minor=${version#*.} minor=${minor%%.*}
  ((major > 3 || (major == 3 && minor >= 24)))
}

# A library's header, wherever the compiler or CMake would look for it.
has_header() {
  if [[ ! ${compiler[*]} ]]; then
    [[ -e /usr/include/$1 ]]
    return
  fi
  local prefix includes=() prefixes
  IFS=':;' read -ra prefixes <<<"$CMAKE_PREFIX_PATH;$PATH"
  for prefix in "${prefixes[@]}"; do
    if [[ $prefix ]]; then includes+=("-I${prefix%/bin}/include"); fi
  done
  probe "#if !__has_include(<$1>)
#error
#endif" -E "${includes[@]}"
}

python_has() { # PYTHON MODULE
  "$1" -c "import importlib.util as u, sys
sys.exit(sys.version_info < (3, 9) or not u.find_spec('$2'))" 2>/dev/null
}

# The system's own python3 is asked too: another one that comes first on PATH need not see the
# system's packages.
has_chromium() { command -v chromium chromium-browser google-chrome >/dev/null; }
has_matplotlib() { python_has python3 matplotlib || python_has /usr/bin/python3 matplotlib; }

# What is needed, and its package for apt-get, Homebrew, dnf and pacman. Homebrew's compiler is
# Apple's, which comes with another command.
table='compiler    g++                 -                  gcc-c++             gcc
cmake       cmake               cmake              cmake               cmake
ninja       ninja-build         ninja              ninja-build         ninja
fmt         libfmt-dev          fmt                fmt-devel           fmt
googletest  libgtest-dev        googletest         gtest-devel         gtest
python      python3             python             python3             python
matplotlib  python3-matplotlib  python-matplotlib  python3-matplotlib  python-matplotlib
chromium    chromium            chromium           chromium            chromium'
column=2 install=
if command -v apt-get >/dev/null; then
  install="sudo apt-get install"
elif command -v brew >/dev/null; then
  column=3 install="brew install"
elif command -v dnf >/dev/null; then
  column=4 install="sudo dnf install"
elif command -v pacman >/dev/null; then
  column=5 install="sudo pacman -S"
fi
named() { # NEED...: the packages' names here, Debian's where the manager is unknown
  awk -v needs=" $* " -v column="$column" \
    'index(needs, " " $1 " ") && $column != "-" { printf "%s%s", space, $column; space = " " }' \
    <<<"$table"
}

# Fills `missing` (for people) and `needs` (of the table).
check() {
  missing=() needs=() compiler=()
  local candidate
  # The order in which CMake looks.
  for candidate in "$CXX" c++ g++ clang++; do
    read -ra compiler <<<"$candidate"
    if [[ ${compiler[*]} ]] && command -v "${compiler[0]}" >/dev/null; then break; fi
    compiler=()
  done
  lacks() { missing+=("$1") needs+=("$2"); }
  has_compiler || lacks "a C++20 compiler (g++ 11, clang 16 or newer)" compiler
  has_cmake || lacks "CMake 3.24 or newer" cmake
  command -v ninja >/dev/null || lacks "Ninja" ninja
  has_header fmt/core.h || lacks "fmt" fmt
  if [[ $tests ]]; then has_header gtest/gtest.h || lacks "GoogleTest" googletest; fi
  python_has python3 unittest || lacks "Python 3.9 or newer" python
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
  apt install -y --no-install-recommends "$@"
}

# get NEED...: installs them where that is possible.
get() {
  local log=$root/build/ready.log packages
  if ! can_install; then return; fi
  read -ra packages <<<"$(named "$@")"
  say "$me: installing ${packages[*]}"
  if ! quietly "apt-get install" "$log" update_and_install "${packages[@]}"; then
    tail -n 5 "$log" >&2
    say "$me: apt-get failed (all of its output: build/ready.log)."
  fi
  updated=yes
  hash -r
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
  local names
  names=$(named "${needs[@]}")
  if [[ " ${needs[*]} " == *" compiler "* ]]; then
    if [[ $CXX ]]; then say "  CXX=$CXX is not a C++20 compiler: set it to one, or unset it."; fi
    if [[ $OSTYPE == darwin* ]]; then say "  To install the compiler: xcode-select --install"; fi
  fi
  if [[ ! $install ]]; then
    say "  Install these packages, then run $me again. Their names on Debian and Ubuntu:"
    say "  $names"
  elif [[ $names ]]; then
    say "  To install: $install $names"
  fi
  if [[ " ${needs[*]} " == *" cmake "* ]] && command -v cmake >/dev/null; then
    say "  The CMake here is $(cmake --version | sed -n '1s/.* version //p');" \
      "where the system's package is too old: python3 -m pip install cmake"
  fi
  exit 1
}

ready() {
  local words="$*" wanted=" $* "
  if [[ $wanted == *" tests "* ]]; then tests=yes; fi
  # Found by CMake only on PATH or through this variable.
  local nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
  if [[ ! $CUDACXX && -x $nvcc ]] && ! command -v nvcc >/dev/null; then export CUDACXX=$nvcc; fi

  # All was there the last time; what was removed since, CMake names.
  local seen="CXX=$CXX CMAKE_PREFIX_PATH=$CMAKE_PREFIX_PATH PATH=$PATH"
  local stamp=$root/build/.ready${words:+.}${words// /.}
  if [[ -e $stamp && $(<"$stamp") == "$seen" ]] &&
    command -v cmake ctest ninja python3 >/dev/null; then
    return
  fi

  mkdir -p "$root/build"
  check
  if ((${#missing[@]})); then
    get "${needs[@]}"
    check
    if ((${#missing[@]})); then report_missing; fi
  fi
  # Nothing that was built stops for want of these.
  local need
  for need in matplotlib chromium; do
    if [[ $wanted != *" $need "* ]] || "has_$need"; then continue; fi
    get "$need"
    if ! "has_$need"; then
      say "$me: going on without $need (package $(named "$need")); only figures need matplotlib," \
        "and only tests of scripts/explore chromium."
    fi
  done
  printf '%s\n' "$seen" >"$stamp"
}

# ---- building ----

build() {
  local build_dir=$root/build targets=("${@:2}")
  if [[ $1 != default ]]; then build_dir+=/$1; fi
  mkdir -p "$build_dir"
  local log=$build_dir/build.log
  alone "$build_dir/.lock"
  configure "$1"

  # What there is to do, for the progress: from a copy, as Ninja would first renew build.ninja.
  export NINJA_STATUS='[%f/%t] '
  cp "$build_dir/build.ninja" "$log.ninja" 2>/dev/null &&
    ninja -C "$build_dir" -f build.log.ninja -n "${targets[@]}" >"$log.todo" 2>&1 || true
  if ! quietly "building" "$log" \
    cmake --build "$build_dir" ${targets[0]:+--target "${targets[@]}"} -j "$(cores)"; then
    compilers_words "$log"
    die "the build failed (all of its output: ${log#"$root"/})."
  fi
  compilers_words "$log"
  exec 9>&- # of alone
}

# What CMake decides once and keeps: with another compiler, or in a folder that has moved, it has to
# decide again. Where a GPU answers that did not before, its half is added, and it stays where none
# answers; so does what was asked for by LADDER_CUDA, and so do the tests where programs alone are
# asked for. What CMake reads (CMakeLists.txt), Ninja watches.
configure() { # PRESET
  local stamp=$build_dir/.configured options=() from before_from= gpu before_gpu=
  local cuda before_cuda= before_tests=
  from="$root CXX=$CXX CUDACXX=$CUDACXX nvcc=$(command -v nvcc || true) CI=$CI"
  if [[ -e $stamp ]]; then
    { read -r before_from && read -r before_gpu && read -r before_cuda && read -r before_tests; } \
      <"$stamp" || true
    if [[ $before_from != "$from" ]]; then
      options=(--fresh)
      before_gpu=
    fi
  fi
  gpu=$(python3 "$root/common/machine/gpu/answers.py") || gpu=
  gpu=${gpu:-$before_gpu} cuda=${LADDER_CUDA:-$before_cuda} tests=${tests:-$before_tests}
  if [[ -e $build_dir/build.ninja && ! $root/CMakePresets.json -nt $stamp &&
    "$from $gpu $cuda $tests" == "$before_from $before_gpu $before_cuda $before_tests" ]]; then
    return
  fi
  if [[ $tests ]]; then
    options+=(-DLADDER_TESTS=ON)
  elif [[ ${options[*]} || ! -e $build_dir/build.ninja ]]; then
    options+=(-DLADDER_TESTS=OFF)
  fi
  if [[ $gpu ]]; then options+=("-DLADDER_GPU_FOUND=$gpu"); fi
  if [[ $cuda && $1 == default ]]; then options+=("-DLADDER_CUDA=$cuda"); fi
  rm -f "$stamp" "$log.todo"
  if ! quietly "configuring" "$log" cmake -S "$root" --preset "$1" "${options[@]}"; then
    rm -f "$root"/build/.ready* # look again the next time: perhaps something was removed
    sed -n '/CMake Error/,$p' "$log" >&2
    die "CMake failed (all of its output: ${log#"$root"/})."
  fi
  printf '%s\n' "$from" "$gpu" "$cuda" "$tests" >"$stamp"
}

# Ninja prints a line for each step, and what a step printed only if it said something.
compilers_words() {
  grep -v -e '^\[[0-9]*/[0-9]*\]' -e '^ninja: ' -e '^-- ' "$1" >&2 || true
}

# Two builds in one folder would overwrite each other's files: the second waits for the first. The
# lock belongs to the open file, so it outlives the Python that takes it.
alone() {
  exec 9>"$1"
  if ! python3 -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null; then
    say "$me: another build in this clone is under way; waiting for its end."
    python3 -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
  fi
}

# Those that this process may use.
cores() {
  python3 -c 'import os
print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())'
}
