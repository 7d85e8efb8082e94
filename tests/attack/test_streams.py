"""A command of `run` gets through whatever its output goes to, and however it is stopped."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[2]
CODE = """
import sys
from oomdoctor.commands.run.process.command import run_command
from oomdoctor.commands.run.process.streams import Tail
tail = Tail()
ended = run_command(tuple(sys.argv[1:]), {"PATH": "/usr/bin:/bin"}, tail)
sys.stderr.write(f"kept {len(tail.text())} exit {ended.exit_code}")
"""


def started(*command: str, stdout: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *command],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def said(process: subprocess.Popen[bytes]) -> str:
    return process.communicate(timeout=40)[1].decode()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


def test_a_pipe_that_does_not_block(pipe: tuple[int, int]) -> None:
    """What Node.js makes of a shared stream: the command died of a broken pipe."""
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETFL, fcntl.fcntl(write, fcntl.F_GETFL) | os.O_NONBLOCK)
    process = started("head", "-c", "1000000", "/dev/zero", stdout=write)
    os.close(write)
    time.sleep(1)  # until it is full
    count = 0
    while chunk := os.read(read, 1 << 16):
        count += len(chunk)
    assert said(process) == "kept 1000000 exit 0"
    assert count == 1_000_000


def test_a_full_disk_does_not_end_a_command() -> None:
    """It died of a broken pipe."""
    with Path("/dev/full").open("wb") as full:
        process = started("head", "-c", "3000000", "/dev/zero", stdout=full.fileno())
    told = said(process)
    assert told.endswith("kept 3000000 exit 0")
    assert told.count("no longer shown: No space left on device") == 1


def test_a_reader_that_is_gone_ends_it_as_ever() -> None:
    read, write = os.pipe()
    process = started("sh", "-c", "yes; exit 3", stdout=write)
    os.close(write)
    os.read(read, 10)
    os.close(read)
    assert said(process).endswith("exit 3")


def test_much_output_and_a_line_without_end_take_little_memory() -> None:
    """A gigabyte in all, half of it one line."""
    commands = "head -c 500000000 /dev/zero; yes | head -c 500000000"
    process = started("sh", "-c", commands, stdout=subprocess.DEVNULL)
    peak = Path(f"/proc/{process.pid}/status")
    most = 0
    while process.poll() is None:
        lines = peak.read_text().splitlines()
        most = max(most, *(int(one.split()[1]) for one in lines if one.startswith("VmHWM")), 0)
        time.sleep(0.05)
    assert said(process).endswith("exit 0")
    assert most < 150_000


def test_stopped_and_continued_it_goes_on(tmp_path: Path) -> None:
    """SIGSTOP cannot be passed on: the command goes on alone and is not lost."""
    note = tmp_path / "note"
    process = started("sh", "-c", f"sleep 1; echo end > {note}; exit 7", stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    assert note.read_text() == "end\n"
    process.send_signal(signal.SIGCONT)
    assert said(process).endswith("exit 7")


def test_suspended_and_continued_the_command_is_too(tmp_path: Path) -> None:
    count = tmp_path / "count"
    loop = f"for i in 1 2 3 4 5 6 7 8 9 10; do echo $i >> {count}; sleep 0.1; done; exit 7"
    process = started("sh", "-c", loop, stdout=subprocess.DEVNULL)
    while not count.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTSTP)
    time.sleep(0.5)
    before = count.read_text()
    time.sleep(0.5)
    assert count.read_text() == before
    process.send_signal(signal.SIGCONT)
    assert said(process).endswith("exit 7")
    assert len(count.read_text().split()) == 10
