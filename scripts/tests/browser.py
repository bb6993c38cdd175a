"""A browser without a window, driven over Chrome's DevTools protocol by a pipe: Debian's package
chromium, and nothing else."""

import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

MISSING = "there is no Chromium (Debian's package chromium)"
NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60


def find():
    """Its path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A page; `errors` are what it throws and complains of."""

    def __init__(self):
        self.profile = tempfile.mkdtemp()
        self.pipe, theirs = socket.socketpair()
        self.pipe.settimeout(SECONDS)
        command = [find(), "--headless=new", "--no-sandbox", "--disable-gpu",
                   "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                   "--force-color-profile=srgb", f"--user-data-dir={self.profile}",
                   "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$@" 3<&{theirs.fileno()} 4>&3', "sh", *command],
            pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        theirs.close()
        self.buffer, self.last, self.errors, self.session = b"", 0, [], {}
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        answer = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = {"sessionId": answer["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def close(self):
        self.pipe.close()
        self.process.terminate()
        self.process.wait(SECONDS)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters, **self.session}
        self.pipe.sendall(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                piece = self.pipe.recv(1 << 20)
                if not piece:
                    raise RuntimeError("the browser has ended")
                self.buffer += piece
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(answer["params"])
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path, fragment="", width=1280, colour="light"):
        """Opens a file and waits until its script says that it is ready."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800,
                  deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": colour}])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=pathlib.Path(path).absolute().as_uri() + fragment)
        self.wait_for("document.documentElement?.dataset.ready === 'yes'")
        self.drawn()

    def wait_for(self, condition):
        until = time.monotonic() + SECONDS
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

    def press(self, *keys, shift=False):
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            for kind, more in (("keyDown", text), ("keyUp", {})):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0,
                          windowsVirtualKeyCode=9 if key == "Tab" else 0, **more)
        self.drawn()

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=1, button="left")
        self.drawn()

    def drawn(self):
        """Waits until what was asked for is on the screen."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
