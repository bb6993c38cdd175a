"""Tests rules for the whole repository: a clone has the same bytes even if git converts line
ends, modules of scripts/ladder import only what they may, and lines have at most 100 columns."""

import os
import re
import unittest

from support import ROOT, SCRIPTS, Scratch, read
from ladder.base.files import paths_in


class CheckoutTest(Scratch):
    def test_a_clone_is_the_same_whatever_git_is_set_to(self):
        files = {".gitattributes": read(ROOT, ".gitattributes"), "scripts/run": "#!/bin/sh\n:\n",
                 "a.md": "A\n", "a.npy": "NUMPY\n", "a.png": "PNG\r\n"}
        for path, text in files.items():
            self.write(f"here/{path}", text)
        for words in ("init -q here", "-C here add .", "-C here -c user.name=A -c user.email=A "
                      "commit -qm A", "clone -q here there"):
            self.run_it("git", "-c", "core.autocrlf=true", *words.split())
        for path, text in files.items():
            with open(self.at("there", path), "rb") as file:
                self.assertEqual(file.read().decode(), text)


class Width(unittest.TestCase):
    def test_no_line_of_python_is_longer_than_100_columns(self):
        for path in [*paths_in(ROOT, "0*/*.py"), f"{SCRIPTS}/exercise", f"{SCRIPTS}/diff",
                     *paths_in(SCRIPTS, "**/*.py")]:
            self.assertEqual([line for line in read(path).splitlines() if len(line) > 100], [],
                             path)


class Modules(unittest.TestCase):
    """Each folder of scripts/ladder is a module. Code that several modules need is in base or
    trace, the only modules that others import; base itself imports no other module."""

    SHARED = r"base\b|trace\b"

    def test_no_module_reaches_into_another(self):
        modules = {os.path.basename(os.path.dirname(path)) for path in
                 paths_in(SCRIPTS, "ladder/*/__init__.py")}
        self.assertLessEqual({"base", "front", "measure", "trace", "show"}, modules)
        for module in modules:
            for path in paths_in(SCRIPTS, f"ladder/{module}/*.py"):
                for name in re.findall(r"^ *(?:from|import) ladder(?:\.| import )([\w.]+)",
                                       read(path), re.MULTILINE):
                    with self.subTest(os.path.relpath(path, ROOT)):
                        self.assertRegex(name, rf"^({self.SHARED}|{module}\b)")
                        self.assertFalse(module == "base" and not name.startswith("base"), name)


class Help(Scratch):
    def test_every_command_has_help_of_100_columns(self):
        """The help also works if PYTHONSAFEPATH keeps scripts/ off the module path."""
        commands = [name for name in os.listdir(SCRIPTS)
                    if os.path.isfile(f"{SCRIPTS}/{name}") and "." not in name]
        self.assertIn("figures", commands)
        parts = [f"figures {part}" for part in ("measure", "draw")]
        for command in map(str.split, commands + parts):
            words = [os.path.join(SCRIPTS, command[0]), *command[1:], "--help"]
            said = self.run_it(*words, COLUMNS="100", PYTHONSAFEPATH="1").stdout
            self.assertRegex(said, f"(?i)usage: (scripts/)?{' '.join(command)}")
            self.fits(said)
