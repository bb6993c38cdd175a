"""Tests of traces, their replay, and of the explorer but for its page in a browser: that traces add
up to what the programs count, and the command."""

import collections
import os
import re
import shlex
import subprocess
import unittest

from base import ROOT, Scratch, argument, printed, read
from ladder.base import course
from ladder.base.files import course_pages
from ladder.base.programs import ladder_of, programs_in
from ladder.explore.command import asked_of, chosen, options_of
from ladder.explore.page import COUNTERS, pane_of, sums
from ladder.trace import replay
from ladder.trace.read import Event, Kind, Trace, joined

BIN = ""
SMALL = "--device sim --check off --heads 1 --head-dim 64 --block-q 64 --block-kv 64 --seqlen 128"


def explore(*words, status=0, programs=None):
    """Runs scripts/explore; what it wrote is at the path that it prints."""
    command = [os.path.join(ROOT, "scripts/explore"), "--no-open", "--bin", programs or BIN, *words]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
    assert result.returncode == status, (command, result)
    return result


def run(rung, options):
    """What a program prints."""
    return printed(os.path.join(BIN, rung), *options.split())


def traced(rung, options):
    """The trace of a run, and what the program prints beside it."""
    return Trace.of(os.path.join(BIN, rung), options.split())[:2]


def counted(trace):
    """The program's sums, from a trace's events."""
    found = dict.fromkeys(COUNTERS, 0)
    seen = {}
    for event in trace.events:
        for name, amount in event.counts.items():
            found[name] += amount
        if event.direction:
            found[f"requested_{event.direction}_bytes"] += event.bytes
            place = event.launch, event.name, event.direction
            seen.setdefault(place, set()).update(event.ranges)
    for (_, _, direction), ranges in seen.items():
        found[f"distinct_{direction}_bytes"] += sum(
            end - begin for begin, end in joined(ranges))
    return found


