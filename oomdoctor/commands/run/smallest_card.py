"""What only a run on emulated GPUs reports: the smallest card that would do, what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.records import OutOfDeviceMemory
from oomdoctor.analysis.allocator.settings import AllocatorSettings, equal_blocks_of
from oomdoctor.commands.devices import emulated
from oomdoctor.commands.devices.cards import card_that_holds, variant_warnings
from oomdoctor.commands.devices.emulated import EmulatedGpus
from oomdoctor.commands.run.diagnosis import about_a_value
from oomdoctor.commands.run.rank_records import (
    Events,
    Process,
    ran_out,
    ranks_together,
    read_events,
)
from oomdoctor.commands.run.seen_outside import Seen
from oomdoctor.commands.run.session import WatchRequest, line_of
from oomdoctor.commands.run.values import ended_loops, unknown_sizes
from oomdoctor.records.capability import MODERN, capability_numbers
from oomdoctor.records.report.report import Report, Warn
from oomdoctor.records.report.run import LargerBatch, RankMemory, SmallestGpu
from oomdoctor.records.report.warnings import warning
from oomdoctor.units import parse_size

_FEW_STEPS = 3
_ROOMY = "1TiB"  # more than any card has
LEAST_STEPS = 2  # after the first the optimizer's states are there


def with_cards(report: Report, request: WatchRequest, seen: Seen) -> Report:
    """The report of an emulated run, with the smallest card that would do."""
    assert request.gpus is not None
    processes = seen.processes
    events = read_events(seen.folder, processes)
    settings = _settings(processes)
    built_for = [word for recorded in processes for word in recorded.record["architectures"]]
    least = least_capability(request.gpus.card.capability, built_for)
    gave_up = any(rank.stopped == "past" for rank in report.ranks)
    finished = report.exit_code_of_command == 0 and report.status != "interrupted" and not gave_up
    context = (report.device.context_bytes if report.device is not None else None) or 0
    smallest = smallest_gpu(
        report.ranks,
        events,
        least,
        settings,
        finished=finished,
        together=ranks_together(processes),
        shared_bytes=needed_together(report.ranks, processes, context),
        beside_bytes=max((_beside(rank, context) for rank in report.ranks), default=0),
    )
    if smallest is not None and smallest.total_bytes != request.gpus.card.total_bytes:
        engines = {name for process in processes for name in process.record["sized_by_card"]}
        smallest = replace(smallest, sized_by_card=tuple(sorted(engines)))
    return replace(
        report,
        next_commands=_next(request, seen, report.ranks, smallest),
        warnings=tuple(_warnings(request, request.gpus, seen, report.ranks)),
        smallest_gpu=smallest,
        unknown_sizes=unknown_sizes(request, processes),
    )


def _next(
    request: WatchRequest, seen: Seen, ranks: Sequence[RankMemory], smallest: SmallestGpu | None
) -> tuple[str, ...]:
    """The same command on the smallest card that would do.

    If it stopped where memory ran out, the same without `--stop-at-oom`; if the script handles the
    error, the same on a card with room for it. If it failed for another reason with one rank, the
    same with all of them.
    """
    gpus = request.gpus
    assert gpus is not None
    if seen.failed and gpus.alone and not ran_out(ranks):
        return (line_of(request, gpus.card.name, alone=False),)
    name = smallest.name if smallest is not None else None
    if request.stop_at_oom and ran_out(ranks):
        return (line_of(replace(request, stop_at_oom=False), gpus.card.name, alone=gpus.alone),)
    if any(rank.oom is not None and not rank.went_past for rank in ranks):
        name = _ROOMY if gpus.card.total_bytes < parse_size(_ROOMY) else None
    if name is None or name == gpus.card.name:
        return ()
    return (line_of(request, name, alone=gpus.alone),)


def _warnings(
    request: WatchRequest, gpus: EmulatedGpus, seen: Seen, ranks: Sequence[RankMemory]
) -> list[Warn]:
    processes, failed = seen.processes, seen.failed
    warns = variant_warnings(gpus.card) + emulated.value_warnings(str(request.python))
    warns += emulated.inexact_parts(seen.folder)
    ranks_asked = ranks_together(processes)
    if gpus.alone and ranks_asked > 1:
        wording = "failed" if failed and not ran_out(ranks) else "text"
        warns.append(warning("one_rank", wording, ranks=ranks_asked))
    if gpus.card.facts is not None and gpus.card.facts.shares_host_memory:
        warns.append(warning("shared_memory", card=gpus.card.name))
    if not ranks and not failed:
        warns.append(warning("gpu_unused"))
    if failed and (value := about_a_value(processes)) is not None:
        warns.append(warning("unknown_values", message=value))
    for place, (turns, grows) in ended_loops(processes).items():
        warns.append(warning("unknown_loop", place=place, turns=turns, grows=grows))
    steps = max((rank.steps for rank in ranks), default=0)
    ran_on = request.steps == "steady" and not any(rank.stopped for rank in ranks)
    if ran_on and not failed and steps > _FEW_STEPS:
        warns.append(warning("not_steady", steps=steps))
    return warns


def _settings(processes: Sequence[Process]) -> AllocatorSettings:
    """The allocator's settings as the processes had them; the defaults if they cannot be read."""
    text = next((str(process.record["allocator"] or "") for process in processes), "")
    release = next((process.record["torch"] for process in processes), [2, 12])
    major, minor = release[:2]
    try:
        parsed = AllocatorSettings.parse(text)
    except ValueError:
        parsed = AllocatorSettings()
    return replace(parsed, equal_blocks=equal_blocks_of((major, minor)))


