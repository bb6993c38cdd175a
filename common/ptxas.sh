#!/bin/sh
# ptxas.sh OBJECT COMMAND…: compiles, and keeps what ptxas says of registers in OBJECT.ptxas, where
# machine_code_test reads it; all else is shown, such as that a wgmma waits: ptxas info : (C7517) ….
# (C7519, that it has put a wgmma.fence where one was missing, costs nothing.)
object=$1
shift
"$@" -Xptxas=-v 2>"$object.ptxas"
status=$?
grep -v -e '^ptxas info    : [^(]' -e '(C7519)' -e '^    [0-9]* bytes stack' "$object.ptxas" >&2
exit $status
