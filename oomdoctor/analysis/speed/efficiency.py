"""How much of their peaks cards reach in training, from `data/speed.toml` with its sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from oomdoctor.package_data import data_of

if TYPE_CHECKING:
    from oomdoctor.records.machine import GpuFacts


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Achieved / peak; `tensor` and `float32` for large products, `attention` for fused kernels.

    `emulated_bfloat16` is a share of the float32 peak, for cards without native bfloat16.
    `measured` is False if a share was taken from a related card.
    """

    tensor: float
    float32: float
    attention: float
    bandwidth: float
    emulated_bfloat16: float = 0.0
    measured: bool = True

    @property
    def native_bfloat16(self) -> bool:
        return not self.emulated_bfloat16


@cache
def _table() -> tuple[tuple[list[str], str, Efficiency], ...]:
    rows = data_of("speed.toml")["efficiencies"]
    return tuple((row.pop("capabilities"), row.pop("word", ""), Efficiency(**row)) for row in rows)


def efficiency_of(gpu: GpuFacts) -> Efficiency | None:
    """The first row for the card's compute capability whose word is in its name."""
    words = gpu.name.split()
    for capabilities, word, efficiency in _table():
        if gpu.compute_capability in capabilities and (not word or word in words):
            return efficiency
    return None