def smallest_gpu(
    ranks: Sequence[RankMemory],
    events: Sequence[Events],
    least: tuple[int, int],
    settings: AllocatorSettings,
    *,
    finished: bool = True,
    together: int = 1,
    shared_bytes: int = 0,
    beside_bytes: int = 0,
) -> SmallestGpu | None:
    """The NVIDIA card with the least memory that has room for every rank, each on its own GPU.

    `shared_bytes` is what processes on the same GPU need at most together, 0 without any. Other
    libraries hold `beside_bytes` at most besides what PyTorch reserves, and the context.

    It leaves the headroom that a plan leaves. Cards with a compute capability below `least` are
    left out. A card that has what each rank reserved at most has room for it: the run would be the
    same. On a smaller one PyTorch would release cached memory and try again, which the replay finds
    out. `together` ranks share the training.

    None if the run broke off (not `finished`), or was stopped after its first step, before two
    steps in a row needed and left the same memory: it may still have needed more.
    """
    if not ranks or any(rank.oom is not None and not rank.went_past for rank in ranks):
        return None
    if not all(rank.repeats or (finished and not _stopped_early(rank)) for rank in ranks):
        return None
    allocated = max(rank.peak_allocated_bytes for rank in ranks)
    reserved = max(rank.peak_reserved_bytes for rank in ranks)
    replayable = bool(events) and all(recorded.is_whole for recorded in events)

    def holds(usable: int) -> bool:
        room = usable - beside_bytes
        if room >= reserved and usable >= shared_bytes:
            return True
        return (
            room >= allocated
            and usable >= shared_bytes
            and replayable
            and all(_reserved(recorded, room, settings) is not None for recorded in events)
        )

    card = card_that_holds(holds, least=least, ranks=together)
    return None if card is None else SmallestGpu(card.name, card.total_bytes)


def _beside(rank: RankMemory, context_bytes: int) -> int:
    """What other libraries than PyTorch hold of a rank's GPU, without the context."""
    on_device = rank.peak_device_bytes or 0
    return max(0, on_device - rank.peak_reserved_bytes - context_bytes)


def needed_together(
    ranks: Sequence[RankMemory], processes: Sequence[Process], context_bytes: int
) -> int:
    """What the processes of one GPU need at most together, besides one context; 0 if none share.

    Their peaks are taken to be at the same time. Those that ran one after the other share nothing.
    """
    needed = {
        (rank.pid, rank.device): rank.peak_reserved_bytes + _beside(rank, context_bytes)
        for rank in ranks
    }
    on_gpu: dict[str, list[tuple[float, float, int]]] = {}
    for record in (process.record for process in processes):
        for device in record["devices"]:
            ended = float(record["written_at"])
            began = float(record.get("began_at") or ended)
            size = needed.get((record["pid"], device["device"]), 0)
            on_gpu.setdefault(device.get("uuid") or "", []).append((began, ended, size))
    return max((_at_once(each, context_bytes) for each in on_gpu.values()), default=0)


