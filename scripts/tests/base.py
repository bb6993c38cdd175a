"""What the tests of the scripts share: places, limits, and what they make up."""

import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = os.path.join(ROOT, "scripts")
RESULTS = os.path.join(SCRIPTS, "results")
# A limit is for what hangs. A machine may be under load, or be slow: so minutes.
SECONDS = 600

sys.path.insert(0, SCRIPTS)
sys.dont_write_bytecode = True


def argument(default=None):
    """The first word of the command line, a path, where it is no option of unittest's."""
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        return os.path.abspath(sys.argv.pop(1))
    return default


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def write(*path, text, mode=0o644):
    """Writes a file, its folder too; returns its path."""
    path = os.path.join(*path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text if isinstance(text, str) else json.dumps(text))
    os.chmod(path, mode)
    return path


def listed(rung, variant, device="sim", **changes):
    """A line of a program's --list."""
    return {"rung": rung, "variant": variant, "device": device, "default": False,
            "by_name_only": False, "idea": "an idea", "summary": "a step", "colour": "#123456",
            "after": "", "backward": False, "deterministic": False, "needs": "8.0",
            "exact_architecture": False, "tiles": [], "grid_limit": [0, 0], "settings": [],
            **changes}


def program(path, steps, body=""):
    """A program that lists these steps, and for all else does what `body`, lines of shell, says."""
    lines = "\n".join(map(json.dumps, steps))
    return write(path, mode=0o755, text=f"""\
#!/bin/sh
if [ "$*" = --list ]; then cat <<'LIST'
{lines}
LIST
exit; fi
{body}
""")
