"""Each step changes the count that its idea is about, as its registration says; and counts are
exact: the same in every schedule."""

import os
import unittest

from base import ROOT, argument
from ladder.base.programs import json_lines, ladder_of, programs_in, run_quietly
from ladder.base.records import count_of

STEPS = ladder_of(programs_in(argument(os.path.join(ROOT, "build/bin"))), "sim").steps
HOLDS = {"less": lambda before, after: after < before, "more": lambda before, after: after > before,
         "to 0": lambda before, after: before > 0 == after,
         "from 0": lambda before, after: before == 0 < after}
# Steps whose idea changes no count: when a kernel starts (pdl).
UNCOUNTED = {"pdl"}


def counted(steps, options):
    """(rung, step) → the record of the last of its passes."""
    records = {}
    for program in dict.fromkeys(step.program for step in steps):
        names = ",".join(step.name for step in steps if step.program == program)
        status, out, err = run_quietly(
            [program, "--device", "sim", "--check", "off", "--json", "--step", names,
             *options.split()], program)
        assert status == 0, err
        records |= {(r["rung"], r["step"]): r for r in json_lines(out, program)}
    return records


def before(step):
    """The step that it follows; of a rung's first the last of the rung before on every machine."""
    for other in reversed(STEPS[:STEPS.index(step)]):
        if (other.name == step.after if other.rung == step.rung else
                not other.exact_architecture and not other.by_name_only
                and other.backward == step.backward):
            return other
    return None


class Changes(unittest.TestCase):
    def test_a_step_changes_the_count_of_its_idea(self):
        pairs = [(before(step), step) for step in STEPS if step.name not in UNCOUNTED]
        self.assertEqual(UNCOUNTED, {step.name for step in STEPS if not any(step.change)} -
                         {"naive", "stored"})
        self.assertEqual([step.name for old, step in pairs if not old], ["naive", "stored"])
        for options in {step.change[2] for _, step in pairs}:
            wanted = [pair for pair in pairs if pair[0] and pair[1].change[2] == options]
            records = counted([step for step in STEPS if any(step in pair for pair in wanted)],
                              f"--seqlen 256 {options}")
            for pair in wanted:
                count, how, _ = pair[1].change
                old, new = (count_of(records[step.rung, step.name], count) for step in pair)
                with self.subTest(rung=pair[1].rung, step=pair[1].name, count=count, how=how):
                    self.assertTrue(HOLDS[how](old, new), f"{old} → {new}")

    def test_no_count_depends_on_the_schedule(self):
        forward, random = (counted(STEPS, "--heads 1 --seqlen 72 --seqlen-kv 88 --head-dim 40 "
                                   f"--causal --schedule {order}")
                           for order in ("forward", "random:3"))
        for step, record in forward.items():
            for key, value in record.items():
                if isinstance(value, (int, list)):
                    self.assertEqual(value, random[step][key], (step, key))


if __name__ == "__main__":
    unittest.main()
