"""What `run` is asked, and the same request as a line to type."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.runs.devices.emulated import EmulatedGpus
from oomdoctor.runs.watched.session import Weights


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What to run, on which GPUs, with which interpreter.

    Without `gpus` the command runs on those of this machine. `steps` is "steady" (stop once memory
    repeats), "all" or a number of optimizer steps. With `weights` "synthetic", `from_pretrained`
    needs no checkpoint. An unknown number that the command reads is `values`. `path` is the PATH of
    the command; None: ours. `case` is the folder for what is kept if memory runs out; None: one in
    the state folder.
    """

    command: tuple[str, ...]
    gpus: EmulatedGpus | None
    python: Path | None
    steps: str | int
    weights: Weights = "real"
    values: float | None = None
    path: str | None = None
    case: Path | None = None


def line_of(request: WatchRequest, card: str, *, alone: bool) -> str:
    """The same request on another card, as a line to type; with `alone`, one rank runs."""
    count = 1 if request.gpus is None else request.gpus.count
    words = ["--emulate", card if count == 1 else f"{count}x{card}"]
    words += ["--ranks", "1"] if alone else []
    words += ["--steps", str(request.steps)] if request.steps != "steady" else []
    words += ["--values", f"{request.values:g}"] if request.values is not None else []
    words += ["--weights", request.weights] if request.weights != "real" else []
    words += ["--python", str(request.python)] if request.path is not None else []
    return shlex.join(["oomdoctor", "run", *words, "--", *request.command])
