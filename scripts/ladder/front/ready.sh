# Sourced by the scripts that build. Checks for the tools and, on Debian and Ubuntu as root or with
# passwordless sudo, installs those that are missing; elsewhere it says what to install. Only CMake
# looks for libraries. This file and the scripts that source it must run with macOS's bash 3.2 and
# BSD tools; an empty array is an error there under `set -u`, so none of them uses it.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
me=scripts/$(basename "$0")
packages=(g++ cmake ninja-build python3 libfmt-dev libgtest-dev)
case $CI in 0 | [Ff]alse | FALSE | [Nn]o | NO | [Oo]ff | OFF) unset CI ;; esac
export MPLBACKEND=Agg # a notebook sets its own backend, which may not be installed
PATH+=:${CUDA_HOME:-/usr/local/cuda}/bin # CMake looks for nvcc only on PATH

trap 'exit 130' INT # Ninja handles the signal and ends normally, so bash would continue

say() { printf '%s\n' "$me: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# usage_if_asked [WORD...]: if a word is -h or --help, prints the help from stdin and exits.
usage_if_asked() {
  case " $* " in *" -h "* | *" --help "*)
    cat
    exit
    ;;
  esac
}

# ready: installs the tools that a build needs; exits with instructions if some are still missing.
ready() {
  if [[ $(lacking) ]]; then get || true; fi
  local missing
  missing=$(lacking)
  if [[ $missing ]]; then
    die "this machine lacks$missing. On Debian and Ubuntu: sudo apt-get install ${packages[*]}." \
      "Without root, or on other systems: see common/BUILDING.md."
  fi
}

# lacking: prints the missing tools, each after a space.
lacking() {
  local tool
  for tool in "${CXX:-c++}" cmake ctest ninja; do
    command -v "${tool%% *}" >/dev/null || printf ' %s' "${tool%% *}"
  done
  python3 -c 'import sys, unittest; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
    printf ' python3 (3.9 or newer)'
}

# get [PACKAGE...]: installs these packages, or all that a build needs; fails without root or apt.
get() {
  local as_root=() how="as root"
  command -v apt-get >/dev/null || return
  if ((EUID)); then
    sudo -n true 2>/dev/null || return
    as_root=(sudo -n) how="with sudo"
  fi
  (($#)) || set -- "${packages[@]}"
  say "some of these packages are missing here, so apt-get installs them $how: $*"
  # A failed update may not matter, because the package lists may be on the machine already.
  apt update || true
  apt install -y --no-install-recommends "$@"
  hash -r
}
apt() {
  # These options give up soon on a dead network, but wait for another apt-get to finish.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 \
    -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=120 "$@" >/dev/null
}

# want PACKAGE COMMAND...: installs an optional package if the command fails.
want() { "${@:2}" >/dev/null 2>&1 || get "$1" || true; }

# build PRESET [TARGET...]: configures, and builds the targets or everything. Ninja shows progress.
build() {
  local preset=$1 folder=$root/build log chosen was hint options=()
  shift
  if [[ $preset != default ]]; then folder+=/$preset; fi
  log=$folder/configure.log
  mkdir -p "$folder"
  exec 9>"$folder/.lock" # two builds in one folder would overwrite each other's files
  local turn='import fcntl; fcntl.flock(9, fcntl.LOCK_EX'
  if ! python3 -I -c "$turn | fcntl.LOCK_NB)" 2>/dev/null; then
    say "another build in this clone is running; waiting for it to end."
    python3 -I -c "$turn)" || true # some network file systems lack locks
  fi

  # CMake caches its decisions, such as LADDER_CUDA. It must decide again with another compiler, in
  # a folder that has moved, and after a failure.
  chosen="$root $CXX:$CXXFLAGS:$CUDACXX:$CUDAHOSTCXX:$NVCC_CCBIN:$(command -v nvcc || true)"
  was=$(cat "$folder/.configured" 2>/dev/null || true)
  rm -f "$folder/.configured"
  if [[ $was != "$chosen" ]]; then rm -rf "$folder"/{CMakeCache.txt,CMakeFiles/[0-9]*}; fi
  if [[ $* != programs ]]; then options+=(-DLADDER_TESTS=ON); fi
  if [[ $LADDER_CUDA && $preset == default ]]; then options+=("-DLADDER_CUDA=$LADDER_CUDA"); fi
  if command -v nvcc >/dev/null; then
    hint="; if nvcc is what fails, LADDER_CUDA=OFF scripts/run builds without the GPU half"
  fi
  configure() { cmake -S "$root" --preset "$preset" "${options[@]}" >"$log" 2>&1; }
  if ! { configure || { grep -q "apt-get install" "$log" && get && configure; }; }; then
    sed -n '/CMake Error/,$p' "$log" >&2
    die "CMake failed$hint. All of its output is in ${log#"$root/"}."
  fi
  printf '%s\n' "$chosen" >"$folder/.configured"

  ninja -C "$folder" "$@" >&2 || die "the build failed$hint."
  exec 9>&-
}
