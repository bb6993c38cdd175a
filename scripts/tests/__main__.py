"""python3 scripts/tests NAME [WORD...]: the tests of NAME_test.py, with its own words, such as the
folder of the programs, and unittest's."""

import importlib
import sys
import unittest

unittest.main(importlib.import_module(f"{sys.argv.pop(1)}_test"))
