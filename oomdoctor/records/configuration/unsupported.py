"""Values of a rung's keys that are never supported somewhere, from `data/unsupported.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from oomdoctor.package_data import data_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.optimizers import OPTIMIZERS

Where = Literal["anywhere", "simulated", "cpu"]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One row: `key` has one of `values`, or any value but the default where `values` is empty.

    `where` says which runs it holds for: all, simulations (`plan`), or a CPU as the device. The
    reason may use `{value}`. `instead` is what to do. It does not hold for the values of `sharding`
    in `unless`.
    """

    key: str
    values: tuple[str | int, ...]
    where: Where
    reason: str
    instead: str | None = None
    unless: tuple[str, ...] = ()

    def matches(self, value: object) -> bool:
        """Whether a rung with this value of `key` is not supported."""
        return value in self.values if self.values else value != getattr(_PLAIN, self.key)

    def text(self, value: object) -> str:
        """The reason and what to do, for people."""
        reason = self.reason.format(value=value)
        return f"{reason}; {self.instead}" if self.instead else reason


_PLAIN = TrainConfig()


@cache
def unsupported_rows() -> tuple[Unsupported, ...]:
    """The rows of `data/unsupported.toml`."""
    return tuple(map(_row, data_of("unsupported.toml")["rows"]))


def _row(row: dict[str, Any]) -> Unsupported:
    libraries = row.pop("libraries", ())
    own = [name for name, optimizer in OPTIMIZERS.items() if optimizer.library in libraries]
    values, unless = (*row.pop("values", ()), *own), tuple(row.pop("unless", ()))
    return Unsupported(**row, values=values, unless=unless)


def unsupported(config: TrainConfig, where: Where) -> str | None:
    """Why a rung is not supported there, by the first row that says so; None if none does."""
    for row in unsupported_rows():
        value = getattr(config, row.key)
        if row.where == where and row.matches(value) and config.sharding not in row.unless:
            return row.text(value)
    return None
