"""What the tests of surveys and plans share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.runs.jobs import simulators
from oomdoctor.runs.jobs.host import WorkerHost
from oomdoctor.system.environment import worker_environment


def pytest_configure() -> None:
    """Draw the same examples in each run: a red test is to say something of the change.

    How long one takes only says how busy the machine is. HYPOTHESIS_SEARCH=1 looks for new ones.
    The tests on a GPU do without hypothesis.
    """
    if find_spec("hypothesis") is None:
        return
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "repeatable",
        deadline=None,
        derandomize="HYPOTHESIS_SEARCH" not in os.environ,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("repeatable")


@dataclass(frozen=True, slots=True)
class Lent:
    """A host that outlives the plan that uses it."""

    run: Callable[..., Any]
    start: Callable[[], None]

    def close(self) -> None:
        """Leaves the host to the next plan."""


@pytest.fixture
def misbehaving_python(tmp_path: Path) -> str:
    """To pass as the interpreter: the worker ends as the label of its job says."""
    script = tmp_path / "python"
    worker = Path(__file__).parent / "examples" / "misbehaving_worker.py"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{worker}"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHost]:
    """A running simulator. It forgets each job, whichever plan the job is from."""
    folder = tmp_path_factory.mktemp("simulator")
    environment = worker_environment(None) | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder),
    }
    with WorkerHost(sys.executable, environment, folder, isolated=False) as host:
        yield host


@pytest.fixture
def one_simulator(simulator: WorkerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans use one simulator for all tests: starting one loads torch, for seconds."""

    def host(python: str, *arguments: Any, **options: Any) -> WorkerHost | Lent:
        if python != sys.executable:  # one that misbehaves
            return WorkerHost(python, *arguments, **options)
        return Lent(simulator.run, simulator.start)

    monkeypatch.setattr(simulators, "WorkerHost", host)
    monkeypatch.setattr(simulators, "_MOST_HOSTS", 1)
