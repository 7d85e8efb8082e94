"""`run` as a job of a shell: suspended, interrupted, hung up, killed. Nothing may be left."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated_run import RUN, Watched

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report

# A training, a process of a session of its own that trains too, as torchrun starts ranks, and one
# that does not use the GPU.
TRAINING = """
import os, subprocess, sys, time
if len(sys.argv) == 1:
    rank = subprocess.Popen([sys.executable, __file__, "rank"], start_new_session=True)
    sleeper = subprocess.Popen(["sleep", "300"])
import torch
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(net.parameters())
if len(sys.argv) > 1:
    open("rank.pid", "w").write(str(os.getpid()))
    time.sleep(300)
while not os.path.exists("rank.pid"):
    time.sleep(0.1)
open("sleeper.pid", "w").write(str(sleeper.pid))
for step in range(1500):
    net(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    print("step", step, flush=True)
    if os.path.exists("end"):
        sys.exit(0)
    time.sleep(0.2)
"""
STUBBORN = """
import time
for end in range(3):
    try:
        print("begins", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("asked", flush=True)
"""


class Shell:
    """An interactive shell in a terminal of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noediting", "-i"], environment)
        self._seen = b""
        self.type("PS1='ready> '")
        self.until("ready> ")

    def type(self, text: str, end: str = "\n") -> None:
        os.write(self.terminal, (text + end).encode())

    def until(self, text: str, timeout_s: float = 90) -> str:
        """What is shown up to a text."""
        end = time.monotonic() + timeout_s
        while text.encode() not in self._seen:
            ready, _, _ = select.select([self.terminal], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self._seen.decode()!r}"
            self._seen += os.read(self.terminal, 1 << 16)
        shown, _, self._seen = self._seen.partition(text.encode())
        return shown.decode()


@pytest.fixture
def shell(watched: Watched) -> Iterator[Shell]:
    shell = Shell(watched.folder, watched.environment)
    yield shell
    os.kill(shell.pid, signal.SIGKILL)
    os.close(shell.terminal)
    os.waitpid(shell.pid, 0)


def _typed(*words: str) -> str:
    return " ".join([*RUN, "T4", "--steps", "all", "--", *words])


def _state(pid: int) -> str:
    """The state of a process, such as T for stopped; X if it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _wait(until: Callable[[], bool], timeout_s: float = 40) -> None:
    end = time.monotonic() + timeout_s
    while not until():
        assert time.monotonic() < end
        time.sleep(0.1)


def _pids(watched: Watched) -> list[int]:
    """The process beside the training, and the one that does not use the GPU."""
    return [int((watched.folder / name).read_text()) for name in ("rank.pid", "sleeper.pid")]


def _folders(watched: Watched, pid: int) -> list[Path]:
    return [one for one in watched.sessions.iterdir() if one.name.startswith(f"{pid}-")]


def test_a_killed_run_takes_its_processes_and_its_folder_along(watched: Watched) -> None:
    process = watched.start("T4", TRAINING, options=("--steps", "all"))
    assert process.stdout.readline() == "step 0\n"
    pids = _pids(watched)
    (folder,) = _folders(watched, process.pid)
    process.kill()
    process.wait()
    _wait(lambda: not folder.exists() and all(_state(pid) in "XZ" for pid in pids))


def test_what_goes_on_training_after_the_command_is_ended(watched: Watched) -> None:
    process = watched.start("T4", TRAINING, options=("--steps", "all"))
    assert process.stdout.readline() == "step 0\n"
    rank, sleeper = _pids(watched)
    (watched.folder / "end").touch()
    process.wait(timeout=60)
    assert process.returncode == 0
    assert _state(rank) in "XZ"
    assert _state(sleeper) == "S"  # it does not need the GPU
    assert not _folders(watched, process.pid)
    os.kill(sleeper, signal.SIGKILL)


def test_a_suspended_run_suspends_the_command(watched: Watched) -> None:
    process = watched.start("T4", TRAINING, options=("--steps", "all"))
    assert process.stdout.readline() == "step 0\n"
    _, sleeper = _pids(watched)
    process.send_signal(signal.SIGTSTP)
    _wait(lambda: _state(process.pid) == _state(sleeper) == "T")
    process.send_signal(signal.SIGCONT)
    _wait(lambda: _state(sleeper) == "S")
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143 and "Interrupted" in error


def test_a_command_that_takes_two_interrupts(watched: Watched) -> None:
    process = watched.start("T4", STUBBORN.replace("range(3)", "range(2)"))
    for _ in range(2):
        assert process.stdout.readline() == "begins\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
    process.communicate(timeout=60)
    assert process.returncode == 0
    report = loads(Report, (watched.folder / "report.json").read_text())
    assert report.status == "interrupted"
    assert not _folders(watched, process.pid)


@pytest.mark.slow
def test_a_shell_suspends_continues_and_interrupts(watched: Watched, shell: Shell) -> None:
    (watched.folder / "train.py").write_text(TRAINING)
    shell.type(_typed("python", "train.py"))
    shell.until("step 2\r\n")
    shell.type("\x1a", "")  # Ctrl-Z
    shell.until("Stopped")
    shell.until("ready> ")
    shell.type("sleep 1; echo qui''et")
    assert "\nstep" not in shell.until("quiet")
    shell.type("fg")
    shell.until("step ")
    shell.type("\x1a", "")
    shell.until("Stopped")
    shell.type("bg")
    shell.until("step ")
    shell.type("echo h''ere")  # the terminal is the shell's
    shell.until("here")
    shell.type("fg")
    shell.until("train.py")
    time.sleep(0.5)
    shell.type("\x03", "")  # Ctrl-C
    shell.until("KeyboardInterrupt")
    shell.until("Interrupted on")
    shell.until("ready> ")
    shell.type("echo code $?")
    shell.until("code 130")
    assert loads(Report, (watched.folder / "report.json").read_text()).status == "interrupted"


@pytest.mark.slow
def test_a_closed_terminal_ends_the_run(watched: Watched) -> None:
    shell = Shell(watched.folder, watched.environment)
    (watched.folder / "train.py").write_text(TRAINING)
    shell.type(_typed("python", "train.py"))
    shell.until("step 0\r\n")
    pids = _pids(watched)
    os.close(shell.terminal)
    os.waitpid(shell.pid, 0)
    report = watched.folder / "report.json"
    _wait(lambda: all(_state(pid) in "XZ" for pid in pids) and report.exists())
    assert loads(Report, report.read_text()).status == "interrupted"
    _wait(lambda: not [one for one in watched.sessions.iterdir() if _made_by_none(one)])


def _made_by_none(folder: Path) -> bool:
    return _state(int(folder.name.partition("-")[0])) in "XZ"


@pytest.mark.slow
def test_nohup_holds_for_the_command(watched: Watched) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = watched.start("T4", TRAINING, options=("--steps", "all"))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout.readline() == "step 0\n"
    process.send_signal(signal.SIGHUP)
    _, sleeper = _pids(watched)
    os.kill(sleeper, signal.SIGHUP)
    for step in range(1, 5):
        assert process.stdout.readline() == f"step {step}\n"
    assert _state(sleeper) == "S"
    process.terminate()
    process.communicate(timeout=60)
