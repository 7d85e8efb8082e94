"""What a model with few layers says of the whole one: sums over its repeating units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.worker.simulating.recorded import times
from oomdoctor.worker.tracing.tensors import logical_numel


class WholeModel:
    """`model` has few layers; `units` says by module path which unit of `depths` a layer is."""

    def __init__(
        self, model: Any, units: Mapping[str, Region], depths: Mapping[int, tuple[int, int]]
    ) -> None:
        self._model, self._units, self._depths = model, units, depths

    def unit_of(self, name: str) -> Region | None:
        """The unit of a parameter by its name, None outside of the repeating layers."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            unit = self._units.get(".".join(parts[:end]))
            if unit is not None:
                return unit
        return None

    def sum_of(self, by_region: Mapping[Region | None, int]) -> int:
        """A sum over units as it is at full depth."""
        return sum(n * times(region, self._depths) for region, n in by_region.items())

    def parameter_counts(self) -> tuple[int, int]:
        """(trainable, all) parameters."""
        trainable: dict[Region | None, int] = {}
        total: dict[Region | None, int] = {}
        for name, parameter in self._model.named_parameters():
            unit, number = self.unit_of(name), logical_numel(parameter)
            total[unit] = total.get(unit, 0) + number
            if parameter.requires_grad:
                trainable[unit] = trainable.get(unit, 0) + number
        return self.sum_of(trainable), self.sum_of(total)

    def gradient_bytes(self) -> int:
        """What the gradients of all trainable parameters take."""
        totals: dict[Region | None, int] = {}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                unit = self.unit_of(name)
                totals[unit] = totals.get(unit, 0) + parameter.untyped_storage().nbytes()
        return self.sum_of(totals)
