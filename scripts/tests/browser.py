"""A browser without a window, driven over Chrome's DevTools protocol by a pipe: Debian's package
chromium, and nothing else."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

MISSING = "there is no Chromium (Debian's package chromium)"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """Its path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """with Browser() as browser: a page, and what it says and throws."""

    def __init__(self, path=None, seconds=60):
        self.path, self.seconds = path or find(), seconds

    def __enter__(self):
        self.profile = tempfile.mkdtemp()
        theirs_in, self.to = os.pipe()
        self.come, theirs_out = os.pipe()
        command = [self.path, "--headless=new", "--no-sandbox", "--disable-gpu",
                   "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                   "--force-color-profile=srgb", f"--user-data-dir={self.profile}",
                   "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "sh", *command],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.last, self.errors, self.session = b"", 0, [], None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"],
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(timeout=10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        finally:
            os.close(self.to)
            os.close(self.come)
            shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        until = time.monotonic() + self.seconds
        while True:
            answer = self.receive(until, method)
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def receive(self, until, what):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.come], [], [], max(0, until - time.monotonic()))
            piece = os.read(self.come, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError(f"{self.path} did not answer {what}")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        """Keeps what a page throws or complains of."""
        if event.get("method") == "Runtime.exceptionThrown":
            detail = event["params"]["exceptionDetails"]
            self.errors.append(detail.get("exception", {}).get("description", detail["text"]))
        elif event.get("method") == "Log.entryAdded":
            if event["params"]["entry"]["level"] == "error":
                self.errors.append(event["params"]["entry"]["text"])

    def size(self, width, height, scale=1, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=mobile)

    def prefer(self, **media):
        """prefer(colour="dark", motion="reduce")"""
        features = {"colour": "prefers-color-scheme", "motion": "prefers-reduced-motion"}
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": features[name], "value": value} for name, value in media.items()])

    def open(self, path, fragment=""):
        """Opens a file and waits until its script says that it is ready."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}{fragment}")
        self.wait_for("document.documentElement?.dataset.ready === 'yes'")

    def wait_for(self, condition):
        until = time.monotonic() + self.seconds
        while not self.value(condition):
            if time.monotonic() > until or self.errors:
                raise RuntimeError(f"never: {condition}; {self.errors}")
            time.sleep(0.05)

    def value(self, expression):
        """Of an expression in the page; of a promise what it comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key, text=None, shift=False):
        code = {" ": "Space"}.get(key, f"Key{key.upper()}" if len(key) == 1 else key)
        virtual = {" ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35,
                   "Escape": 27, "Tab": 9, "Enter": 13}.get(key, ord(key.upper()[0]))
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code,
                      windowsVirtualKeyCode=virtual, modifiers=8 if shift else 0,
                      **({"text": text or key} if len(key) == 1 and kind == "keyDown" else {}))

    def mouse(self, kind, x, y):
        """kind: mousePressed, mouseReleased or mouseMoved."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def drawn(self):
        """Waits until what was asked for is on the screen."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def picture(self):
        """A PNG of what is to be seen."""
        self.drawn()
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
