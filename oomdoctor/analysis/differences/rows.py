"""The rows of a report that can be compared with those of another one.

Rungs of `probe` and of a `plan` for one card, each at every value of a sweep; the best rung of each
method of a plan for several cards; what `--solve` or `--min` found; the ranks of a watched command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, TypeVar, get_args

from oomdoctor.analysis.search.precision import ladder_for
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import Method
from oomdoctor.records.job.result import Evidence, ProbeResult
from oomdoctor.records.report.earlier_runs import Quantity
from oomdoctor.records.report.plan import CardPick, SweepLine, SweptPeak
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import RankMemory
from oomdoctor.records.report.searched import FewestLine, SolveLine

Settings = dict[str, Any]
_Line: TypeAlias = SweepLine | SolveLine | FewestLine
L = TypeVar("L", SweepLine, SolveLine, FewestLine)
PEAKS: tuple[Quantity, ...] = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report.

    `settings` are its configuration without the micro-batch size. `tries` are the peaks of the
    sizes that fit, of the kind that was compared with the budget.
    """

    key: str
    label: str
    outcome: str
    settings: Mapping[str, Any]
    evidence: Evidence = "predicted"
    method: Method | None = None
    peaks: Mapping[str, int | None] = field(default_factory=dict)
    micro_batch_size: int | None = None
    max_micro_batch_size: int | None = None
    tokens_per_s: float | None = None
    spread: float | None = None
    missed_by_bytes: int | None = None
    reason: str | None = None
    tries: Mapping[int, int] = field(default_factory=dict)
    categories: Mapping[str, int] = field(default_factory=dict)
    largest_value: int | None = None
    fewest_gpus: int | None = None

    def deciding(self) -> Quantity | None:
        """The most complete peak that is known."""
        return next((name for name in reversed(PEAKS) if self.peaks.get(name) is not None), None)


def rows_of(report: Report) -> tuple[Row, ...]:
    """What of a report can be compared."""
    answers = answered_rows(report)
    if answers:
        return answers
    if report.results:
        return tuple(map(_of_result, report.results))
    if report.ranks:
        return tuple(map(_of_rank, report.ranks))
    return tuple(
        _of_pick(card.name, method, pick)
        for card in report.cards
        for method in get_args(Method)
        if (pick := getattr(card.picks, method)) is not None
    )


def answered_rows(report: Report) -> tuple[Row, ...]:
    """What `--solve` and `--min` found, and a sweep on several cards, a row for each line.

    The rungs of `--solve` are at other values in another run, so their peaks say nothing.
    """
    if report.solve is not None:
        solved, key = rungs_of(report, report.solve.lines), report.solve.key
        return tuple(_of_solve(report, key, line, config) for line, config in solved)
    if report.fewest is not None:
        searched = rungs_of(report, report.fewest.lines)
        return tuple(_of_fewest(report, line, config) for line, config in searched)
    if report.sweep is None or report.results:
        return ()
    return tuple(
        _of_sweep(report, report.sweep.key, line, peak, config)
        for line, config in rungs_of(report, report.sweep.lines)
        for peak in line.peaks
    )


def rungs_of(report: Report, lines: Sequence[L]) -> Iterator[tuple[L, TrainConfig | None]]:
    """Each line with its configuration, from the request; None if the request has none of its name.

    A line goes by its card and its label, because its key is the hash of the version that wrote it.
    Rungs of one label are in the order of the ladder.
    """
    recipe = report.request.recipe if report.request is not None else None
    rungs = recipe.rungs if recipe is not None else ()
    capabilities = {card.name: card.compute_capability for card in report.cards}
    named = {line.card for line in lines}
    ladders = {card: list(ladder_for(rungs, capabilities.get(card))) for card in named}
    for line in lines:
        ladder = ladders[line.card]
        rung = next((other for other in ladder if other.label == line.label), None)
        if rung is not None:
            ladder.remove(rung)
        yield line, rung.config if rung is not None else None


