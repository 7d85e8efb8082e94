"""What fused attention reaches of a card's peak, by kernel, direction, width, length and mask.

    share = long / (1 + start / length)

`long` is the share for long rows and heads of 128; narrower heads reach `narrow` of it, and wider
ones `wide` backward. `start` is larger for causal attention, whose tiles on the diagonal are half
empty. FLOPs count the pairs that
the mask keeps. Constants and their sources are in `data/speed.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from oomdoctor.package_data import data_of
from oomdoctor.records.job.machine import GpuFacts

_NARROW, _USUAL = 64, 128  # elements of a head, at most
_LENGTH = 2048  # of rows whose length is not recorded


@dataclass(frozen=True, slots=True)
class Attention:
    """A kernel on some cards: shares of the dense peak, and the lengths that halve them.

    `fp8` is what FP8 reaches of the rate of 16 bits.
    """

    forward: float
    backward: float
    narrow: float
    start: float
    start_causal: float
    wide: float = 1.0
    fp8: float = 1.0

    def share(self, shape: tuple[int, ...], *, backward: bool) -> float:
        """For (rows x heads, length, keys, width, whether causal); an unknown shape is usual."""
        _, length, _, width, causal = shape if len(shape) == 5 else (0, _LENGTH, 0, 128, 1)
        long = self.backward if backward else self.forward
        start = self.start_causal if causal else self.start
        if width <= _NARROW:
            long *= self.narrow
        elif width > _USUAL and backward:
            long *= self.wide
        return long / (1 + start / max(length, 1))


@cache
def _table() -> list[tuple[str, list[str], str, Attention]]:
    rows = [dict(row) for row in data_of("speed.toml")["attention"]]
    return [
        (row.pop("kernel"), row.pop("capabilities"), row.pop("word", ""), Attention(**row))
        for row in rows
    ]


def attention_of(name: str, gpu: GpuFacts) -> Attention | None:
    """The first row of the kernel with this operator's name, for the card.

    None if no row is of the card's compute capability.
    """
    words = ("", *gpu.name.split())
    return next(
        (
            attention
            for kernel, capabilities, word, attention in _table()
            if kernel in name and gpu.compute_capability in capabilities and word in words
        ),
        None,
    )
