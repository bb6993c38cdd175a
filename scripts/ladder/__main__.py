"""Runs a module's main(); messages name its COMMAND: python3 scripts/ladder MODULE [WORD...]. Files
in the current folder, such as a reader's signal.py, do not hide Python's own modules."""

import importlib
import os
import sys

sys.path[0] = os.path.dirname(os.path.abspath(sys.path[0]))
console = importlib.import_module("ladder.base.console")
module = importlib.import_module(f"ladder.{sys.argv.pop(1)}")
sys.exit(console.run_command(module.COMMAND, lambda: module.main(sys.argv[1:])))
