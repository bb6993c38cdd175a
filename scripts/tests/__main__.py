"""Runs the tests of NAME_test.py: python3 scripts/tests NAME [WORD...]. The words are the test's
own, such as the folder of the programs, then unittest's."""

import importlib
import sys
import unittest

unittest.main(importlib.import_module(f"{sys.argv.pop(1)}_test"))
