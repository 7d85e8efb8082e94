"""What only a run on emulated GPUs reports: the smallest card that would do, what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oomdoctor.analysis.allocator import AllocatorSettings
from oomdoctor.analysis.allocator.settings import equal_blocks_of
from oomdoctor.records.facts.warnings import gpu_unused, not_steady, one_rank, unknown_values
from oomdoctor.records.inside.run import RankMemory, SmallestGpu
from oomdoctor.records.report import Report, Warn
from oomdoctor.runs.devices import emulated
from oomdoctor.runs.devices.emulated import EmulatedGpus
from oomdoctor.runs.watched.diagnosis import about_a_value
from oomdoctor.runs.watched.request import WatchRequest, line_of
from oomdoctor.runs.watched.seen.processes import Process, ran_out, read_events
from oomdoctor.runs.watched.smallest import least_capability, next_larger, smallest_gpu

_FEW_STEPS = 3


def with_cards(
    report: Report,
    request: WatchRequest,
    folder: Path,
    processes: Sequence[Process],
    *,
    failed: bool,
) -> Report:
    """The report of an emulated run, with the smallest card that would do."""
    assert request.gpus is not None
    events = [one for process in processes for one in read_events(folder, process)]
    settings = _settings(processes)
    built_for = [word for one in processes for word in one.record["architectures"]]
    least = least_capability(request.gpus.card.capability, built_for)
    smallest = smallest_gpu(
        report.ranks,
        events,
        least,
        settings,
        finished=report.status == "ok",
        together=_world(processes),
    )
    return replace(
        report,
        next_commands=_next(request, request.gpus, report.ranks, smallest, least, failed=failed),
        warnings=tuple(_warnings(request, processes, report.ranks, failed=failed)),
        smallest_gpu=smallest,
    )


def _next(
    request: WatchRequest,
    gpus: EmulatedGpus,
    ranks: Sequence[RankMemory],
    smallest: SmallestGpu | None,
    least: tuple[int, int],
    *,
    failed: bool,
) -> tuple[str, ...]:
    """The same command on the smallest card that would do, or on one that may.

    If it failed for another reason with one rank, the same with all of them.
    """
    if failed and gpus.alone and not ran_out(ranks):
        return (line_of(request, gpus.card.name, alone=False),)
    needed = [rank.oom.least_bytes for rank in ranks if rank.oom is not None]
    would_do = smallest.name if smallest is not None else None
    name = next_larger(max(needed), least) if needed else would_do
    if name is None or name == gpus.card.name:
        return ()
    return (line_of(request, name, alone=gpus.alone),)


def _warnings(
    request: WatchRequest,
    processes: Sequence[Process],
    ranks: Sequence[RankMemory],
    *,
    failed: bool,
) -> list[Warn]:
    gpus = request.gpus
    assert gpus is not None
    found = emulated.warnings(gpus) + emulated.value_warnings(str(request.python))
    ranks_asked = _world(processes)
    if gpus.alone and ranks_asked > 1:
        found.append(one_rank(ranks_asked, failed=failed and not ran_out(ranks)))
    if not ranks and not failed:
        found.append(gpu_unused())
    value = about_a_value(list(processes)) if failed else None
    if value is not None:
        found.append(unknown_values(value))
    steps = max((rank.steps for rank in ranks), default=0)
    ran_on = request.steps == "steady" and not any(rank.stopped for rank in ranks)
    if ran_on and not failed and steps > _FEW_STEPS:
        found.append(not_steady(steps))
    return found


def _world(processes: Sequence[Process]) -> int:
    """How many ranks train together, by what the processes say."""
    return max((int(one.record["world"]) for one in processes), default=1)


def _settings(processes: Sequence[Process]) -> AllocatorSettings:
    """The allocator's settings as the processes had them; the defaults if they cannot be read."""
    text = next((str(one.record["allocator"] or "") for one in processes), "")
    release = next((one.record["torch"] for one in processes), [2, 12])
    major, minor = release[:2]
    try:
        parsed = AllocatorSettings.parse(text)
    except ValueError:
        parsed = AllocatorSettings()
    return replace(parsed, equal_blocks=equal_blocks_of((major, minor)))
