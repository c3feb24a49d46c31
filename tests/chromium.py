"""A Chromium without a window, told what to do over a pipe: the DevTools protocol, no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60
COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")


def find():
    """Return the path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One page of a browser.

    Attributes
    ----------
    complaints : list of dict
        What the page that is open has written to the console.
    requests : list of str
        The addresses that the page that is open has asked for.
    """

    def __init__(self, program, folder):
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        # Where /dev/shm is small, as in a container, a large page would be lost.
        command += ["--disable-dev-shm-usage", "--remote-debugging-pipe", "about:blank"]
        command.insert(1, f"--user-data-dir={folder}")

        def take_pipes():  # it reads from 3 and writes to 4
            one, other = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(one, 3)
            os.dup2(other, 4)

        self._process = subprocess.Popen(
            command,
            preexec_fn=take_pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._text, self._number, self._session = b"", 0, None
        self.complaints, self.requests, self._is_loaded = [], [], False
        page = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, address, width, is_dark=False, height=900):
        """Show a page in a window of that size, in a light or a dark scheme."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.complaints, self.requests, self._is_loaded = [], [], False
        self._call("Page.navigate", url=address)
        while not self._is_loaded:
            self._hear(self._read())

    def ask(self, expression):
        """Return the value of an expression of JavaScript."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self):
        """Return the whole page as PNG."""
        height = self.ask("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.ask("innerWidth"), "height": height, "scale": 1}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])

    def close(self):
        """End the browser."""
        os.close(self._to)
        os.close(self._from)
        self._process.kill()
        self._process.wait()

    def _call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._hear(answer)

    def _hear(self, event):
        method = event.get("method")
        self._is_loaded |= method == "Page.loadEventFired"
        if method in COMPLAINTS:
            self.complaints.append(event["params"])
        if method == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

    def _read(self):
        """Return the next message, an answer or an event."""
        end = time.monotonic() + SECONDS
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._from], [], [], max(0, end - time.monotonic()))
            text = os.read(self._from, 2**16) if ready else b""
            if not text:
                raise TimeoutError("the browser does not answer")
            self._text += text
        message, self._text = self._text.split(b"\0", 1)
        return json.loads(message)
