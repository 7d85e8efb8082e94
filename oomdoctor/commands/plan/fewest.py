"""`plan --gpus A..B --min`: the fewest GPUs on which each rung fits, on each card.

All searches of a card advance together, one number of GPUs at a time. Rungs run at their fixed
micro-batch size, or at 1: a rung fits if its smallest step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from oomdoctor.analysis.command_line import rung_text
from oomdoctor.analysis.memory.closed_form import shards_of
from oomdoctor.analysis.search.fewest_gpus import FewestGpus
from oomdoctor.analysis.search.ladder import Context, bound_of, fixed_size, too_big
from oomdoctor.commands.devices.cards import Card
from oomdoctor.commands.events import Listener, SurveyEvent, starting
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.plan.engine_ladder import keep
from oomdoctor.commands.plan.engines import Engines, is_sharded, was_stopped_by_host
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.tasks import Task
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.job.result import Attempt
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.records.report.searched import FewestAnswer, FewestLine, GpuRange, GpuTry


@dataclass(slots=True)
class _Search:
    """The search for a rung on a card; `reason` says why it has no answer.

    With `simulated`, the engine of the rung cannot run here.
    """

    card: Card
    rung: Rung
    request: SurveyRequest
    size: int
    numbers: FewestGpus
    reason: str | None = None
    simulated: bool = False

    def at(self, gpus: int) -> Rung:
        """The rung on a number of GPUs, which its label says."""
        rung, config = self.rung, at_gpus(self.rung.config, gpus, self.size, self.request)
        return Rung(rung.label.replace(label_of(rung.config), label_of(config)), config)

    def next_try(self) -> int | None:
        """The next number of GPUs to run or to simulate."""
        return None if self.reason is not None else self.numbers.next_try()

    def shown(self) -> int:
        """The number of GPUs that the report has a row for."""
        counts = self.numbers
        return counts.fewest or max(
            counts.tries, default=counts.numbers[-1] if counts.numbers else 1
        )


_Try = tuple[_Search, int]
"""A search, and a number of GPUs."""


def at_gpus(config: TrainConfig, gpus: int, size: int, request: SurveyRequest) -> TrainConfig:
    """The configuration on a number of GPUs, at a micro-batch size.

    The effective batch size is rounded up to what the GPUs share equally. One GPU needs no engine.
    """
    rounded = -(-request.effective_batch_size // request.gpus) * request.gpus
    own = config.effective_batch_size != rounded
    wanted = config.effective_batch_size if own else request.effective_batch_size
    whole = gpus * size
    plain = {"sharding": "none", "bucket_elements": 0} if gpus == 1 else {}
    return replace(
        config,
        world_size=gpus,
        micro_batch_size=size,
        effective_batch_size=-(-wanted // whole) * whole,
        **plain,  # type: ignore[arg-type]
    )


def find_fewest(
    findings: Findings,
    card: Card,
    engines: Engines | None,
    simulators: Simulators,
    on_event: Listener,
) -> None:
    """Find the answer for every rung on a card, and keep it, also if the search is cut short.

    Without `engines`, all is simulated.

    Raises:
        Stopped: told to stop.
        OomDoctorError: no worker can be started (exit 5).
    """
    span = findings.plan.fewest
    assert span is not None
    searches = [_search(findings, card, rung, span) for rung in findings.ladder(card)]
    done = 0
    try:
        while wanted := [(s, gpus) for s in searches if (gpus := s.next_try()) is not None]:
            total = done + len(wanted)
            run = [pair for pair in wanted if engines is not None and _may_run(findings, pair[0])]
            rest = [pair for pair in wanted if pair not in run]
            told = [
                starting(on_event, [_shown(*pair) for pair in each], total) for each in (run, rest)
            ]
            tasks = [Task(search.at(gpus), (search.size,), (search.card,)) for search, gpus in rest]
            simulations = findings.simulate(simulators, tasks, told[1])
            simulated = (rest[ended.number] for ended in simulations)
            for search, gpus in chain(_run(findings, engines, run, told[0]), simulated):
                done += 1
                attempts = _take(findings, search, gpus)
                shown = _shown(search, gpus)
                event = SurveyEvent("predicted", shown, attempts=attempts, index=done, total=total)
                on_event(event)
    finally:
        _keep_answer(findings, card, searches, span)


def _search(findings: Findings, card: Card, rung: Rung, span: GpuRange) -> _Search:
    context = findings.contexts[card.name]
    size = fixed_size(rung.config, context) or 1
    numbers = _numbers(rung.config, span, findings.request)

    def bound(gpus: int) -> int:
        config = at_gpus(rung.config, gpus, size, findings.request)
        return bound_of(config, context).size_bytes

    split = len(numbers) > 1 and shards_of(replace(rung.config, world_size=numbers[-1])) != (
        shards_of(replace(rung.config, world_size=numbers[0]))
    )
    search = _Search(
        card, rung, findings.request, size, FewestGpus(numbers, card.usable_bytes, bound, split)
    )
    search.reason = _no_search(search, findings, context)
    return search


def _numbers(config: TrainConfig, span: GpuRange, request: SurveyRequest) -> list[int]:
    """The numbers of GPUs on which a rung can train."""
    every = range(span.low, span.high + 1)
    if config.sharding == "none":
        return [1] if 1 in every else []
    if config.world_size != request.gpus:  # the rung fixes it
        return [config.world_size] if config.world_size in every else []
    if config.sharding == "hybrid":
        node = config.gpus_per_node
        return [gpus for gpus in every if gpus > node and gpus % node == 0]
    # Without an engine, one GPU cannot keep its weights on the host.
    return [gpus for gpus in every if gpus > 1 or config.offload != "parameters"]


def _no_search(search: _Search, findings: Findings, context: Context) -> str | None:
    numbers = search.numbers.numbers
    if not numbers:
        return "not in the range of --gpus"
    last = search.at(numbers[-1])
    refusal = context.refuses(last.config)
    if refusal is not None:
        return refusal
    skip = too_big(last, context)
    if skip is None:
        return None
    findings.skipped[search.card.name, last.config.key()] = skip
    return f"on {numbers[-1]} GPUs, each {skip.reason}"


def _may_run(findings: Findings, search: _Search) -> bool:
    counted = findings.contexts[search.card.name].counts is not None
    return not search.simulated and is_sharded(search.rung.config) and counted


def _run(
    findings: Findings, engines: Engines | None, wanted: Sequence[_Try], told: Callable[[int], None]
) -> Iterator[_Try]:
    """Run rungs by their engines; what these cannot run is left to another round."""
    if engines is None or not wanted:
        return
    asked = [search.at(gpus) for search, gpus in wanted]
    for ran in engines.run(asked, wanted[0][0].card.usable_bytes, told):
        search, gpus = wanted[ran.number]
        if ran.attempt.outcome == "unsupported" or was_stopped_by_host(ran.attempt):
            search.simulated = True
            continue
        keep(findings, search.card, asked[ran.number], (ran.attempt,))
        yield search, gpus


def _take(findings: Findings, search: _Search, gpus: int) -> tuple[Attempt, ...]:
    """Give a search what was found on a number of GPUs; returns the attempts."""
    rung = search.at(gpus)
    row = findings.row(search.card, rung)
    if row.outcome not in ("fits", "oom", "skipped"):
        search.reason = row.reason or row.outcome
    elif row.outcome == "skipped" and row.missed_by_bytes is None:
        search.reason = row.reason or "the simulation failed without a reason"
    else:
        peak = row.deciding_peak_bytes()
        tried = GpuTry(gpus, row.surely_fits, peak, row.missed_by_bytes, peak is None)
        search.numbers.take(tried)
    return findings.attempts.get((search.card.name, rung.config.key()), ())


def _shown(search: _Search, gpus: int) -> Rung:
    config = search.at(gpus).config
    return Rung(f"{search.rung.label} on {gpus} {'GPU' if gpus == 1 else 'GPUs'}", config)


def _keep_answer(findings: Findings, card: Card, searches: list[_Search], span: GpuRange) -> None:
    for search in searches:
        if search.next_try() is not None:
            search.reason = "the search was interrupted"
    chosen = {
        (card.name, search.rung.config.key()): search.at(search.shown()) for search in searches
    }
    lines = tuple(_line(findings, search) for search in searches)
    before = findings.fewest.lines if findings.fewest is not None else ()
    findings.fewest = FewestAnswer(span.low, span.high, (*before, *lines))
    findings.chosen |= chosen


def _line(findings: Findings, search: _Search) -> FewestLine:
    counts = search.numbers
    gpus = counts.fewest
    row = findings.row(search.card, search.at(gpus)) if gpus is not None else None
    shown = findings.row(search.card, search.at(search.shown()))
    asked = replace(
        search.request, gpus=gpus or 1, effective_batch_size=shown.config.effective_batch_size
    )
    fewer = max((n for n in counts.numbers if gpus is None or n < gpus), default=None)
    return FewestLine(
        card=search.card.name,
        key=search.rung.config.key(),
        label=search.at(search.shown()).label,
        gpus=gpus,
        effective_batch_size=row.effective_batch_size if row is not None else None,
        micro_batch_size=search.size if row is not None else None,
        peak_device_bytes=row.deciding_peak_bytes() if row is not None else None,
        host_peak_bytes=row.host_peak_bytes if row is not None else None,
        fewer=fewer,
        fewer_missed_by_bytes=_missed(search, fewer),
        evidence=shown.evidence if shown.measurement is not None else None,
        reason=None if gpus is not None else _why_none(search),
        rung=rung_text(row.config, asked) if row is not None else None,
        tries=tuple(counts.tries[n] for n in sorted(counts.tries)),
    )


def _missed(search: _Search, gpus: int | None) -> int | None:
    """What a GPU is short of on a number of GPUs, by a try or by the lower bound."""
    if gpus is None:
        return None
    tried = search.numbers.tries.get(gpus)
    if tried is not None:
        return tried.missed_by_bytes
    short = search.numbers.bound(gpus) - search.card.usable_bytes
    return short if short > 0 else None


def _why_none(search: _Search) -> str:
    if search.reason is not None:
        return search.reason
    last = search.numbers.numbers[-1]
    if not search.numbers.split:
        return "each GPU holds the same on any number of GPUs"
    return f"does not fit on {last} GPUs"
