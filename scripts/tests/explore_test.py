"""Tests of the explorer: that its page, in a browser, ends at what the program counts; that it
shows all on a screen and on a phone; a fault where it happens; what it writes for Perfetto.

Run alone: python3 scripts/tests/explore_test.py BUILD_DIR/bin [unittest options, classes or cases]
With the word `pictures` instead it takes those that the README shows.
The browser's tests are skipped where there is no Chromium.
"""

import gzip
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

from base import ROOT, read
import browser
from ladder.explore.pane import COUNTERS, pane_of
from ladder.explore.trace import Trace, pieces, union
from ladder.files import course_pages
from ladder.programs import programs_in
from ladder.steps import ladder_of

BIN = ""
BROKEN = "../broken/bin"  # a program with mistakes to choose, as tests.cmake builds it
NO_BROWSER = "there is no Chromium (Debian's package chromium)"
# As scripts/explore runs its steps by default.
SMALL = "--device sim --seqlen 256 --heads 1 --head-dim 64 --block-q 64 --block-kv 64 --check off"


def explore(*words, status=0, programs=None, mistake=None):
    """Runs scripts/explore; what it wrote is at the path that it prints."""
    command = [os.path.join(ROOT, "scripts/explore"), "--no-open", *words]
    if "--traced" not in words:
        command += ["--bin", programs or BIN]
    chosen = {"LADDER_MISTAKE": mistake} if mistake else {}
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, **chosen}, capture_output=True,
                            encoding="utf-8", timeout=300)
    assert result.returncode == status, (command, result)
    return result


def run(rung, *options):
    """What a program prints, without any trace."""
    command = [os.path.join(BIN, rung), *" ".join(options).split(), "--json"]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
    assert result.returncode == 0, (command, result)
    return [json.loads(line) for line in result.stdout.splitlines()]


def sums(records):
    return {mine: sum(record[its] for record in records) for mine, its in COUNTERS.items()}


def counted(trace):
    """The same from a trace's events."""
    found = dict.fromkeys(COUNTERS, 0)
    seen = {}
    for event in trace.events:
        names = ("matmul", "exps", "other", "sramRead", "sramWrite")
        for name, amount in zip(names, event.amounts):
            found[name] += amount
        if event.direction:
            found["requested" + event.direction.capitalize()] += event.bytes
            bytes_seen = seen.setdefault((event.launch, event.array, event.direction), set())
            for begin, end in pieces(event.ranges):
                bytes_seen.update(range(begin, end))
    for (_, _, direction), bytes_seen in seen.items():
        found["distinct" + direction.capitalize()] += len(bytes_seen)
    return found


