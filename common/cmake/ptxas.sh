#!/bin/sh
# ptxas.sh OBJECT COMMAND… compiles, and keeps ptxas's report of registers in OBJECT.ptxas for
# machine_code_test. It prints all other messages, such as a serialised wgmma: ptxas info : (C7517)
# …. (It omits C7519, a wgmma.fence that ptxas added, which costs nothing, and messages on code that
# is compiled with -Ofc=max, because that never runs.)
object=$1
shift
case $* in *" -cubin "*) # not linked: an empty object replaces the host's half
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
