"""Runs the tests in NAME_test.py: python3 scripts/tests NAME [WORD...]. First come the arguments of
the test itself, such as the programs' folder, then those of unittest."""

import importlib
import sys
import unittest

unittest.main(importlib.import_module(f"{sys.argv.pop(1)}_test"))
