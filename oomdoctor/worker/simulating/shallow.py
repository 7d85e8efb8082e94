"""Configure a model with a few of its repeating layers, which stand for all of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from torch.nn import Module, Parameter

from oomdoctor.analysis.simulator.recorded import ParameterGroup, times
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.records.job.model import LayerStack
from oomdoctor.worker.tracing.tensors import local_part, logical_numel
from oomdoctor.worker.training.layers import INDICES, UNITS, kept_layers, part_of, stacks_of
from oomdoctor.worker.training.objectives.images import is_in_tower

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


_DEPTHS = {
    "tower": ("depth", "num_hidden_layers"),
    "encoder": ("num_layers", "encoder_layers", "num_hidden_layers"),
    "decoder": ("num_decoder_layers", "decoder_layers", "num_hidden_layers"),
    "": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
}


class IrregularLayersError(Exception):
    """The model built with fewer layers differs in more than its number of layers."""


def shallow_config(
    config: PretrainedConfig, stacks: tuple[LayerStack, ...]
) -> PretrainedConfig | None:
    """A copy of the configuration with `UNITS` units in each stack; None if no key sets the depth.

    Lists with one entry per layer are cut in the same way.
    """
    shallow = copy.deepcopy(config)
    for path, equal in groupby(stacks, key=lambda stack: stack.path):
        of_list = tuple(equal)
        if all(stack.units <= UNITS for stack in of_list):
            continue
        if not _set_depth(part_of(shallow, path), path, of_list):
            return None
    return shallow


def unrepeated(stack: LayerStack) -> LayerStack:
    """The stack with all of its layers in the prefix, so that none stands for others."""
    return replace(stack, prefix=stack.layers, period=1, units=0)


def in_units_of(stack: LayerStack, every: int) -> LayerStack:
    """The stack with units that are a multiple of `every` layers, so that all units are alike."""
    period = math.lcm(stack.period, every)
    return replace(stack, period=period, units=(stack.layers - stack.prefix) // period)


def after_frozen(stacks: tuple[LayerStack, ...], frozen: int) -> tuple[LayerStack, ...]:
    """The stacks with the first `frozen` layers of all in their prefixes: they have no gradients.

    `frozen` counts through all stacks, as `freeze` does.
    """
    rest = []
    for stack in stacks:
        here = min(frozen, stack.layers)
        frozen -= here
        skipped = -(-max(0, here - stack.prefix) // stack.period)
        prefix = min(stack.prefix + skipped * stack.period, stack.layers)
        units = (stack.layers - prefix) // stack.period
        rest.append(replace(stack, prefix=prefix, units=units))
    return tuple(rest)


def is_shallow(
    model: PreTrainedModel, config: PretrainedConfig, stacks: tuple[LayerStack, ...]
) -> bool:
    """Whether a model has the layers that its `shallow_config` was meant to give it."""
    kinds_at: dict[str, tuple[str, ...]] = {}
    wanted: dict[str, tuple[str, ...]] = {}
    for stack in stacks_of(model, config):
        kinds_at[stack.path] = kinds_at.get(stack.path, ()) + stack.kinds
    for stack in stacks:
        kept = tuple(stack.kinds[number] for number in _kept(stack))
        wanted[stack.path] = wanted.get(stack.path, ()) + kept
    return all(kinds_at.get(path) == kinds for path, kinds in wanted.items())


def depths_of(stacks: tuple[LayerStack, ...]) -> dict[int, tuple[int, int]]:
    """(simulated, real) units of each stack, by its number."""
    return {number: (min(stack.units, UNITS), stack.units) for number, stack in enumerate(stacks)}


def units_of(stacks: tuple[LayerStack, ...]) -> dict[str, Region]:
    """The unit of each simulated layer by module path; prefixes and tails have no unit."""
    units: dict[str, Region] = {}
    starts: dict[str, int] = {}
    for number, (simulated, _) in depths_of(stacks).items():
        stack = stacks[number]
        start = starts.get(stack.path, 0)
        starts[stack.path] = start + kept_layers(stack)
        for position in range(simulated * stack.period):
            path = f"{stack.path}.{start + stack.prefix + position}"
            units[path] = (number, position // stack.period)
    return units


def _kept(stack: LayerStack) -> list[int]:
    """The layers of a stack that stand for all: those of the first units, and the others."""
    repeated = stack.prefix + stack.units * stack.period
    simulated = stack.prefix + min(stack.units, UNITS) * stack.period
    return [*range(simulated), *range(repeated, stack.layers)]


def _set_depth(config: PretrainedConfig, path: str, stacks: Sequence[LayerStack]) -> bool:
    """Leave only the kept layers of a list, and their entries in lists with one a layer."""
    words = path.split(".")
    side = next((word for word in ("encoder", "decoder") if word in words), "")
    side = "tower" if is_in_tower(path) else side
    layers = sum(stack.layers for stack in stacks)
    named = [name for name in _DEPTHS[side] if getattr(config, name, None) == layers]
    if not named:
        return False
    kept = [stack.start + number for stack in stacks for number in _kept(stack)]
    for name, value in list(vars(config).items()):
        if name in INDICES:
            setattr(config, name, [kept.index(number) for number in value if number in kept])
        elif isinstance(value, list | tuple) and len(value) == layers:
            setattr(config, name, [value[number] for number in kept])
    for name in named:
        setattr(config, name, len(kept))
    return True


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

    def at_full_depth(self) -> Iterator[tuple[int, list[Parameter]]]:
        """The parameters in the order of their modules: how often, and those of a unit."""
        named = groupby(self._model.named_parameters(), key=lambda item: self.unit_of(item[0]))
        for unit, members in named:
            yield times(unit, self.depths), [parameter for _, parameter in members]

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The parameters at full depth, as a record."""
        of_units = []
        for number, parameters in self.at_full_depth():
            trained = tuple(parameter.requires_grad for parameter in parameters)
            of_units.append(ParameterGroup(number, tuple(map(logical_numel, parameters)), trained))
        return tuple(of_units)

    def parameter_counts(self) -> tuple[int, int]:
        """(trainable, all) parameters."""
        counted = [
            (group.times * elements, trained)
            for group in self.groups()
            for elements, trained in zip(group.elements, group.trained, strict=True)
        ]
        return sum(number for number, trained in counted if trained), sum(n for n, _ in counted)

    def gradient_bytes(self) -> int:
        """Bytes of the gradients of all trainable parameters."""
        return sum(
            number * local_part(parameter).untyped_storage().nbytes()
            for number, parameters in self.at_full_depth()
            for parameter in parameters
            if parameter.requires_grad
        )
