# Sourced by the scripts that build: checks for the tools and, on Debian and Ubuntu as root or with
# passwordless sudo, installs what is missing; says else what to install. Libraries are looked for by
# CMake alone (ladder/build.py). This and the scripts that source it run with bash 3.2 and BSD tools,
# which macOS has; there with `set -u` an empty array is an error, so none sets it.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
me=scripts/$(basename "$0")
packages=(g++ cmake ninja-build python3 libfmt-dev libgtest-dev)
PATH+=:${CUDA_HOME:-/usr/local/cuda}/bin # CMake looks for nvcc on PATH alone

say() { printf '%s\n' "$me: $*" >&2; }
die() {
  say "$*"
  exit 1
}

usage_if_asked() {
  case " $* " in *" -h "* | *" --help "*)
    usage
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
  if [[ $(cmake --version 2>/dev/null) =~ ([0-9]+)\.([0-9]+) ]] &&
    ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] < 322)); then
    printf ' cmake 3.22 or newer (this is %s: python3 -m pip install cmake)' "${BASH_REMATCH[0]}"
  fi
  cd "$root/scripts" # files of the reader's folder would stand before Python's modules
  python3 -c 'import sys, unittest; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
    printf ' python3 (3.9 or newer)'
}

# get [PACKAGE...]: installs these, or all that a build needs.
get() {
  local as_root=()
  command -v apt-get >/dev/null || return
  if ((EUID)); then
    sudo -n true 2>/dev/null || return
    as_root=(sudo -n)
  fi
  (($#)) || set -- "${packages[@]}"
  say "installing $* ..."
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

# want PACKAGE...: gets what a build can do without.
want() {
  local package
  for package; do
    if ! has "$package"; then
      get "$package" || true
      has "$package" || say "going on without $package; only figures need python3-matplotlib, and" \
        "only tests of scripts/explore chromium."
    fi
  done
}
has() (
  cd "$root/scripts"
  case $1 in
    # The system's own too: another that comes first on PATH need not see the system's packages.
    python3-matplotlib) python3 -c 'import matplotlib' || /usr/bin/python3 -c 'import matplotlib' ;;
    chromium) command -v chromium chromium-browser google-chrome ;;
  esac >/dev/null 2>&1
)
