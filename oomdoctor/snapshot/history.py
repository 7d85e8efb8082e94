"""All that is known of one device of a snapshot, before anything is asked about it.

A snapshot does not say what a block is for. It follows from the phase that the block was born in,
by its stack, and from how long it lived: a block of the backward pass that is still there in the
optimizer's step is a gradient, one of the optimizer's step that outlives it is a state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.records.facts.phases import FORWARD
from oomdoctor.records.job.measurement import BlockCategory
from oomdoctor.records.report.diagnosis import Confidence, ReadPhase
from oomdoctor.snapshot.blocks import BEFORE, Lives, lives_of
from oomdoctor.snapshot.phases import Meaning, Meanings, optimizer_steps
from oomdoctor.snapshot.reading.events import NO_STACK
from oomdoctor.snapshot.reading.snapshot import DeviceSnapshot, Snapshot

_SETTING_UP: tuple[ReadPhase, ...] = ("init", "load")
_LOSSES = ("cross_entropy", "log_softmax", "nll_loss")
_WORKSPACES = 2  # of one line: one for each stream
_LEAST_LOGITS = 1 << 20  # bytes; smaller ones do not matter


@dataclass(frozen=True, slots=True)
class History:
    """A device, the lives of its blocks, what their stacks say, and the optimizer's steps.

    A step is a pair of events: its first, and the first after it.
    """

    device: DeviceSnapshot
    settings: AllocatorSettings
    lives: Lives
    meanings: Meanings
    steps: list[tuple[int, int]]
    categories: Categories
    by_birth: list[int]
    births: list[int]
    """The blocks that were born in the trace, in the order of birth, and the events they were
    born at."""

    def blocks_born(self, first: int, after: int) -> list[int]:
        """The blocks that were born in a part of the trace."""
        return self.by_birth[bisect_left(self.births, first) : bisect_left(self.births, after)]

    def tensor_bytes(self, block: int) -> int:
        """The bytes that were requested for a block; those of the block if they are not known."""
        born = self.lives.blocks.born[block]
        return self.lives.blocks.size[block] if born == BEFORE else self.device.events.size[born]

    @property
    def last_event(self) -> int:
        """The index of the last event; -1 without any."""
        return len(self.device.events) - 1


def history_of(snapshot: Snapshot, device: DeviceSnapshot) -> History:
    """Read the history of one device."""
    settings = _settings(snapshot)
    lives = lives_of(device, settings.roundup_power2_divisions)
    meanings = Meanings(snapshot.stacks, device.events)
    steps = optimizer_steps(device, meanings)
    categories = Categories(lives, meanings, steps)
    by_birth = [block for block, born in enumerate(lives.blocks.born) if born != BEFORE]
    births = [lives.blocks.born[block] for block in by_birth]
    return History(device, settings, lives, meanings, steps, categories, by_birth, births)


def _settings(snapshot: Snapshot) -> AllocatorSettings:
    """The settings of the allocator that wrote a snapshot; the defaults if it does not say."""
    text = snapshot.settings.get("PYTORCH_CUDA_ALLOC_CONF")
    if isinstance(text, str):
        with suppress(ValueError):
            return AllocatorSettings.parse(text)
    expandable = snapshot.settings.get("expandable_segments") is True
    return AllocatorSettings(expandable_segments=expandable)


class Named(NamedTuple):
    """The category of a block, and how sure it is."""

    category: BlockCategory
    confidence: Confidence


class Categories:
    """Names the blocks of one device."""

    def __init__(self, lives: Lives, meanings: Meanings, steps: list[tuple[int, int]]) -> None:
        self._blocks, self._meanings = lives.blocks, meanings
        self._steps = steps
        self._starts, self._ends = [start for start, _ in steps], [after for _, after in steps]
        phases = [meanings.phase(stack) for stack in lives.blocks.stack]
        self._end = end = len(lives.allocated)
        born = zip(lives.blocks.born, phases, strict=True)
        passes = (at for at, phase in born if phase in FORWARD and at >= 0)
        self._first_pass = min(passes, default=end)
        self._phases = phases
        self._shallow = 0
        self._logits = self._sizes_of_logits()
        self._before = self._named_before()
        self._kept_of = Counter(
            lives.blocks.stack[block]
            for block, phase in enumerate(phases)
            if phase in FORWARD and self._lasts(block)
        )
        self._workspaces = {
            lives.blocks.size[block]
            for block, phase in enumerate(phases)
            if phase in FORWARD and self._is_kept(block)
        }

    def of(self, block: int) -> Named:
        """The category of a block."""
        if block in self._before:
            return self._before[block]
        told = self._meaning(block).category
        if told is not None:
            return Named(told, "high")
        born, died = self._blocks.born[block], self._blocks.died[block]
        phase = self._phases[block]
        lasts = died >= self._end
        if phase in _SETTING_UP:
            line = self._meaning(block).line
            # A checkpoint brings the optimizer's states as well.
            is_state = line is not None and "torch/optim/" in line.file
            return Named("optimizer" if is_state else "weights", "high")
        if phase == "optimizer":
            step = self._step_after(born)
            outlives = lasts or (step is not None and died >= step[1])
            # What was there before the trace was made by an earlier step than the first in it.
            outlives |= born == BEFORE and died >= self._first_pass
            return Named("optimizer" if outlives else "temporary", "high")
        if self._blocks.size[block] in self._logits and (
            phase in ("loss", "backward") or (phase in FORWARD and self._is_shallow(block))
        ):
            return Named("logits", "medium")
        if phase == "backward":
            return self._of_backward(block)
        if phase in FORWARD:
            kept = self._is_kept(block)
            return Named("other", "medium") if kept else Named("activations", "high")
        if phase != "unknown":
            return Named("temporary", "medium")
        is_weight = lasts and born < self._first_pass
        return Named("weights", "medium") if is_weight else Named("other", "low")

    def _is_kept(self, block: int) -> bool:
        """Whether a library keeps a block of a pass as a workspace: it outlives all steps.

        A line that leaves more and more behind does not make workspaces.
        """
        return self._lasts(block) and self._kept_of[self._blocks.stack[block]] <= _WORKSPACES

    def _lasts(self, block: int) -> bool:
        born, died = self._blocks.born[block], self._blocks.died[block]
        # At least two of the optimizer's steps begin after its birth.
        return died >= self._end and len(self._starts) - bisect_right(self._starts, born) > 1

    def _step_after(self, event: int) -> tuple[int, int] | None:
        """The optimizer's step that ends after an event."""
        at = bisect_right(self._ends, event)
        return self._steps[at] if at < len(self._steps) else None

    def _of_backward(self, block: int) -> Named:
        born, died = self._blocks.born[block], self._blocks.died[block]
        step = self._step_after(born)
        lasts = died >= self._end
        if step is not None and died >= step[0]:
            # cuBLAS has a workspace of one size for each thread; gradients may be kept and zeroed.
            if self._is_kept(block) and self._blocks.size[block] in self._workspaces:
                return Named("other", "medium")
            return Named("gradients", "high")
        if lasts and step is None and not self._steps:
            return Named("gradients", "medium")
        recomputed = self._line(block) is not None
        return Named("activations" if recomputed else "temporary", "medium")

    def _sizes_of_logits(self) -> frozenset[int]:
        """Bytes of blocks with a score for each word, in the precisions that there are.

        The largest that a loss makes; and half and twice of it, if something near the outside of
        the model makes such blocks.
        """
        made = [
            self._blocks.size[block]
            for block, phase in enumerate(self._phases)
            if phase == "loss" or self._line(block) in _LOSSES
        ]
        largest = max(made, default=0)
        if largest < _LEAST_LOGITS:
            return frozenset()
        passed = [block for block, phase in enumerate(self._phases) if phase == "forward"]
        self._shallow = min((self._meaning(block).depth for block in passed), default=0) + 1
        alike = (largest // 2, largest * 2)
        others = (b for b in passed if self._blocks.size[b] in alike and self._is_shallow(b))
        return frozenset((largest, *(self._blocks.size[block] for block in others)))

    def _is_shallow(self, block: int) -> bool:
        """Whether a block is made by the model itself or its last layer, not deep inside."""
        return self._meaning(block).depth <= self._shallow

    def _meaning(self, block: int) -> Meaning:
        return self._meanings.of(self._blocks.stack[block])

    def _line(self, block: int) -> str | None:
        line = self._meaning(block).line
        return None if line is None else line.function

    def _named_before(self) -> dict[int, Named]:
        """Blocks whose birth and stack are not known: weights, and states of an optimizer.

        A block of a size that gradients have is a state if there are more such blocks than
        gradients; states in fp32 of gradients in 16 bits are twice as large.
        """
        unknown: dict[int, list[int]] = {}
        for block, born in enumerate(self._blocks.born):
            if born == BEFORE and self._line(block) is None:
                unknown.setdefault(self._blocks.size[block], []).append(block)
        named = {b: Named("weights", "low") for blocks in unknown.values() for b in blocks}
        freed: dict[int, list[int]] = {}
        for block, born in enumerate(self._blocks.born):
            made = self._blocks.maker(block, self._end)
            if born == BEFORE and block not in named and made == NO_STACK:
                freed.setdefault(self._blocks.size[block], []).append(block)
        for size, count in self._first_gradients().items():
            alike, double = unknown.get(size, []), unknown.get(2 * size, [])
            states = alike[count:][: 2 * count]
            if len(states) < count and len(double) >= 2 * count:
                states = double[: 3 * count]
            # Adam has two states for each gradient; the program may free them at its end.
            gone = freed.get(size, [])
            states += gone if len(gone) >= 2 * count else []
            named.update(dict.fromkeys(states, Named("optimizer", "low")))
        return named

    def _first_gradients(self) -> Counter[int]:
        """The sizes of the gradients of the first step, with their number.

        None if that step makes the states itself.
        """
        if not self._steps:
            return Counter()
        first = self._steps[0]
        columns = zip(self._blocks.born, self._blocks.died, strict=True)
        if any(first[0] <= born < first[1] <= died for born, died in columns):
            return Counter()
        return Counter(
            self._blocks.size[block]
            for block, phase in enumerate(self._phases)
            if phase == "backward"
            and BEFORE < self._blocks.born[block] < first[0] <= self._blocks.died[block]
        )
