"""A real Slurm for the tests of this folder: a controller and two nodes on this machine.

`scripts/slurm-cluster.sh` starts and stops it. Where that is not possible these tests are skipped,
except where `OOMDOCTOR_REQUIRE_SLURM=1` says that it has to be, as in CI. All tests are slow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm-cluster.sh"
# Read before the tests are isolated from the developer's settings.
_REQUIRED = os.environ.get("OOMDOCTOR_REQUIRE_SLURM") == "1"
_REASON = "no Slurm to start: scripts/slurm-cluster.sh install, as root on Debian or Ubuntu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Slurm that runs until the tests end."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if os.geteuid() != 0 or not all(
        shutil.which(name, path=path) for name in ("slurmctld", "slurmdbd", "munged", "mariadbd")
    ):
        if _REQUIRED:
            pytest.fail(f"OOMDOCTOR_REQUIRE_SLURM is set, but there is {_REASON}")
        pytest.skip(_REASON)
    # Slurm and munge want a short path that others may pass.
    folder = Path("/tmp") / f"oomdoctor-slurm-{os.getpid()}"
    try:
        ended = subprocess.run(
            [SCRIPT, "start", folder], capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 0, ended.stderr
        yield Cluster(folder, tmp_path_factory.mktemp("jobs"))
    finally:
        subprocess.run([SCRIPT, "stop", folder], capture_output=True, timeout=60)


@pytest.fixture(scope="session")
def too_long(started: Cluster) -> str:
    """A job with the shortest time limit, a minute. It is submitted first and read last."""
    os.environ["SLURM_CONF"] = str(started.folder / "slurm.conf")
    try:
        return started.submit("echo training; sleep 300", "--time=1", "--nodelist=n1")
    finally:
        del os.environ["SLURM_CONF"]


@pytest.fixture
def cluster(started: Cluster, too_long: str, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The Slurm of these tests, which its commands find. The current folder is that of its jobs."""
    monkeypatch.setenv("SLURM_CONF", str(started.folder / "slurm.conf"))
    monkeypatch.chdir(started.work)
    return started