def _settings(line: _Line, config: TrainConfig | None, more: Settings) -> Settings:
    """What tells a line from others: its card and its configuration."""
    own: Settings = {"label": line.label} if config is None else asdict(config)
    own.pop("micro_batch_size", None)
    return {**own, "card": line.card, **more}


def _label(report: Report, line: _Line) -> str:
    return line.label if len(report.cards) < 2 else f"{line.card}: {line.label}"


def _of_solve(report: Report, key: str, line: SolveLine, config: TrainConfig | None) -> Row:
    return Row(
        key=line.key,
        label=_label(report, line),
        outcome="fits" if line.largest is not None else _failed(line.next_missed_by_bytes),
        settings=_settings(line, config, {"solved": key}),
        missed_by_bytes=line.next_missed_by_bytes if line.largest is None else None,
        reason=line.reason,
        largest_value=line.largest,
    )


def _of_fewest(report: Report, line: FewestLine, config: TrainConfig | None) -> Row:
    return Row(
        key=line.key,
        label=_label(report, line),
        outcome="fits" if line.gpus is not None else _failed(line.fewer_missed_by_bytes),
        evidence=line.evidence or "predicted",
        settings=_settings(line, config, {"world_size": None}),
        missed_by_bytes=line.fewer_missed_by_bytes if line.gpus is None else None,
        reason=line.reason,
        fewest_gpus=line.gpus,
    )


def _of_sweep(
    report: Report, key: str, line: SweepLine, peak: SweptPeak, config: TrainConfig | None
) -> Row:
    value = f"{key.replace('_', ' ')} {peak.value:,}"
    return Row(
        key=f"{line.key} {peak.value}",
        label=f"{_label(report, line)} at {value}",
        outcome="skipped" if peak.fits is None else "fits" if peak.fits else "oom",
        settings=_settings(line, config, {key: peak.value, "swept": peak.value}),
        peaks={"peak_device_bytes": peak.peak_device_bytes},
        reason=line.reason,
    )


def _failed(missed_by_bytes: int | None) -> str:
    return "skipped" if missed_by_bytes is None else "oom"


def _of_result(result: ProbeResult) -> Row:
    settings = asdict(result.config)
    del settings["micro_batch_size"]
    return Row(
        key=result.config.rung_key(),
        label=result.label,
        outcome=result.outcome,
        evidence=result.evidence,
        method=result.config.method,
        settings=settings,
        peaks={name: getattr(result, name) for name in PEAKS},
        micro_batch_size=result.micro_batch_size,
        max_micro_batch_size=result.max_micro_batch_size,
        tokens_per_s=result.tokens_per_s,
        spread=result.tokens_per_s_spread,
        missed_by_bytes=result.missed_by_bytes,
        reason=result.reason or (result.failure.message if result.failure else None),
        tries={
            tried.micro_batch_size: tried.peak_bytes
            for tried in result.tries
            if tried.outcome == "fits"
            and tried.peak_bytes is not None
            and not tried.peak_is_lower_bound
        },
        categories={} if result.breakdown is None else result.breakdown.sizes(),
    )


def _of_rank(rank: RankMemory) -> Row:
    label = f"rank {rank.rank}, GPU {rank.device}"
    return Row(
        key=label,
        label=label,
        outcome=rank.outcome,
        evidence=rank.evidence,
        settings={"rank": rank.rank, "device": rank.device},
        peaks={name: getattr(rank, name) for name in PEAKS},
    )


def _of_pick(card: str, method: Method, pick: CardPick) -> Row:
    label = f"{card}: best {method}"
    return Row(
        key=label,
        label=label,
        outcome="fits" if pick.fits else "oom",
        method=method,
        settings={"card": card, "method": method},
        peaks={"peak_device_bytes": pick.peak_device_bytes},
        micro_batch_size=pick.micro_batch_size,
        tokens_per_s=pick.tokens_per_s,
        spread=pick.tokens_per_s_spread,
        missed_by_bytes=pick.missed_by_bytes,
    )
