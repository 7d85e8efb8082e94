"""Predict the times of published training runs, from recordings that are kept between calls.

Runs that differ in their card or their batch share a recording, so a second call only computes
times: seconds for all rows, where recording takes minutes.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from old_code.kernels import IN_TRITON, KERNELS

from cases.case import NO_LIMIT, Case, LeftOut, simulated
from cases.each_case import Fault, run_each
from cases.rates import Rate, family_of, source_of
from oomdoctor.analysis.simulator.card import card_of
from oomdoctor.analysis.simulator.playback import NewStructureError
from oomdoctor.analysis.simulator.recorded import Store
from oomdoctor.analysis.simulator.recording_bytes import unpacked
from oomdoctor.analysis.simulator.recordings import Recordings, not_recorded
from oomdoctor.analysis.simulator.sizes import Sizes
from oomdoctor.records.job.measurement import Timing
from oomdoctor.records.job.simulation import Target
from oomdoctor.system.catalogue import speed_errors

Group = tuple[Rate, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """A predicted time and a published one, in seconds, and how far the first may be off.

    `family` is the kind of model; `tokens` are those of a step, or its images.
    Runs with equal `settings` on a card are one configuration.
    """

    id: str
    kind: str
    source: str
    gpu: str
    model: str
    trust: str
    predicted_s: float
    measured_s: float
    spread: float
    bound: bool = False
    tokens: int = 0
    settings: str = ""
    gpus: int = 1
    family: str = ""

    @property
    def error(self) -> float:
        """Predicted speed over the published one, less one."""
        return self.measured_s / self.predicted_s - 1

    @property
    def counts(self) -> bool:
        """Whether it judges predictions: rows of low trust and bounds do not."""
        return self.trust != "low" and not self.bound

    @property
    def is_covered(self) -> bool:
        """Whether the interval of the prediction has the published time."""
        return abs(self.measured_s / self.predicted_s - 1) <= self.spread


def judged_rates(
    rates: Iterable[Rate], folder: Path, processes: int, on_done: Callable[[str], None]
) -> list[Judged | LeftOut]:
    """Every run with its predicted time, or why it has none."""
    groups: dict[str, list[Rate]] = {}
    for rate in rates:
        groups.setdefault(_recording_key(rate), []).append(rate)
    judged: list[Judged | LeftOut] = []
    work = partial(_judge_group, folder=folder)
    items = [tuple(group) for group in groups.values()]
    for group, answers in run_each(work, items, processes):
        if isinstance(answers, Fault):
            answers = [LeftOut(rate.case.id, answers.reason) for rate in group]
        judged += answers
        on_done(group[0].case.id)
    return judged


def _recording_key(rate: Rate) -> str:
    """The same for runs that one recording predicts."""
    config = replace(rate.case.config, micro_batch_size=1, effective_batch_size=1, world_size=1)
    shards = rate.case.config.world_size
    world = shards if config.sharding != "ddp" else min(shards, 2)
    said = (rate.case.model, config, world, rate.case.adaptations, rate.kernels)
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def _judge_group(group: Group, folder: Path) -> list[Judged | LeftOut]:
    file = folder / _recording_key(group[0])
    answers: list[Judged | LeftOut] = []
    for rate in group:
        with _timed(rate):
            with contextlib.suppress(OSError, NewStructureError, ValueError):
                answers.append(_judge(rate, file))
                continue
            _record(group, rate, file)
            answers.append(_judge(rate, file))
    return answers


def _timed(rate: Rate) -> AbstractContextManager[None]:
    """What changes the times of kernels, where others change which kernels run."""
    if IN_TRITON not in rate.kernels:
        return contextlib.nullcontext()
    return KERNELS[IN_TRITON].apply(rate.case.config)


def _record(group: Group, rate: Rate, file: Path) -> None:
    """Record what predicts a run, and all runs of its group if nothing is recorded yet."""
    rates = (rate,) if file.exists() else group
    sizes = sorted({_size(each.case) for each in rates})
    targets = tuple({each.gpu.name: _target(each) for each in rates}.values())
    with contextlib.ExitStack() as stack:
        for name in set(rate.kernels) - {IN_TRITON}:
            stack.enter_context(KERNELS[name].apply(rate.case.config))
        # Every size has several micro-steps; how many of them is not recorded.
        config = rate.case.config
        batch = 2 * max(sizes) * config.world_size
        case = replace(rate.case, config=replace(config, effective_batch_size=batch))
        simulated(case, targets, sizes=tuple(sizes), recordings=file)


def _judge(rate: Rate, file: Path) -> Judged | LeftOut:
    pack, target = unpacked(file.read_bytes()), _target(rate)
    card = card_of(target)
    pool = [recorded for recorded in pack.recordings if card in recorded.alike]
    store = Store({}, {})
    for recorded in pool:
        store.number(recorded)
    recordings = Recordings(pack.facts, card, pool, not_recorded, store)
    config = rate.case.config
    timing = Sizes(config, recordings, card, speed_errors(), store).timing(target, _size(rate.case))
    if timing is None:
        return LeftOut(rate.case.id, "a peak of the card, or what it costs, is not known")
    row = rate.row
    return Judged(
        rate.case.id,
        "training",
        source_of(row),
        rate.gpu.name,
        rate.case.model.id,
        row["trust"],
        *_seconds(timing, rate),
        bound=rate.bound,
        tokens=config.effective_batch_size * row.get("seq_len", 1),
        settings=repr((config, rate.kernels)),
        gpus=config.world_size,
        family=family_of(row),
    )


def _seconds(timing: Timing, rate: Rate) -> tuple[float, float, float]:
    """Predicted and published seconds, and the relative error that the prediction states."""
    micro = rate.case.config.accumulation_steps() * timing.micro_step_s
    update = timing.optimizer_step_s if rate.updates else 0.0
    off = micro * (timing.micro_step_spread or 0.0) + update * (timing.optimizer_step_spread or 0.0)
    return micro + update, rate.measured_s, off / (micro + update)


def _size(case: Case) -> int:
    assert isinstance(case.config.micro_batch_size, int)
    return case.config.micro_batch_size


def _target(rate: Rate) -> Target:
    return Target(rate.gpu.name, NO_LIMIT, NO_LIMIT, 0, rate.gpu)
