"""All that is known of one device of a snapshot, before anything is asked about it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from oomdoctor.analysis.allocator import AllocatorSettings
from oomdoctor.snapshot.blocks import Lives, lives_of
from oomdoctor.snapshot.categories import Categories
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
    return History(device, settings, lives, meanings, steps, categories)


def _settings(snapshot: Snapshot) -> AllocatorSettings:
    """The settings of the allocator that wrote a snapshot; the defaults if it does not say."""
    text = snapshot.settings.get("PYTORCH_CUDA_ALLOC_CONF")
    if isinstance(text, str):
        with suppress(ValueError):
            return AllocatorSettings.parse(text)
    expandable = snapshot.settings.get("expandable_segments") is True
    return AllocatorSettings(expandable_segments=expandable)
