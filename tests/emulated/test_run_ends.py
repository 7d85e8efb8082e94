"""How ranks end when one of them dies while the others wait for it in a collective."""

from __future__ import annotations

import time

import pytest
from emulated_run import Watched, torchrun
from weekly_rows import weekly

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report

DEAD = """
import os, signal, sys, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(1, dtype=torch.long, device="cuda")
dist.all_reduce(x)
assert x.item() == dist.get_world_size()
if rank == 1:
    print("dies", flush=True)
    if sys.argv[1] == "exit":
        sys.exit(3)
    elif sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        torch.empty(100 << 30, device="cuda")
dist.all_reduce(x)
x.item()
"""
# Nobody asks how the processes ended, and nobody ends the others.
LOOSE = """
import os, subprocess, sys
said = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1], "WORLD_SIZE": "2"}
ranks = [
    subprocess.Popen(
        [sys.executable, "rank.py", "kill"],
        env={**os.environ, **said, "RANK": str(rank), "LOCAL_RANK": str(rank)},
    )
    for rank in range(2)
]
print(ranks[0].wait(), ranks[1].wait(), flush=True)
"""


def _is_gone(watched: Watched, pid: int) -> bool:
    """Whether no folder of this run is left."""
    sessions = watched.sessions
    return not [one for one in sessions.iterdir() if one.name.startswith(f"{pid}-")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"), [weekly("exit", ": 3 "), weekly("kill", ": -9 "), ("oom", ": 1 ")]
)
def test_a_launcher_ends_the_ranks_that_wait_for_a_dead_one(
    watched: Watched, how: str, said: str
) -> None:
    process = watched.start("3xT4", DEAD, *torchrun(3, how), options=("--stop-at-oom",))
    assert process.stdout.readline() == "dies\n"
    begin = time.monotonic()
    _, error = process.communicate(timeout=120)
    assert time.monotonic() - begin < 60
    report = loads(Report, (watched.folder / "report.json").read_text())
    assert report.exit_code == process.returncode == 1
    cause = error.partition("Root Cause")[2]
    assert "rank      : 1" in cause and f"exitcode  {said}" in cause
    assert "is gone" not in error
    assert report.status == ("no" if how == "oom" else "error")
    if how == "oom":
        assert [rank.outcome for rank in report.ranks if rank.rank == 1] == ["oom"]
    assert _is_gone(watched, process.pid)


def test_a_rank_that_nobody_ends_is_told_that_another_is_gone(watched: Watched) -> None:
    (watched.folder / "rank.py").write_text(DEAD)
    port = str(20_000 + int(time.time()) % 20_000)
    begin = time.monotonic()
    report, out, error = watched.run("2xT4", LOOSE, "python", "train.py", port)
    assert time.monotonic() - begin < 200
    assert out == "dies\n1 -9\n"
    assert "emulated: the process of rank 1 of 2 is gone" in error
    assert report.exit_code == 0
