"""Simulators that outlive the plan that starts them: starting one loads torch, for seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.commands.jobs.host import WorkerHost


@dataclass(frozen=True, slots=True)
class Lent:
    """A host that outlives the plan that uses it."""

    run: Callable[..., Any]
    start: Callable[[], None]

    def close(self) -> None:
        """Leaves the host to the next plan."""


class SimulatorsByPython:
    """Running simulators. Each forgets every job, whichever plan the job is from."""

    def __init__(self, folder: Path) -> None:
        self.trusted = {sys.executable}
        self._folder = folder
        self._hosts: dict[str, WorkerHost] = {}

    def of(self, python: str, environment: Mapping[str, str]) -> WorkerHost:
        """The simulator of an interpreter, with the environment of the first plan that asks."""
        if python not in self._hosts:
            offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(self._folder)}
            environment = {**environment, **offline}
            self._hosts[python] = WorkerHost(python, environment, self._folder, isolated=False)
        return self._hosts[python]

    def close(self) -> None:
        """End all of them."""
        for host in self._hosts.values():
            host.close()
