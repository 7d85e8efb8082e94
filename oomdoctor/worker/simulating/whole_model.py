"""Sums over the whole model, from a model with few of its repeating layers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from oomdoctor.analysis.simulator.recorded import ParameterGroup, times
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.worker.tracing.tensors import local_part, logical_numel

if TYPE_CHECKING:
    from torch.nn import Module


class WholeModel:
    """`model` has few layers; `units` maps the path of a layer to its unit of `depths`."""

    def __init__(
        self, model: Module, units: Mapping[str, Region], depths: Mapping[int, tuple[int, int]]
    ) -> None:
        self._model, self._units, self.depths = model, units, depths

    def unit_of(self, name: str) -> Region | None:
        """The unit of a parameter by its name; None outside the repeating layers."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            unit = self._units.get(".".join(parts[:end]))
            if unit is not None:
                return unit
        return None

    def sum_of(self, by_region: Mapping[Region | None, int]) -> int:
        """The sum over all units at full depth."""
        return sum(n * times(region, self.depths) for region, n in by_region.items())

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

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The parameters at full depth, in the order of their modules."""
        named = groupby(self._model.named_parameters(), key=lambda item: self.unit_of(item[0]))
        found = []
        for unit, members in named:
            parameters = [parameter for _, parameter in members]
            found.append(
                ParameterGroup(
                    times(unit, self.depths),
                    tuple(map(logical_numel, parameters)),
                    tuple(parameter.requires_grad for parameter in parameters),
                )
            )
        return tuple(found)

    def gradient_bytes(self) -> int:
        """Bytes of the gradients of all trainable parameters."""
        totals: dict[Region | None, int] = {}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                unit = self.unit_of(name)
                totals[unit] = (
                    totals.get(unit, 0) + local_part(parameter).untyped_storage().nbytes()
                )
        return self.sum_of(totals)
