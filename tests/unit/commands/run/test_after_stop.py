"""A command that waits on after its training was stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oomdoctor.commands.run.process import after_stop
from oomdoctor.commands.run.process.after_stop import ended_if_it_waits
from oomdoctor.commands.run.process.command import Ended, run_command
from oomdoctor.commands.run.process.guard import processes_of
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.system.environment import WATCH_FOLDER

# The child that trained has ended, in a session of its own; its parent waits for a message.
WAITS = """
import subprocess, sys, time
subprocess.run([sys.executable, "-c", "pass"], start_new_session=True)
helper = subprocess.Popen(["sleep", "60"], start_new_session=True)
WORK
time.sleep(60)
"""
SLEEPS = "time.sleep(1.0); helper.kill(); sys.exit()"


def _run(
    folder: Path, work: str, stopped: str | None, *, typed: bool = False
) -> tuple[Ended, float | None]:
    record = {"stopped": stopped, "waits_for_a_person": typed}
    (folder / "process-1.json").write_text(json.dumps(record))
    command = (sys.executable, "-S", "-c", WAITS.replace("WORK", work))
    with ended_if_it_waits(folder, patience_s=0.6, look_s=0.2) as waiting:
        ended = run_command(command, {WATCH_FOLDER: str(folder)}, Tail(), shown=False, limit_s=10)
    return ended, waiting.waited_s


def test_it_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    ended, waited_s = _run(tmp_path, "", "steady")
    assert ended == Ended(-15, None) and waited_s is not None and waited_s >= 0.6
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(("stopped", "typed"), [(None, False), ("steady", True)])
def test_one_that_was_not_stopped_or_waits_for_a_person_is_not(
    tmp_path: Path, stopped: str | None, typed: bool
) -> None:
    ended, waited_s = _run(tmp_path, SLEEPS, stopped, typed=typed)
    assert (ended.status, waited_s) == (0, None)


@pytest.mark.parametrize(
    ("seconds_a_second", "bytes_a_second", "is_ended"),
    [(0.5, 0, False), (0.0, 5 << 20, False), (0.01, 1000, True)],
    ids=["computes", "writes", "services wait"],
)
def test_one_that_works_on_is_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds_a_second: float,
    bytes_a_second: int,
    is_ended: bool,
) -> None:
    """What it uses is told, because a busy machine gives a process less than it could use."""
    begin = time.monotonic()

    def told(folder: Path) -> dict[int, tuple[float, int]]:
        passed_s = time.monotonic() - begin
        return {1: (passed_s * seconds_a_second, int(passed_s * bytes_a_second))}

    monkeypatch.setattr(after_stop, "_used", told)
    _, waited_s = _run(tmp_path, SLEEPS, "steady")
    assert (waited_s is not None) is is_ended


def test_what_a_process_uses_is_read(tmp_path: Path) -> None:
    work = "data = bytes(1 << 16)\nwhile True: open('/dev/null', 'wb').write(data)"
    variables = {**os.environ, WATCH_FOLDER: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-S", "-c", work], env=variables) as busy:
        try:
            while True:
                seconds, moved = after_stop._used(tmp_path).get(busy.pid, (0.0, 0))
                if seconds >= 0.1 and moved >= 1 << 20:
                    break
                time.sleep(0.05)
        finally:
            busy.kill()
