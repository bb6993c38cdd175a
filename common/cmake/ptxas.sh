#!/bin/sh
# ptxas.sh OBJECT COMMAND…: compiles, and keeps what ptxas says of registers in OBJECT.ptxas, where
# machine_code_test reads it; all else is shown, such as that a wgmma waits: ptxas info : (C7517) ….
# (C7519, that it has put a wgmma.fence where one was missing, costs nothing; nor does anything that
# it says of what is compiled by -Ofc=max, which never runs.)
object=$1
shift
case $* in *" -cubin "*) # of what is not linked either: of the host's half, an empty object
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
