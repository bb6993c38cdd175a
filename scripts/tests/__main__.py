"""Runs the tests in NAME_test.py: python3 scripts/tests NAME [WORD...]. The words are first those
that NAME_test.py takes, often the programs' folder (build/bin by default), then unittest's."""

import importlib
import sys
import unittest

unittest.main(importlib.import_module(f"{sys.argv.pop(1)}_test"))