def _at_once(processes: Sequence[tuple[float, float, int]], context_bytes: int) -> int:
    """The sizes of those whose times overlap, with a context for each but one; 0 if none do."""
    sizes = [
        size
        for number, (began, ended, size) in enumerate(processes)
        if any(
            began < other_end and other_began < ended
            for other, (other_began, other_end, _) in enumerate(processes)
            if other != number
        )
    ]
    return sum(sizes) + context_bytes * (len(sizes) - 1) if sizes else 0


def _stopped_early(rank: RankMemory) -> bool:
    """Whether we stopped a rank before the optimizer's states were beside a forward pass."""
    return rank.stopped == "steps" and rank.steps < LEAST_STEPS


def least_capability(card: str, architectures: Sequence[str]) -> tuple[int, int]:
    """The lowest compute capability to choose from.

    The build of torch needs kernels for it (`architectures`, such as sm_75). A run on a card with
    bfloat16 and flash attention may use them, so a card without them would not do.
    """
    built = [int(word[3:].rstrip("af")) for word in architectures if word.startswith("sm_")]
    oldest = divmod(min(built), 10) if built else (0, 0)
    return max(oldest, MODERN) if capability_numbers(card) >= MODERN else oldest


def as_on_a_larger_card(ranks: Sequence[RankMemory], seen: Seen) -> tuple[RankMemory, ...]:
    """The ranks, those that went past their card's memory as a card with room for them holds them.

    Before it went past, PyTorch emptied its cache, which leaves other gaps than a larger card has.
    """
    if not any(rank.went_past for rank in ranks):
        return tuple(ranks)
    settings = _settings(seen.processes)
    pairs = zip(ranks, read_events(seen.folder, seen.processes), strict=True)
    return tuple(_as_on_a_larger_card(rank, recorded, settings) for rank, recorded in pairs)


def _as_on_a_larger_card(
    rank: RankMemory, events: Events, settings: AllocatorSettings
) -> RankMemory:
    if not rank.went_past or not events.is_whole:
        return rank
    reserved = _reserved(events, None, settings)
    assert reserved is not None  # because nothing limits it
    less = max(0, rank.peak_reserved_bytes - reserved)
    assert rank.peak_device_bytes is not None and rank.short_bytes is not None
    return replace(
        rank,
        peak_reserved_bytes=rank.peak_reserved_bytes - less,
        peak_device_bytes=rank.peak_device_bytes - less,
        short_bytes=rank.short_bytes - less,
    )


def _reserved(events: Events, usable: int | None, settings: AllocatorSettings) -> int | None:
    """The most that is reserved in a replay with so much room; None if that is not enough."""
    allocator = CachingAllocator(usable, settings)
    numbers = events.numbers
    for i in range(0, len(numbers), 3):
        block, size, stream = numbers[i : i + 3]
        try:
            if size < 0:
                allocator.free(block)
            else:
                allocator.allocate(block, max(size, 1), stream)
        except OutOfDeviceMemory:
            return None
    return allocator.peak_reserved_bytes


def larger_batch(ranks: Sequence[RankMemory], micro_batch_size: int | None) -> LargerBatch | None:
    """The largest micro-batch size that should still fit, taken over all ranks.

    What a rank reserved at most, minus what its steps leave allocated, holds all that depends on
    the batch, and gradients and workspaces too. All of it is assumed to grow with the micro-batch,
    so the answer is cautious. None if it is not known, or no larger one fits.
    """
    if not micro_batch_size:
        return None
    sizes = [_of_rank(rank, micro_batch_size) for rank in ranks]
    told = [size for size in sizes if size is not None]
    if not told or len(told) < len(sizes):
        return None
    largest, per_row = min(told)
    if largest <= micro_batch_size:
        return None
    return LargerBatch(micro_batch_size, largest, per_row)


def _of_rank(rank: RankMemory, rows: int) -> tuple[int, int] | None:
    steps = [step for step in rank.steps_memory if step.step >= LEAST_STEPS]
    if not steps or rank.headroom_bytes is None or rank.outcome != "fits":
        return None
    if rank.retries:  # it has already been as full as it can be
        return rows, 0
    left = min(step.allocated_bytes for step in steps)
    per_row = -(-(rank.peak_reserved_bytes - left) // rows)
    if per_row <= 0:
        return None
    return rows + rank.headroom_bytes // per_row, per_row
