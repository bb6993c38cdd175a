"""Tests traces, scripts/explore, and its page in a browser, where each pane shows one step. The
page's tests need Chromium. The word before unittest's options is the programs' folder."""

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
from urllib.parse import quote

from support import ROOT, Scratch, expect_output, printed, programs, read, scratch, write
import browser
from ladder.exercises.rebuild import changed
from ladder.base.programs import ladder_of, programs_in
from ladder.explore.command import (ASKED, asked_of, chosen, main, options_of,
                                    shown_in_lessons, times, write_pages)
from ladder.explore.page import fault_of, page_of, pane_of
from ladder.trace.read import BOUNDS, ENGINES, Event, Trace, merge_ranges

BIN = programs()
SMALL = "--device sim --check off --heads 1 --head-dim 64 --block-q 64 --block-kv 64 --seqlen 128"

SAME = "= the program's counts"
VERDICTS = "text('.verdict')"
# All texts in a pane but source locations, and how many shapes of each kind it draws (JavaScript).
SHOWN = """(({ maps, views, source, timeline, replay, scores }) => {
  const states = {}, rows = replay.scoreRows, columns = replay.scoreColumns;
  Array.from({ length: rows * columns }, (_, at) => scores.stateOf(
    at / columns | 0, at % columns, explorer.now, 4)).forEach(
      (state) => { states[state] = (states[state] || 0) + 1; });
  return [...['h2', '.summary', '.verdict', '.most', '.scores small', '.smem small', '.event',
            '.below small']
            .map((one) => pane.find(one).textContent.replace(/ · \\S+:\\d+/, '')),
          ...views.map(({ canvas }) => canvas.ariaLabel),
          ...new Set(pane.atWork.map((e) => meetingOf(e, explorer.now)).filter(Boolean)),
          pane.atWork.map(({ category }) => category).join(', '),
          timeline.rows.map(({ label }) => label).join(', '),
          JSON.stringify([states, timeline.from, timeline.hits.length,
            ...['now', 'near'].map((one) => source.box.querySelectorAll('.' + one).length)])];
})(pane)"""

# Controls that are too small, or cut off at the window's sides or, if it is wide, at its bottom.
OFF_SCREEN = """[...document.querySelectorAll('button, select, input, canvas, .event, .source')]
  .filter(e => e.checkVisibility()).filter(e => {
    const r = e.getBoundingClientRect();
    return r.left < -0.5 || r.right > innerWidth + 0.5 || r.width < 20 || r.height < 18 ||
      (innerWidth > 900 && r.bottom > innerHeight + 0.5);
  }).map(e => e.outerHTML.slice(0, 99))"""
# Elements with an action that are not controls, or that lack a name for screen readers.
NAMELESS = """[...document.querySelectorAll('button, summary, input, [data-key], [role=img]')]
  .filter(e => !(e.ariaLabel || e.closest('label')) ||
    !e.matches('button, summary, input, [role=img]')).map(e => e.outerHTML)"""
# Canvases of a single colour, other than the maps of HBM, which may be empty.
EMPTY = """[...document.querySelectorAll('canvas')].filter(c => !c.closest('.maps') &&
    new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer))
    .size < 2).map(c => c.ariaLabel)"""

# Texts on canvases with less contrast than WCAG requires, and texts and headings that are cut off.
ILLEGIBLE = """
const light = (c) => [0.2126, 0.7152, 0.0722].reduce(
  (sum, part, k) => sum + part * (c[k] / 255) ** 2.2, 0.05);
const hex = (colour) => [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
const wrong = [], { fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const { a, d } = this.getTransform(), { data } = this.getImageData(x * a + 1, y * d, 1, 1);
  const contrast = light(data[3] ? data : hex(palette.card)) / light(hex(this.fillStyle));
  if (text && (Math.max(contrast, 1 / contrast) < 4.5 || text.includes("…") ||
    x + this.measureText(text).width > this.canvas.clientWidth)) wrong.push(text);
  fillText.call(this, text, x, y);
};
explorer.redraw();
await drawn();
wrong.push(...[...document.querySelectorAll("h2, .summary, .verdict, h3 small, b, dt, dd")]
  .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map((e) => e.outerHTML));
"""


