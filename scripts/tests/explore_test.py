"""Tests of traces, their replay, and of the explorer but for its page in a browser, which
explore_page_test.py looks at: the tiles of S, and the command."""

import base64
import collections
import json
import os
import re
import shlex
import subprocess
import unittest
import zlib
from unittest import mock

from base import ROOT, Scratch, argument, printed, read
from ladder.base.course import PRODUCTS
from ladder.base.programs import ladder_of, programs_in
from ladder.explore.command import (ASKED, asked_of, chosen, options_of, shown_in_lessons,
                                    write_pages)
from ladder.explore.page import fault_of, pane_of
from ladder.explore.times import put_landings
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


def tiles_of(rung, options):
    """The 16 × 16 pieces of S that a run makes, as the page has them, and how often."""
    found = [event["tile"] for event in pane_of(*traced(rung, options), "")["events"]
             if "tile" in event]
    return collections.Counter(
        (row, key) for first_row, last_row, first_key, last_key in found
        for row in range(first_row // 16, -(-last_row // 16))
        for key in range(first_key // 16, -(-last_key // 16)))


class TraceTest(unittest.TestCase):
    def test_kinds(self):
        table = read(ROOT, "common/machine/trace.h").partition("kEventTexts[] = {")[2]
        self.assertEqual({*re.findall(r'"(\w+)"', table.partition("}")[0]), "collective"},
                         {kind.value for kind in Kind})

    def test_ranges_within_ranges(self):
        self.assertEqual(joined([(10, 12), (0, 8), (2, 3), (8, 9)]), [(0, 9), (10, 12)])

    def test_a_fault_is_where_its_warp_was_last(self):
        for thread, last in ((31, 0), (32, 2), (64, -1)):  # of two blocks, launches and warps
            trace = mock.Mock(
                fault={"fault": "", "line": "a.cu:1", "launch": 0, "block": 1, "thread": thread},
                events=[Event(Kind.COMPUTE, launch=launch, block=block, warp=warp, index=i)
                        for i, (launch, block, warp) in enumerate((
                            (0, 1, 0), (0, 1, 1), (0, 1, 1), (0, 1, 3), (0, 2, 1), (1, 1, 1)))])
            self.assertEqual(fault_of(trace)["event"], last)

    def test_what_is_under_way_ends_where_somebody_first_knows(self):
        events = [Event(Kind.TMA_LOAD, lands=0, order=[0, 1]),
                  *(Event(Kind.MBARRIER_WAIT, awaits=0, order=[0, end]) for end in (4, 9, 5))]
        put_landings(events, "order")
        self.assertEqual([event.order[2] for event in events], [4, 4, 9, 5])

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


class ReplayTest(unittest.TestCase):
    """When what happens in a block: a small case worked out by hand. That what the committed traces
    become is as it was, where consumers queue and share, results_test sees."""

    def test_a_copy_a_product_and_a_softmax(self):
        producer = [Event(Kind.MBARRIER_ARRIVE, "K_full[0]"),
                    Event(Kind.TMA_LOAD, "K", "K_full[0]", amount=32 * 5120),
                    Event(Kind.MBARRIER_WAIT, "K_free[0]"),
                    Event(Kind.TMA_LOAD, "K", "K_full[0]", 1, 5120), Event(Kind.EXIT)]
        consumer = [Event(Kind.MBARRIER_WAIT, "K_full[0]"),
                    Event(Kind.WGMMA, "K", amount=4096 * 100), Event(Kind.WGMMA_WAIT, number=1),
                    Event(Kind.MBARRIER_ARRIVE, "K_free[0]", lane_exps=16),
                    Event(Kind.MBARRIER_WAIT, "K_full[0]", number=1, lane_other_flops=10),
                    Event(Kind.EXIT)]
        played = replay.replay([producer, consumer], PRODUCTS["attention"])
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

    def test_pages_of_lessons_ask_what_the_lesson_asks(self):
        """The number is the page's own count, and the lesson's answer has it."""
        shown = [one for one in shown_in_lessons() if one.lesson in ASKED]
        self.assertEqual({one.lesson for one in shown}, set(ASKED))
        folder = self.at("pages")
        with mock.patch("ladder.explore.command.shown_in_lessons", lambda: shown):
            self.assertEqual(write_pages(folder, BIN), 0)
        index = read(folder, "index.html")
        pages = re.findall('href="(.*?)"', index)
        self.assertEqual(sorted([*pages, "index.html"]), sorted(os.listdir(folder)))
        words = {1: "Once|one block", 4: "Four times|as many as there are parts", 5: "five times",
                 64: "64 times"}
        for one, page in zip(shown, pages):
            with self.subTest(page):
                self.assertIn(f"{shlex.join(['scripts/explore', *one.words])}</code>", index)
                data = re.search('id="data">(.*?)<', read(folder, page))[1]
                panes = json.loads(zlib.decompress(base64.b64decode(data)))
                number, array = ASKED[one.lesson]
                self.assertEqual([i for i, pane in enumerate(panes) if "asked" in pane], [number])
                asked = panes[number]["asked"]
                self.assertRegex(asked["lesson"], "^[^$`]*ow many [^$`]*$")
                self.assertIn(f" of {array} ", asked["what"])
                answer = read(ROOT, one.lesson).partition("Before you press play")[2]
                self.assertRegex(answer.partition("</details>")[0], words[asked["answer"]])

    def test_bad_words(self):
        for words, told in (
                (["05/none"], "05 (mma), 05/defer"), (["00", "01", "02"], "one or two steps"),
                (["00", "--pages", self.out], "--pages writes what the lessons show"),
                (["00", "--device=gpu"], "--device is for one program"),
                (["00", "--trace=t"], "--trace is for one program"),
                (["00", "--seqlen", "0"], "--seqlen")):
            self.assertIn(told, explore("--out", self.out, *words, status=2).stderr)
            self.assertFalse(os.path.exists(self.out))
        large = "06/mma 00 --scale 3e38 --seqlen 3 --out".split()  # one fault of two
        self.assertIn("2^NaN", explore(*large, self.out, status=1).stderr)

    def test_what_the_lessons_say(self):
        """Each lesson has something to open; that it says so is all that the lessons' own test
        sees of it. The programs take what it asks of them; a page with many events is not large."""
        quoted = {shlex.join(shown.words): shown.lesson for shown in shown_in_lessons()}
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
