"""What the tests of surveys and plans share."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lent_simulators import Lent, SimulatorsByPython
from library_ends import why_refused

from oomdoctor.commands.jobs import simulators
from oomdoctor.commands.jobs.host import WorkerHost


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Skip what the oldest supported libraries refuse, in the words in which they do."""
    report = (yield).get_result()
    if report.failed and call.excinfo is not None:
        reason = why_refused(call.excinfo.value)
        if reason is not None:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {reason}")


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


@pytest.fixture
def misbehaving_python(tmp_path: Path) -> str:
    """To pass as the interpreter: the worker ends as the label of its job says."""
    script = tmp_path / "python"
    worker = Path(__file__).parent / "examples" / "misbehaving_worker.py"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{worker}"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="session")
def simulators_by_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatorsByPython]:
    """Running simulators, one for each interpreter that a plan has asked for."""
    lent = SimulatorsByPython(tmp_path_factory.mktemp("simulator"))
    yield lent
    lent.close()


@pytest.fixture
def one_simulator(
    simulators_by_python: SimulatorsByPython, monkeypatch: pytest.MonkeyPatch
) -> SimulatorsByPython:
    """Plans use one simulator for all tests: starting one loads torch, for seconds."""

    def host(
        python: str, environment: dict[str, str], *arguments: Any, **options: Any
    ) -> WorkerHost | Lent:
        if python not in simulators_by_python.trusted:  # one that misbehaves
            return WorkerHost(python, environment, *arguments, **options)
        simulator = simulators_by_python.of(python, environment)
        return Lent(simulator.run, simulator.start)

    monkeypatch.setattr(simulators, "WorkerHost", host)
    monkeypatch.setattr(simulators, "_MOST_HOSTS", 1)
    return simulators_by_python
