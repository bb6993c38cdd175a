"""Opens a page of scripts/explore in a headless Chromium (Debian's package chromium), and returns
what a script finds in it, for explore_test."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
from urllib.parse import unquote

from support import read, write

MISSING = "there is no Chromium (Debian's package chromium)"
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Inserted before the page's own script. While its frame is open, the page does not count as loaded,
# so the browser does not print it. report() closes the frame, at the latest at the first error.
HEAD = """<iframe hidden></iframe><script>
const errors = [], opened = document.querySelector("iframe").contentDocument;
opened.open();
function report(found) {
  document.title = encodeURIComponent(JSON.stringify([errors, found]));
  opened.close();
}
function fail(error) {
  errors.push(String(error));
  report();
}
console.error = fail;
addEventListener("error", ({ message }) => fail(message));
addEventListener("unhandledrejection", ({ reason }) => fail(reason));
setTimeout(() => fail("it does not end"), 60000);
</script><script>"""
# Inserted after the page's script: helpers, and the test's script in place of {test}. `at` moves to
# a tick, `press` sends keys to the focused element; `each` and `text` return one value per pane.
TAIL = """<script>
const drawn = () => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(done)));
const until = async (what) => { while (!what()) await drawn(); };
const press = async (keys, more = {}) => {
  for (const key of keys) {
    document.activeElement.dispatchEvent(
      new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
  }
  await drawn();
};
const at = async (tick) => { explorer.seek(tick); await drawn(); };
const each = (what) => structuredClone(explorer.panes.map(what));
const text = (selector) => each((pane) => pane.find(selector).textContent);
(async () => {
  await until(() => document.documentElement.dataset.ready === "yes");
  await drawn();
  {test}
})().then(report);
</script>"""


def find():
    return next(filter(None, map(shutil.which, NAMES)), None)


def found_in(page, script, fragment="", width=1280, colour="light"):
    """Opens the file `page` at `fragment` ("#t=41") in a window of `width` × 900 pixels, light or
    dark. Runs `script`, the body of an async function, once the page is ready; returns its result,
    a JSON value. Fails if the page reports an error or the script takes more than a minute."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, "page.html", text=read(page).replace("<script>", HEAD, 1)
                     + TAIL.replace("{test}", script))
        done = subprocess.run(
            [find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--dump-dom", f"--user-data-dir={folder}",
             f"--window-size={width},900", "--blink-settings=preferredColorScheme="
             f"{['dark', 'light'].index(colour)}", pathlib.Path(path).as_uri() + fragment],
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=120)
    errors, found = json.loads(unquote(re.search("<title>(.*?)</title>", done.stdout)[1]))
    assert not errors, errors
    return found
