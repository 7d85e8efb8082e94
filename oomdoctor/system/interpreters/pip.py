"""Runs pip in an environment, shows what it downloads, and says what went wrong in plain words."""

from __future__ import annotations

import os
import platform
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error, usage_error
from oomdoctor.system.environment import installer_environment
from oomdoctor.system.machine.libraries import numbers

_POLL_S = 0.2
_PATIENCE_S = 5.0
_SHOWN = re.compile(r"\s*(?:Downloading|Building wheel for|Installing collected) .*")
_OFFLINE = re.compile(
    "Failed to establish a new connection|Temporary failure in name resolution|ConnectTimeoutError"
    "|Name or service not known|Network is unreachable|Connection refused|ReadTimeoutError"
    "|ProxyError"
)


class Stopped(Exception):  # noqa: N818 - the user's wish, not an error
    """Somebody asked to stop."""


@dataclass(frozen=True, slots=True)
class Helper:
    """The process around a command: what it says, and whether it is to stop."""

    say: Callable[[str], None]
    stopped: Callable[[], bool]


def install(python: Path, words: list[str], asked: tuple[str, ...], helper: Helper) -> None:
    """`pip install` into the environment of `python`.

    Raises:
        OomDoctorError: a version does not exist or conflicts (exit 2); pip is missing, has no
            network or fails (exit 5).
        Stopped: `helper.stopped()` became true; pip has ended.
    """
    plain = ("--no-input", "--disable-pip-version-check", "--no-compile", "--progress-bar", "off")
    command = [str(python), "-m", "pip", "install", *plain, *words]
    code, lines = run(command, helper, show=_SHOWN)
    if code:
        raise pip_error(lines, asked)


def run(
    command: list[str], helper: Helper, show: re.Pattern[str] | None = None
) -> tuple[int, list[str]]:
    """Run a command to its end; its exit code and the lines it printed, stderr included.

    Raises:
        Stopped: see `install`.
    """
    lines: list[str] = []
    unread = b""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=installer_environment(),
        start_new_session=True,  # Ctrl-C comes to us alone, and we end it
    ) as process:
        assert process.stdout is not None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while True:
                    if helper.stopped():
                        raise Stopped
                    if not selector.select(_POLL_S):
                        continue
                    chunk = os.read(process.stdout.fileno(), 65536)
                    if not chunk:
                        break
                    *whole, unread = (unread + chunk).split(b"\n")
                    for text in (line.decode(errors="replace").rstrip() for line in whole):
                        lines.append(text)
                        if show is not None and show.fullmatch(text):
                            helper.say(f"  {text.strip()}")
        except BaseException:
            _end(process)
            raise
    return process.returncode, [*lines, unread.decode(errors="replace")]


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S / 4)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def pip_error(lines: list[str], asked: tuple[str, ...]) -> OomDoctorError:
    """The error behind pip's last lines."""
    text = "\n".join(lines)
    wanted = ", ".join(asked)
    missing = re.search(r"No matching distribution found for (\S+)", text)
    if missing is not None and _OFFLINE.search(text):
        return machine_error(
            "no_package_index",
            f"pip cannot reach a package index to install {wanted}",
            "run it where there is a network or a mirror (PIP_INDEX_URL); the environment is kept "
            "and later needs no network",
        )
    if missing is not None:
        lists = re.findall(r"from versions: ([^)]*)\)", text)
        versions = [v.strip() for v in lists[-1].split(",")] if lists else []
        name, _, version = missing[1].partition("==")
        near = _around(version, [v for v in versions if v and v != "none"])
        choices = f"versions that it finds: {', '.join(near)}"
        here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        what = f"--with: pip finds no {missing[1]} for {here}"
        hint = choices if near else f"pip index versions {name}"
        return usage_error("unknown_version", what, hint)
    if "ResolutionImpossible" in text:
        facts = [line for line in lines if re.match(r"\s{4}.* (depends on|requested)", line)]
        return usage_error(
            "versions_conflict",
            "\n".join([f"--with: no set of packages has {wanted}", *map(str.strip, facts[:6])]),
            "add the version of the other library to --with, or leave one out",
        )
    if "No module named pip" in text:
        return no_pip()
    last = [line.strip() for line in lines if line.strip()][-3:]
    return machine_error(
        "pip_failed",
        "\n".join([f"pip could not install {wanted}", *last]),
        "make an environment with these versions yourself, and pass its Python with --python",
    )


def no_pip() -> OomDoctorError:
    """The error where there is neither pip nor ensurepip."""
    return machine_error(
        "no_pip",
        "--with needs pip, and this Python has neither pip nor ensurepip",
        "install it (`uv pip install pip` or `apt install python3-pip`), or make an environment "
        "yourself and pass its Python with --python",
    )


def _around(version: str, versions: list[str]) -> list[str]:
    """Up to six of the known versions, those closest to the one asked for."""
    if not versions:
        return []
    wanted = numbers(version)
    place = sum(numbers(candidate) < wanted for candidate in versions)
    start = max(0, min(place - 3, len(versions) - 6))
    return versions[start : start + 6]
