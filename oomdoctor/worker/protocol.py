"""How the parts of a worker speak of a rung: its phase, its rank, and that it cannot run here.

The current phase stands in a file next to the reply, so that the parent can show it. If a worker is
killed, the file still has its last phase.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.system.environment import launched_number, variable

if TYPE_CHECKING:
    import torch


class UnsupportedError(Exception):
    """This machine or these versions cannot run the rung; the message says why and what to do."""


@contextmanager
def refused(because: str, *kinds: type[Exception], one_line: bool = False) -> Iterator[None]:
    """In this context, errors of these kinds mean that a library does not support the rung.

    Raises:
        UnsupportedError: with this reason and the error, whose text may be put on `one_line`.
    """
    try:
        yield
    except kinds as error:
        text = " ".join(str(error).split()) if one_line else error
        raise UnsupportedError(f"{because}: {text}") from error


class UnknownValuesError(UnsupportedError):
    """A shape depends on values that the simulation does not know."""


OnHost = Callable[[], AbstractContextManager[None]]
"""A context in which a trace does not count tensors: on a CPU, all are in host memory."""


def phase_file(reply: Path) -> Path:
    """The path of the phase file of the worker that will write `reply`."""
    return reply.with_suffix(".phase")


class PhaseFile:
    """Writes the current phase. The file is opened once, so a change is one small write."""

    def __init__(self, path: Path | None) -> None:
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self.current = "init"
        self.step_phase = "init"  # the phase of the training step, also while it is timed

    def training_phase(self) -> str:
        """The phase in the field's words; a timed step has phases like any other."""
        return self.step_phase if self.current == "timing" else self.current

    def enter(self, phase: str) -> None:
        """Begin `phase`."""
        if phase == self.current:
            return
        self.current = phase
        if self._fd is not None:
            os.pwrite(self._fd, f"{phase:<16}\n".encode(), 0)


class Marks:
    """Passes the phases of a step to a listener: the meter, or the stopwatch.

    The `PhaseFile` keeps the last one, so that a failure during timing has a phase.
    """

    def __init__(self, progress: PhaseFile) -> None:
        self._progress = progress
        self._listener: Callable[[str], None] = lambda phase: None

    def listen(self, listener: Callable[[str], None]) -> None:
        """Send the phases to this listener from now on."""
        self._listener = listener

    def __call__(self, phase: str) -> None:
        self._progress.step_phase = phase
        self._listener(phase)


def launched_alone(config: TrainConfig, port: int = 0) -> dict[str, str]:
    """What a launcher tells the first of the config's ranks, if it is the only one that runs.

    The ranks meet at `port`; 0 if they meet inside the process.
    """
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(config.world_size),
        "LOCAL_WORLD_SIZE": str(min(config.world_size, config.gpus_per_node)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def local_rank() -> int:
    """The number of this process on its machine; 0 without a launcher."""
    return launched_number("LOCAL_RANK") or 0


def own_device(kind: str) -> torch.device:
    """The device of this rank; `kind` is "cuda" or "cpu"."""
    import torch

    return torch.device("cuda", local_rank()) if kind == "cuda" else torch.device("cpu")


def own_uuid() -> str | None:
    """The UUID of this rank's GPU, from CUDA_VISIBLE_DEVICES; None if that is not set."""
    visible = variable("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = visible.split(",")
    return names[local_rank()] if local_rank() < len(names) else None
