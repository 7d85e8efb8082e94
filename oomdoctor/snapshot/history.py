"""All that is known of one device of a snapshot, before anything is asked about it."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass

from oomdoctor.analysis.allocator import AllocatorSettings
from oomdoctor.snapshot.block_categories import Categories
from oomdoctor.snapshot.blocks import BEFORE, Lives, lives_of
from oomdoctor.snapshot.phases import Meanings, optimizer_steps
from oomdoctor.snapshot.reading.snapshot import DeviceSnapshot, Snapshot


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
