"""python3 scripts/ladder MODULE [WORD...] runs the main() of a module, such as front.run, with the
words. Error messages start with the module's COMMAND. (python3 -m ladder would search the current
folder first, where a reader's signal.py would hide Python's own module.)"""

import importlib
import os
import sys

# Python puts this folder first in the path; its parent makes the package `ladder` importable.
sys.path[0] = os.path.dirname(os.path.abspath(sys.path[0]))
console = importlib.import_module("ladder.base.console")
module = importlib.import_module(f"ladder.{sys.argv.pop(1)}")
sys.exit(console.run_command(module.COMMAND, lambda: module.main(sys.argv[1:])))
