"""The largest value of one setting that fits, for each rung on each card.

`plan --solve` asks for it, and `plan --sweep` between the values that it simulates. All
searches advance together, one value at a time, so that their simulations run side by side. A
simulation serves every card that needs the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.analysis.command_line import rung_text
from oomdoctor.analysis.memory.rollout import least_share
from oomdoctor.analysis.memory.shape import shape_of
from oomdoctor.analysis.search.ladder import too_big
from oomdoctor.analysis.search.largest_value import (
    LargestValue,
    Limits,
    Tried,
    at_value,
    start_of,
    values_of,
)
from oomdoctor.commands.devices.cards import Card
from oomdoctor.commands.events import Listener, SurveyEvent, starting
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.tasks import Task
from oomdoctor.records.configuration.config import Rung, scored_tokens
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.model import ON_SOUND, WITHOUT_LENGTH
from oomdoctor.records.job.result import Attempt, ProbeResult
from oomdoctor.records.report.searched import OF_GRPO, SolveAnswer, SolvedKey, SolveLine

_MOST_CROSSINGS = 32
_SHOWN = {
    "sequence_length": "{:,} tokens",
    "micro_batch_size": "micro-batch {:,}",
    "lora_rank": "rank {:,}",
    "completion_length": "{:,} tokens of completion",
    "num_generations": "{:,} generations",
    "vllm_gpu_memory_utilization": "{} % of the card for vLLM",
}


@dataclass(slots=True)
class _Search:
    """The search for a rung on a card; `reason` says why it has no answer."""

    key: SolvedKey
    card: Card
    rung: Rung
    values: LargestValue
    limited_by: str
    reason: str | None = None
    missed_by_bytes: int | None = None

    def at(self, value: int) -> Rung:
        """The rung at a value."""
        return Rung(self.rung.label, at_value(self.rung.config, self.key, value))

    def next_try(self) -> int | None:
        """The next value to simulate."""
        return None if self.reason is not None else self.values.next_try()


def solve(findings: Findings, key: SolvedKey, simulators: Simulators, on_event: Listener) -> None:
    """Find the answer for every rung and card, and keep it, also if the search is cut short.

    Raises:
        Stopped: told to stop.
    """
    searches = [
        _search(findings, key, card, rung)
        for card in findings.cards
        for rung in findings.ladder(card)
    ]
    try:
        _finish(findings, simulators, searches, on_event)
    finally:
        chosen = {}
        for search in searches:
            values = search.values
            if search.next_try() is not None:
                search.reason = "the search was interrupted"
            shown = values.largest or values.smallest_miss or values.start
            chosen[search.card.name, search.rung.config.key()] = search.at(shown)
        lines = tuple(_line(findings, search) for search in searches)
        findings.solution, findings.chosen = SolveAnswer(key, lines), chosen


def find_crossings(findings: Findings, simulators: Simulators, on_event: Listener) -> None:
    """Find where the rungs of a sweep stop to fit, as `solve` does, and keep it.

    Only where one of the swept values fits and a larger one does not, and for a few rungs and
    cards: each search takes some simulations.

    Raises:
        Stopped: told to stop.
    """
    sweep = findings.plan.sweep
    if sweep is None:
        return
    searches = []
    for card in findings.cards:
        for rung in findings.ladder(card):
            search = _search(findings, sweep.key, card, rung)
            for value, attempt in sorted(findings.swept_attempts(card, rung).items()):
                if attempt.measurement is not None:
                    _take(search, value, attempt.measurement, fits=attempt.surely_fits)
            if search.values.largest is not None and search.values.smallest_miss is not None:
                searches.append(search)
    if len(searches) > _MOST_CROSSINGS:
        return
    _finish(findings, simulators, searches, on_event)
    for search in searches:
        if search.reason is None and search.values.largest is not None:
            where = search.card.name, search.rung.config.key()
            findings.crossings[where] = search.values.largest


def _finish(
    findings: Findings, simulators: Simulators, searches: Sequence[_Search], on_event: Listener
) -> None:
    """Simulate until every search is at its end; one simulation serves all that need a value."""
    done = 0
    while wanted := _wanted(searches):
        rungs = [group[0].at(value) for value, group in wanted]
        tasks = [
            Task(rung, (int(rung.config.micro_batch_size),), tuple(search.card for search in group))
            for rung, (_, group) in zip(rungs, wanted, strict=True)
        ]
        shown = [
            Rung(f"{rung.label} at {_SHOWN[group[0].key].format(value)}", rung.config)
            for rung, (value, group) in zip(rungs, wanted, strict=True)
        ]
        total = done + len(wanted)
        for ended in findings.simulate(simulators, tasks, starting(on_event, shown, total)):
            done += 1
            value, group = wanted[ended.number]
            attempts = [_taken(findings, search, value) for search in group][-1]
            rung = shown[ended.number]
            event = SurveyEvent("predicted", rung, attempts=attempts, index=done, total=total)
            on_event(event)


def _search(findings: Findings, key: SolvedKey, card: Card, rung: Rung) -> _Search:
    assert findings.inspection is not None
    config, counts = rung.config, findings.inspection.parameters
    least = least_share(config, findings.spec.config, counts, card.total_bytes)
    limits = Limits(
        findings.inspection.positions,
        shape_of(findings.spec.config).hidden,
        config.sequence_length - scored_tokens(config),
        math.ceil(100 * least),
    )
    values = values_of(key, limits)
    start = start_of(config, key)
    single_step = config.effective_batch_size if key == "micro_batch_size" else None
    search = _Search(
        key,
        card,
        rung,
        LargestValue(values.steps, card.usable_bytes, start, single_step),
        values.limited_by,
    )
    search.reason = _not_applicable(findings, search)
    if search.reason is None:
        skip = too_big(search.at(values.steps[0]), findings.contexts[card.name])
        if skip is not None:
            search.reason, search.missed_by_bytes = skip.reason, skip.missed_by_bytes
    return search


def _not_applicable(findings: Findings, search: _Search) -> str | None:
    config = search.at(search.values.start).config
    if search.key == "lora_rank" and config.method == "full":
        return "not applicable: full fine-tuning has no adapters"
    if search.key == "sequence_length" and findings.spec.task in WITHOUT_LENGTH:
        takes = "sound has" if findings.spec.task in ON_SOUND else "images have"
        return f"not applicable: {takes} no sequence length"
    return findings.contexts[search.card.name].refuses(config)


def _wanted(searches: Sequence[_Search]) -> list[tuple[int, list[_Search]]]:
    """What to simulate next: a value of a rung, with the searches that need it."""
    grouped: dict[tuple[str, int], list[_Search]] = {}
    for search in searches:
        value = search.next_try()
        if value is not None:
            grouped.setdefault((search.rung.config.key(), value), []).append(search)
    return [(value, together) for (_, value), together in grouped.items()]


def _taken(findings: Findings, search: _Search, value: int) -> tuple[Attempt, ...]:
    """Give a search what was found at a value; returns the attempt if there is one."""
    row = _row(findings, search, value)
    measured = row.measurement
    if measured is None:
        search.reason = row.reason or "the simulation failed without a reason"
        search.missed_by_bytes = row.missed_by_bytes
    else:
        _take(search, value, measured, fits=row.surely_fits)
    return findings.attempts.get((search.card.name, search.at(value).config.key()), ())


def _take(search: _Search, value: int, measured: Measurement, *, fits: bool) -> None:
    staying = gradients = None
    parts = measured.breakdown
    if parts is not None and search.key not in ("lora_rank", *OF_GRPO):
        gradients = parts.gradients_bytes
        staying = parts.weights_bytes + gradients + parts.optimizer_bytes
        staying += measured.overhead_bytes or 0
    search.values.take(value, Tried(fits, measured.least_bytes(), staying, gradients))


def _row(findings: Findings, search: _Search, value: int) -> ProbeResult:
    return findings.row(search.card, search.at(value))


def _line(findings: Findings, search: _Search) -> SolveLine:
    largest, miss = search.values.largest, search.values.smallest_miss
    best = _row(findings, search, largest) if largest is not None else None
    missed = _row(findings, search, miss) if miss is not None else None
    config = best.config if best is not None else None
    return SolveLine(
        card=search.card.name,
        key=search.rung.config.key(),
        label=search.rung.label,
        micro_batch_size=best.micro_batch_size if best is not None else None,
        sequence_length=config.sequence_length if config is not None else None,
        effective_batch_size=config.effective_batch_size if config is not None else None,
        largest=largest,
        peak_device_bytes=best.peak_device_bytes if best is not None else None,
        next_value=miss,
        next_peak_device_bytes=missed.peak_device_bytes if missed is not None else None,
        next_missed_by_bytes=missed.missed_by_bytes if missed else search.missed_by_bytes,
        limited_by=(search.reason or search.limited_by) if best and miss is None else None,
        reason=search.reason,
        rung=rung_text(config, findings.request) if config is not None else None,
        next_borderline=missed is not None and missed.borderline,
    )
