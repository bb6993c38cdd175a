"""Tests of the explorer's page in a browser; skipped where there is no Chromium.

Run alone: python3 scripts/tests/explore_page_test.py BUILD_DIR/bin [unittest options or cases]
With the word `pictures` instead it takes those that the README shows.
"""

import os
import re
import sys
import unittest

from base import ROOT, argument
import browser
import explore_test
from explore_test import SMALL, sums
from explorers_page import OFF_SCREEN, ExplorersPage, difference, take_pictures

BIN = ""
BROKEN = "../broken/bin"  # a program with mistakes to choose, as tests.cmake builds it


class PageTest(ExplorersPage):
    """It ends at what the programs count, shows all on a screen and on a phone, is used by keys and
    by mouse, and shows a fault where it happens."""

    # ---- what it counts ----

    def test_played_to_the_end_it_has_what_the_programs_count(self):
        self.open("#t=0")
        self.do("$('speed').value = '4'")
        self.browser.press(" ")
        self.browser.wait_for("explorer.now > 0 && explorer.playing")
        # It takes long.
        self.assertTrue(self.value("explorer.seek(explorer.last * 0.97), explorer.playing"))
        self.browser.wait_for("explorer.now >= explorer.last && !explorer.playing")
        self.browser.drawn()
        expected = [sums(explore_test.run("04_flash_v1", SMALL)),
                    sums(explore_test.run("05_flash_v2", "--variant mma " + SMALL))]
        self.assertEqual(self.counts(), expected)
        shown = self.of_panes("[...pane.element.querySelectorAll('dd')].map(cell => cell.title)")
        for pane, counts in zip(shown, expected):
            self.assertEqual([int(re.sub(r"\D", "", title)) for title in pane], [
                counts["requested_read_bytes"] + counts["requested_write_bytes"],
                counts["distinct_read_bytes"] + counts["distinct_write_bytes"],
                counts["matmul_flops"], counts["exp_count"]])
        self.assertEqual(self.verdicts(), ["= the program's counts"] * 2)
        # Back and forth it is the same; and a count that is not the program's is said.
        self.do("explorer.seek(explorer.last / 3 | 0)")
        third = self.counts()
        self.assertTrue(0 < third[0]["requested_read_bytes"] < expected[0]["requested_read_bytes"])
        self.do("explorer.seek(explorer.last)")
        self.do("explorer.seek(explorer.last / 3 | 0)")
        self.assertEqual(self.counts(), third)
        self.do("(() => { const { events } = explorer.panes[0].run;"
                "events.find(e => e.bytes).bytes += 2;"
                "events.find(e => e.counts.matmul_flops).counts.matmul_flops += 1;"
                "explorer.useClock('order', 4); explorer.seek(explorer.last) })()")
        self.assertEqual(self.verdicts()[1], "= the program's counts")
        self.assertRegex(self.verdicts()[0], "^not the program's count: requested.*matmul")

    def test_blocks_run_side_by_side(self):
        """In waves, as many at once as there are SMs, and on one after the other; kernels never."""
        self.open()
        ends = {}
        for sms in (1, 4):
            self.do(f"explorer.useClock('order', {sms}); explorer.seek(explorer.last)")
            self.assertEqual(self.verdicts(), ["= the program's counts"] * 2)
            for run in self.of_panes("pane.run.launches.map(launch => launch.blocks.map("
                                     "({ sm, from, to }) => [from, to, sm]))"):
                before = run[0][0][0]
                for blocks in run:
                    self.assertEqual({sm for *_, sm in blocks}, set(range(min(sms, len(blocks)))))
                    self.assertEqual(blocks[0][0], before)  # that is, when the last kernel ended
                    for sm in range(sms):
                        mine = sorted(block[:2] for block in blocks if block[2] == sm)
                        self.assertTrue(all(a[1] == b[0] for a, b in zip(mine, mine[1:])))
                        # No SM is done with the kernel while a block has not begun.
                        if mine:
                            self.assertGreaterEqual(mine[-1][1], max(block[0] for block in blocks))
                    before = max(end for _, end, _ in blocks)
            ends[sms] = self.of_panes("pane.run.last - pane.run.first")
        self.assertEqual(ends[1][1], 2 * ends[4][1])  # 05 has two blocks, 04 one for its products
        self.assertGreater(ends[4][0], ends[1][0] / 2)
        self.do("explorer.seek(10)")
        self.assertRegex(self.label(".sms", 1), r"^Blocks at work: SM 0: attention, block 0 of 2: "
                         r"Q 64–127, K 0–127, .*; SM 1: attention, block 1 of 2: Q 0–63, K 0–127")
        self.assertIn("last rows of Q first", self.of_panes("pane.find('.sms small').title")[1])
        self.press("2", "b")
        self.assertIn("block 1 of 2: Q 0–63", self.label(".timeline", 1))

    def test_it_starts_after_what_sets_things_up(self):
        self.open()
        self.assertEqual(self.value("explorer.now"), 0)
        for pane in (0, 1):
            self.assertIn("of attention, block 0", self.label(".timeline", pane))
        self.assertEqual(self.of_panes("pane.run.first < 0"), [True, False])
        self.assertIn("Before 0", self.text("clock-note"))
        self.do("explorer.seek(-1e9)")
        self.assertIn("of initialise", self.label(".timeline"))
        self.assertEqual(self.value("[explorer.now, Number($('scrubber')"
                                    ".min)]"), [self.value("explorer.panes[0].run.first")] * 2)

    def test_a_wait_tells_who_is_missing_and_no_time_is_blank(self):
        """At the start, in the middle and at the end warps are at work left and right in the
        window. A click on a wait of a warp that is early says who is missing."""
        self.open()
        for moment in ("0", "explorer.last / 2", "explorer.last"):
            self.do(f"explorer.seek({moment})")
            empty = self.of_panes("""(t => [0.02, 0.25, 0.5, 0.75, 0.95]
                .map(part => t.from + (t.until - t.from) * part)
                .filter(at => !t.blocks.some(b => b.from <= at && b.to >= at)))(pane.timeline)""")
            self.assertEqual(empty, [[], []], moment)
        wait = self.value("""(() => {
          const e = explorer.panes[0].run.events.find(e =>
            e.what === '__syncthreads' && e.to - e.from > 3);
          explorer.seek(e.from + 1);
          return e.index; })()""")
        self.browser.drawn()
        self.mouse(*self.value(f"""(() => {{
          const t = explorer.panes[0].timeline, e = explorer.panes[0].run.events[{wait}];
          const r = t.canvas.getBoundingClientRect();
          return [r.left + t.gutter + ((e.from + e.to) / 2 - t.from) * t.scale,
                  r.top + t.rowOf(e).y + t.rowOf(e).height / 2]; }})()"""))
        self.assertEqual(self.of_panes("pane.selected?.index"), [wait, None])
        self.assertRegex(self.of_panes("pane.find('.event').textContent")[0],
                         r"__syncthreads number \d+\. Arrived: warp \d.*Missing: warp \d")
        self.do("explorer.seek(explorer.last)")
        self.assertIn("Missing: nobody", self.of_panes("pane.find('.event').textContent")[0])
        self.browser.wait_for("$('live').textContent"
                              ".includes('Missing: nobody')")

    def test_the_models_time(self):
        for rung in ("06_backward", "05_flash_v2"):  # the last one goes on below
            small = "--seqlen 128 --heads 1 --head-dim 64"
            self.open("#clock=model&t=1e9",
                      self.made("model_" + rung, f"{rung}/sm90", *small.split()))
            counted = explore_test.run(rung, f"--variant sm90 --device sim --check off {small}")
            self.assertEqual(self.counts(), [sums(counted)], rung)
        self.assertIn("not measured", self.text("clock-note"))
        self.press("c")
        self.assertIn("not time", self.text("clock-note"))
        self.assertEqual(self.verdicts(), ["= the program's counts"])
        # Warpgroups are rows that can be read, and so are warps.
        rows = ("(rows => [rows.map(row => row.label), rows.every(row => row.height >= 10)])("
                "pane.timeline.rows.filter(row => row.warps.length))")
        groups = self.of_panes(rows)[0]
        self.assertEqual(groups, [[f"warpgroup {i}" for i in range(len(groups[0]))], True])
        self.press("g")
        self.assertEqual(self.of_panes(rows)[0],
                         [[f"warp {i}" for i in range(4 * len(groups[0]))], True])
        self.assertEqual(self.value("document.querySelector('.each').ariaPressed"), "true")

    def test_decoding(self):
        """Parts of the keys are named, and so is what merges them."""
        self.open("#t=10", self.made("split", "05/split_kv"))
        self.assertEqual(self.value("explorer.panes[0].run.blocks.filter(b => b.part).map("
                                    "b => [b.part, b.Q, b.K])"), [
            [f"part {part} of 4", [[4 * head, 4 * head + 3]],
             [[key, key + 127] for key in (1024 * head + 128 * part + 512 * i for i in (0, 1))]]
            for head in (0, 1) for part in range(4)])
        self.assertRegex(self.label(".sms"), r"SM 2: attention, block 2 of 8, part 2 of 4: "
                                             r"Q 0–3, K 256–383, 768–895,")
        self.do("explorer.seek(explorer.last)")
        self.assertEqual(self.verdicts(), ["= the program's counts"])
        self.assertRegex(self.label(".timeline"), "merge, block 4 of 8: O 4")
        self.assertEqual(self.value("explorer.panes[0].replay.scores.every(n => n === 1)"), True)
        self.assertRegex(self.value("(map => map.told(map.canvas.clientWidth * 0.2, "
                                    "map.canvas.clientHeight * 0.3))(explorer.panes[0].maps[5])"),
                         r"^O_parts, part 1, row 1: .* read 1×")

    # ---- what it looks like ----

    def check_screen(self, width, height, mobile):
        for colour in ("light", "dark"):
            self.open("#t=100", width=width, height=height, mobile=mobile, colour=colour)
            self.assertEqual(self.value("document.documentElement.dataset.theme"), colour)
            self.assertEqual(self.value(OFF_SCREEN), [])
            # Each canvas has something on it: more than one colour.
            plain = self.value("""[...document.querySelectorAll('canvas')].filter(c =>
                c.checkVisibility()).filter(c => new Set(new Uint32Array(c.getContext('2d')
                .getImageData(0, 0, c.width, c.height).data.buffer)).size < 2 &&
                !c.closest('.maps')).length""")
            self.assertEqual(plain, 0)
            # What S is coloured with can be told apart, by the colour-blind too.
            looks = self.value("Object.entries(LOOKS).map(([state, look]) => "
                               "[state, mixed(...look)])")
            for state, one in looks:
                for other, two in looks:
                    # What is skipped has lines.
                    if (state < other and "hatched" not in (state, other)
                            and {state, other} != {"skipped", "to come"}):
                        self.assertGreater(difference(one, two), 20, (colour, state, other))

    def test_all_is_on_a_screen(self):
        self.check_screen(1280, 800, False)
        for style in (".maps canvas { height: 300px !important }",
                      "footer { transform: translateY(80px) }",
                      "#panes { min-width: 1320px }",
                      "#play { min-width: 0; min-height: 0; width: 8px; padding: 0 }"):
            self.do("document.head.insertAdjacentHTML('beforeend', "
                    f"'<style id=broken>{style}</style>')")
            self.assertNotEqual(self.value(OFF_SCREEN), [], style)
            self.value("$('broken').remove()")

    def test_all_is_on_a_phone(self):
        self.check_screen(390, 844, True)
        self.assertEqual(self.of_panes("pane.element.checkVisibility()"), [True, False])
        self.do("document.querySelectorAll('#tabs button')[1].click()")
        self.assertEqual(self.value(OFF_SCREEN), [])
        self.assertIn("pane=2", self.fragment())

    # ---- how it is used ----

    def test_keys(self):
        self.open("#t=0")
        steps = []
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home"):
            self.press(key)
            steps.append(self.value("explorer.now"))
        self.assertEqual(steps[0], 1)
        self.assertGreater(steps[1], steps[0])
        self.assertEqual(steps[2:], [steps[0], self.value("explorer.last"), 0])
        # Zoom is to be seen, and has keys and buttons.
        self.assertIn("Zoom", self.of_panes("pane.find('.timeline h3').innerText")[1])
        spans = [self.value("explorer.span")]
        for change in ('explorer.panes[1].find("[aria-label=\'Zoom in\']").click()',
                       'explorer.panes[1].find("[aria-label=\'Zoom out\']").click()'):
            self.do(change)
            spans.append(self.value("explorer.span"))
        self.press("w")
        spans.append(self.value("explorer.span"))
        self.assertTrue(spans[1] < spans[0] == spans[2] > spans[3], spans)
        self.press("d")
        self.assertGreater(self.value("explorer.pan"), 0)
        # Buttons do what keys do.
        self.assertEqual(self.value("[...document.querySelectorAll('button')].filter(one => "
                                    "!(one.dataset.key in ACTIONS)).map(one => one.textContent)"),
                         ["Go there"] * 2)
        for playing in (True, False):
            self.assertEqual(self.value("$('play').click(), explorer.playing"), playing)
        self.do("explorer.seek(0)")
        for theme in ("dark", "light"):
            self.press("t")
            self.assertEqual(self.value("document.documentElement.dataset.theme"), theme)
        self.press("ArrowRight", shift=True)
        self.assertAlmostEqual(self.value("explorer.now"), self.value("explorer.last / 20"))
        # Of the events at work each press of E chooses the next; 1 and 2 say whose.
        self.do("explorer.seek(40)")
        self.press("2")
        chosen = set()
        for _ in range(4):
            self.press("e")
            chosen.add(self.value("explorer.panes[1].selected.index"))
        self.assertEqual(len(chosen), 4)
        self.assertIn("Chosen: ", self.of_panes("pane.find('.event').textContent")[1])
        self.press("Escape")
        self.assertEqual(self.of_panes("pane.selected"), [None, None])

    def test_all_by_keyboard(self):
        """Tab reaches each control, in the order in which they stand, and all have a name."""
        self.open("#t=0")
        unnamed = self.value("[...document.querySelectorAll('button, select, input, [role=img]')]"
                             ".filter(e => e.checkVisibility() && "
                             "!(e.getAttribute('aria-label') || e.textContent.trim() || "
                             "e.closest('label'))).map(e => e.outerHTML)")
        self.assertEqual(unnamed, [])
        reached = []
        for _ in range(40):
            self.browser.press("Tab")
            reached.append(self.value("document.activeElement.id || "
                                      "document.activeElement.getAttribute('aria-label') || ''"))
            if reached[-1].startswith("Arrays in HBM"):
                self.assertRegex(self.text("tip"), r"Q: [\d,]+ B read, 0 B written so far\. K: ")
        for control in ("help-button", "theme", "play", "scrubber", "speed", "sms", "The next SM",
                        "Zoom in"):
            self.assertIn(control, reached)
        self.assertEqual([name for name in reached if name.startswith("Tiles of S")][:2],
                         [self.label(".scores", pane) for pane in (0, 1)])

    def test_the_fragment_is_the_moment(self):
        self.open("#t=0")
        self.value("explorer.useClock('order', 1); explorer.seek(99); explorer.setSpan(70);"
                   "explorer.panes[1].choose(explorer.panes[1].run.events[300])")
        state = "[explorer.now, explorer.span, explorer.sms, explorer.panes[1].selected.index]"
        kept, before = self.fragment(), self.value(state)
        self.assertEqual(before, [99, 70, 1, 300])
        self.open(kept)
        self.assertEqual(self.value(state), before)
        self.do(f"location.hash = '{kept.replace('t=99', 't=98')}'")
        self.browser.wait_for("explorer.now === 98")
        # What shared memory holds at the end: the last tile of K and V, and in the tile of Q the O
        # that leaves through it.
        self.do("explorer.seek(explorer.last)")
        self.assertEqual(self.label(".smem", 1),
                         "Shared memory. Q: computed; K: K 64–127; V: V 64–127")
        self.do("explorer.seek(3)")
        self.assertEqual(self.label(".smem", 1),
                         "Shared memory. Q: Q 64–127; K: K 0–63; V: nothing yet")

    def test_dragging_pans_and_hovering_tells_units(self):
        self.open("#t=100&span=20")
        left, top, width, height = self.value(
            "(() => { const r = explorer.panes[0].timeline.canvas"
            ".getBoundingClientRect(); return [r.left, r.top, r.width, r.height] })()")
        x, y = left + width * 0.7, top + height * 0.5
        self.mouse(x, y, to=(x - 90, y))
        self.assertGreater(self.value("explorer.pan"), 2)
        x, y = self.value("(() => { const r = explorer.panes[1].find('.maps canvas')"
                          ".getBoundingClientRect(); return [r.left + 20, r.top + 20] })()")
        self.browser.mouse("mouseMoved", x, y)
        self.browser.drawn()
        self.assertRegex(self.text("tip"),
                         r"^Q, rows? \d+(?: to \d+)?: [\d.]+ k?B here, read [\d.]+×, written 0×$")

    def test_reduced_motion_plays_in_steps(self):
        self.open("#t=0", motion="reduce")
        self.value("(() => { explorer.usual = explorer.draw; explorer.drawn = 0;"
                   "explorer.draw = function () { ++this.drawn; this.usual() } })()")
        self.browser.press(" ")
        self.browser.wait_for("explorer.now > explorer.last / 30 * 1.2")
        self.browser.press(" ")
        self.assertLess(self.value("explorer.draw = explorer.usual; explorer.drawn"), 8)

    # ---- faults ----

    def test_a_missing_barrier(self):
        self.open(page=self.made("fault", "01/tile", "01/mma", "--seqlen", "32", "--heads", "1",
                                 status=1, programs=os.path.join(BIN, BROKEN),
                                 mistake="tile_no_first_barrier"))
        self.assertIn("which is unwritten", self.said)
        fault = self.value("explorer.panes[0].run.fault")
        self.assertIn("which is unwritten", fault["message"])
        self.assertIn(fault["message"], self.alert())
        self.assertEqual(self.value("explorer.now"),
                         self.value(f"explorer.panes[0].run.events[{fault['event']}].from"))
        self.assertGreater(self.value("explorer.now"), 0)
        self.assertIn("fmaf", self.value("explorer.panes[0].find('.source li.fault').textContent"))
        self.assertTrue(self.value("""(() => { const line = explorer.panes[0].find('li.fault')
            .getBoundingClientRect();
            const box = explorer.panes[0].find('.source').getBoundingClientRect();
            return line.top >= box.top - 1 && line.bottom <= box.bottom + 1 })()"""))
        self.do("explorer.seek(explorer.last)")
        self.assertEqual(self.verdicts(), ["ended with a fault", "= the program's counts"])

    def test_too_little_shared_memory(self):
        """A launch that is refused has no block: the fault is at the launch."""
        self.open(page=self.made("refused", "01/tile", "--sram", "512", "--seqlen", "32", status=1))
        self.assertIn("--sram", self.said)
        self.assertIn("shared memory", self.alert())

if __name__ == "__main__":
    BIN = explore_test.BIN = argument()
    if sys.argv[1:2] == ["pictures"]:
        sys.exit(take_pictures(os.path.join(ROOT, "scripts/ladder/explore/web")))
    if not browser.find():
        print("not run here: " + browser.MISSING)
    unittest.main()
