"""python3 scripts/ladder MODULE [WORD...]: main() of a module, with these words, as its COMMAND.
Files of the current folder, a signal.py of the reader's, do not stand before Python's own."""

import importlib
import os
import sys

sys.path[0] = os.path.dirname(os.path.abspath(sys.path[0]))
console = importlib.import_module("ladder.base.console")
module = importlib.import_module(f"ladder.{sys.argv.pop(1)}")
sys.exit(console.run_command(module.COMMAND, lambda: module.main(sys.argv[1:])))
