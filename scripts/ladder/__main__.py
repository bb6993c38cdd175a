"""python3 scripts/ladder MODULE [WORD...]: what python3 -m ladder.MODULE does, but for this: files
of the current folder, a signal.py of the reader's, do not stand before Python's own modules."""

import os
import runpy
import sys

sys.path[0] = os.path.dirname(os.path.abspath(sys.path[0]))
runpy.run_module(f"ladder.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
