"""What a run had reserved whose batches were each as long as their own longest sample.

PyTorch's allocator keeps what it once took, so that after many lengths it holds more than the
longest one needs. The step is recorded at three lengths, a fourth proves how blocks grow with
them, and steps of lengths drawn with fixed seeds are played through the model of the allocator.
The peak of allocated memory needs none of this: it is where a batch is longest.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from cases.row_lengths import Lengths
from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.records import OutOfDeviceMemory
from oomdoctor.analysis.allocator.settings import AllocatorSettings, equal_blocks_of
from oomdoctor.analysis.simulator.card import Card, card_of, scratch_bytes, workspaces
from oomdoctor.analysis.simulator.orders.depth import IrregularError
from oomdoctor.analysis.simulator.playback import Layout, RecordedRung
from oomdoctor.analysis.simulator.tape import TapeBlock
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.recorder import Recorder
from oomdoctor.worker.simulating.shallow import IrregularLayersError
from oomdoctor.worker.simulating.simulate import simulated_rung
from oomdoctor.worker.training.inspection import torch_release

SEEDS = range(5)
_EVENTS = 3_000_000  # of one replay, about three seconds: some hundred steps of a large model
_GRAIN = 128  # tokens that attention kernels round a length up to
_TOLD = 3  # numbers of a block whose size follows from them: rows; results and terms of a sum
# Into how many parts the longest length is divided; the four upper ones are recorded. Where short
# steps differ in more than sizes (kernels choose by length), all are taken to do what the longest
# do.
_DIVISIONS = (4, 16)


@dataclass(frozen=True, slots=True)
class Part:
    """Events between two marks, as in `Order`: births (above 0) and deaths."""

    events: list[int]
    begins_micro_step: bool
    empties: bool
    """Whether the cache is emptied before."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Numbers over the length: the parabola through those at three lengths.

    Every size is a product of dimensions of which at most two are the length.
    """

    lengths: tuple[int, int, int]
    linear: list[float]
    squared: list[float]
    first: list[int]

    def at(self, length: int) -> list[int]:
        """Each number at a length."""
        one, two = length - self.lengths[0], length - self.lengths[1]
        return [
            size + round(one * (slope + two * bend))
            for size, slope, bend in zip(self.first, self.linear, self.squared, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of blocks over the length. `growth` has a number for each block, then those of `told`.

    Some sizes have steps, which no curve has: kernels choose by the number of rows. What these
    depend on grows evenly; they follow from it on this `card`.
    """

    growth: Growth
    told: list[tuple[int, TapeBlock]]
    card: Card

    def at(self, length: int) -> list[int]:
        """Bytes of each block; 0 if its kernel does not take it at this length."""
        numbers = self.growth.at(length)
        sizes = numbers[: len(numbers) - _TOLD * len(self.told)]
        sizes = [max(1, size) for size in sizes]
        own = iter(numbers[len(sizes) :])
        for (block, recorded), rows, results, terms in zip(self.told, own, own, own, strict=True):
            if recorded.row_sum is not None:
                row_sum = recorded.row_sum._replace(results=results, terms=terms)
                sizes[block] = scratch_bytes(row_sum, self.card)
            else:
                sizes[block] = recorded.of_rows(sizes[block], rows)
        return sizes


class _OtherSizesError(UnsupportedError):
    """The sizes of a block do not follow one curve over the lengths."""


@dataclass(frozen=True, slots=True)
class Step:
    """A rung at any length: `origin` has the recorded block of each block of the events.

    `first` has the load and the first step, `steady` the step that every later one repeats.
    """

    origin: list[int]
    sizes: Sizes
    first: list[Part]
    steady: list[Part]