def explore(*words, status=0, folder=BIN):
    """Runs scripts/explore without opening a browser; returns the completed process."""
    command = [os.path.join(ROOT, "scripts/explore"), "--no-open", "--bin", folder, *words]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
    assert result.returncode == status, (command, result)
    return result


def traced(rung, options):
    """Returns (trace, records that the program prints) of a run with these options."""
    return Trace.of(os.path.join(BIN, rung), options.split())[:2]


def tiles_of(rung, options):
    """Returns how often a run computes each 16 × 16 matrix of S, according to the page's events."""
    found = [event["tile"] for event in pane_of(*traced(rung, options), "")["events"]
             if "tile" in event]
    return collections.Counter(
        (row, key) for first_row, last_row, first_key, last_key in found
        for row in range(first_row // 16, -(-last_row // 16))
        for key in range(first_key // 16, -(-last_key // 16)))


class TraceTest(unittest.TestCase):
    def test_every_kind_of_event_is_known(self):
        text = read(ROOT, "common/machine/trace.h")
        table = text.partition("kEventTexts[] = {")[2].partition("}")[0]
        self.assertLessEqual({*BOUNDS, *ENGINES, "write", "store", "zeros"},
                             set(re.findall(r'"(\w+)"', table)))
        told = read(ROOT, "common/README.md") + read(ROOT, "common/CONTRACTS.md")
        self.assertEqual([key for key in re.findall(r'\{"(\w+)", &Amounts', text)
                          if f"`{key}`" not in told], [])

    def test_ranges_within_ranges(self):
        self.assertEqual(merge_ranges([(10, 12), (0, 8), (2, 3), (8, 9)]), [(0, 9), (10, 12)])

    def test_an_array_has_the_rows_of_q_or_of_k(self):
        trace = mock.Mock(head={"batch": 1, "heads": 2, "seqlen": 32, "kv_heads": 1,
                                "seqlen_kv": 128}, arrays={"l_parts": 4 * 256})
        for rows, names in ((64, "Q dQ O dO S P dQ_sum"), (128, "K V dK dV dK_sum"),
                            (256, "l_parts O_parts")):
            for name in names.split():
                trace.arrays.setdefault(name, 2**20)
                self.assertEqual(Trace.rows_of(trace, name), rows, name)

    def test_a_fault_is_where_its_warp_was_last(self):
        for thread, last in ((31, 0), (32, 2), (64, -1)):  # -1: its warp has no event
            trace = mock.Mock(
                fault={"fault": "", "line": "a.cu:1", "launch": 0, "block": 1, "thread": thread},
                events=[Event("compute", launch=launch, block=block, warp=warp, index=i)
                        for i, (launch, block, warp) in enumerate((
                            (0, 1, 0), (0, 1, 1), (0, 1, 1), (0, 1, 3), (0, 2, 1), (1, 1, 1)))])
            self.assertEqual(fault_of(trace)["event"], last)

    def test_a_loop_without_waits_is_cut_into_rounds(self):
        """A round ends when a lane has accessed 512 bytes of HBM, and no sooner, because otherwise
        the trace of a long loop would contain one event per key."""
        program, path = os.path.join(BIN, "00_naive"), os.path.join(scratch(self), "trace")
        printed(program, *f"--device sim --heads 1 --seqlen 32 --seqlen-kv 512 --head-dim 8 "
                f"--check off --trace {path}".split())
        lane_bytes, rounds = collections.Counter(), []
        for event in map(json.loads, read(path).splitlines()):
            warp = event.get("launch"), event.get("block"), event.get("warp")
            if event.get("kind") == "round":
                rounds.append(lane_bytes.pop(warp))
            elif "kind" in event:
                lane_bytes[warp] += event.get("bytes", 0) / 32
        self.assertGreater(len(rounds), 10)
        # In some warps half of the lanes have nothing to do.
        self.assertTrue(all(256 <= size < 600 for size in rounds), set(rounds))

    def test_each_round_of_a_named_barrier_has_a_number(self):
        """A warp that arrives again arrives at the next round, except for diverged lanes."""
        trace, _ = traced("05_flash_v2", "--step ping_pong --device sim --check off --heads 1 "
                          "--head-dim 64 --seqlen 256")
        rounds = collections.defaultdict(list)
        for event in trace.events:
            if event.kind.startswith("named_barrier"):
                rounds[event.block, event.warp, event.name, event.kind].append(event.number)
        for numbers in rounds.values():
            self.assertEqual(sorted({*numbers}), list(range(numbers[0], numbers[-1] + 1)))
        self.assertGreater(max(numbers[-1] for numbers in rounds.values()), 1)

    def test_blocks_run_side_by_side(self):
        """Blocks begin together, and kernels run one after the other."""
        pane, end = pane_of(*traced("01_tiled_matmul", "--step tile --device sim --check off "
                                    "--seqlen 64 --heads 1"), ""), 1
        for launch in range(3):
            blocks = [pane["events"][slice(*block["events"])] for block in pane["blocks"]
                      if block["launch"] == launch]
            self.assertEqual({events[0]["ticks"][0] for events in blocks}, {end})
            end = max(event["ticks"][1] for events in blocks for event in events)

    def test_tiles_of_s(self):
        """Under the mask 05 skips the tiles above the diagonal, and 04 computes all. A tile of
        split_kv contains the heads that share K and V, and below them rows of zeros."""
        every = {(row, key) for row in range(8) for key in range(8)}
        self.assertEqual(set(tiles_of("04_flash_v1", SMALL + " --causal")), every)
        events = pane_of(*traced("04_flash_v1", SMALL), "")["events"]
        self.assertEqual(max(e["rows"][1] for e in events if e.get("name") == "K"), 127)
        self.assertEqual(set(tiles_of("05_flash_v2", SMALL + " --causal")),
                         {(row, key) for row, key in every if key // 4 <= row // 4})
        # 06 computes each tile of S once in the forward pass and once in the backward pass.
        self.assertEqual(tiles_of("06_backward", "--step split_sums " + SMALL),
                         dict.fromkeys(every, 2))
        # This step computes Sᵀ, so the first operand of its product is K.
        transposed = "--step sm90 --device sim --check off --heads 1 --seqlen 64 --seqlen-kv 128"
        self.assertEqual(set(tiles_of("06_backward", transposed)),
                         {(row, key) for row, key in every if row < 4})
        decoding = ("--step split_kv --device sim --check off --seqlen 1 --seqlen-kv 500 "
                    "--heads 8 --kv-heads 1 --head-dim 64 --set splits=4")
        self.assertEqual(set(tiles_of("05_flash_v2", decoding)), {(0, key) for key in range(32)})


class CommandTest(Scratch):
    def test_pages_of_lessons_ask_what_the_lesson_asks(self):
        """The page's number is its own count, and the lesson's answer states it (`words`)."""
        shown = [one for one in shown_in_lessons() if one.lesson in ASKED]
        self.assertEqual({one.lesson for one in shown}, set(ASKED))
        folder = self.at("pages")
        with mock.patch("ladder.explore.command.shown_in_lessons", lambda: shown):
            self.assertEqual(write_pages(folder, BIN), 0)
            with mock.patch("ladder.explore.command.made", side_effect=[  # one page with a fault
                    ("", int(page == 1)) for page in range(len(shown))]):
                self.assertEqual(write_pages(self.at("faults"), BIN), 1)
        index = read(folder, "index.html")
        pages = re.findall('href="(.*?)"', index)
        self.assertEqual(sorted([*pages, "index.html"]), sorted(os.listdir(folder)))
        words = {1: "(?i)once|one block", 4: "(?i)four times|one block of each part",
                 5: "five times", 64: "64 times"}
        for one, page in zip(shown, pages):
            with self.subTest(page):
                self.assertIn(f"{shlex.join(['scripts/explore', *one.words])}</code>", index)
                self.assertLess(os.path.getsize(os.path.join(folder, page)), 2_000_000)
                data = re.search('id="data">(.*?)<', read(folder, page))[1]
                panes = json.loads(zlib.decompress(base64.b64decode(data)))
                number, parts = ASKED[one.lesson]
                self.assertEqual([i for i, pane in enumerate(panes) if "asked" in pane], [number])
                asked = panes[number]["asked"]
                self.assertRegex(asked["lesson"], "^[^$`]*ow many [^$`]*$")
                self.assertRegex(asked["answer"], "^[^$`<>]+[.)]$")
                self.assertEqual([part for part, _ in asked["parts"]], parts)
                arrays = r"\b[QKPV]\b|\bO"
                self.assertEqual(set(re.findall(arrays, " ".join(parts))),
                                 set(re.findall(arrays, asked["lesson"])))
                for part, right in asked["parts"]:
                    self.assertRegex(asked["answer"], words[right])
                    for array in re.findall(r"\b[QKPV]\b", part):
                        self.assertEqual(times(array, panes[number]), right)

    def test_a_browser_opens_the_page(self):
        with mock.patch("ladder.explore.command.made", return_value=("", 0)), mock.patch.dict(
                os.environ, DISPLAY=":0"), mock.patch("sys.stdout") as terminal, mock.patch(
                "webbrowser.open") as opened:
            terminal.isatty.return_value = True
            self.assertEqual(main(["--out", self.at("e.html")]), 0)
        opened.assert_called_once_with(f"file://{quote(self.root)}/e.html")

    def test_the_last_option_holds(self):
        given = ["--check", "full"]
        self.assertEqual(options_of(chosen(asked_of(["00", "--bin", BIN]))[0], given)[-2:], given)

    def test_commands_of_lessons_make_pages(self):
        """Each lesson has a command for the explorer, and the programs accept its options. (The
        lessons' own test does not run these commands.)"""
        quoted = {shlex.join(shown.words): shown.lesson for shown in shown_in_lessons()}
        rungs = {step.rung for step in ladder_of(programs_in(BIN), "sim").steps}
        self.assertEqual({path.split(os.sep)[0] for path in quoted.values()} & rungs, rungs)
        for command, path in quoted.items():
            with self.subTest(lesson=path, command=command):
                asked = asked_of([*shlex.split(command), "--bin", BIN])
                for step in chosen(asked):
                    self.assertTrue(printed(step.program, "--device", "sim", "--step", step.name,
                                            *options_of(step, asked.options)))


@unittest.skipUnless(browser.find(), browser.MISSING)
class PageTest(unittest.TestCase):
    """The page's counters end at the programs' counts; everything fits into a wide and a narrow
    window; keys and mouse work; a fault is shown where it happens."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch(cls)
        cls.page = cls.made(*SMALL.split()[4:])

    @classmethod
    def made(cls, *words, **how):
        page = os.path.join(cls.folder, f"{len(os.listdir(cls.folder))}.html")
        cls.said = explore(*words, "--out", page, **how).stderr
        return page

    def found(self, script, fragment="#t=0", page=None, **how):
        return browser.found_in(page or self.page, script, fragment, **how)

    def test_every_step_ends_at_its_programs_counts(self):
        steps = ladder_of(programs_in(BIN), "sim").steps
        self.assertGreaterEqual(len(steps), 18)
        panes = []
        for step in steps:
            length = 40 if step.rung < "02" else 80  # one thread per row of S takes long
            options = (f"--step {step.name} --device sim --seqlen {length} --heads 1 "
                       "--head-dim 64 --check off --causal")
            for more in ("", " --schedule random:3")[:1 + (step.name in ("tile", "sm90"))]:
                trace, records = traced(step.rung, options + more)
                panes.append(pane_of(trace, records, options + more))
                with self.subTest(step.name + more):
                    self.check_events(trace, panes[-1])
        page = write(self.folder, "every.html", text=page_of(panes))
        for pane, verdict in zip(panes, self.found(f"return {VERDICTS};", "#t=1e9", page)):
            self.assertEqual(verdict, SAME, pane["command"])

    def check_events(self, trace, pane):
        """Each event names a line in a rung, and its ticks are in order."""
        lines = {(event.file, event.line) for event in trace.events if event.file}
        self.assertTrue(lines)
        for path, line in lines:  # of the rung, or of the forward pass that it borrows
            self.assertRegex(path, r"^\d\d_\w+/")
            self.assertLessEqual(line, len(read(ROOT, path).splitlines()))
        self.assertEqual([1 + max(e["warp"] for e in pane["events"][slice(*block["events"])])
                          for block in pane["blocks"]], [b["warps"] for b in pane["blocks"]])
        # No event belongs to two meetings.
        met = [part for _, parts in pane["meetings"] for part in parts]
        self.assertEqual(len(met), len(set(met)))
        # A warp's events do not overlap.
        ends = {}
        for event in pane["events"]:
            warp = event["launch"], event["block"], event["warp"]
            begin, end, until = event["ticks"]
            self.assertTrue(ends.get(warp, begin) <= begin <= end <= until)
            ends[warp] = end

    def test_playing_to_the_end_gives_the_programs_counts(self):
        """Moving back and forth gives them too, and a count that differs is reported."""
        end, exact, third, again, wrong = self.found("""
            await press([" "]);
            await until(() => explorer.now > 0 && explorer.playing);
            await at(explorer.last * 0.98);  // playing all of it takes long
            await until(() => explorer.now >= explorer.last && !explorer.playing);
            await drawn();
            const counts = () => each(({ replay }) => replay.counts), shown = [
              [counts(), VERDICTS],
              each((pane) => [...pane.element.querySelectorAll("dd")].map(({ title }) => title))];
            for (const now of [explorer.last / 3 | 0, explorer.last, explorer.last / 3 | 0]) {
              await at(now);
              if (now < explorer.last) shown.push([counts(), VERDICTS]);
            }
            const { events } = explorer.panes[0].run;
            events.find((e) => e.bytes).bytes += 2;
            events.find((e) => e.counts.matmul_flops).counts.matmul_flops -= 1;
            explorer.panes[0].replay.clear();
            await at(explorer.last);
            return [...shown, VERDICTS];""".replace("VERDICTS", VERDICTS))
        expected = [pane_of(*traced(*of), "")["counted"]
                    for of in (("04_flash_v1", SMALL),
                               ("05_flash_v2", f"--step large_tiles {SMALL}"))]
        self.assertEqual(end, [expected, [SAME] * 2])
        for titles, counts in zip(exact, expected):
            self.assertEqual([int(re.sub(r"\D", "", title)) for title in titles], [
                counts["requested_read_bytes"] + counts["requested_write_bytes"],
                counts["distinct_read_bytes"] + counts["distinct_write_bytes"],
                counts["hbm_read_sectors"] + counts["hbm_write_sectors"],
                counts["matmul_flops"], counts["exp_count"]])
        self.assertEqual(third[1], ["33% of all events", SAME])
        self.assertTrue(0 < third[0][0]["requested_read_bytes"]
                        < expected[0]["requested_read_bytes"])
        self.assertEqual(again, third)
        self.assertRegex(wrong[0], "^differs from the program's count: requested.*matmul")
        self.assertEqual(wrong[1], SAME)

    def test_a_click_on_an_event_chooses_it(self):
        """At any tick, the line below the timeline names the missing warps."""
        self.assertRegex(self.found("""
            const wait = explorer.panes[0].run.events.find((e) =>
              e.kind === "__syncthreads" && e.end - e.begin > 3);
            await at(wait.begin + 1);
            const { canvas, hits } = explorer.panes[0].timeline;
            const { left, top } = canvas.getBoundingClientRect();
            const { x, y } = hits.find(({ of }) => of === wait);
            canvas.dispatchEvent(new MouseEvent("click", { clientX: left + x + 1,
                                                           clientY: top + y + 1 }));
            await drawn();
            const early = text(".event")[0];
            await at(explorer.last);
            return early + text(".event")[0];"""),
                         "^Selected: .*__syncthreads number .*Missing: warp [0-9].*Missing: none")

    def test_texts_match_the_expected_output(self):
        """Compares texts at some ticks of several runs, among them decoding, and a causal run with
        grouped heads, more keys than queries, and copies past the last row."""
        for words, *moments in (
                ("", 10, 15, 41), ("05/split_kv", 0, 1), ("00 --seqlen 8 --heads 1", 10),
                ("05/large_tiles 05/sm90 --batch 2 --heads 4 --kv-heads 2 --seqlen 4 --seqlen-kv 8 "
                 "--head-dim 64 --causal", 6, 58, 79)):
            *shown, sizes = self.found(f"""
                const shown = [];
                for (const moment of {moments}) {{
                  await at(moment);
                  shown.push(`tick ${{moment}}`, ...each((pane) => {SHOWN}).flat());
                }}
                return [...shown, [0, 999, 1e3, 999499, 999500].map((n) => scaled(n, "B"))];""",
                                       page=self.made(*words.split()) if words else None)
            expect_output(self, f"scripts/explore {words}".strip(), "\n".join(shown) + "\n")
            self.assertEqual(sizes, ["0 B", "999 B", "1.00 kB", "999 kB", "1.00 MB"])

    def test_the_page_is_self_contained(self):
        page = read(self.page)
        self.assertIn("<title>04 flash_v1 and 05 large_tiles</title>", page)
        self.assertIn("counts events in the order of the trace, not time.", page)
        for word in (" src=", " href=", "url(", "@import", "import(", "fetch(", "XMLHttpRequest",
                     "{{"):
            self.assertNotIn(word, page)

    def test_the_page_fits_the_screen(self):
        """Texts are legible, and controls have names and can be reached by keyboard."""
        page = self.made(*"06/producer 06/sm90 --seqlen 256 --heads 1".split())
        for colour, width in (("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)):
            paper, *wrong = self.found(f"""{ILLEGIBLE}
                return [palette.paper, wrong, {OFF_SCREEN}, {EMPTY}, {NAMELESS}];""",
                                       "#t=41", page, width=width, colour=colour)
            self.assertEqual(paper, {"light": "#f7f7f5", "dark": "#131416"}[colour])
            self.assertEqual(wrong, [[], [], [], []])

    def test_steps_are_compared_in_a_narrow_window(self):
        """The small parts of the two steps are side by side, and their timelines are stacked."""
        *tops, lefts = self.found("""
            const both = (side) => (one) => each((pane) =>
              pane.find(one).getBoundingClientRect()[side]);
            return [...[".top", ".counters", ".maps", ".middle"].map(both("top")),
                    both("left")(".timeline")];""", width=390)
        for pair in (*tops, lefts):
            self.assertEqual(*pair)

    def test_keys_move_through_time(self):
        table = (
            ("ArrowRight", "explorer.now", 1), ("ArrowRight", "explorer.now > 1", True),
            ("ArrowLeft", "explorer.now", 1), ("End", "explorer.now === explorer.last", True),
            ("Home", "explorer.now", 0), ("ArrowRight", "explorer.now", 1),
            # Each press of E selects the next warp's current event; 1 and 2 choose the step.
            ("2 e", "each((pane) => pane.selected?.warp ?? null)", [None, 0]),
            ("e e e", "explorer.panes[1].selected.warp", 3),
            ("e", "explorer.panes[1].selected.warp", 0),
            ("Escape", "explorer.panes[1].selected", None))
        *seen, by_scrubber, far, buttons = self.found(
            "const seen = [];" + "".join(f"await press({keys.split()}); seen.push({what});"
                                         for keys, what, _ in table) + """
            $("scrubber").value = 7;
            $("scrubber").dispatchEvent(new Event("input"));
            seen.push(explorer.now);
            await press(["ArrowRight"], { shiftKey: true });
            seen.push(explorer.now - explorer.last / 20);
            await press(["End"]);
            const buttons = [];  // they do what the keys do; play starts again from the end
            for (let i = 0; i < 2; ++i) {
              $("play").click();
              await drawn();
              buttons.push($("play").ariaLabel, explorer.now < explorer.last);
            }
            return [...seen, buttons];""")
        for (keys, what, value), got in zip(table, seen):
            self.assertEqual(got, value, (keys, what))
        self.assertEqual(by_scrubber, 7)
        self.assertAlmostEqual(far, 7)
        self.assertEqual(buttons, ["Pause", True, "Play", True])

    def test_the_permalink_restores_the_tick(self):
        kept = self.found("""
            explorer.seek(99);
            explorer.panes[1].choose(explorer.panes[1].run.blocks[1].events[0]);
            await until(() => !explorer.pending && !explorer.settling);
            return location.hash;""")
        self.assertEqual(self.found("""
            const { now } = explorer;
            location.hash = location.hash.replace("t=99", "t=98");
            await until(() => explorer.now === 98);
            return [now, text(".timeline small")[1]];""", kept),
                         [99, "attention, block 1 of 2"])

    def test_numbers_are_asked_for_before_the_counters(self):
        """The page asks as the lesson does. Keys go to the number's field; the arrays' maps are
        shown; hidden parts leave no gap, and the source is visible."""
        before, lines, asked, typed, answer, after = self.found("""
            const pane = explorer.panes[0], look = () => [pane.find("dl").offsetHeight > 0,
              pane.find(".maps").checkVisibility({ visibilityProperty: true }), text(".most")[0]];
            const before = look(), form = $("question"), input = form.querySelector("input");
            const lines = pane.find(".source").clientHeight / pane.find("li").clientHeight;
            const asked = form.innerText, typed = input.dispatchEvent(
              new KeyboardEvent("keydown", { key: "1", bubbles: true, cancelable: true }));
            input.value = "3.6";
            form.querySelector("button").click();
            await drawn();
            return [before, lines, asked, typed, form.querySelector("output").textContent,
                    look()];""", "#t=1e9", self.made(*"01/tile --seqlen 64 --heads 1".split()))
        self.assertEqual((before, typed, after),
                         ([False, True, "?× read"], True, [True, True, "4× read"]))
        self.assertGreaterEqual(lines, 6)
        self.assertIn("where 00 reads each 64 times?", asked)
        self.assertIn("In 01 tile each of Q, K, P and V is read", re.sub(r"\s+", " ", asked))
        self.assertIn("V is read 4 times (you answered 3.6). Each is read four times, because "
                      "there are", answer)

    def test_a_missing_barrier(self):
        file, folder = "01_tiled_matmul/tile.cu", os.path.join(self.folder, "broken")
        code = read(ROOT, file).replace("__syncthreads();  // the tiles are complete", "")
        copy = write(folder, "tile.cu", text=f'#line 1 "{os.path.join(ROOT, file)}"\n{code}')
        changed(os.path.dirname(BIN), "01_tiled_matmul", file, copy, folder)
        page = self.made("01/mma", "01/tile", "--seqlen", "32", "--heads", "1", status=1,
                         folder=folder)
        self.assertIn("which is unwritten", self.said)
        opened, alert, line, verdicts = self.found(f"""
            const opened = [explorer.now === explorer.panes[1].faultAt(), explorer.shown,
                            explorer.now < explorer.last];
            const line = explorer.panes[1].find(".source li.fault").textContent;
            await at(explorer.last);
            return [opened, text("[role=alert]")[1], line, {VERDICTS}];""", "", page)
        self.assertEqual(opened, [True, 1, True])
        self.assertIn("which is unwritten", alert)
        self.assertIn("fmaf", line)
        self.assertEqual(verdicts, [SAME, "ended with a fault"])
