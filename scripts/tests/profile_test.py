"""Tests of scripts/figures profile and its table with an ncu that writes what it is told.

Run alone: python3 scripts/tests/profile_test.py
"""

import contextlib
import io
import json
import os
import sys
import unittest
import unittest.mock

from base import SCRIPTS, Scratch
from ladder.bench import profile
from ladder.console import NO_DEVICE, Stop
from ladder.figures.profile import profile_table

# Every metric has the value 2, but for the cycles of all SMs.
NCU = f'''#!{sys.executable}
import json, os, sys
given = sys.argv[1:]
metrics = given[given.index("--metrics") + 1].split(",")
said = [metric for metric in metrics if metric != os.environ.get("LACKS")]
value = lambda metric: "2,640" if metric == "sm__cycles_active.sum" else "20"
with open(given[given.index("--log-file") + 1], "w") as file:
    print(os.environ.get("SAYS", "==PROF== Connected"), file=file)
    for row in (["ID", *said], ["", *("inst" for _ in said)], ["0", *map(value, said)]):
        print(",".join(f'"{{cell}}"' for cell in row), file=file)
program = os.path.basename(next(word for word in given if "bin/" in word))
for tile in (192, 128):
    print(json.dumps({{"rung": program, "batch": 4, "heads": 32, "block_q": tile,
                       "block_kv": 128}}))
print(*given, file=open(os.environ["CALLED"], "a"))
sys.exit(1 if "SAYS" in os.environ else 0)
'''


class Profile(Scratch):
    def measured(self, **environment):
        for name in ("bin/05_flash_v2", "bin/06_backward", "path/ncu"):
            self.write(name, NCU, 0o755)
        options = profile.parse(["--bin", self.at("bin"), "--out", self.at("profile.json")])
        with unittest.mock.patch.dict(os.environ, PATH=self.at("path"), CALLED=self.at("called"),
                                      **environment), \
                unittest.mock.patch.object(profile, "machine", lambda *_: {
                    "gpu": "GPU", "driver": "1", "cuda": "13", "date": "today"}), \
                contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(profile.measure(options), 0)
        return json.loads(self.read("profile.json"))

    def test_each_kernel_at_each_head_size(self):
        found = self.measured()
        self.assertEqual([(one["rung"], one["variant"], one["kernel"], one["head_dim"])
                          for one in found["kernels"]],
                         [(*step, d) for step in profile.course.PROFILED for d in (64, 128)])
        self.assertIn("--kernel-name regex:key_gradients --launch-count 1", self.read("called"))
        # 132 SMs of 20 cycles; 4·32 heads of 32·32 tiles of the last record, the backward pass's.
        one = found["kernels"][0]
        self.assertEqual((one["cycles"], one["cycles_of_all"], one["block_q"]), (20, 2640, 128))
        lines = profile_table(unittest.mock.Mock(profile={**found, "seqlen": 256}), "profile")
        steps = 4 * 32 * 2 * 2
        cells = {line.split(" | ")[0]: line.split(" | ")[1] for line in lines if " | " in line}
        self.assertEqual(cells["| cycles"], f"{20 * 132 / steps:.0f}")
        self.assertEqual(cells["| tensor cores busy"], "20%")
        self.assertEqual(cells["| … for wgmma"], "20.00")

    def test_what_cannot_be_counted_is_named(self):
        lacking = profile.METRICS["stall_gmma"]
        for environment, said, status in (
                ({"LACKS": lacking}, f"ncu has no {lacking} here", NO_DEVICE),
                ({"SAYS": "==ERROR== ERR_NVGPUCTRPERM"}, "may not read the GPU's counters",
                 NO_DEVICE),
                ({"SAYS": "==ERROR== Failed"}, "05_flash_v2 failed", 1)):
            with self.subTest(said), self.assertRaises(Stop) as stop:
                self.measured(**environment)
            self.assertIn(said, str(stop.exception))
            self.assertEqual(stop.exception.status, status)
            self.assertFalse(os.path.exists(self.at("profile.json")))

    def test_without_ncu(self):
        done = self.run_it(sys.executable, "-m", "ladder.bench.profile", PATH=self.at("path"),
                           PYTHONPATH=SCRIPTS, status=NO_DEVICE)
        self.assertEqual(done.stderr, "scripts/figures profile: there is no ncu on PATH: Nsight "
                         "Compute, of the CUDA Toolkit\n")


if __name__ == "__main__":
    unittest.main()
