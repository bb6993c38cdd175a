# Sourced by the scripts that build: checks for the tools and, on Debian and Ubuntu as root or with
# passwordless sudo, installs what is missing; says else what to install. Libraries are looked for by
# CMake alone. This and the scripts that source it run with bash 3.2 and BSD tools, which macOS has;
# there with `set -u` an empty array is an error, so none sets it.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
me=scripts/$(basename "$0")
packages=(g++ cmake ninja-build python3 libfmt-dev libgtest-dev)
case $CI in 0 | [Ff]alse | FALSE | [Nn]o | NO | [Oo]ff | OFF) unset CI ;; esac
export MPLBACKEND=Agg # a notebook's may not be there
PATH+=:${CUDA_HOME:-/usr/local/cuda}/bin # CMake looks for nvcc on PATH alone

trap 'exit 130' INT # Ninja ends well of it, and bash would go on

say() { printf '%s\n' "$me: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# usage_if_asked [WORD...]: shows stdin, the help, where a word asks for it.
usage_if_asked() {
  case " $* " in *" -h "* | *" --help "*)
    cat
    exit
    ;;
  esac
}

ready() {
  if [[ $(lacking) ]]; then get || true; fi
  local missing
  missing=$(lacking)
  if [[ $missing ]]; then
    die "this machine lacks$missing. Debian and Ubuntu: sudo apt-get install ${packages[*]}." \
      "Without root, and other systems: common/BUILDING.md."
  fi
}

lacking() {
  local tool
  for tool in "${CXX:-c++}" cmake ctest ninja; do
    command -v "${tool%% *}" >/dev/null || printf ' %s' "${tool%% *}"
  done
  python3 -c 'import sys, unittest; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
    printf ' python3 (3.9 or newer)'
}

# get [PACKAGE...]: installs these, or all that a build needs.
get() {
  local as_root=() how="as root"
  command -v apt-get >/dev/null || return
  if ((EUID)); then
    sudo -n true 2>/dev/null || return
    as_root=(sudo -n) how="with sudo"
  fi
  (($#)) || set -- "${packages[@]}"
  say "some of these packages are missing here, so apt-get installs them $how: $*"
  # A failed update need not matter: the lists may be there.
  apt update || true
  apt install -y --no-install-recommends "$@"
  hash -r
}
apt() {
  # A dead network should not cost minutes; another apt-get that is at work is worth waiting for.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 \
    -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=120 "$@" >/dev/null
}

# want PACKAGE COMMAND...: gets what a build can do without, where this command fails.
want() { "${@:2}" >/dev/null 2>&1 || get "$1" || true; }

# build PRESET [TARGET...]: configures, and builds these or all. Ninja itself says how far it is.
build() {
  local preset=$1 folder=$root/build log chosen was hint options=()
  shift
  if [[ $preset != default ]]; then folder+=/$preset; fi
  log=$folder/configure.log
  mkdir -p "$folder"
  exec 9>"$folder/.lock" # two builds in one folder would overwrite each other's files
  local turn='import fcntl; fcntl.flock(9, fcntl.LOCK_EX'
  if ! python3 -I -c "$turn | fcntl.LOCK_NB)" 2>/dev/null; then
    say "another build in this clone is in flight; waiting for its end."
    python3 -I -c "$turn)" || true # some network file systems have no locks
  fi

  # What CMake decides once and keeps, LADDER_CUDA among it: with another compiler, in a folder that
  # has moved, or where it did not go well, it has to decide again.
  chosen="$root $CXX:$CXXFLAGS:$CUDACXX:$CUDAHOSTCXX:$NVCC_CCBIN:$(command -v nvcc || true)"
  was=$(cat "$folder/.configured" 2>/dev/null || true)
  rm -f "$folder/.configured"
  if [[ $was != "$chosen" ]]; then rm -rf "$folder"/{CMakeCache.txt,CMakeFiles/[0-9]*}; fi
  if [[ $* != programs ]]; then options+=(-DLADDER_TESTS=ON); fi
  if [[ $LADDER_CUDA && $preset == default ]]; then options+=("-DLADDER_CUDA=$LADDER_CUDA"); fi
  if command -v nvcc >/dev/null; then
    hint="; if it is nvcc that fails, LADDER_CUDA=OFF scripts/run leaves the GPU half out"
  fi
  configure() { cmake -S "$root" --preset "$preset" "${options[@]}" >"$log" 2>&1; }
  if ! { configure || { grep -q "apt-get install" "$log" && get && configure; }; }; then
    sed -n '/CMake Error/,$p' "$log" >&2
    die "CMake failed$hint (all of its output: ${log#"$root/"})."
  fi
  printf '%s\n' "$chosen" >"$folder/.configured"

  ninja -C "$folder" "$@" >&2 || die "the build failed$hint."
  exec 9>&-
}
