"""Jobs that end in all the ways that Slurm knows, and what `explain JOB` says of each."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from slurm_cluster import HOG, Cluster, doctor, explained


def test_a_job_on_two_nodes(cluster: Cluster) -> None:
    said = cluster.ask("srun", "-N2", "-n2", "--mem=50", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(said.split()) == ["n1", "n2"]


@pytest.mark.parametrize("launcher", ["", "srun "])
def test_a_job_that_exceeds_its_memory(cluster: Cluster, launcher: str) -> None:
    job = cluster.submit(launcher + HOG.format(400), "--output=train-%j.log")
    cluster.until(job)
    # The end of a short job may reach accounting before its start.
    cluster.known(job)
    found = explained(job)
    assert (found["exit_code"], found["is_oom"], found["resource"]) == (0, True, "host")
    assert found["causes"][0]["cause"] == "host_memory"
    # The output and the accounting tell of the same kill.
    assert "times)" not in found["verdict"]
    assert any("--mem" in line for line in found["remedies"][0]["lines"].values())
    assert "100 MiB requested" in found["slurm"][0]


def test_a_job_that_fits(cluster: Cluster) -> None:
    job = cluster.submit("echo done")
    cluster.until(job, "COMPLETED")
    found = explained(job)
    assert found["exit_code"] == 3
    assert found["verdict"] == "no memory failure found: the job completed"


def test_a_job_that_fails_silently(cluster: Cluster) -> None:
    job = cluster.submit("exit 7")
    cluster.until(job, "FAILED")
    found = explained(job)
    assert found["exit_code"] == 3
    assert found["verdict"] == "no memory failure found: the job failed with exit code 7"


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_a_canceled_job(cluster: Cluster, when: str) -> None:
    options = ["--begin=now+1hour"] if when == "waiting" else []
    job = cluster.submit("sleep 300", *options)
    cluster.until(job, "PENDING" if when == "waiting" else "RUNNING")
    found = explained(job)
    started = "has not started" if when == "waiting" else "is still running"
    assert found["verdict"] == f"no memory failure found: the job {started}"
    cluster.ask("scancel", job)
    cluster.until(job, "CANCELLED")
    found = explained(job)
    assert (found["exit_code"], found["look_alike"]) == (3, "cancelled")


def test_a_node_that_fails(cluster: Cluster) -> None:
    job = cluster.submit("echo training; sleep 30", "--nodelist=n2", "--no-requeue")
    again = cluster.submit("echo training; sleep 30", "--nodelist=n2", "--requeue")
    cluster.until(job, "RUNNING")
    cluster.until(again, "RUNNING")
    try:
        os.kill(int((cluster.folder / "run" / "slurmd-n2.pid").read_text()), signal.SIGKILL)
        down = ("scontrol", "update", "nodename=n2", "state=down", "reason=power")
        cluster.ask(*down)
        cluster.until(job, "NODE_FAIL")
        found = explained(job)
        assert (found["exit_code"], found["look_alike"]) == (3, "hardware")
        assert "the node failed, not the program" in found["verdict"]
        # The other job waits for its second run.
        cluster.until(again, "PENDING")
        found = explained(again)
        assert "the node failed" in found["verdict"]
        assert "PENDING" in found["slurm"][0]
        assert found["slurm"][1].startswith("it was requeued and ran before: NODE_FAIL on n2")
        cluster.ask("scancel", again)
    finally:
        cluster.ask("/usr/sbin/slurmd", "-N", "n2")
        deadline = time.monotonic() + 30
        while "idle" not in cluster.ask("sinfo", "--noheader", "--nodes=n2", "--format=%T"):
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_job_that_is_preempted_and_runs_again(cluster: Cluster) -> None:
    again = '[ -n "$SLURM_RESTART_COUNT" ] && exit 5; sleep 60'
    job = cluster.submit(again, "--nodelist=n2", "--cpus-per-task=4", "--requeue")
    cluster.until(job, "RUNNING")
    urgent = cluster.submit(
        "echo urgent", "--partition=urgent", "--nodelist=n2", "--cpus-per-task=4"
    )
    cluster.until(job, "PREEMPTED", "PENDING")
    found = explained(job)
    assert (found["exit_code"], found["look_alike"]) == (3, "preemption")
    cluster.until(urgent, "COMPLETED")
    # A requeued job waits two minutes, unless it may start at once.
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")
    cluster.until(job, "FAILED")
    found = explained(job)
    assert "the job failed with exit code 5" in found["verdict"]
    assert found["slurm"][1].startswith("it was requeued and ran before: PREEMPTED on n2")


def test_an_array_of_fifty(cluster: Cluster, tmp_path: Path) -> None:
    task = f"case $SLURM_ARRAY_TASK_ID in 7) {HOG.format(400)};; 8) exit 3;; *) echo done;; esac"
    job = cluster.submit(task, "--array=0-49", "--mem=50")
    cluster.until(job, tasks=50)
    ended = doctor("explain", job, "--json", "--quiet")
    assert ended.returncode == 0
    found = {one["source"]: one for one in json.loads(ended.stdout)["diagnoses"]}
    assert set(found) >= {f"{job}_{task}" for task in range(50)}
    assert found[f"{job}_7"]["is_oom"]
    assert found[f"{job}_8"]["verdict"].endswith("failed with exit code 3")
    assert found[f"{job}_9"]["verdict"].endswith("the job completed")
    page = doctor("explain", job, "--quiet").stdout
    assert page.startswith("1 of 50 logs ended with an out-of-memory error")
    assert re.search(rf"{job}_8 +the job failed with exit code 3", page)
    one = explained(f"{job}_7")
    assert one["is_oom"]
