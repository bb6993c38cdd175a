#!/bin/sh
# ptxas.sh OBJECT COMMAND…: compiles, and keeps what ptxas says of registers in OBJECT.ptxas, where
# machine_code_test reads it; all else is shown, such as that a wgmma waits: ptxas info : (C7517) ….
object=$1
shift
"$@" -Xptxas=-v 2>"$object.ptxas"
status=$?
grep -v -e '^ptxas info    : [^(]' -e '^    [0-9]* bytes stack' "$object.ptxas" >&2
exit $status
