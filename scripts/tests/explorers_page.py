"""The explorer's page in a browser, as its tests use it."""

import contextlib
import os
import tempfile
import unittest

import browser
from explore_test import SMALL, explore

# Of what can be seen or used: that which is cut off at a side of the screen or, where nothing
# scrolls, anywhere. What lies in a part that scrolls is that part's.
OFF_SCREEN = """(() => {
  const off = [], scrolls = e => e && e !== document.body &&
    (/auto|scroll/.test(getComputedStyle(e).overflowY) ? e : scrolls(e.parentElement));
  for (const e of document.querySelectorAll('header *, main *, footer *')) {
    if (e.closest('svg, option, .source') || !e.checkVisibility()) continue;
    const r = e.getBoundingClientRect(), inner = scrolls(e.parentElement);
    const name = e.tagName + '.' + (e.className || e.id);
    if (r.width < 1 && r.height < 1) continue;
    if (r.left < -0.5 || r.right > innerWidth + 0.5) off.push(name);
    if (!inner && (r.top < -0.5 || r.bottom > innerHeight + 0.5)) off.push(name);
    if (e.matches('button, select, input, canvas, .event, .source') &&
        (r.width < 20 || r.height < 18)) off.push('small ' + name);
  }
  for (const pane of document.querySelectorAll('.pane'))
    if (innerWidth > 900 && pane.scrollHeight > pane.clientHeight) off.push('pane');
  const page = document.documentElement;
  if (page.scrollWidth > innerWidth || page.scrollHeight > innerHeight) off.push('page');
  return off; })()"""


def difference(one, other):
    """How far apart two colours are (CIE76), at least, for those who see all colours and for those
    without red or green cones (Viénot, Brettel and Mollon, 1999)."""
    kinds = ([[1, 0, 0], [0, 1, 0], [0, 0, 1]],
             [[.11238, .88762, 0], [.11238, .88762, 0], [.00401, -.00401, 1]],
             [[.29275, .70725, 0], [.29275, .70725, 0], [-.02234, .02234, 1]])

    def lab(rgb, kind):
        linear = [(c / 255 + .055) ** 2.4 / 1.055 ** 2.4 if c > 10 else c / 255 / 12.92
                  for c in rgb]
        seen = [sum(k * c for k, c in zip(row, linear)) for row in kind]
        x, y, z = (sum(k * c for k, c in zip(row, seen)) for row in (
            (.4339, .3762, .1899), (.2126, .7152, .0722), (.0178, .1096, .8726)))
        x, y, z = (max(c, 1e-4) ** (1 / 3) for c in (x, y, z))
        return 116 * y, 500 * (x - y), 200 * (y - z)
    return min(sum((a - b) ** 2 for a, b in zip(lab(one, kind), lab(other, kind))) ** .5
               for kind in kinds)


@unittest.skipUnless(browser.find(), browser.MISSING)
class ExplorersPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.page = cls.made("page", "04", "05/mma", *SMALL.split()[4:])
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.value = cls.browser.value

    @classmethod
    def made(cls, name, *words, **how):
        page = os.path.join(cls.folder.name, name + ".html")
        cls.said = explore(*words, "--out", page, **how).stderr
        return page

    def setUp(self):
        self.browser.errors.clear()
        self.addCleanup(lambda: self.assertEqual(self.browser.errors, []))

    def open(self, fragment="", page=None, width=1280, height=800, mobile=False, colour="light",
             **media):
        self.browser.size(width, height, 2 if mobile else 1, mobile)
        self.browser.prefer(colour, **media)
        self.browser.open(page or self.page, fragment)
        self.browser.drawn()

    def do(self, expression):
        """Something that is drawn thereafter."""
        self.value(expression + "; 0")
        self.browser.drawn()

    def press(self, *keys, **how):
        for key in keys:
            self.browser.press(key, **how)
        self.browser.drawn()

    def text(self, name):
        return self.value(f"document.getElementById('{name}').textContent")

    def of_panes(self, expression):
        return self.value(f"explorer.panes.map(pane => {expression})")

    def label(self, view, pane=0):
        return self.of_panes(f"pane.find('{view} canvas').getAttribute('aria-label')")[pane]

    def counts(self):
        return self.of_panes("pane.replay.counts")

    def verdicts(self):
        return self.of_panes("pane.find('.verdict').textContent")

    def mouse(self, x, y, to=None):
        self.browser.mouse("mousePressed", x, y)
        if to:
            self.browser.mouse("mouseMoved", *to)
        self.browser.mouse("mouseReleased", *(to or (x, y)))
        self.browser.drawn()

    def fragment(self):
        self.browser.wait_for("!explorer.pending && !explorer.settling")
        return self.value("location.hash")

    def alert(self):
        return self.value("document.querySelector('[role=alert]').textContent")


def take_pictures(folder):
    """What the README shows."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.closing(browser.Browser()) as one:
        page = os.path.join(scratch, "page.html")
        explore("--out", page)
        one.size(1280, 800, 1.5)
        for colour in ("light", "dark"):
            one.prefer(colour)
            one.open(page, "#t=40")
            with open(os.path.join(folder, f"picture-{colour}.png"), "wb") as file:
                file.write(one.picture())
