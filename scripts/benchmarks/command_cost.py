"""What a command costs with all the processes that it starts: time and memory.

Memory of the whole tree is read from /proc, so on Linux only; elsewhere it is unknown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PERIOD_S = 0.25  # between two looks at the tree; a look takes some milliseconds a process


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and bytes. `cpu_s` is of all processes, `process_bytes` the resident memory of the

    largest. `tree_bytes` is the most that all had together, shared pages counted once.
    """

    returncode: int
    wall_s: float
    cpu_s: float
    process_bytes: int
    tree_bytes: int | None


def cost_of(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, answer: Path
) -> Cost:
    """Run a command to its end in a folder; the file `answer` gets its stdout."""
    begin = time.perf_counter()
    with answer.open("wb") as stdout:
        process = subprocess.Popen(command, stdout=stdout, env=os.environ | environment, cwd=folder)
    ended = threading.Event()
    sizes: list[int] = []
    watch = threading.Thread(target=_look, args=(process.pid, ended, sizes))
    watch.start()
    # Counts the children that the command waited for as well: wait4(2), RUSAGE_BOTH.
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    ended.set()
    watch.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1 << 10  # of ru_maxrss: getrusage(2)
    return Cost(
        returncode=process.returncode,
        wall_s=wall,
        cpu_s=usage.ru_utime + usage.ru_stime,
        process_bytes=usage.ru_maxrss * unit,
        tree_bytes=max(sizes, default=None),
    )


def shown(name: str, words: Sequence[str], folder: Path, first: Cost | None) -> Cost:
    """Run an oomdoctor command without a network and print its line.

    `folder` gets its cache, state and answer; `first` is what its CPU time is compared with.

    Raises:
        SystemExit: the command failed.
    """
    folder.mkdir(exist_ok=True)
    own = {"HF_HUB_OFFLINE": "1", "XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-m", "oomdoctor", *words, "--quiet", "--json"]
    cost = cost_of(command, environment=own, folder=folder, answer=folder / "answer.json")
    if cost.returncode not in (0, 3, 6):
        raise SystemExit(f"error: {' '.join(command)} ended with {cost.returncode}")
    ratio = "" if first is None else f"{cost.cpu_s / first.cpu_s:10.2f}"
    print(f"{name:28} {cost.wall_s:7.1f} {cost.cpu_s:7.1f} {ratio}", flush=True)
    return cost


def print_header(of: str) -> None:
    """Print the head of the lines of `shown`; `of` names what their CPU time is compared with."""
    print(f"{'command':28} {'wall s':>7} {'CPU s':>7} {of:>10}")


def _look(root: int, ended: threading.Event, sizes: list[int]) -> None:
    while not ended.wait(_PERIOD_S):
        size = sum(_proportional_bytes(pid) for pid in _tree(root))
        if size:
            sizes.append(size)


def _tree(root: int) -> Iterator[int]:
    """The process and all below it; nothing where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may have spaces: proc_pid_stat(5).
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        children.setdefault(parent, []).append(int(stat.parent.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _proportional_bytes(pid: int) -> int:
    """Resident bytes, of shared pages the process's share (PSS); 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
