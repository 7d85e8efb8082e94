"""The work of a training step, from what a process launched on the emulated device.

An operator that launched something counts as it does in a simulated step: by the cost of its call.
Products and copies outside of any operator, or in one whose cost is not known, count by their own
numbers. Other kernels are known by their names, and count for no time.

The marks of the watch say where phases begin. What runs between steps, and evaluations within one,
counts as the forward pass; what comes after the last backward pass as the update.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

from oomdoctor.analysis.speed.collectives import Collective
from oomdoctor.analysis.speed.hosts import EAGER, Host
from oomdoctor.analysis.speed.traffic import HiddenBy, Transfer
from oomdoctor.records.job.costs import TF32, OpCost, element_bytes
from oomdoctor.records.job.launches import Launch

_BACKWARD, _AFTER, _UPDATE = "backward", "update", "optimizer"
_BEFORE = "load"
_UNSEEN = "a CUDA graph that was not captured here"
_BEGINS, _ENDS, _MADE, _RUN = 1, 2, 3, 4  # what happens to a graph
Unknown = tuple[str, tuple[int, ...]]
# The bytes of these calls are those of one rank's part. Who receives waits for who sends.
_OF_A_PART = ("all_gather", "reduce_scatter", "all_to_all")
_RECEIVES = "receive"
_HIDDEN: Mapping[str, HiddenBy] = {"forward": "micro_step", "backward": "backward"}


@dataclass(slots=True)
class MicroStep:
    """The operators of one micro-step in the order in which they ran, and what it sends."""

    forward: list[OpCost] = field(default_factory=list)
    backward: list[OpCost] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    replayed: int = 0
    """How many of its operators are launched by CUDA graphs, not by the host."""

    def host(self) -> Host:
        """What the host needs for each operator if it launches none of those in graphs."""
        operators = len(self.forward) + len(self.backward)
        if not self.replayed or not operators:
            return EAGER
        return Host(share=(operators - self.replayed) / operators)


@dataclass(slots=True)
class LaunchedStep:
    """An optimizer step: its micro-steps, its update, and what launched without a known cost.

    `number` is None if the process took no step. `kinds` counts launches, `products` those with
    the same (batch, m, n, k) and type, `unknown` kernels by name, with their grid and block.
    """

    number: int | None
    micro_steps: list[MicroStep]
    update: list[OpCost]
    update_transfers: list[Transfer]
    kinds: Counter[str]
    products: Counter[tuple[tuple[int, ...], str]]
    unknown: Counter[Unknown]
    ranks: int = 1

    def changed(self, change: Callable[[OpCost], OpCost]) -> LaunchedStep:
        """The same step with other costs of its operators."""
        micro_steps = [
            replace(
                micro,
                forward=list(map(change, micro.forward)),
                backward=list(map(change, micro.backward)),
            )
            for micro in self.micro_steps
        ]
        return replace(self, micro_steps=micro_steps, update=list(map(change, self.update)))

    def has_costs(self) -> bool:
        """Whether anything that was launched takes a known time."""
        return bool(self.update or any(m.forward or m.backward for m in self.micro_steps))


def last_step(launches: Sequence[Launch], costs: Sequence[OpCost | None]) -> LaunchedStep:
    """The last whole step of a process; `costs` are those of its kinds of calls."""
    launches = list(_run(launches))
    ends = [at for at, launch in enumerate(launches) if _ends_step(launch)]
    number = None if not ends else launches[ends[-1]].numbers[0]
    begin, end = _span(launches, ends)
    step = LaunchedStep(number, [MicroStep()], [], [], Counter(), Counter(), Counter())
    calls = {
        (launch.thread, launch.call): launch.numbers[0]
        for launch in launches[begin : end + 1]
        if launch.kind == "call"
    }
    of_call: defaultdict[tuple[int, int], list[Launch]] = defaultdict(list)
    for launch in launches[begin:end]:
        if launch.call and launch.kind not in ("call", "mark"):
            of_call[launch.thread, launch.call].append(launch)
    phase, begun = "forward", set[tuple[int, int]]()
    for launch in launches[begin:end]:
        if launch.kind == "mark":
            if launch.name is not None:
                phase = _next_phase(step, phase, launch.name)
            continue
        if launch.kind == "call":
            continue
        step.kinds[launch.kind] += 1
        if launch.kind == "graph" and launch.numbers[0] == _RUN:
            continue  # what it launches follows
        if launch.kind == "product":
            step.products[launch.numbers, launch.dtype or "unknown"] += 1
        if launch.kind == "collective":
            _send(step, phase, launch)
            continue
        place = launch.thread, launch.call
        if not launch.call or place not in calls:
            _add(step, phase, launch, *_alone([launch]))
        elif place not in begun:
            begun.add(place)
            _add(step, phase, launch, *_of_call(costs[calls[place]], of_call[place]))
    if len(step.micro_steps) > 1 and not step.micro_steps[-1].backward:
        last = step.micro_steps.pop()  # what follows the last backward pass is the update
        step.update[:0] = last.forward
    return step


def in_tf32(cost: OpCost) -> OpCost:
    """The cost of an operator if products of float32 were made in TF32."""
    return replace(cost, dtype=TF32) if (cost.kind, cost.dtype) == ("matmul", "float32") else cost


def _run(launches: Iterable[Launch]) -> Iterator[Launch]:
    """The launches that were run: those of a CUDA graph each time that it is, and not before."""
    captured: list[Launch] | None = None
    graphs: dict[int, list[Launch]] = {}
    runnable: dict[int, list[Launch]] = {}
    replays = 0
    for launch in launches:
        if launch.kind != "graph":
            if captured is None or _ends_step(launch):
                yield launch
            else:
                captured.append(launch)
            continue
        what, first, second = launch.numbers
        if what == _BEGINS:
            captured = []
        elif what == _ENDS:
            graphs[first], captured = captured or [], None
        elif what == _MADE:
            runnable[first] = graphs.get(second, [])
        elif first in runnable:
            replays += 1
            yield launch
            for each in runnable[first]:  # calls are told apart by their numbers
                call = each.call and each.call + (replays << 32)
                yield replace(each, call=call, replay=replays)
        else:
            yield replace(launch, numbers=(0, first, second))


def _ends_step(launch: Launch) -> bool:
    return launch.kind == "mark" and launch.name is None


def _span(launches: Sequence[Launch], ends: Sequence[int]) -> tuple[int, int]:
    """Where the last whole step begins and ends; the first one begins after the model is loaded."""
    if len(ends) > 1:
        return ends[-2], ends[-1]
    phases = (
        at
        for at, launch in enumerate(launches)
        if launch.kind == "mark" and launch.name is not None and launch.name != _BEFORE
    )
    return next(phases, 0), ends[-1] if ends else len(launches)


def _next_phase(step: LaunchedStep, phase: str, name: str) -> str:
    """The phase after a mark; a forward pass after another phase is of the next micro-step.

    So are the passes for another optimizer, as of a GAN, which follow an update in the same step.
    """
    new = "backward" if name == _BACKWARD else name if name in (_AFTER, _UPDATE) else "forward"
    if new == "forward" and phase in (_AFTER, _UPDATE):
        step.micro_steps.append(MicroStep())
    return new


def _add(
    step: LaunchedStep,
    phase: str,
    launch: Launch,
    costs: Iterable[OpCost],
    unknown: Iterable[Unknown],
) -> None:
    micro = step.micro_steps[-1]
    lists = {"forward": micro.forward, "backward": micro.backward}
    to = lists.get(phase, step.update)
    before = len(to)
    to.extend(costs)
    if launch.replay and to is not step.update:
        micro.replayed += len(to) - before
    step.unknown.update(unknown)


def _of_call(cost: OpCost | None, launches: Sequence[Launch]) -> tuple[list[OpCost], list[Unknown]]:
    """What an operator costs, and the kernels whose cost is not known."""
    if cost is None:
        return _alone(launches)
    products = [launch for launch in launches if launch.kind == "product"]
    if cost.kind == "matmul" and any(launch.dtype == TF32 for launch in products):
        cost = replace(cost, dtype=TF32)
    if cost.flops or not products:
        return [cost], []
    costs, _ = _alone(products)  # the operator is not known to multiply
    return [*costs, cost] if len(products) < len(launches) else costs, []


def _alone(launches: Iterable[Launch]) -> tuple[list[OpCost], list[Unknown]]:
    """The costs of launches by their own numbers, and those that have none."""
    costs: list[OpCost] = []
    unknown: list[Unknown] = []
    for launch in launches:
        if launch.kind == "product" and launch.dtype is not None:
            costs.append(product_cost(launch))
        elif launch.kind in ("copy", "fill"):
            costs += _moved(launch)
        else:
            name = _UNSEEN if launch.kind == "graph" else launch.name
            numbers = launch.numbers if launch.kind == "kernel" else ()
            unknown.append((name or "a kernel without a name", numbers))
    return costs, unknown


def product_cost(launch: Launch) -> OpCost:
    """The cost of a product by its shape and type: each matrix moves once."""
    batch, rows, columns, depth = launch.numbers
    assert launch.dtype is not None
    elements = batch * (rows * depth + depth * columns + rows * columns)
    return OpCost(
        launch.name or "product",
        "matmul",
        launch.dtype,
        2.0 * prod(launch.numbers),
        float(elements * element_bytes(launch.dtype)),
        shape=launch.numbers,
    )


def _moved(launch: Launch) -> list[OpCost]:
    size = float(launch.numbers[0])
    if launch.kind == "fill":
        return [OpCost("memset", "elementwise", "uint8", 0.0, size)]
    if launch.direction == "within":
        return [OpCost("memcpy", "elementwise", "uint8", 0.0, 2 * size)]
    return [OpCost("memcpy", "copy", "uint8", 0.0, size)] if launch.direction != "on_host" else []


def _send(step: LaunchedStep, phase: str, launch: Launch) -> None:
    size, ranks = launch.numbers
    step.ranks = max(step.ranks, ranks)
    name = launch.name or ""
    if name == _RECEIVES:
        return
    whole = size * ranks if name in _OF_A_PART else size
    hidden = _HIDDEN.get(phase, "nothing")
    kind = cast("Collective", name)  # the emulator knows no others
    transfer = Transfer(name, kind, whole, "micro_step", hidden, ranks=ranks)
    to = step.update_transfers if hidden == "nothing" else step.micro_steps[-1].transfers
    to.append(transfer)