def tiles_of(rung, options):
    """The 16 × 16 pieces of S that a run makes, as the page has them, and how often."""
    found = [event["tile"] for event in pane_of(*traced(rung, options), "")["events"]
             if "tile" in event]
    return collections.Counter(
        (row, key) for first_row, last_row, first_key, last_key in found
        for row in range(first_row // 16, -(-last_row // 16))
        for key in range(first_key // 16, -(-last_key // 16)))


class TraceTest(unittest.TestCase):
    """What a trace says, added up, is what the program counts."""

    def test_kinds(self):
        table = read(ROOT, "common/machine/trace.h").partition("kEventTexts[] = {")[2]
        self.assertEqual({*re.findall(r'"(\w+)"', table.partition("}")[0]), "collective"},
                         {kind.value for kind in Kind})

    def test_every_step(self):
        steps = ladder_of(programs_in(BIN), "sim").steps
        self.assertGreaterEqual(len(steps), 18)
        for step in steps:
            with self.subTest(rung=step.rung, step=step.name):
                length = 40 if step.rung < "02" else 80  # a thread for each row of S takes long
                options = (f"--step {step.name} --device sim --seqlen {length} --heads 1 "
                           "--head-dim 64 --check off --causal")
                trace, records = traced(step.rung, options)
                self.assertEqual(counted(trace), sums(records))
                if step.name in ("tile", "sm90"):
                    more = options + " --schedule random:3"
                    self.assertEqual(counted(traced(step.rung, more)[0]),
                                     sums(run(step.rung, more)))
                lines = {(event.file, event.line) for event in trace.events if event.file}
                self.assertTrue(lines)
                for path, line in lines:
                    # The rung's own, or that of a forward pass which the step names.
                    self.assertRegex(path, r"^\d\d_\w+/")
                    self.assertLessEqual(line, len(read(ROOT, path).splitlines()))
                pane = pane_of(trace, records, "")
                self.assertEqual(len(pane["events"]), len(trace.events))
                # Each is waited for once; a wait ends when the last has come.
                met = [part for _, parts in pane["meetings"] for part in parts]
                self.assertEqual(len(met), len(set(met)))
                for event in pane["events"]:
                    parts = pane["meetings"][event["awaits"]][1] if "awaits" in event else []
                    self.assertEqual(event["order"][1], 1 + max(
                        pane["events"][part]["order"][0] for part in (event["index"], *parts)))
                # A warp does one thing after the other.
                for clock in ("order", "model") if pane["model"] else ("order",):
                    ends = {}
                    for event in pane["events"]:
                        warp = event["launch"], event["block"], event["warp"]
                        begin, end, until = event[clock]
                        self.assertTrue(ends.get(warp, begin) <= begin <= end <= until)
                        ends[warp] = end

    def test_tiles_of_s(self):
        """Under the mask 05 skips what lies above it, and 04 makes it all. split_kv has the heads
        that share K and V in one tile, and rows of zeros below them."""
        every = {(row, key) for row in range(8) for key in range(8)}
        self.assertEqual(set(tiles_of("04_flash_v1", SMALL + " --causal")), every)
        self.assertEqual(set(tiles_of("05_flash_v2", SMALL + " --causal")),
                         {(row, key) for row, key in every if key // 4 <= row // 4})
        # Once forward, and once more for the gradients.
        self.assertEqual(tiles_of("06_backward", "--step mma " + SMALL),
                         dict.fromkeys(every, 2))
        # Where K comes before Q.
        transposed = "--step sm90 --device sim --check off --heads 1 --seqlen 64 --seqlen-kv 128"
        self.assertEqual(set(tiles_of("06_backward", transposed)),
                         {(row, key) for row, key in every if row < 4})
        decoding = ("--step split_kv --device sim --check off --seqlen 1 --seqlen-kv 500 "
                    "--heads 8 --kv-heads 1 --head-dim 64 --set splits=4")
        self.assertEqual(set(tiles_of("05_flash_v2", decoding)), {(0, key) for key in range(32)})


FORWARD = course.PRODUCTS["attention"]


def event(kind, name="", number=0, amount=0, barrier="", exps=0, flops=0):
    return Event(kind, name, barrier, number, amount, exps, flops)


class ReplayTest(unittest.TestCase):
    """When what happens in a block: a small case worked out by hand. That what the committed traces
    become is as it was, where consumers queue and share, results_test sees."""

    def test_a_copy_a_product_and_a_softmax(self):
        producer = [event(Kind.MBARRIER_ARRIVE, "K_full[0]"),
                    event(Kind.TMA_LOAD, "K", amount=32 * 5120, barrier="K_full[0]"),
                    event(Kind.MBARRIER_WAIT, "K_free[0]"),
                    event(Kind.TMA_LOAD, "K", 1, amount=5120, barrier="K_full[0]"),
                    event(Kind.EXIT)]
        consumer = [event(Kind.MBARRIER_WAIT, "K_full[0]"),
                    event(Kind.WGMMA, "K", amount=4096 * 100),
                    event(Kind.WGMMA_WAIT, number=1),
                    event(Kind.MBARRIER_ARRIVE, "K_free[0]", exps=16),
                    event(Kind.MBARRIER_WAIT, "K_full[0]", 1, flops=10), event(Kind.EXIT)]
        played = replay.replay([producer, consumer], FORWARD)
        landed = 32 * 132 + 500
        self.assertEqual(played["products"], [[0, "S", 0, landed, landed + 100]])
        free = landed + 100 + 16 * 128 / 16
        self.assertEqual(played["copies"], [["K", 0, 0, landed, free],
                                            ["K", 0, free, free + 132 + 500, None]])
        self.assertEqual(played["consumers"], [[
            ["tile", None, 0, landed], ["sums", None, landed, landed + 100],
            ["softmax", 0, landed + 100, free], ["scale", 0, free, free + 10],
            ["tile", None, free + 10, free + 632]]])
        self.assertEqual(played["end"], free + 632)

class CommandTest(Scratch):
    """scripts/explore itself."""

    def setUp(self):
        super().setUp()
        self.out = self.at("page.html")

    def test_the_default_page_needs_nothing_else(self):
        explore("--out", self.out)
        page = read(self.out)
        self.assertLess(len(page.encode()), 2_000_000)
        self.assertIn("<title>04 flash_v1 beside 05 mma</title>", page)
        for word in (" src=", " href=", "url(", "@import", "import(", "fetch(", "XMLHttpRequest"):
            self.assertNotIn(word, page)
        self.assertNotIn("{{", page)

    def test_bad_words(self):
        for words, told in (
                (["05/none"], "05 (mma), 05/defer"), (["00", "01", "02"], "one or two steps"),
                (["00", "--device=gpu"], "--device=gpu is for a program"),
                (["00", "--seqlen", "0"], "--seqlen")):
            self.assertIn(told, explore("--out", self.out, *words, status=2).stderr)
            self.assertFalse(os.path.exists(self.out))

    def test_one_fault_of_two(self):
        options = "--scale", "3e38", "--seqlen", "3", "--out", self.out
        self.assertIn("2^NaN", explore("06/mma", "00", *options, status=1).stderr)

    def test_what_the_lessons_say(self):
        """Each lesson has something to open; that it says so is all that the lessons' own test
        sees of it. The programs take what it asks of them; a page with many events is not large."""
        quoted = {}
        for path in course_pages():
            found = re.findall(r"^\$ scripts/explore(.*)$", read(path), re.M)
            quoted |= {command: os.path.relpath(path, ROOT) for command in found}
        rungs = {step.rung for step in ladder_of(programs_in(BIN), "sim").steps}
        self.assertEqual({path.split(os.sep)[0] for path in quoted.values()} & rungs, rungs)
        for command, path in quoted.items():
            with self.subTest(lesson=path, command=command):
                asked = asked_of([*shlex.split(command), "--bin", BIN])
                for step in chosen(asked):
                    options = " ".join(options_of(step, asked.options))
                    self.assertTrue(run(step.rung, f"--device sim --step {step.name} "
                                                   + options))
        explore(*next(one for one in quoted if "06/producer" in one).split(), "--out", self.out)
        self.assertLess(os.path.getsize(self.out), 2_000_000)


if __name__ == "__main__":
    BIN = argument()
    unittest.main()
