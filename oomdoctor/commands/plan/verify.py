"""Check the rungs that matter on the emulated card: the best of each method, and close calls.

A check runs the real step of the rung at the micro-batch size that the plan chose, so PyTorch
itself allocates. It says nothing about speed: the estimates of the plan stay. Its verdict wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from oomdoctor.analysis.ranking import rank
from oomdoctor.analysis.search.micro_batch import divisors
from oomdoctor.analysis.verdict import conclude
from oomdoctor.commands.devices.cards import Card
from oomdoctor.commands.events import Listener, SurveyEvent
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import launch
from oomdoctor.commands.plan.engine_ladder import with_times
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.job.result import Attempt, PredictedPeak, ProbeResult
from oomdoctor.records.report.warnings import warning
from oomdoctor.system.store.run_folders import RunFolder, save_attempt

_MOST_SIZES = 3


@dataclass(frozen=True, slots=True)
class Checker:
    """A worker host on the emulated card, the folder of the run, and who listens."""

    host: WorkerHost
    folder: RunFolder
    on_event: Listener
    stop: Callable[[], bool]


def verify(findings: Findings, checker: Checker) -> None:
    """Check the rungs that matter; their rows are then those of the check.

    A check may change what is best, which is then checked too.

    Raises:
        Stopped: told to stop; what is known stays.
        OomDoctorError: no worker can be started (exit 5).
    """
    (card,) = findings.cards
    done: set[str] = set()
    failed: dict[str, str] = {}
    while rungs := [rung for rung in _that_matter(findings, card) if rung.config.key() not in done]:
        rung = rungs[0]
        row = findings.row(card, rung)
        attempts = _attempts(findings, card, checker, rung, (len(done) + 1, len(rungs) - 1))
        done.add(rung.config.key())
        if attempts[-1].outcome in ("fits", "oom"):
            checked = _checked(row, rung, attempts, findings, card)
            findings.checked[card.name, rung.config.key()] = checked
        else:
            failed[rung.label] = attempts[-1].reason or attempts[-1].outcome
    if failed:
        named = [f"{label} ({reason})" for label, reason in failed.items()]
        findings.warn([warning("not_checked", failed="; ".join(named))])


def _that_matter(findings: Findings, card: Card) -> list[Rung]:
    rows = findings.rows(card)
    picks = rank(rows, findings.request.rank_by).picks
    best = (picks.full, picks.lora, picks.qlora)
    return [
        rung
        for rung, row in zip(findings.ladder(card), rows, strict=True)
        if row.evidence == "predicted"  # the engines of several GPUs have run there already
        and row.peak_device_bytes is not None
        and row.micro_batch_size is not None
        and (row.key in best or row.borderline)
    ]


def _attempts(
    findings: Findings, card: Card, checker: Checker, rung: Rung, place: tuple[int, int]
) -> list[Attempt]:
    """Try the size of the row; if it runs out of memory, smaller ones until one fits.

    `place` is its number among those that are checked, and how many more there are so far.
    """
    row = findings.row(card, rung)
    attempts = []
    index, left = place
    for size in _sizes(row, rung, findings):
        event = SurveyEvent("trying", rung, size, index=index, total=index + left, left=left)
        checker.on_event(event)

        def on_phase(phase: str, event: SurveyEvent = event) -> None:
            checker.on_event(replace(event, kind="phase", phase=phase))

        folder = checker.folder.job_folder(f"check-{row.label}", size)
        sized = Rung(row.label, rung.config.with_micro_batch(size))
        job = findings.measuring_job(card, sized, card.usable_bytes)
        attempt, _ = launch(
            checker.host,
            job,
            folder,
            usable_bytes=card.usable_bytes,
            deadline_s=findings.request.rung_limit_s,
            on_phase=on_phase,
            stop=checker.stop,
        )
        save_attempt(folder, attempt)
        attempts.append(attempt)
        checker.on_event(replace(event, kind="tried", attempt=attempt))
        if attempt.outcome != "oom":
            break
    return attempts


def _sizes(row: ProbeResult, rung: Rung, findings: Findings) -> list[int]:
    first = row.micro_batch_size
    assert first is not None
    fixed = isinstance(rung.config.micro_batch_size, int) or findings.request.micro_batch_size
    if fixed or row.outcome != "fits":
        return [first]
    smaller = [size for size in divisors(rung.config.rank_batch_size()) if size < first]
    return [first, *smaller[::-1][: _MOST_SIZES - 1]]


def _checked(
    row: ProbeResult, rung: Rung, attempts: list[Attempt], findings: Findings, card: Card
) -> ProbeResult:
    """The row of the check, with the prediction beside it and the estimate of its speed."""
    simulated = findings.attempts[card.name, rung.config.key()]
    predicted = {attempt.config.micro_batch_size: attempt.measurement for attempt in simulated}
    timed = tuple(with_times(attempt, simulated) for attempt in attempts)
    alone = Rung(rung.label, attempts[-1].config)  # the sizes were chosen by the plan
    checked = conclude(
        alone, timed, None, findings.contexts[card.name], findings.request, "emulated"
    )
    tried = {attempt.micro_batch_size for attempt in checked.tries}
    others = [attempt for attempt in row.tries if attempt.micro_batch_size not in tried]
    largest = checked.max_micro_batch_size
    as_chosen = row.outcome == "fits" and attempts[0].outcome == "fits"
    return replace(
        checked,
        key=row.key,
        predicted=PredictedPeak.of(predicted.get(checked.micro_batch_size or 0)),
        tries=tuple(
            sorted((*checked.tries, *others), key=lambda attempt: attempt.micro_batch_size)
        ),
        max_micro_batch_size=row.max_micro_batch_size if as_chosen else largest,
        calibrated_by=row.calibrated_by if checked.tokens_per_s is not None else None,
        notes=(*_differs(row, checked, attempts), *checked.notes),
    )


def _differs(row: ProbeResult, checked: ProbeResult, attempts: list[Attempt]) -> tuple[str, ...]:
    """What a reader has to know where the check came out differently."""
    if row.outcome == "fits" and attempts[0].outcome == "oom":
        size = attempts[0].config.micro_batch_size
        return (f"predicted to fit at micro-batch {size}",)
    if row.outcome != "fits" and checked.outcome == "fits":
        return ("predicted not to fit",)
    return ()
