"""The parent's side of the worker host: start it, give it jobs, kill what hangs.

One host serves a survey. It forks a child for each job (see `oomdoctor.worker.host` for the
protocol), except a simulator, which runs the jobs itself and is killed with one that hangs.
`launch` classifies how a child ended.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from oomdoctor.errors import OomDoctorError, machine_error
from oomdoctor.system.environment import variable
from oomdoctor.system.machine.limits import host_limits, tightest

START_LIMIT_S = 600.0  # importing torch from a cold network file system can take minutes
KILL_LIMIT_S = 30.0
_POLL_S = 0.1

Ended = Literal["exited", "deadline", "stopped", "host_died"]


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended: `status` is its exit code or minus the signal; None if unknown."""

    how: Ended
    status: int | None
    elapsed_s: float


class WorkerHost:
    """A running worker host; a context manager that ends it and all its children.

    Invariant: at most one job is running, and none after `run` returns. If not `isolated`, jobs
    run in the host's own process; this is for simulations only.
    """

    def __init__(
        self, python: str, environment: dict[str, str], folder: Path, *, isolated: bool = True
    ) -> None:
        self._python, self._isolated = python, isolated
        self._environment = environment | {"PYTHONPATH": python_path(folder)}
        self._log = folder / "host.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process id of the host; None before the first job and after the host died."""
        return None if self._process is None else self._process.pid

    def run(
        self,
        job: Path,
        reply: Path,
        log: Path,
        *,
        deadline_s: float,
        on_poll: Callable[[], None],
        stop: Callable[[], bool],
    ) -> ChildEnd:
        """Run one job until it ends, its deadline (seconds from its start), or `stop()`.

        Raises:
            OomDoctorError: the interpreter cannot run the worker at all (exit 5).
        """
        if not self._ready(stop):
            return ChildEnd("stopped", None, 0.0)
        try:
            request = {"job": str(job), "reply": str(reply), "log": str(log)}
            return self._serve_one(request, deadline_s, on_poll, stop)
        except BaseException:
            self.close()  # otherwise the reply of this job would be taken for that of the next
            raise

    def _serve_one(
        self,
        request: dict[str, str],
        deadline_s: float,
        on_poll: Callable[[], None],
        stop: Callable[[], bool],
    ) -> ChildEnd:
        assert self._process is not None and self._process.stdin is not None
        begin = time.monotonic()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.close()
            return ChildEnd("host_died", None, 0.0)
        pid: int | None = None
        how: Ended = "exited"
        killed_at = begin
        while True:
            event = self._next_event(_POLL_S)
            if event is _CLOSED:
                status = self.close()
                if not self._isolated and pid is not None:  # the job was the host
                    return ChildEnd(how, status, time.monotonic() - begin)
                return ChildEnd("host_died", None, time.monotonic() - begin)
            on_poll()
            if event is not None and "started" in event:
                pid = event["started"]
            if event is not None and "exited" in event:
                return ChildEnd(how, event["status"], time.monotonic() - begin)
            if pid is None:
                continue
            if how != "exited":
                if time.monotonic() - killed_at > KILL_LIMIT_S:
                    self.close()  # it cannot be killed, as with a hung driver: abandon it
                    return ChildEnd(how, None, time.monotonic() - begin)
                continue
            if stop():
                how = "stopped"
            elif time.monotonic() - begin > deadline_s:
                how = "deadline"
            if how != "exited":
                killed_at = time.monotonic()
                _kill_group(pid)

    def close(self) -> int | None:
        """End the host and every process of its jobs; its exit status if known."""
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        _kill_group(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(KILL_LIMIT_S)
        return None

    def start(self) -> None:
        """Start the host without waiting, so that it can load its libraries in the meantime.

        Raises:
            OomDoctorError: the interpreter cannot be started at all (exit 5).
        """
        if self._process is not None:
            return
        self._is_ready = False
        mode = "--host" if self._isolated else "--simulator"
        with self._log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    [self._python, "-P", "-m", "oomdoctor.worker", mode],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                tasks = tightest("tasks", host_limits())
                if error.errno == errno.EAGAIN and tasks is not None:
                    raise machine_error(
                        "host_limit", f"no process can be started: {tasks.words}"
                    ) from None
                raise machine_error(
                    "python_unusable",
                    f"the interpreter {self._python} cannot be started: {error.strerror}",
                    "pass the Python you train with: --python /path/to/python",
                ) from None

    def _ready(self, stop: Callable[[], bool]) -> bool:
        """Wait until the host says "ready"; False if `stop()` came first."""
        self.start()
        if self._is_ready:
            return True
        begin = time.monotonic()
        while not stop():
            event = self._next_event(_POLL_S)
            if event is _CLOSED or time.monotonic() - begin > START_LIMIT_S:
                raise self._cannot_start(self.close())
            if event is not None and "ready" in event:
                self._is_ready = True
                return True
        self.close()
        return False

    def _cannot_start(self, status: int | None) -> OomDoctorError:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        last = lines[-1].strip() if lines else "it printed nothing"
        killed = status == -signal.SIGKILL and not lines
        if killed:
            last = "it was killed"
        code, message = "worker_failed", f"the worker cannot start: {last}"
        hint = f"the full message is in {self._log}"
        if "No module named" in last:
            hint = f"install what you train with: {self._python} -m pip install torch transformers"
        # Libraries that get no memory say so in many ways.
        elif limit := tightest("memory" if killed else "addresses", host_limits()):
            code, message = "host_limit", f"{message}; {limit.words}"
        return machine_error(code, message, hint)

    def _next_event(self, wait_s: float) -> dict[str, Any] | None:
        """The next message from the host; None after `wait_s`, `_CLOSED` once the host is gone."""
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._unread:
            descriptor = self._process.stdout.fileno()
            if not select.select([descriptor], [], [], wait_s)[0]:
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return _CLOSED
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        return event


_CLOSED: dict[str, Any] = {"closed": True}


def _kill_group(pid: int) -> None:
    """Send SIGKILL to the process group of `pid`, or to `pid` alone before it leads one."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
            return


def python_path(folder: Path) -> str:
    """A PYTHONPATH that gives this package, and nothing else of ours, to another interpreter."""
    library = folder / "lib"
    library.mkdir(exist_ok=True)
    package = Path(__file__).resolve().parents[2]
    if not package.is_dir():
        raise machine_error(
            "not_unpacked",
            f"{package.parent} cannot be unpacked, because no folder can be written",
            "set XDG_CACHE_HOME to a folder that you can write",
        )
    with contextlib.suppress(FileExistsError):
        (library / package.name).symlink_to(package, target_is_directory=True)
    return os.pathsep.join(filter(None, (str(library), variable("PYTHONPATH"))))
