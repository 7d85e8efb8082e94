"""Run the trainings that a claim is about, simulated by `plan` and on the emulated GPU by `probe`.

Both are asked as a user would ask them, through the command line and its JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

ROOM = "400GiB"  # nothing runs out of memory, so each training tells what it needs


@dataclass(frozen=True, slots=True)
class Training:
    """A training by name: a model, a rung as `--rung` takes it, and on how many GPUs.

    `card` is a real one where its speed matters.
    """

    name: str
    model: str
    rung: str
    gpus: int = 1
    card: str = ROOM


@dataclass(frozen=True, slots=True)
class Need:
    """What a training needs, in bytes. `forward_bytes` is the peak of a first forward pass.

    `kept_forward_bytes` is the peak of the forward pass of a later step, when the optimizer has its
    states. `tokens_per_s` is an estimate, where a card was named.
    """

    allocated_bytes: int
    reserved_bytes: int | None
    device_bytes: int | None
    forward_bytes: int | None
    kept_forward_bytes: int | None
    weights_bytes: int
    optimizer_bytes: int
    trainable_parameters: int
    tokens_per_s: float | None
    tokens_per_s_spread: float | None


Evidence = Literal["simulated", "emulated"]
Needs = Mapping[str, Need]  # by the name of the training


@dataclass(frozen=True, slots=True)
class Answers:
    """What all trainings of a claim need, by each kind of evidence that could tell."""

    simulated: Needs
    emulated: Needs

    def with_(self, more: Answers) -> Answers:
        """Both together."""
        return Answers({**self.simulated, **more.simulated}, {**self.emulated, **more.emulated})

    def best(self, name: str) -> Need:
        """Emulated where that could be run, because torch's own code decided there."""
        return self.emulated.get(name) or self.simulated[name]


def answers(trainings: Sequence[Training], python: Path, known: Answers) -> Answers:
    """Run those that are not `known`; `python` is an interpreter with a CUDA build of torch.

    Several GPUs are only emulated: `plan` would run the same engine on the same emulated card.
    """
    names = {row.name for row in trainings}
    simulated = {name: need for name, need in known.simulated.items() if name in names}
    emulated = {name: need for name, need in known.emulated.items() if name in names}
    unknown = [row for row in trainings if row.name not in emulated]
    for (model, gpus, card), rows in _groups(unknown).items():
        rungs = [word for row in rows for word in ("--rung", f"label={row.name},{row.rung}")]
        common = [model, "--recipe", "none", *rungs, "--json", "--quiet"]
        if gpus == 1:
            simulated |= _needs(["plan", "--gpu", card, *common])
        device = f"{gpus}x{card}" if gpus > 1 else card
        several = ["--gpus", str(gpus), "--ranks", "1"] if gpus > 1 else []
        emulate = ["--emulate", device, "--python", str(python), "--no-predict", *several]
        emulated |= _needs(["probe", *emulate, *common])
    return Answers(simulated, emulated)


def _groups(trainings: Sequence[Training]) -> dict[tuple[str, int, str], list[Training]]:
    found: dict[tuple[str, int, str], list[Training]] = {}
    for row in trainings:
        found.setdefault((row.model, row.gpus, row.card), []).append(row)
    return found


def _needs(arguments: list[str]) -> dict[str, Need]:
    command = [sys.executable, "-m", "oomdoctor", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    try:
        report = json.loads(ended.stdout)
    except ValueError:
        raise SystemExit(f"{' '.join(command)}\n{ended.stderr[-2000:]}") from None
    found = {row["label"]: _need(row) for row in report["results"] if row["measurement"]}
    for row in report["results"]:
        if row["label"] not in found:
            print(f"no answer: {row['label']}: {row['reason']}", file=sys.stderr)
    return found


def _need(result: Mapping[str, Any]) -> Need:
    measured = result["measurement"]
    first, later = measured["first_step"] or {}, measured["steady"] or {}
    return Need(
        measured["peak_allocated_bytes"],
        measured["peak_reserved_bytes"],
        measured["peak_device_bytes"],
        first.get("forward", {}).get("peak_allocated_bytes"),
        later.get("forward", {}).get("peak_allocated_bytes"),
        measured["breakdown"]["weights_bytes"],
        measured["breakdown"]["optimizer_bytes"],
        measured["trainable_parameters"],
        result["tokens_per_s"],
        result["tokens_per_s_spread"],
    )


def dumped(found: Answers) -> dict[str, Any]:
    """As plain data."""
    return asdict(found)


def loaded(data: Mapping[str, Any]) -> Answers:
    """From plain data."""
    return Answers(
        {name: Need(**values) for name, values in data["simulated"].items()},
        {name: Need(**values) for name, values in data["emulated"].items()},
    )
