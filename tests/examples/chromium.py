"""A real browser without a window, spoken to through two pipes: the DevTools protocol.

`OOMDOCTOR_CHROMIUM` is the program, else the first of the usual names that is installed.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
_SAYS_SO = "document.documentElement?.dataset.ready || window.problem?.hidden === false"
# What a browser does with these keys goes by their codes: move the focus, follow a link.
_CODES = {"Tab": (9, ""), "Enter": (13, "\r")}
LOADED = "document.readyState === 'complete'"


def program() -> str | None:
    """The browser on this machine."""
    given = os.environ.get("OOMDOCTOR_CHROMIUM")
    return given or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A page that is open, and what it did: `errors` on its console, `requests` it sent."""

    def __init__(self, to: int, source: int) -> None:
        self._to, self._from = to, source
        self._read = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(
        self,
        file: Path,
        width: int = 1280,
        height: int = 800,
        *,
        dark: bool = False,
        shown: str = _SAYS_SO,
    ) -> None:
        """Open a file and wait until it is `shown`: the page says that, or that it cannot be."""
        self.resize(width, height)
        self.dark(dark)
        self._call("Page.navigate", url=file.as_uri())
        self.until(f"location.href === {json.dumps(file.as_uri())} && ({shown})")

    def resize(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def dark(self, dark: bool = True, media: str = "") -> None:
        """Ask for a dark page, or a light one; with `media` "print" as it is on paper."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme], media=media)

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true, which it is not between two pages."""
        deadline = time.monotonic() + 60
        while not self._is_true(condition):
            assert time.monotonic() < deadline, (condition, self.errors)
            time.sleep(0.02)

    def _is_true(self, condition: str) -> bool:
        try:
            return bool(self.value(f"Boolean({condition})"))
        except AssertionError as error:
            if "navigated or closed" not in str(error):
                raise
            return False

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def point(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        """Move the mouse, or press a button of it."""
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Click with the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.point(x, y, kind, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press a key."""
        code, text = _CODES.get(key, (None, ""))
        more = {} if code is None else {"windowsVirtualKeyCode": code, "code": key}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, **more)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)

    def picture(self, file: Path, clip: dict[str, float] | None = None) -> None:
        """Write what is in the window as PNG, or a `clip` of the page: x, y, width and height."""
        more = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **more)["data"]))

    def paper(self, file: Path) -> None:
        """Write the page as a PDF of A4 sheets."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        file.write_bytes(base64.b64decode(self._call("Page.printToPDF", **size)["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(answer["error"])
                return dict(answer["result"])
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            if not select.select([self._from], [], [], 120)[0]:
                raise AssertionError("the browser does not answer")
            more = os.read(self._from, 1 << 20)
            if not more:
                raise AssertionError("the browser has ended")
            self._read += more
        one, _, self._read = self._read.partition(b"\0")
        return dict(json.loads(one))

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A browser whose profile is in `folder`."""
    command = program()
    assert command is not None
    (inside, to), (source, outside) = os.pipe(), os.pipe()
    # The browser reads from 3 and writes to 4.
    pipes = f'exec 3<&{inside} 4>&{outside}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", pipes, "bash", command, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(inside, outside),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(inside)
    os.close(outside)
    try:
        yield Tab(to, source)
    finally:
        os.close(to)
        os.close(source)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