class TraceTest(unittest.TestCase):
    """What a trace says, added up, is what the program counts."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def trace(self, rung, *options, name="trace.json"):
        path = os.path.join(self.folder, name)
        records = run(rung, *options, "--trace", path)
        return Trace(path), records

    def test_every_step(self):
        programs = programs_in(BIN)
        steps = ladder_of(programs.values(), "sim").steps
        self.assertGreaterEqual(len(steps), 18)
        for step in steps:
            with self.subTest(rung=step.rung, step=step.variant):
                options = (f"--variant {step.variant} --device sim --seqlen 80 --heads 2 "
                           "--head-dim 64 --check off --causal")
                trace, records = self.trace(step.rung, options)
                self.assertEqual(counted(trace), sums(records))
                self.assertEqual(sums(records), sums(run(step.rung, options)))
                with_line = [event for event in trace.events if event.line]
                self.assertTrue(with_line)
                for event in with_line:
                    path, _, line = event.line.rpartition(":")
                    # The rung's own, or that of a forward pass which the step names.
                    self.assertRegex(os.path.relpath(path, ROOT), r"^\d\d_\w+/")
                    self.assertLessEqual(int(line), len(read(path).splitlines()))

    def test_a_line_is_the_one_that_does_it(self):
        trace, _ = self.trace("00_naive", "--device sim --seqlen 32 --heads 1 --check off")
        lines = read(ROOT, "00_naive/attention.cu").splitlines()

        def text(event):
            return lines[int(event.line.rpartition(":")[2]) - 1]
        for event in trace.events:
            if event.direction:
                self.assertIn(event.array + "[", text(event))
        self.assertTrue(any("fmaf" in text(event) for event in trace.events if event.amounts[0]))

    def test_tiles_of_s(self):
        """Under the mask 05 skips what lies above it, and 04 makes it all."""
        for rung, expected in (("04_flash_v1", 16), ("05_flash_v2", 10)):
            trace, records = self.trace(rung, SMALL + " --causal")
            pane = pane_of(trace, records, "")
            tiles = set()
            for first_row, last_row, first_key, last_key in pane["tiles"].values():
                tiles |= {(row // 64, key // 64) for row in range(first_row, last_row, 16)
                          for key in range(first_key, last_key, 16)}
            self.assertEqual(len(tiles), expected, rung)
            self.assertTrue(rung[:2] == "04" or all(key <= row for row, key in tiles))

    def test_reversed_and_shuffled(self):
        for schedule in ("reverse", "random:3"):
            for rung, variant in (("01_tiled_matmul", "tile"), ("05_flash_v2", "sm90"),
                                  ("06_backward", "sm90")):
                options = (f"--variant {variant} --device sim --seqlen 72 --check off "
                           f"--schedule {schedule}")
                trace, records = self.trace(rung, options)
                self.assertEqual(counted(trace), sums(records), (rung, schedule))

    def test_compressed(self):
        self.trace("04_flash_v1", SMALL)
        self.trace("04_flash_v1", SMALL, name="trace.json.gz")
        with open(os.path.join(self.folder, "trace.json"), "rb") as file:
            plain = file.read()
        packed = os.path.join(self.folder, "trace.json.gz")
        with gzip.open(packed) as file:
            self.assertEqual(file.read(), plain)
        self.assertLess(os.path.getsize(packed), len(plain) / 5)

    def test_union_of_ranges(self):
        self.assertEqual(union([[0, 4, 16, 2]], [[4, 4, 16, 2]]), [[0, 8, 16, 2]])
        self.assertEqual(union([[0, 4, 0, 1]], [[8, 4, 0, 1], [100, 2, 0, 1]]),
                         [[0, 4, 8, 2], [100, 2, 0, 1]])


class CommandTest(unittest.TestCase):
    """scripts/explore itself."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "page.html")

    def page(self):
        return read(self.out)

    def test_the_default_page_needs_nothing_else(self):
        explore("--out", self.out)
        page = self.page()
        self.assertLess(len(page.encode()), 2_000_000)
        for word in (" src=", " href=", "url(", "@import", "import(", "fetch(", "XMLHttpRequest"):
            self.assertNotIn(word, page)
        self.assertNotIn("{{", page)

    def test_bad_words(self):
        for words, told in (
                (["07"], "there is no step 07"), (["05/none"], "05/mma"),
                (["00", "01", "02"], "one or two steps"), (["--out"], "--out needs a value"),
                (["00", "--json"], "--json"), (["00", "--seqlen", "0"], "--seqlen"),
                (["--traced", os.path.join(ROOT, "README.md")], "README.md")):
            command = [os.path.join(ROOT, "scripts/explore"), "--bin", BIN, "--out", self.out,
                       *words]
            result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
            self.assertEqual(result.returncode, 2, result)
            self.assertIn(told, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
            self.assertFalse(os.path.exists(self.out))

    def test_what_the_lessons_say(self):
        """Each lesson has something to open; that it says so is all that the lessons' own test
        sees of it."""
        quoted = {}
        for path in course_pages():
            found = re.findall(r"^\$ (scripts/explore.*)$", read(path), re.M)
            quoted |= {command: os.path.relpath(path, ROOT) for command in found}
        rungs = {step.rung for step in ladder_of(programs_in(BIN).values(), "sim").steps}
        self.assertEqual({path.split(os.sep)[0] for path in quoted.values()} & rungs, rungs)
        for command, path in quoted.items():
            with self.subTest(lesson=path, command=command):
                explore(*command.split()[1:], "--out", self.out)
                self.assertLess(os.path.getsize(self.out), 2_000_000)

    def test_a_trace_from_before(self):
        path = self.out + ".json.gz"
        run("02_safe_softmax", "--device sim --seqlen 48 --check off --trace", path)
        explore("--traced", path, "--out", self.out)
        self.assertIn("02 safe", self.page())


class PerfettoTest(unittest.TestCase):
    """What is written for Perfetto, by the rules of Chrome's trace event format."""

    def events(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "perfetto.json")
            explore(*words, "--perfetto", path)
            data = json.loads(read(path))
        self.assertIn("not", data["otherData"]["clock"])  # measured, or a time
        return data["traceEvents"]

    def check(self, events):
        """Faults where the format is broken."""
        asynchronous, flows, threads = {}, {}, set()
        for event in events:
            phase = event["ph"]
            self.assertIn(phase, "XMbesf")
            self.assertIsInstance(event["pid"], int)
            self.assertTrue(event["name"])
            if phase == "M":
                self.assertIn(event["name"], ("process_name", "thread_name"))
                self.assertTrue(event["args"]["name"])
                threads.add((event["pid"], event.get("tid")))
                continue
            self.assertIsInstance(event["ts"], (int, float))
            self.assertGreaterEqual(event["ts"], 0)
            self.assertIn((event["pid"], event["tid"]), threads)
            if phase == "X":
                self.assertGreaterEqual(event["dur"], 0)
            elif phase in "be":
                key = (event["cat"], event["id"])
                asynchronous.setdefault(key, []).append(event)
            else:
                flows.setdefault((event["cat"], event["name"], event["id"]), []).append(event)
        for pair in asynchronous.values():
            self.assertEqual([event["ph"] for event in pair], ["b", "e"])
            self.assertEqual(pair[0]["name"], pair[1]["name"])
            self.assertLessEqual(pair[0]["ts"], pair[1]["ts"])
        for pair in flows.values():
            self.assertEqual([event["ph"] for event in pair], ["s", "f"])
            self.assertLessEqual(pair[0]["ts"], pair[1]["ts"])
            self.assertEqual(pair[1]["bp"], "e")
        # A slice of a thread begins before the one around it ends, or when it does.
        for place in {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}:
            mine = sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                          if event["ph"] == "X" and (event["pid"], event["tid"]) == place)
            for (_, end), (begin, _) in zip(mine, mine[1:]):
                self.assertLessEqual(end, begin + 1e-6)
        return asynchronous, flows

    def test_two_steps(self):
        asynchronous, flows = self.check(self.events("04", "05/sm90"))
        self.assertTrue({"tensor cores", "copy engine: loads", "asynchronous copies"} <=
                        {category for category, _ in asynchronous})
        self.assertTrue(any("K_full" in name for _, name, _ in flows))

    def test_the_check_can_fail(self):
        events = self.events("00", "--seqlen", "16", "--heads", "1")
        broken = [event | {"ts": -1} if event["ph"] == "X" else event for event in events]
        with self.assertRaises(AssertionError):
            self.check(broken)
        with self.assertRaises(AssertionError):
            self.check(events + [{"ph": "b", "cat": "c", "id": "1", "name": "n", "ts": 0,
                                  **{k: events[-1][k] for k in ("pid", "tid")}}])


