#!/bin/sh
# ptxas.sh OBJECT COMMAND… runs nvcc's COMMAND, which compiles OBJECT, and exits with its status. It
# keeps ptxas's report on registers in OBJECT.ptxas for machine_code_test, and prints all other
# messages, such as "ptxas info : (C7517)", which says that wgmmas are serialised. It omits C7519
# (ptxas added a wgmma.fence, which costs nothing) and all C75… messages about code compiled with
# -Ofc=max, because that code never runs.
object=$1
shift
case $* in *" -cubin "*) # not linked: an empty object replaces the host half
  for word; do
    shift
    if [ "$word" != -c ]; then set -- "$@" "$word"; fi
  done
  empty=yes
  ;;
esac
"$@" -Xptxas=-v 2>"$object.ptxas"
status=$?
case $* in *-Ofc=max*) never_runs='^ptxas info    : (C75' ;; *) never_runs='(C7519)' ;; esac
grep -v -e '^ptxas info    : [^(]' -e "$never_runs" -e '^    [0-9]* bytes stack' "$object.ptxas" >&2
if [ "$empty" ] && [ $status = 0 ]; then as --noexecstack -o "$object" /dev/null || status=$?; fi
exit $status
