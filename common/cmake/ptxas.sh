#!/bin/sh
# ptxas.sh OBJECT COMMAND… runs the compile command, and keeps ptxas's report on registers in
# OBJECT.ptxas for machine_code_test. It prints all other messages, such as the one for a serialised
# wgmma, ptxas info : (C7517) …. (It omits C7519, for a wgmma.fence that ptxas added, which costs
# nothing, and messages about code compiled with -Ofc=max, which never runs.)
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