def reserved_bytes(job: ProbeJob, lengths: Lengths, capacity_bytes: int | None) -> int:
    """The median over the seeds of the peak of reserved memory.

    Raises:
        UnsupportedError: the rung cannot be simulated, or its step differs by length in more than
            the sizes of blocks.
    """
    size = job.config.micro_batch_size
    assert isinstance(size, int)
    step = recorded_step(job, lengths.longest)
    settings = AllocatorSettings(
        expandable_segments=job.config.allocator == "expandable_segments",
        equal_blocks=equal_blocks_of(torch_release()),
    )
    found = []
    for seed in SEEDS:
        batches = itertools.islice(lengths.batches(size, seed), affordable_micro_steps(step))
        found.append(played(step, batches, CachingAllocator(capacity_bytes, settings)))
    return statistics.median_low(found)


def affordable_micro_steps(step: Step) -> int:
    """As many as are played in a few seconds."""
    events = sum(len(part.events) for part in step.steady)
    return max(1, _EVENTS * sum(part.begins_micro_step for part in step.steady) // events)


def recorded_step(job: ProbeJob, longest: int) -> Step:
    """The step of the job's rung at lengths up to the longest.

    Raises:
        UnsupportedError: see `reserved_bytes`.
    """
    try:
        return _recorded_step(job, longest, shallow=True)
    except (IrregularError, IrregularLayersError):
        return _recorded_step(job, longest, shallow=False)


def _recorded_step(job: ProbeJob, longest: int, *, shallow: bool) -> Step:
    request = job.simulation
    assert request is not None
    card = card_of(request.targets[0])
    with simulated_rung(job, PhaseFile(None), shallow=shallow) as recorder:
        for parts in _DIVISIONS:
            lengths = _upper(longest, parts)
            layouts = _layouts(recorder, card, lengths)
            if all(layout.order == layouts[0].order for layout in layouts):
                # Below some length, a kernel may need no blocks of its own.
                with suppress(_OtherSizesError):
                    return _grown(lengths, layouts, card)
    raise UnsupportedError("steps of differing lengths differ in more than sizes")


def _upper(longest: int, parts: int) -> list[int]:
    """The four upper parts of a length, in whole grains where there is one for each part."""
    grain = _GRAIN if longest >= parts * _GRAIN else 1
    return [longest * part // (parts * grain) * grain for part in range(parts - 3, parts + 1)]


def _layouts(recorder: Recorder, card: Card, lengths: Sequence[int]) -> list[Layout]:
    """The rung's events at each length, from a recording of its own."""
    job = recorder.job
    assert job.simulation is not None
    rung = RecordedRung(recorder.whole.depths)
    facts = recorder.facts()
    resized = workspaces(card, facts.torch_release, facts.workspace_setting)
    for length in lengths:
        recorder.job = replace(job, config=replace(job.config, sequence_length=length))
        made = recorder.record(job.simulation.micro_batch_sizes[0], card)
        rung.add(length, made.tape, made.taken)
    accumulates = job.config.accumulation_steps() > 1
    return [
        rung.layout(
            length,
            accumulates=accumulates,
            held=job.config.accumulation_steps(),
            resized=resized,
            card=card,
        )
        for length in lengths
    ]


def _grown(lengths: Sequence[int], layouts: Sequence[Layout], card: Card) -> Step:
    one, two, proven, three = lengths
    low, middle, proof, high = map(_numbers, layouts)
    growth = _growth((one, two, three), low, middle, high)
    layout = layouts[0]
    blocks = itertools.chain(layout.blocks, *([told] * _TOLD for _, told in _told(layout)))
    for block, expected, number in zip(blocks, growth.at(proven), proof, strict=True):
        if expected != number:
            raise _OtherSizesError(
                f"{block.operator} takes {number} bytes at {proven}, not {expected}"
            )
    sizes = Sizes(growth, _told(layout), card)
    return Step(layout.order.origin, sizes, *_parts(layout))


def _told(layout: Layout) -> list[tuple[int, TapeBlock]]:
    """The blocks whose bytes follow from numbers of rows."""
    return [(n, block) for n, block in enumerate(layout.blocks) if block.rows or block.row_sum]


def _numbers(layout: Layout) -> list[int]:
    """What grows with the length: bytes of blocks, and of some the numbers they follow from."""
    sizes, told = list(layout.sizes), []
    for number, block in _told(layout):
        sizes[number] = block.size
        told += [block.rows, *(block.row_sum[:2] if block.row_sum is not None else (0, 0))]
    return sizes + told


def _growth(
    lengths: tuple[int, int, int], low: list[int], middle: list[int], high: list[int]
) -> Growth:
    """Newton's divided differences."""
    one, two, three = lengths
    linear = [(b - a) / (two - one) for a, b in zip(low, middle, strict=True)]
    squared = [
        ((c - b) / (three - two) - slope) / (three - one)
        for b, c, slope in zip(middle, high, linear, strict=True)
    ]
    return Growth(lengths, linear, squared, low)


def _parts(layout: Layout) -> tuple[list[Part], list[Part]]:
    """The windows of the first step and those of the steady one, without empty blocks."""
    order, parts = layout.order, []
    some = [*layout.sizes]
    for number, _ in _told(layout):
        some[number] = 1  # at some lengths
    ends = [start for start, _, _ in order.windows[1:]] + [len(order.events)]
    for (start, _, phase), end in zip(order.windows, ends, strict=True):
        events = [e for e in order.events[start:end] if some[order.origin[abs(e) - 1]]]
        parts.append(Part(events, phase == "forward", start in order.emptied))
    names = [window[1:] for window in order.windows]
    begin = next(i for i, (step, _) in enumerate(names) if step == "steady")
    # What a step makes before its first micro-step is in a window of the phase before it.
    begin -= names[begin - 1] == names[begin - 2]
    return parts[:begin], parts[begin:]


def played(step: Step, lengths: Iterator[int], allocator: CachingAllocator) -> int:
    """Peak of reserved bytes after micro-steps of these lengths.

    Where the device runs out, it is what was reserved until then: the run had other lengths.
    """
    parts = step.first
    absent: set[int] = set()
    live: dict[int, int] = {}
    heirs = _heirs(step)
    try:
        for length in lengths:
            _play(step, parts, itertools.chain((length,), lengths), allocator, absent, live)
            if parts is step.steady:
                live |= {found: live.pop(left) for found, left in heirs.items() if left in live}
            parts = step.steady
    except OutOfDeviceMemory:
        pass
    return allocator.peak_reserved_bytes


def _heirs(step: Step) -> dict[int, int]:
    """The blocks that the steady step finds from the one before, and what it leaves in their place.

    The step that is played again finds what it has left itself, such as the last loss.
    """
    events = [event for part in step.steady for event in part.events]
    born = {event for event in events if event > 0}
    freed = {-event for event in events if event < 0}
    left = {step.origin[event - 1]: event for event in born - freed}
    found = [event for event in freed - born if step.origin[event - 1] in left]
    return {event: left[step.origin[event - 1]] for event in found}


def _play(
    step: Step,
    parts: Sequence[Part],
    lengths: Iterator[int],
    allocator: CachingAllocator,
    absent: set[int],
    live: dict[int, int],
) -> None:
    """One step; each of its micro-steps takes the next length, or at their end the last one.

    `absent` are births of blocks that their kernels did not take. `live` are the names that the
    allocator has for the births of other blocks, because a block of the step before may still live.
    """
    allocate, free, origin = allocator.allocate, allocator.free, step.origin
    name = max(live.values(), default=0)
    length = next(lengths)
    following, sizes = itertools.chain((length,), lengths), step.sizes.at(length)
    for part in parts:
        if part.begins_micro_step:
            length = next(following, length)
            sizes = step.sizes.at(length)
        if part.empties:
            allocator.empty_cache()
        for event in part.events:
            if event < 0:
                if -event not in absent:
                    free(live.pop(-event))
            elif sizes[origin[event - 1]]:
                absent.discard(event)
                name += 1
                live[event] = name
                allocate(name, sizes[origin[event - 1]])
            else:
                absent.add(event)
