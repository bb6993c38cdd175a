"""Provides stand-ins for the rungs' programs, for tests of commands that run these. Runs are
answered in the test's own process; a stand-in on disk is executed only for --list."""

import contextlib
import io
import json
import os
from types import SimpleNamespace
from unittest import mock

from support import Scratch
from ladder.base import programs
from ladder.base.console import CommandError

NAME = "NVIDIA H100 80GB HBM3"  # of the GPU in the records
ERRORS = {"fwd": {"lse": 0.01, "o": 4.88e-4}, "bwd": {"dq": 1e-5, "dk": 4.88e-4, "dv": 1e-6}}
HELP = "  --time MS\n\nOutput\n  --save DIR\n  --new\n\n  --set\n"  # of each program


def record(rung, step, direction, given):
    """Returns the record that a step prints in this direction ("fwd" or "bwd"); `given` maps the
    run's options to their values. Sizes that are not given have fixed defaults."""
    on_gpu = given["--device"] == "gpu"
    sizes = {name: int(given.get(f"--{name.replace('_', '-')}", usual)) for name, usual in (
        ("batch", 1), ("heads", 2), ("seqlen", 256), ("head_dim", 64))}
    return {
        "rung": rung, "step": step, "direction": direction, "device": given["--device"],
        "device_name": NAME if on_gpu else "sim on 2 cores", **sizes,
        "dtype": given.get("--dtype", "fp16"), "input": given.get("--input", "normal"), "seed": 0,
        "kv_heads": int(given.get("--kv-heads", sizes["heads"])),
        "seqlen_kv": int(given.get("--seqlen-kv", sizes["seqlen"])),
        "causal": "--causal" in given, "time_ms": 0.1234 if on_gpu else None,
        "tflops": 12.3 if on_gpu else None,
        "model_read_bytes": 30_000_000, "model_write_bytes": 4_000_000,
        "requested_read_bytes": None if on_gpu else 30_000_000,
        "requested_write_bytes": None if on_gpu else 4_000_000,
        "distinct_read_bytes": None if on_gpu else 1_000_000,
        "distinct_write_bytes": None if on_gpu else 200_000, "workspace_bytes": 524_288,
        "errors": {name: {"max": error, "rel": 1e-3, "tolerance": 1e-3, "nonfinite": 0}
                   for name, error in ERRORS[direction].items()},
        "kernels": [{"name": "attention", "time_ms": 0.12 if on_gpu else None, "barriers": 0}],
        "unknown": [1, {"a": None}], "pass": True}


class FakeLadder(Scratch):
    """A test with stand-ins in build/bin. Runs succeed, and no GPU is found, unless `tell` gives
    another answer for a step ("05_flash_v2/large_tiles"; with " gpu" appended, only on that device)
    or for the search for a GPU ("probe"; "probe bf16" for one type). Keys of an answer:
      `status`: exit status
      `err`: stderr
      `out`: printed instead of the records
      `changes`: fields to replace in every record
      `fwd`, `bwd`: fields to replace in that direction's record"""

    def setUp(self):
        super().setUp()
        os.makedirs(self.at("build/bin"))
        self.told, self.asked = {}, []
        self.tell(probe={"status": 3, "err": "00_naive: no GPU answers: no driver"})
        self.really = programs.run_quietly
        patch = mock.patch.object(programs, "run_quietly", self.answer)
        patch.start()
        self.addCleanup(patch.stop)

    def tell(self, told=None, **more):
        self.told |= {**(told or {}), **more}

    def rung(self, rung="00_naive", steps=("naive",), gpu=False):
        """Adds a program that lists these steps: names, or {name: the step that it follows}. The
        last one is the default. With `gpu`, each step is listed for both devices."""
        before = steps if isinstance(steps, dict) else dict.fromkeys(steps, "")
        self.write(f"build/bin/{rung}.list", "".join(json.dumps({
            "rung": rung, "step": step, "device": device, "default": step == [*before][-1],
            "by_name_only": step == "aside", "idea": "an idea", "summary": "a step",
            "colour": "#123456", "after": before[step], "backward": rung.startswith("06"),
            "change": ["workspace_bytes" if rung[:2] == "02" else "", "to 0", ""],
            "deterministic": False, "needs": "7.5", "exact_architecture": step == "sm90",
            "tiles": [], "grid_limit": [8192, 16384], "settings": [],
            "decoding": step == "split_kv", "source": f"{rung}/{step}.cu"}) + "\n"
            for step in before for device in ["sim", "gpu"][:1 + gpu]))
        self.write(f"build/bin/{rung}", '#!/bin/sh\nexec cat "$0.list"\n', 0o755)

    def ladder(self, ladder, gpu=False):
        for rung, steps in ladder.items():
            self.rung(rung, steps, gpu)
        if gpu:
            self.tell(probe={})

    def call(self, part, *words, status=0):
        """Runs a module's main(), checks its status (None: any); returns stdout, stderr, status."""
        with contextlib.redirect_stdout(io.StringIO()) as out, \
                contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                found = part.main(list(words))
            except (CommandError, SystemExit, KeyboardInterrupt) as stop:
                found = getattr(stop, "status", getattr(stop, "code", None))
                print(f"{part.COMMAND}: {stop}", file=err)
        said = SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue(), status=found)
        self.assertIn(status, (None, found), said)
        return said

    def calls(self):
        """Returns the commands run since calls() was last called, one line each."""
        asked, self.asked = self.asked, []
        return asked

    def answer(self, command):
        """Answers a command in place of run_quietly(): returns (status, stdout, stderr)."""
        rung, *options = os.path.basename(command[0]), *command[1:]
        if options in (["--list"], ["--help"]):
            return (self.really(command) if options == ["--list"] else (0, HELP, ""))
        self.asked.append(" ".join([rung, *options]))
        given = dict(zip(options, [*options[1:], ""]))
        if "--step" not in given:
            told = self.told.get(f"probe {given['--dtype']}", self.told["probe"])
            return told.get("status", 0), "", told.get("err", "")
        status, out, err = 0, "", []
        for step in given["--step"].split(","):
            told = self.told.get(f"{rung}/{step} {given['--device']}",
                                 self.told.get(f"{rung}/{step}", {}))
            status = told.get("status", 0) or status
            if "out" in told:
                out += told["out"] + "\n"
            elif not told.get("status") or "changes" in told:
                out += "".join(json.dumps({**record(rung, step, way, given), **told.get(
                    "changes", {}), **told.get(way, {})}) + "\n"
                    for way in ["fwd", "bwd"][:1 + rung.startswith("06")])
            err += [told["err"]] if "err" in told else []
        return status, out, "\n".join(err)
