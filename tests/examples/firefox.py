"""Firefox without a window, spoken to through Marionette, its own protocol for tests.

`OOMDOCTOR_FIREFOX` is the program, else the first of the usual names that is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("firefox-esr", "firefox")
# Only with system access it tells what is on its console.
_FLAGS = ("--headless", "--marionette", "--remote-allow-system-access", "--no-remote")
_SETTINGS = {
    "marionette.port": 0,  # any free port, which Firefox writes into its profile
    "app.update.disabledForTesting": True,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}
_SECONDS = 60


def program() -> str | None:
    """The browser on this machine."""
    given = os.environ.get("OOMDOCTOR_FIREFOX")
    return given or next(filter(None, map(shutil.which, NAMES)), None)


class Firefox:
    """A window of a browser."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        self._file = self._socket.makefile("rb")
        self._number = 0
        self._read()  # what it says of itself
        self._call("WebDriver:NewSession", {"capabilities": {"alwaysMatch": {}}})

    def open(self, file: Path) -> None:
        """Open a file and wait until it is loaded."""
        self._call("WebDriver:Navigate", {"url": file.as_uri()})

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        script = {"script": f"return ({expression});", "args": []}
        return self._call("WebDriver:ExecuteScript", script)["value"]

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + _SECONDS
        while not self.value(f"Boolean({condition})"):
            assert time.monotonic() < deadline, (condition, self.errors())
            time.sleep(0.02)

    def errors(self) -> list[str]:
        """The errors and warnings of pages, as on the console."""
        self._call("Marionette:SetContext", {"value": "chrome"})
        said: list[str] = self.value("""Services.console.getMessageArray()
            .filter((one) => one instanceof Ci.nsIScriptError && one.sourceName.startsWith("file:"))
            .map((one) => one.toString())""")
        self._call("Marionette:SetContext", {"value": "content"})
        return said

    def _call(self, command: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, number, error, result = self._read()
        assert number == self._number and error is None, error
        return result

    def _read(self) -> Any:
        length = b""
        while not length.endswith(b":"):
            byte = self._file.read(1)
            assert byte, "the browser has ended"
            length += byte
        return json.loads(self._file.read(int(length[:-1])))


@contextmanager
def browser(folder: Path) -> Iterator[Firefox]:
    """A browser whose profile is in `folder`."""
    command = program()
    assert command is not None
    lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in _SETTINGS.items())
    (folder / "user.js").write_text("\n".join(lines))
    process = subprocess.Popen(
        [command, *_FLAGS, "--profile", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(folder), "MOZ_HEADLESS_WIDTH": "1280"},
        start_new_session=True,
    )
    try:
        yield Firefox(_port(folder, process))
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(folder: Path, process: subprocess.Popen[bytes]) -> int:
    file, deadline = folder / "MarionetteActivePort", time.monotonic() + _SECONDS
    while not (file.exists() and file.read_text().strip()):
        assert process.poll() is None, "Firefox has ended"
        assert time.monotonic() < deadline, "Firefox did not start"
        time.sleep(0.05)
    return int(file.read_text())
