"""A command that waits on after its training was stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

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
WORKS = (
    "end = time.monotonic() + 1.0\nwhile time.monotonic() < end: pass\nhelper.kill(); sys.exit()"
)
WRITES = (
    "end, data = time.monotonic() + 1.0, bytes(1 << 19)\n"
    "while time.monotonic() < end: open('/dev/null', 'wb').write(data); time.sleep(0.1)\n"
    "helper.kill(); sys.exit()"
)
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


@pytest.mark.parametrize(
    ("work", "stopped", "typed"),
    [
        (WORKS, "steady", False),
        (WRITES, "steady", False),
        (SLEEPS, None, False),
        (SLEEPS, "steady", True),
    ],
)
def test_one_that_works_on_or_was_not_stopped_or_waits_for_a_person_is_not(
    tmp_path: Path, work: str, stopped: str | None, typed: bool
) -> None:
    ended, waited_s = _run(tmp_path, work, stopped, typed=typed)
    assert (ended.status, waited_s) == (0, None)
