"""A job that Slurm ends at its time limit. This file comes last: the limit has passed by then."""

from __future__ import annotations

from slurm_cluster import Cluster, explained


def test_a_time_out(cluster: Cluster, too_long: str) -> None:
    cluster.until(too_long, "TIMEOUT", seconds=120)
    found = explained(too_long)
    assert (found["exit_code"], found["look_alike"]) == (3, "timeout")
    assert "the job reached its time limit" in found["verdict"]
    assert "--time" in found["short_answer"]
