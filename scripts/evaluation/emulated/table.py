"""What the differences come to: shares that are equal to the byte, medians, the worst."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emulated.both import Compared, Peaks
from emulated.rungs import EmulatedRung


@dataclass(frozen=True, slots=True)
class Row:
    """A rung and what both ways found with a version of torch ("2.12.1")."""

    rung: EmulatedRung
    torch: str
    emulated: Peaks
    simulated: Peaks

    @property
    def name(self) -> str:
        """What tells it from all other rows."""
        return f"{self.torch} | {self.rung.name}"

    @property
    def allocated(self) -> float:
        """The difference as a share of what the emulated card allocated."""
        return self.simulated.allocated / self.emulated.allocated - 1

    @property
    def reserved(self) -> float:
        return self.simulated.reserved / self.emulated.reserved - 1

    @property
    def agrees(self) -> bool:
        """Whether both say the same of the card's real size."""
        return self.simulated.fits == self.emulated.fits

    def document(self) -> dict[str, Any]:
        """As the file of data has it."""
        return {
            "card": self.rung.card,
            "model": self.rung.model,
            "settings": self.rung.settings,
            "torch": self.torch,
            "emulated": asdict(self.emulated),
            "simulated": asdict(self.simulated),
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one kind of byte: the share of rungs that are equal, and absolute differences."""

    rungs: int
    equal: float
    median: float
    p95: float
    worst: float


def row_of(entry: dict[str, Any]) -> Row:
    """A row from the file of data."""
    rung = EmulatedRung(entry["card"], entry["model"], entry["settings"])
    return Row(rung, entry["torch"], Peaks(**entry["emulated"]), Peaks(**entry["simulated"]))


def row(rung: EmulatedRung, torch: str, compared: Compared) -> Row | None:
    """The row of a rung that both ways have answered."""
    if compared.emulated is None or compared.simulated is None:
        return None
    return Row(rung, torch, compared.emulated, compared.simulated)


def summary(rows: Sequence[Row], difference: Callable[[Row], float]) -> Summary:
    """The summary of at least one row."""
    found = sorted(abs(difference(row)) for row in rows)
    return Summary(
        len(found),
        sum(share == 0 for share in found) / len(found),
        statistics.median(found),
        found[-(-len(found) * 95 // 100) - 1],
        found[-1],
    )


def allocated(row: Row) -> float:
    """The difference of the allocated peaks."""
    return row.allocated


def reserved(row: Row) -> float:
    """The difference of the reserved peaks."""
    return row.reserved
