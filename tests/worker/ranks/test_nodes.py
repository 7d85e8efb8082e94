"""What `srun` says when the ranks on several nodes end, with a stand-in for `srun`.

tests/slurm has the same with a real Slurm.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import tiny_job

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.ranks.agent import run_on_nodes

JOB = replace(tiny_job(), nodes=2)


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `srun` that prints the file `said` and fails."""
    (tmp_path / "srun").write_text('#!/bin/sh\ncat "$(dirname "$0")/said" >&2\nexit 1\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=3.0. Some of your processes "
        "may have been killed by the cgroup out-of-memory handler.",
        "srun: error: n1: task 0: Out Of Memory",
        # Without cgroups, Slurm samples the memory of the step.
        "slurmstepd-n1: error: StepId=3.0 exceeded memory limit (1153433600 > 1048576000), being "
        "killed",
        "slurmstepd-n1: error: Exceeded job memory limit",
    ],
)
def test_a_step_that_slurm_killed_for_its_memory(line: str, srun: Path) -> None:
    (srun / "said").write_text(f"{line}\nsrun: error: n2: task 1: Exited with exit code 1\n")
    with pytest.raises(MemoryError, match="memory limit of the job"):
        run_on_nodes(JOB, srun)


def test_a_step_that_did_not_start(srun: Path) -> None:
    (srun / "said").write_text("srun: error: Unable to create step for job 3: Memory required by\n")
    with pytest.raises(UnsupportedError, match="before any rank ran"):
        run_on_nodes(JOB, srun)


def test_the_agents_meet_at_the_first_node_of_the_job(
    srun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where probe runs, which may be a login node."""
    (srun / "srun").write_text(f'#!/bin/sh\necho "$@" >{srun}/asked\n')
    (srun / "scontrol").write_text(
        "#!/bin/sh\ncase $2 in hostnames) printf 'gpu07\\ngpu08\\n';;"
        " node) echo NodeName=$3 NodeAddr=10.0.0.7 NodeHostName=gpu07;; esac\n"
    )
    (srun / "scontrol").chmod(0o755)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[07-08]")
    assert run_on_nodes(JOB, srun) is None
    assert " 10.0.0.7:" in (srun / "asked").read_text()


def test_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UnsupportedError, match="--nodes 2"):
        run_on_nodes(JOB, tmp_path)
