"""A ladder whose programs are made up, in a folder of its own: see fake_program.py."""

import json
import os
import sys

from base import Scratch

# At its full length: the longest names decide whether a table fits.
STEPS = {
    "00_naive": ["naive"],
    "01_tiled_matmul": ["tile", "mma"],
    "02_safe_softmax": ["three_loops"],
    "03_online_softmax": ["softmax", "two_pass", "one_pass", "one_pass_tile"],
    "04_flash_v1": ["flash_v1"],
    "05_flash_v2": ["swap", "defer", "mma", "sm90"],
    "06_backward": ["stored", "mma", "sm90"],
}
FAKE_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_program.py")


class FakeLadder(Scratch):
    """BIN has programs that list STEPS. What they do otherwise than well, `tell` says."""

    BIN = "build/bin"

    def setUp(self):
        super().setUp()
        os.makedirs(self.at(self.BIN))
        self.told = {}
        self.tell(probe={"status": 3, "err": "00_naive: no GPU answers: no driver"})

    def tell(self, told=None, **more):
        self.told |= {**(told or {}), **more}
        self.write("told.json", self.told)

    def rung(self, rung="00_naive", steps=("naive",), gpu=False):
        """A program that lists these steps, by name or {name: that of the step before}."""
        before = steps if isinstance(steps, dict) else dict.fromkeys(steps, "")
        self.write(f"{self.BIN}/{rung}.list", "".join(json.dumps({
            "rung": rung, "step": step, "device": device, "default": step == [*before][-1],
            "by_name_only": step == "aside", "idea": "an idea", "summary": "a step",
            "colour": "#123456", "after": before[step], "backward": rung.startswith("06"),
            "deterministic": False, "needs": "7.5", "exact_architecture": step == "sm90",
            "tiles": [], "grid_limit": [8192, 16384], "settings": [],
            "decoding": step == "split_kv", "source": f"{rung}/{step}.cu"}) + "\n"
            for step in before for device in ["sim", "gpu"][:1 + gpu]))
        self.write(f"{self.BIN}/{rung}", mode=0o755, text=f"""\
#!/bin/sh
[ "$*" = --list ] && exec cat "$0.list"
[ "$*" = --help ] && exec printf '  --time MS\\n\\nOutput\\n  --save DIR\\n  --new\\n\\n  --set\\n'
exec '{sys.executable}' -S -E '{FAKE_PROGRAM}' '{self.root}' {rung} "$@"
""")

    def ladder(self, steps=None, gpu=False):
        for rung, steps in (steps or STEPS).items():
            self.rung(rung, steps, gpu)
        if gpu:
            self.tell(probe={})