@unittest.skipUnless(browser.find(), NO_BROWSER)
class PageTest(unittest.TestCase):
    """The page in a browser."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.page = os.path.join(cls.folder.name, "page.html")
        explore("--out", cls.page)
        cls.browser = browser.Browser()
        cls.browser.__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def setUp(self):
        self.browser.errors.clear()
        self.addCleanup(lambda: self.assertEqual(self.browser.errors, []))

    def open(self, fragment="", page=None, width=1280, height=800, mobile=False, **media):
        self.browser.size(width, height, 2 if mobile else 1, mobile)
        self.browser.prefer(**({"colour": "light", "motion": "no-preference"} | media))
        self.browser.open(page or self.page, fragment)

    def value(self, expression):
        return self.browser.value(expression)

    def text(self, name):
        return self.value(f"document.getElementById('{name}').textContent")

    def counts(self):
        return self.value("explorer.panes.map(pane => pane.replay.counts)")

    # ---- what it counts ----

    def test_played_to_the_end_it_has_what_the_programs_count(self):
        self.open("#t=0")
        self.assertEqual(self.value("explorer.now"), 0)
        self.value("document.getElementById('speed').value = '4';"
                   "document.getElementById('speed').dispatchEvent(new Event('change'))")
        self.browser.press(" ")
        self.browser.wait_for("explorer.now > 0 && explorer.playing")
        self.browser.wait_for("explorer.now >= explorer.last && !explorer.playing")
        self.browser.drawn()
        expected = [sums(run("04_flash_v1", SMALL)),
                    sums(run("05_flash_v2", "--variant mma", SMALL))]
        self.assertEqual(self.counts(), expected)
        shown = self.value("explorer.panes.map(pane => Object.fromEntries([...pane.element"
                           ".querySelectorAll('[data-counter]')].map(cell => [cell.dataset"
                           ".counter, [Number(cell.dataset.value), cell.title]])))")
        for pane, counts in zip(shown, expected):
            both = {"requested": counts["requestedRead"] + counts["requestedWrite"],
                    "distinct": counts["distinctRead"] + counts["distinctWrite"],
                    "matmul": counts["matmul"], "exps": counts["exps"]}
            self.assertEqual({name: value for name, (value, _) in pane.items()}, both)
            for name, (value, title) in pane.items():
                self.assertEqual(int(re.sub(r"\D", "", title)), both[name])
        self.assertEqual(self.verdicts(), ["= the program's counts"] * 2)

    def verdicts(self):
        return self.value("explorer.panes.map(pane => pane.find('.verdict').textContent)")

    def test_a_count_that_is_not_the_programs_is_said(self):
        self.open("#t=0")
        self.value("(() => { const run = explorer.panes[0].run;"
                   "run.columns.bytes[run.columns.bytes.findIndex(n => n > 0)] += 2;"
                   "run.columns.matmul[run.n - 1] += 1;"
                   "explorer.useClock('order'); explorer.seek(explorer.last) })()")
        self.browser.drawn()
        self.assertEqual(self.verdicts()[1], "= the program's counts")
        self.assertRegex(self.verdicts()[0], "^not the program's count: requested.*matmul")

    def test_back_and_forth_is_the_same(self):
        self.open("#t=0")
        at = self.value("explorer.last / 3 | 0")

        def there():
            self.value(f"explorer.seek({at})")
            self.browser.drawn()
            return self.counts()
        first = there()
        self.assertGreater(first[0]["requestedRead"], 0)
        self.value("explorer.seek(explorer.last)")
        self.browser.drawn()
        self.assertNotEqual(self.counts(), first)
        self.assertEqual(there(), first)

    def test_the_models_time(self):
        for rung in ("06_backward", "05_flash_v2"):  # the last one goes on below
            page = os.path.join(self.folder.name, f"model_{rung}.html")
            explore(f"{rung}/sm90", "--out", page)
            self.open("#clock=model&t=1e9", page)
            self.browser.drawn()
            self.assertEqual(self.counts(), [sums(run(rung, "--variant sm90 --device sim --seqlen "
                                                      "256 --heads 1 --check off"))], rung)
        self.assertIn("not measured", self.text("clock-note"))
        self.browser.press("c")
        self.browser.drawn()
        self.assertIn("not time", self.text("clock-note"))
        self.assertEqual(self.verdicts(), ["= the program's counts"])

    # ---- what it looks like ----

    # Of what can be seen or used: that which is cut off at a side of the screen or, where nothing
    # scrolls, anywhere. What lies in a part that scrolls is that part's.
    OFF_SCREEN = """(() => {
      const off = [], scrolls = e => e && e !== document.body &&
        (/auto|scroll/.test(getComputedStyle(e).overflowY) ? e : scrolls(e.parentElement));
      for (const e of document.querySelectorAll('header *, main *, footer *')) {
        if (e.closest('svg, option, .source, .hidden-text') || !e.checkVisibility()) continue;
        const r = e.getBoundingClientRect(), inner = scrolls(e.parentElement);
        const name = e.tagName + '.' + (e.className || e.id);
        if (r.width < 1 && r.height < 1) continue;
        if (r.left < -0.5 || r.right > innerWidth + 0.5) off.push(name);
        if (!inner && (r.top < -0.5 || r.bottom > innerHeight + 0.5)) off.push(name);
      }
      for (const e of document.querySelectorAll('button, select, input, canvas, .event, .source')) {
        const r = e.getBoundingClientRect();
        const small = r.width < 20 || r.height < 18;
        if (e.checkVisibility() && small) off.push('small ' + e.className + e.id);
      }
      for (const pane of document.querySelectorAll('.pane'))
        if (innerWidth > 900 && pane.scrollHeight > pane.clientHeight) off.push('pane');
      const page = document.documentElement;
      if (page.scrollWidth > innerWidth || page.scrollHeight > innerHeight) off.push('page');
      return off; })()"""

    def check_screen(self, width, height, mobile):
        for colour in ("light", "dark"):
            self.open("#t=300", width=width, height=height, mobile=mobile, colour=colour)
            picture = self.browser.picture()
            scale = 2 if mobile else 1
            self.assertEqual(picture[:8], b"\x89PNG\r\n\x1a\n")
            self.assertEqual(struct.unpack(">II", picture[16:24]), (width * scale, height * scale))
            self.assertEqual(self.value("document.documentElement.dataset.theme"), colour)
            self.assertEqual(self.value(self.OFF_SCREEN), [])
            # Each canvas has something on it: more than one colour.
            plain = self.value("""[...document.querySelectorAll('canvas')].filter(c =>
                c.checkVisibility()).filter(c => new Set(new Uint32Array(c.getContext('2d')
                .getImageData(0, 0, c.width, c.height).data.buffer)).size < 2 &&
                !c.closest('.maps')).length""")
            self.assertEqual(plain, 0)
        return picture

    def test_all_is_on_a_screen(self):
        self.check_screen(1280, 800, False)

    def test_all_is_on_a_phone(self):
        self.check_screen(390, 844, True)
        self.assertEqual(self.value("[...document.querySelectorAll('.pane')].map(pane => "
                                    "pane.checkVisibility())"), [True, False])
        self.value("document.querySelectorAll('.tabs button')[1].click()")
        self.browser.drawn()
        self.assertEqual(self.value(self.OFF_SCREEN), [])
        self.assertIn("pane=2", self.fragment())

    def test_what_is_off_screen_is_seen(self):
        self.open()
        for style in (".maps canvas { height: 300px !important }",
                      "footer { transform: translateY(80px) }",
                      "#panes { min-width: 1320px }",
                      "#play { min-width: 0; min-height: 0; width: 8px; padding: 0 }"):
            self.value("(() => { const s = document.createElement('style'); s.id = 'broken'; "
                       f"s.textContent = {json.dumps(style)}; document.head.append(s) }})()")
            self.browser.drawn()
            self.assertNotEqual(self.value(self.OFF_SCREEN), [], style)
            self.value("document.getElementById('broken').remove()")
        self.browser.drawn()
        self.assertEqual(self.value(self.OFF_SCREEN), [])

    def test_what_is_in_shared_memory(self):
        """At the end the last tile of K and V, in the tile of Q the O that leaves through it."""
        self.open("#t=1e9")
        self.browser.drawn()
        told = self.value("explorer.panes[1].find('.smem canvas').getAttribute('aria-label')")
        self.assertEqual(told, "Shared memory. Q: computed; K: K 192–255; V: V 192–255")
        self.value("explorer.seek(3)")
        self.browser.drawn()
        told = self.value("explorer.panes[1].find('.smem canvas').getAttribute('aria-label')")
        self.assertEqual(told, "Shared memory. Q: Q 192–255; K: K 0–63; V: nothing yet")

    # ---- how it is used ----

    def fragment(self):
        self.browser.wait_for("!explorer.pending && !explorer.writing")
        return self.value("location.hash")

    def test_keys(self):
        self.open("#t=0")
        steps = []
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home"):
            self.browser.press(key)
            self.browser.drawn()
            steps.append(self.value("explorer.now"))
        self.assertEqual(steps[0], 1)
        self.assertGreater(steps[1], steps[0])
        self.assertEqual(steps[2:], [steps[0], self.value("explorer.last"), 0])
        span = self.value("explorer.span")
        self.browser.press("w")
        self.assertLess(self.value("explorer.span"), span)
        self.browser.press("d")
        self.assertGreater(self.value("explorer.pan"), 0)
        self.browser.press("t")
        self.assertEqual(self.value("document.documentElement.dataset.theme"), "dark")
        self.browser.press("ArrowRight", shift=True)
        self.assertAlmostEqual(self.value("explorer.now"), self.value("explorer.last / 20"))

    def test_all_by_keyboard(self):
        """Tab reaches each control, in the order in which they stand, and all have a name."""
        self.open("#t=0")
        unnamed = self.value("[...document.querySelectorAll('button, select, input, [role=img]')]"
                             ".filter(e => e.checkVisibility() && "
                             "!(e.getAttribute('aria-label') || e.textContent.trim() || "
                             "e.closest('label'))).map(e => e.outerHTML)")
        self.assertEqual(unnamed, [])
        reached = []
        for _ in range(30):
            self.browser.press("Tab")
            reached.append(self.value("document.activeElement.id || "
                                      "document.activeElement.getAttribute('aria-label') || ''"))
            if reached[-1].startswith("Arrays in HBM"):
                self.assertRegex(self.text("tip"), r"Q: [\d,]+ B read, 0 B written so far\. K: ")
        for control in ("help-button", "theme", "play", "scrubber", "speed"):
            self.assertIn(control, reached)
        self.assertEqual([name for name in reached if name.startswith("Tiles of S")][:2],
                         [self.value(f"explorer.panes[{i}].find('.scores canvas')"
                                     ".getAttribute('aria-label')") for i in (0, 1)])

    def test_a_wait_is_chosen_by_keys(self):
        """Of those at work: each press of E chooses the next; 1 and 2 say whose."""
        self.open("#t=300")
        self.browser.press("2")
        chosen = []
        for _ in range(4):
            self.browser.press("e")
            self.browser.drawn()
            chosen.append(self.value("explorer.panes[1].selected"))
        self.assertEqual(len(set(chosen)), 4)
        self.assertEqual(self.value("explorer.panes[0].selected"), -1)
        self.assertIn("Chosen: ", self.value("explorer.panes[1].find('.event').textContent"))
        self.browser.press("Escape")
        self.assertEqual(self.value("explorer.panes[1].selected"), -1)

    def test_the_fragment_is_the_moment(self):
        self.open("#t=0")
        self.value("explorer.seek(333); explorer.setSpan(70); explorer.panes[1].select(500)")
        kept = self.fragment()
        before = self.value("[explorer.now, explorer.span, explorer.panes[1].selected]")
        self.open(kept)
        self.browser.drawn()
        self.assertEqual(self.value("[explorer.now, explorer.span, explorer.panes[1].selected]"),
                         before)
        self.assertEqual(before, [333, 70, 500])

    def test_a_wait_tells_who_is_missing(self):
        """A click on a wait of a warp that is early."""
        self.open("#t=0")
        wait = self.value("""(() => {
          const pane = explorer.panes[0], c = pane.clock, run = pane.run;
          for (let i = 0; i < run.n; ++i)
            if (run.what(i) === '__syncthreads' && c.to[i] - c.from[i] > 3)
              return [i, c.from[i]]; })()""")
        self.value(f"explorer.seek({wait[1] + 1})")
        self.browser.drawn()
        x, y = self.value(f"""(() => {{
          const pane = explorer.panes[0], t = pane.timeline, i = {wait[0]}, c = pane.clock;
          const r = t.canvas.getBoundingClientRect();
          return [r.left + t.gutter + ((c.from[i] + c.to[i]) / 2 - t.from) * t.scale,
                  r.top + t.warpY(pane.run.columns.warp[i] + 0.5)]; }})()""")
        self.browser.mouse("mousePressed", x, y)
        self.browser.mouse("mouseReleased", x, y)
        self.browser.drawn()
        self.assertEqual(self.value("explorer.panes[0].selected"), wait[0])
        told = self.value("explorer.panes[0].find('.event').textContent")
        self.assertRegex(told, r"__syncthreads number \d+\. Arrived: warp \d.*Missing: warp \d")
        self.value("explorer.seek(explorer.last)")
        self.browser.drawn()
        self.assertIn("Missing: nobody", self.value("explorer.panes[0].find('.event').textContent"))
        self.assertIn("Missing: nobody", self.live())

    def live(self):
        self.browser.wait_for("document.getElementById('live').textContent"
                              ".includes('Missing: nobody')")
        return self.value("document.getElementById('live').textContent")

    def test_dragging_pans_and_hovering_tells_units(self):
        self.open("#t=400")
        box = self.value("(() => { const r = explorer.panes[0].timeline.canvas"
                         ".getBoundingClientRect(); return [r.left, r.top, r.width, r.height] })()")
        x, y = box[0] + box[2] * 0.7, box[1] + box[3] * 0.5
        self.browser.mouse("mousePressed", x, y)
        self.browser.mouse("mouseMoved", x - 60, y)
        self.browser.mouse("mouseReleased", x - 60, y)
        self.browser.drawn()
        self.assertGreater(self.value("explorer.pan"), 2)
        x, y = self.value("(() => { const r = explorer.panes[1].find('.maps canvas')"
                          ".getBoundingClientRect(); return [r.left + 20, r.top + 20] })()")
        self.browser.mouse("mouseMoved", x, y)
        self.browser.drawn()
        self.assertRegex(self.value("document.getElementById('tip').textContent"),
                         r"^Q, rows \d+ to \d+: [\d.]+ k?B here, read [\d.]+×, written 0×$")

    def test_reduced_motion_plays_in_steps(self):
        self.open("#t=0", motion="reduce")
        self.value("(() => { const draw = explorer.draw; explorer.drawn = 0;"
                   "explorer.draw = function () { ++this.drawn; draw.call(this) } })()")
        self.browser.press(" ")
        self.browser.wait_for("explorer.now > explorer.last / 30 * 1.2")
        self.browser.press(" ")
        self.assertLess(self.value("explorer.drawn"), 8)

    # ---- faults ----

    def alert(self):
        return self.value("document.querySelector('[role=alert]').textContent")

    def test_a_missing_barrier(self):
        page = os.path.join(self.folder.name, "fault.html")
        result = explore("01/tile", "01/mma", "--seqlen", "32", "--heads", "1", "--out", page,
                         status=1, programs=os.path.join(BIN, BROKEN),
                         mistake="tile_no_first_barrier")
        self.assertIn("read of unwritten shared", result.stderr)
        self.open(page=page)
        self.browser.drawn()
        fault = self.value("explorer.panes[0].run.fault")
        self.assertIn("read of unwritten shared", fault["message"])
        self.assertIn(fault["message"], self.alert())
        self.assertEqual(self.value("explorer.now"),
                         self.value(f"explorer.panes[0].clock.from[{fault['event']}]"))
        self.assertGreater(self.value("explorer.now"), 0)
        self.assertIn("fmaf", self.value("explorer.panes[0].find('.source li.fault').textContent"))
        self.assertTrue(self.value("""(() => { const line = explorer.panes[0].find('li.fault')
            .getBoundingClientRect();
            const box = explorer.panes[0].find('.source').getBoundingClientRect();
            return line.top >= box.top - 1 && line.bottom <= box.bottom + 1 })()"""))
        self.assertEqual(self.verdicts()[0], "ended with a fault")
        self.value("explorer.seek(explorer.last)")
        self.browser.drawn()
        self.assertEqual(self.verdicts()[1], "= the program's counts")

    def test_too_little_shared_memory(self):
        """A launch that is refused has no block: the fault is at the launch."""
        page = os.path.join(self.folder.name, "refused.html")
        result = explore("01/tile", "--sram", "512", "--seqlen", "32", "--out", page, status=1)
        self.assertIn("--sram", result.stderr)
        self.open(page=page)
        self.browser.drawn()
        self.assertIn("shared memory", self.alert())

    def test_the_readmes_picture(self):
        """Made anew by: python3 scripts/tests/explore_test.py BUILD_DIR/bin pictures"""
        for colour in ("light", "dark"):
            path = os.path.join(ROOT, f"scripts/ladder/explore/web/picture-{colour}.png")
            with open(path, "rb") as file:
                head = file.read(24)
            self.assertEqual(struct.unpack(">II", head[16:24]), (1920, 1200))


def take_pictures(folder):
    """What the README shows."""
    with tempfile.TemporaryDirectory() as scratch, browser.Browser() as one:
        page = os.path.join(scratch, "page.html")
        explore("--out", page)
        one.size(1280, 800, 1.5)
        for colour in ("light", "dark"):
            one.prefer(colour=colour)
            one.open(page, "#t=233")
            with open(os.path.join(folder, f"picture-{colour}.png"), "wb") as file:
                file.write(one.picture())


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv.pop(1))
    if sys.argv[1:2] == ["pictures"]:
        sys.exit(take_pictures(os.path.join(ROOT, "scripts/ladder/explore/web")))
    if not browser.find():
        print("not run here: " + NO_BROWSER)
    unittest.main()
