"""What a memory snapshot says about a failure that a log describes.

A log has the message and the traceback; a snapshot has every block that was there. They belong
together if both name the same failed request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.analysis.allocator.sizes import round_size, segment_size
from oomdoctor.records.job.measurement import CATEGORY_WORDS, BlockCategory, CategoryBytes
from oomdoctor.records.report.diagnosis import Incident, ReadPhase
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.snapshot import SnapshotDevice, SnapshotGrowth, SnapshotOom
from oomdoctor.units import format_bytes

# Messages print two decimals: 1.01 GiB may be 5 MiB less.
_ROUNDING = 0.006
_SHOWN_LINES = 3
# What a request is for, by its phase; in the backward pass it may be anything.
_REQUESTED: dict[ReadPhase, BlockCategory] = {
    "load": "weights",
    "forward": "activations",
    "loss": "logits",
    "optimizer": "optimizer",
}


@dataclass(frozen=True, slots=True)
class SnapshotEvidence:
    """The failed request of one device of a snapshot, and what the device held then.

    `growth` is what it left behind again and again, if it did.
    """

    source: str
    device: int
    oom: SnapshotOom
    growth: SnapshotGrowth | None

    @property
    def held(self) -> CategoryBytes:
        """What was allocated when the request failed, by category.

        Of a run that went on past the GPU's memory: at its peak.
        """
        return self.oom.held.categories

    @property
    def needed_bytes(self) -> int:
        """What was allocated when the request failed, and the request; at least what was held."""
        held = sum(self.held.of(category) for category in CATEGORY_WORDS)
        return max(self.oom.allocated_bytes + self.oom.requested_bytes, held)

    def share(self, category: BlockCategory) -> float:
        """The part of what was needed in a category.

        The request counts where its phase says what it is for.
        """
        size = self.held.of(category)
        if _REQUESTED.get(self.oom.phase) == category:
            size += self.oom.requested_bytes
        return min(1.0, size / (self.needed_bytes or 1))

    def lines(self, category: BlockCategory | None = None) -> tuple[str, ...]:
        """The lines of code that held the most (of one category); without any, the categories."""
        blocks = [block for block in self.oom.held.blocks if category in (None, block.category)]
        texts = tuple(
            f"{format_bytes(block.bytes)} in {block.count:,} "
            f"{'block' if block.count == 1 else 'blocks'}: {at}"
            for block in blocks[:_SHOWN_LINES]
            if (at := _at(block.where or block.library_where)) is not None
        )
        return texts or (f"{self.source}: {held_text(self.held)}",)


def held_text(held: CategoryBytes) -> str:
    """The categories with their sizes, the largest first."""
    sizes = {word: held.of(category) for category, word in CATEGORY_WORDS.items()}
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{word} {format_bytes(size)}" for word, size in ordered if size)


def evidence_of(source: str, devices: Sequence[SnapshotDevice]) -> tuple[SnapshotEvidence, ...]:
    """The failed requests of a snapshot, one for each device that had one."""
    return tuple(
        SnapshotEvidence(source, device.index, device.oom, device.growth)
        for device in devices
        if device.oom is not None
    )


def matching(incident: Incident, candidates: Sequence[SnapshotEvidence]) -> SnapshotEvidence | None:
    """The evidence about the same failed request; None if there is none."""
    event = incident.event
    if incident.resource != "gpu" or incident.look_alike is not None:
        return None
    if event.requested_bytes is None:
        return candidates[0] if len(candidates) == 1 else None
    near = [
        candidate
        for candidate in candidates
        if _same(candidate.oom.requested_bytes, event.requested_bytes)
    ]
    if event.allocated_bytes is not None:  # equal ranks fail with equal requests
        wanted = event.allocated_bytes
        near.sort(key=lambda candidate: abs(candidate.oom.allocated_bytes - wanted))
    return near[0] if near else None


def _same(exact: int, printed: int) -> bool:
    """Whether a message may be about this request: it prints what torch asked the driver for."""
    near = max(_ROUNDING * exact, 512)
    return exact - near <= printed <= segment_size(round_size(exact)) + near


def _at(place: Place | None) -> str | None:
    if place is None:
        return None
    return place.module or f"{place.file}:{place.line} in {place.function}"
