"""Tests of the explorer's page in a browser; skipped where there is no Chromium.

Run alone: python3 scripts/tests/explore_page_test.py BUILD_DIR/bin [unittest options or cases]
With the word `pictures` instead it takes those that the README shows.
"""

import json
import os
import re
import struct
import sys
import tempfile
import unittest

from base import ROOT, argument
import browser
import explore_test
from explore_test import SMALL, explore, sums

BIN = ""
BROKEN = "../broken/bin"  # a program with mistakes to choose, as tests.cmake builds it
NO_BROWSER = "there is no Chromium (Debian's package chromium)"


@unittest.skipUnless(browser.find(), NO_BROWSER)
class PageTest(unittest.TestCase):
    """It ends at what the programs count, shows all on a screen and on a phone, is used by keys and
    by mouse, and shows a fault where it happens."""

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
        self.value("explorer.seek(explorer.last * 0.8)")  # it takes long
        self.assertTrue(self.value("explorer.playing"))
        self.browser.wait_for("explorer.now >= explorer.last && !explorer.playing")
        self.browser.drawn()
        expected = [sums(explore_test.run("04_flash_v1", SMALL)),
                    sums(explore_test.run("05_flash_v2", "--variant mma", SMALL))]
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
        self.value("(() => { const { events } = explorer.panes[0].run;"
                   "events.find(e => e.bytes).bytes += 2;"
                   "events.find(e => e.counts.matmul).counts.matmul += 1;"
                   "explorer.useClock('order', 4); explorer.seek(explorer.last) })()")
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
            counted = explore_test.run(rung, "--variant sm90 --device sim --seqlen 256 --heads 1 "
                                             "--check off")
            self.assertEqual(self.counts(), [sums(counted)], rung)
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
            chosen.append(self.value("explorer.panes[1].selected.index"))
        self.assertEqual(len(set(chosen)), 4)
        self.assertIsNone(self.value("explorer.panes[0].selected"))
        self.assertIn("Chosen: ", self.value("explorer.panes[1].find('.event').textContent"))
        self.browser.press("Escape")
        self.assertIsNone(self.value("explorer.panes[1].selected"))

    def test_the_fragment_is_the_moment(self):
        self.open("#t=0")
        self.value("explorer.useClock('order', 2); explorer.seek(333); explorer.setSpan(70);"
                   "explorer.panes[1].stepSm(1); explorer.panes[1].select("
                   "explorer.panes[1].run.events[500])")
        state = ("[explorer.now, explorer.span, explorer.sms, explorer.panes[1].sm,"
                 "explorer.panes[1].selected.index]")
        kept, before = self.fragment(), self.value(state)
        self.open(kept)
        self.browser.drawn()
        self.assertEqual(self.value(state), before)
        self.assertEqual(before, [333, 70, 2, 1, 500])

    def test_a_wait_tells_who_is_missing(self):
        """A click on a wait of a warp that is early."""
        self.open("#t=0")
        wait = self.value("""(() => {
          const e = explorer.panes[0].run.events.find(e =>
            e.what === '__syncthreads' && e.to - e.from > 3);
          explorer.seek(e.from + 1);
          return e.index; })()""")
        self.browser.drawn()
        x, y = self.value(f"""(() => {{
          const t = explorer.panes[0].timeline, e = explorer.panes[0].run.events[{wait}];
          const r = t.canvas.getBoundingClientRect();
          return [r.left + t.gutter + ((e.from + e.to) / 2 - t.from) * t.scale,
                  r.top + t.warpY(e.warp) + t.rowHeight / 2]; }})()""")
        self.browser.mouse("mousePressed", x, y)
        self.browser.mouse("mouseReleased", x, y)
        self.browser.drawn()
        self.assertEqual(self.value("explorer.panes[0].selected.index"), wait)
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
                         self.value(f"explorer.panes[0].run.events[{fault['event']}].from"))
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
        """Made anew by: python3 scripts/tests/explore_page_test.py BUILD_DIR/bin pictures"""
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
    BIN = explore_test.BIN = argument()
    if sys.argv[1:2] == ["pictures"]:
        sys.exit(take_pictures(os.path.join(ROOT, "scripts/ladder/explore/web")))
    if not browser.find():
        print("not run here: " + NO_BROWSER)
    unittest.main()
